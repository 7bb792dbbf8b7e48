"""Does `fdgsec audit` find planted faults, and does it pass sound defenses? Forty audits of each, one seed per audit.

    python -m benchmarks.audit_faults                        # about an hour on one core; goes on where it stopped
    python -m benchmarks.audit_faults --only style-seed-32   # one row
    python -m benchmarks.audit_faults --table                # write the table into docs/audit.md

Every audit is one line of benchmarks/results/audit-faults.jsonl. Faults are those of tests/support/broken_defenses.py;
an audit finds a fault where it ends with exit code 1. `--runs` is small where the fault shows in few runs."""

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch

from benchmarks.written_tables import write_table
from fdgsec.cli.app import main as fdgsec
from fdgsec.runtime.registry import DEFENSES

RESULTS = Path(__file__).parent / "results" / "audit-faults.jsonl"
AUDITS = 40
CAUGHT, PASSED = 38, 6
"""At least so many of 40 audits of a fault find it; at most so many of a sound defense say that there is one."""
SMALL = ("--per-domain", "20", "--image-size", "32", "--encoder", "pixels", "--norm", "group")
FEW = ("--distinct-releases", "256")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row: target and defense of the audit, the class that is registered as this defense, and further options."""

    target: str
    defense: str
    broken: str = ""
    options: Sequence[str] = FEW

    @property
    def arguments(self) -> list[str]:
        """The command's."""
        return ["--target", self.target, "--defense", self.defense, *SMALL, *self.options]


STYLES, WHOLE = "private-styles:epsilon=4", ("--set", "method.plan.batch_size=1024")
CASES: Mapping[str, Case] = {
    "style-seed-32": Case(
        target="ccst-overall", defense=STYLES, broken="StylesFromA32BitSeed",
        options=("--runs", "20", "--distinct-releases", str(2**18)),
    ),
    "score-seed-32": Case(
        target="feddag-dp", defense="private-scores:epsilon=4", broken="ScoresFromA32BitSeed",
        options=("--runs", "20", "--rounds", "1", "--distinct-releases", str(2**18)),
    ),
    "style-noise-of-two-rounds": Case(
        target="fedalign", defense=STYLES, broken="StylesWithOneNoisePerRun",
        options=("--runs", "50", "--rounds", "2", *FEW),
    ),
    "noise-of-style-and-model": Case(
        target="ccst-overall", defense=STYLES, broken="StylesAndModelsWithOneNoise",
        options=("--runs", "50", "--rounds", "1", *FEW),
    ),
    "one-noise-for-means-and-squares": Case(
        target="ccst-overall", defense=STYLES, broken="StylesWithOneNoiseForMeansAndSquares",
        options=("--runs", "20", "--distinct-releases", "0"),
    ),
    "one-noise-for-all-rows": Case(
        target="ccst-single", defense=STYLES, broken="RowsWithOneNoise",
        options=("--runs", "20", "--set", "method.styles_per_client=8", "--distinct-releases", "0"),
    ),
    "one-noise-per-tensor": Case(
        target="fedavg", defense="dp-fedavg:epsilon=2", broken="ModelsWithOneNoisePerTensor",
        options=("--runs", "4", "--backbone", "tiny", "--distinct-releases", "0"),
    ),
    "private-divisor-add-remove": Case(
        target="fedavg", defense="dp-sgd:epsilon=2", broken="DPSGDWithAPrivateDivisor",
        options=("--canaries", "64", "--guesses", "8", "--distinct-releases", "0"),
    ),
    "private-divisor-zero-out": Case(
        target="fedavg", defense="dp-sgd:epsilon=2", broken="DPSGDAmongContributors",
        options=("--canaries", "64", "--guesses", "8", "--distinct-releases", "0"),
    ),
    "means-clipped-alone": Case(
        target="ccst-overall", defense="private-styles:epsilon=2", broken="StylesWithMeansClippedAlone",
        options=("--runs", "100", "--distinct-releases", "0"),
    ),
    "one-number-unclipped": Case(
        target="ccst-single", defense="private-styles:epsilon=2", broken="StylesWithOneNumberUnclipped",
        options=("--encoder", "mini", "--runs", "100", "--distinct-releases", "0"),
    ),
    "noise-where-changed": Case(
        target="fedavg", defense="dp-fedavg:epsilon=2", broken="ModelsWithNoiseWhereTheyChanged",
        options=("--runs", "48", "--distinct-releases", "0"),
    ),
    "noise-on-a-fifth": Case(
        target="fedavg", defense="dp-fedavg:epsilon=2", broken="ModelsWithNoiseOnAFifth",
        options=("--runs", "60", "--distinct-releases", "0"),
    ),
    "sound: private-styles, ccst-overall": Case(
        target="ccst-overall", defense=STYLES, options=("--runs", "200", *FEW)
    ),
    "sound: private-styles, ccst-single": Case(target="ccst-single", defense=STYLES, options=("--runs", "200", *FEW)),
    "sound: dp-sgd": Case(
        target="fedavg", defense="dp-sgd:epsilon=2", options=(*WHOLE, "--distinct-releases", "64")
    ),
    "sound: dp-fedavg": Case(target="fedavg", defense="dp-fedavg:epsilon=2", options=("--runs", "24", *FEW)),
    "sound: private-scores": Case(
        target="feddag-dp", defense="private-scores:epsilon=4", options=("--runs", "200", "--rounds", "1", *FEW)
    ),
}  # fmt: skip


@contextmanager
def registered(case: Case) -> Iterator[None]:
    """The broken class in place of the registered one."""
    known, name = cast(dict[str, Any], DEFENSES), case.defense.partition(":")[0]
    before = known[name]
    if case.broken:
        known[name] = f"tests.support.broken_defenses:{case.broken}"
    try:
        yield
    finally:
        known[name] = before


def audited(name: str, seed: int) -> dict[str, object]:
    """One audit: what it found, and its seconds."""
    case, started = CASES[name], time.monotonic()
    with registered(case), TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        code = fdgsec(["audit", *case.arguments, "--seed", str(seed), "--out", folder])
        found = json.loads((Path(folder) / "audit.json").read_text())
    kept = ("claimed_epsilon", "relation", "lower_bound", "ceiling", "exceeded", "repeated_noise", "distinct_releases",
            "scale_bound", "seeding", "faults")  # fmt: skip
    return {
        "case": name, "seed": seed, "code": code, **{key: found[key] for key in kept},
        "seconds": round(time.monotonic() - started, 1),
    }  # fmt: skip


def rows() -> list[dict[str, Any]]:
    """All audits so far."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.is_file() else []


def table() -> str:
    """Markdown: in how many audits each row ended with exit code 1, by what, and what was asked."""
    every, lines = rows(), ["| defense | found | by | command |", "|---|---|---|---|"]
    for name, case in CASES.items():
        own = [row for row in every if row["case"] == name]
        found = sum(row["code"] == 1 for row in own)
        kinds = sorted({fault for row in own for fault in row["faults"]})
        held = found <= PASSED if not case.broken else found >= CAUGHT
        verdict = "" if len(own) < AUDITS or held else " (not as it should be)"
        by = "; ".join(f"{kind} ({sum(kind in row['faults'] for row in own)})" for kind in kinds)
        lines.append(f"| {name} | {found} of {len(own)}{verdict} | {by} | `{' '.join(case.arguments)}` |")
    return "\n".join(lines)


def main() -> None:
    """Run the audits that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=CASES, action="append")
    parser.add_argument("--audits", type=int, default=AUDITS)
    parser.add_argument("--table", action="store_true")
    told = parser.parse_args()
    torch.set_num_threads(1)
    done = {(row["case"], row["seed"]) for row in rows()}
    for seed, name in product(range(0 if told.table else told.audits), told.only or CASES):
        if (name, seed) not in done:
            line = json.dumps(audited(name, seed))
            with RESULTS.open("a") as file:
                file.write(line + "\n")
    print(table())
    if told.table:
        write_table("audit.md", "planted faults", table())


if __name__ == "__main__":
    main()
