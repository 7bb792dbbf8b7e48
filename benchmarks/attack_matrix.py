"""Every target x defense x adversary x attack on few shapes: `python -m benchmarks.attack_matrix run [--part I/N]`.

A cell is one run of `fdgsec attack` with all attacks and with options that keep each of them to seconds. Each attack is
done, or skipped for a reason; a defense that a target cannot use is refused, with a reason. What `--dry-run` says of an
attack must agree with the run. Cells are appended to the results as they end, and are not run again. `python -m
benchmarks.attack_matrix table` writes how they ended into docs/attacks.md. Nothing here is a finding about a method:
with these options no attack is strong."""

import argparse
import json
import os
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from unittest.mock import patch

from benchmarks.written_tables import write_table
from fdgsec.attacks.style_inversion.attack import StyleInversion
from fdgsec.attacks.style_inversion.inverter import Schedule
from fdgsec.experiments.attack.run_attacks import attack, dry_run
from fdgsec.experiments.run_config import attack_settings, target_method
from fdgsec.runtime.errors import FdgsecError
from fdgsec.runtime.progress import NoProgress
from fdgsec.runtime.registry import target_named, targets
from fdgsec.threats.adversary import ADVERSARIES

RESULTS = Path(__file__).parent / "results" / "attack-matrix.jsonl"
DEFENSES: Mapping[str, str] = {
    "": "",
    "dp-fedavg": "dp-fedavg:epsilon=8,buffers=received",
    "dp-sgd": "dp-sgd:epsilon=8",
    "k-anonymous": "k-anonymous:k=2",
    **{name: name for name in ("guards", "private-scores", "private-styles", "quantize", "secure-aggregation")},
    "shuffle": "shuffle",
    "style-noise": "style-noise:p=0.1,scale=0.05",
}
"""Every bundled defense with usual options; "" is no defense."""
SMALL = (
    "attacks.membership.sizes=[10]", "attacks.membership.clients=6", "attacks.membership.row_size=10",
    "attacks.membership.simulated_sizes=[10]", "attacks.membership.simulated_clients=4",
    "attacks.membership.shadows=6", "attacks.membership.tried=10", "attacks.membership.cropped_clients=1",
    "attacks.membership.cropped_size=10", "attacks.membership.crops=2",
    "attacks.reidentification.gallery=60", "attacks.reidentification.rows=40",
    "attacks.set-reconstruction.sizes=[10]", "attacks.set-reconstruction.clients=4",
    "attacks.set-reconstruction.grouped=40",
    "attacks.differencing.clients=6", "attacks.differencing.size=10",
    "attacks.linkage.clients=6", "attacks.label-inference.per_class=6", "attacks.label-inference.folds=2",
    "attacks.domain-inference.per_class=6", "attacks.domain-inference.clients=4", "attacks.domain-inference.records=10",
    "attacks.property-inference.clients=5", "attacks.property-inference.sizes=[10]",
    "attacks.property-inference.shadows=60", "attacks.property-inference.simulated=12",
    "attacks.inter-client.gallery=60", "attacks.inter-client.per_class=6", "attacks.inter-client.images=10",
    "attacks.interpolation-leakage.clients=3", "attacks.interpolation-leakage.records=8",
    "attacks.interpolation-leakage.federations=4", "attacks.interpolation-leakage.simulations=150",
    "attacks.interpolation-leakage.kept=60",
    "attacks.pool-exposure.sizes=[10]", "attacks.pool-exposure.clients=3", "attacks.pool-exposure.rounds=[1]",
    "attacks.pool-exposure.per_class=4", "attacks.pool-exposure.gallery=40",
    "attacks.style-inversion.losses=['mse']", "attacks.style-inversion.priors=['intra']",
    "attacks.style-inversion.size=8",
    "attacks.optimization-inversion.restarts=1", "attacks.optimization-inversion.steps=2",
    "attacks.optimization-inversion.side=32",
    "attacks.generator-leakage.candidates=6", "attacks.generator-leakage.references=4",
    "attacks.generator-leakage.largest=8",
    "attacks.model-membership.candidates=6", "attacks.model-membership.references=4",
    "attacks.gradient-inversion.records=[1]", "attacks.gradient-inversion.count=1",
    "attacks.gradient-inversion.steps=2",
    "attacks.poisoning.seeds=1", "attacks.poisoning.rounds=1", "attacks.poisoning.images=20",
    "attacks.poisoning.clients=3", "attacks.poisoning.records=6", "attacks.poisoning.hostile=[1]",
    "attacks.poisoning.forgeries=['update x10']",
)  # fmt: skip
"""Options that keep an attack to seconds."""
SETTINGS: Mapping[str, object] = {
    "per_domain": 84, "image_size": 16, "device": "cpu", "backbone": "tiny", "norm": "group", "encoder": "pixels",
}  # fmt: skip
SHORT = ("method.warm_up=0", "method.plan.batch_size=8", "method.plan.steps=1")
"""Options of methods, where a method has them."""
Key = tuple[str, str, str]


@contextmanager
def brief_inversion() -> Iterator[None]:
    """Train style inversion's generator for two steps inside the block."""
    quick = StyleInversion.PROFILES["quick"]
    effort = replace(quick.effort, first=Schedule(steps=2, check=1, patience=1), images=60)
    brief = replace(quick, effort=effort, records=6, per_class=2, clients=4, holding=10)
    with patch.object(StyleInversion, "PROFILES", {"quick": brief}):
        yield


def cells() -> Iterator[Key]:
    """All targets, defenses and adversaries."""
    yield from product(DEFENSES, ADVERSARIES, targets())


def assignments_of(target: str) -> Sequence[str]:
    """The options of a cell that its target has."""
    method = target_method(target_named(target))
    return [*SMALL, *(item for item in SHORT if hasattr(method, item.split(".")[1]))]


def cell(defense: str, adversary: str, target: str) -> dict[str, object]:
    """Run a cell; a fault of the code is kept with its last line."""
    started = time.monotonic()
    method = target_method(target_named(target))
    given: dict[str, object] = {
        **SETTINGS, "rounds": 1 if method.needs_training or defense in ("dp-sgd", "dp-fedavg") else 0,
    }  # fmt: skip
    found: dict[str, object] = {"target": target, "defense": defense, "adversary": adversary}
    stack = [DEFENSES[defense]] if defense else []
    options = assignments_of(target)
    try:
        settings = {**given, "dataset": "shapes", "adversary": adversary, "defenses": stack, "seed": 0}
        config = attack_settings(target, settings, profile="quick", assignments=options)
        said = dict(dry_run(config, data_root=None, progress=NoProgress()))
        report = attack(config, data_root=None, out=None, fresh=False, progress=NoProgress())
        found["attacks"] = {result.name: [result.status, result.reason or ""] for result in report.attacks}
        found["dry_run_differs"] = [
            result.name
            for result in report.attacks
            if said[result.name].startswith("skipped") is not (result.status == "skipped")
        ]
    except FdgsecError as error:
        found["refused"] = str(error)
    except Exception:  # noqa: BLE001 - a fault of any kind is what this looks for
        found["fault"] = traceback.format_exc().strip().splitlines()[-1]
    return {**found, "seconds": round(time.monotonic() - started, 1)}


def stored() -> dict[Key, Mapping[str, object]]:
    """The cells that have been run."""
    if not RESULTS.exists():
        return {}
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    return {(row["defense"], row["adversary"], row["target"]): row for row in rows}


def run(part: int, parts: int, only: Sequence[str]) -> None:
    """Run every cell of a part that is not stored."""
    done = stored()
    for number, key in enumerate(cells()):
        if number % parts != part or key in done or (only and not set(only) & set(key)):
            continue
        row = cell(*key)
        with RESULTS.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(*key, row.get("refused") or row.get("fault") or summary(row), row["seconds"], flush=True)


def summary(row: Mapping[str, object]) -> str:
    """How many attacks ended how, with the failed ones."""
    failed = [f"{name}: {reason}" for name, (status, reason) in _attacks(row).items() if status == "failed"]
    return f"{dict(Counter(status for status, _ in _attacks(row).values()))} {failed or ''}"


def table() -> str:
    """How the stored cells of each defense and adversary ended, in Markdown: attacks by status, cells refused."""
    lines = [
        "| defense | adversary | targets run | refused | attacks done | skipped | failed | dry run differs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows = list(stored().values())
    for defense, adversary in product(DEFENSES, ADVERSARIES):
        cells_of = [row for row in rows if (row["defense"], row["adversary"]) == (defense, adversary)]
        statuses = Counter(status for row in cells_of for status, _ in _attacks(row).values())
        numbers = (
            len(cells_of), sum("refused" in row for row in cells_of), statuses["done"], statuses["skipped"],
            statuses["failed"] + sum("fault" in row for row in cells_of), sum(map(_differences, cells_of)),
        )  # fmt: skip
        lines.append(f"| {defense or 'none'} | {adversary} | {' | '.join(map(str, numbers))} |")
    return "\n".join([*lines, "", f"{len(rows)} of {len(list(cells()))} cells have been run."])


def _attacks(row: Mapping[str, object]) -> Mapping[str, tuple[str, str]]:
    attacks = row.get("attacks", {})
    assert isinstance(attacks, dict)
    return attacks


def _differences(row: Mapping[str, object]) -> int:
    differing = row.get("dry_run_differs", [])
    assert isinstance(differing, list)
    return len(differing)


def main() -> None:
    """Run cells, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=("run", "table"))
    parser.add_argument("--part", default="0/1", help="I/N: every N-th cell, from the I-th")
    parser.add_argument("--only", nargs="*", default=(), help="names of targets, defenses or adversaries")
    given = parser.parse_args()
    if given.verb == "table":
        print(table())
        write_table("attacks.md", "attack matrix", table())
        return
    os.environ.setdefault("MPLBACKEND", "Agg")
    part, parts = map(int, given.part.split("/"))
    with brief_inversion():
        run(part, parts, given.only)


if __name__ == "__main__":
    main()
