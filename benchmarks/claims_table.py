"""Writes the table of registered runs of the claims into docs/results.md.

python -m benchmarks.claims_table benchmarks/results/claims-registration-3/claims.json \\
    benchmarks/results/claims-registration-4/claims.json

A later file takes the place of an earlier one in the claims that it has; Holm's correction is over all of them.

Numbers are the lowest and the highest over seeds, each in the population that comes nearest to contradicting the claim
by all of its criteria together, as `fdgsec claims` wrote them."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.written_tables import write_table
from fdgsec.metrics.significance import holm

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


def joined(documents: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The claims of the first of several `claims.json`, each as the last file that has it, corrected together."""
    latest = {claim["id"]: claim for document in documents for claim in document["claims"]}
    tested = {name: claim["p_value"] for name, claim in latest.items() if claim.get("p_value") is not None}
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
    return [{**claim, "adjusted_p_value": corrected.get(name)} for name, claim in latest.items()]


def table(documents: Sequence[Mapping[str, Any]]) -> str:
    """Write the table of all claims of several `claims.json` with the same encoders."""
    encoders = list(documents[0]["encoders"])
    head = ["claim", "verdict", "number", f"`{encoders[0]}`, or the method's own", *encoders[1:], "Holm's p"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + [row(claim, encoders) for claim in joined(documents)])


def main() -> None:
    """Write the table of the files that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    found = [json.loads(file.read_text()) for file in parser.parse_args().files]
    write_table("results.md", "claims", table(found))


if __name__ == "__main__":
    main()
