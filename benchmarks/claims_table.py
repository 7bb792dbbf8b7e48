r"""Writes the table of a registered run of the claims into docs/results.md.

python -m benchmarks.claims_table benchmarks/results/claims-registration-3/claims.json \
    --withdrawn ccst-content --withdrawn fisc-no-additional-risk

Of a claim whose verdict is withdrawn no number is given; the others' are those of the run, corrected as they were then.

Numbers are the lowest and the highest over seeds, each in the population that comes nearest to contradicting the claim
by all of its criteria together, as `fdgsec claims` wrote them."""

import argparse
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from benchmarks.written_tables import write_table

WORDS = {
    "auc": "AUC",
    "balanced_accuracy": "balanced accuracy",
    "gallery_top1": "picks its image",
    "psnr_gain": "gain in dB",
}


def measured(column: Mapping[str, Any], measurement: str) -> str:
    """Describe what one encoder gave, ".81 to .88"; empty where no seed has this measurement."""
    found = sorted(
        seed["value"] for seed in column["seeds"] if seed["measurement"] == measurement and seed["value"] is not None
    )
    if not found:
        return ""
    low, high = (f"{value:.2f}".removeprefix("0") for value in (found[0], found[-1]))
    return low if low == high else f"{low} to {high}"


def row(claim: Mapping[str, Any], encoders: list[str]) -> str:
    """Write the line of one claim, with a column for each encoder; a claim without one stands under the first."""
    columns = claim.get("columns", [])  # a sentence that is not a testable claim has none
    measurement = next((seed["measurement"] for column in columns for seed in column["seeds"]), "")
    by_name = {column["encoder"]: measured(column, measurement) for column in columns}
    own = next((text for name, text in by_name.items() if name not in encoders), "")
    cells = [by_name.get(name, "") for name in encoders]
    cells[0] = cells[0] or own
    p_value = claim.get("adjusted_p_value")
    shown = "" if p_value is None else f"{p_value:.2g}"
    number = WORDS.get(measurement, measurement)
    return "| " + " | ".join([claim["id"], claim["verdict"], number, *cells, shown]) + " |"


def table(document: Mapping[str, Any], withdrawn: Collection[str] = ()) -> str:
    """Write the table of all claims of a `claims.json`, without the numbers of those whose verdict is `withdrawn`."""
    encoders = list(document["encoders"])
    head = ["claim", "verdict", "number", f"`{encoders[0]}`, or the method's own", *encoders[1:], "Holm's p"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    empty = {"verdict": "withdrawn", "columns": [], "adjusted_p_value": None}
    claims = [{**claim, **empty} if claim["id"] in withdrawn else claim for claim in document["claims"]]
    return "\n".join(lines + [row(claim, encoders) for claim in claims])


def main() -> None:
    """Write the table of the file that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--withdrawn", action="append", default=[], metavar="CLAIM")
    given = parser.parse_args()
    write_table("results.md", "claims", table(json.loads(given.file.read_text()), given.withdrawn))


if __name__ == "__main__":
    main()
