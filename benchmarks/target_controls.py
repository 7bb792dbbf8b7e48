"""Each bundled attack through each bundled target on swatches: `python -m benchmarks.target_controls run`.

The control of fdgsec/experiments/attack/target_control.py, which reports of plug-ins run by themselves. One line of
benchmarks/results/target-controls.jsonl per target and adversary; one that stands there is not run again, but for the
attacks that `run --attack` names. `table` in the place of `run` writes the table into docs/attacks.md."""

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

from benchmarks.written_tables import write_table
from fdgsec.experiments.attack.run_attacks import dry_run, through_target
from fdgsec.experiments.attack.target_control import control_settings
from fdgsec.experiments.run_config import RunConfig, attack_settings, target_method
from fdgsec.metrics.measurement import Control
from fdgsec.runtime.cache_files import write_atomic
from fdgsec.runtime.progress import NoProgress
from fdgsec.runtime.registry import names, target_named, targets

RESULTS = Path(__file__).parent / "results" / "target-controls.jsonl"
ADVERSARIES = ("server", "client")
Key = tuple[str, str]


def settings_of(target: str, adversary: str) -> RunConfig:
    """The settings of the report whose controls are run; its rounds are only whether it trains."""
    method = target_method(target_named(target))
    given = {"rounds": int(method.needs_training), "adversary": adversary, "device": "cpu", "seed": 0}
    return attack_settings(target, given)


def applicable(config: RunConfig, attacks: Sequence[str]) -> list[str]:
    """Those of `attacks` that would run on the target."""
    return [
        name
        for settings in control_settings(config, attacks)
        for name, said in dry_run(settings, data_root=None, progress=NoProgress())
        if not said.startswith("skipped")
    ]


def controlled(target: str, adversary: str, attacks: Sequence[str] = ()) -> dict[str, object]:
    """The controls of one target and one adversary, of `attacks` where any are named."""
    started, config = time.monotonic(), settings_of(target, adversary)
    able = [name for name in applicable(config, attacks or names("attacks")) if not attacks or name in attacks]
    found = through_target(config, able, NoProgress())
    rows = {name: _document(control) for name, control in found.items()}
    seconds = round(time.monotonic() - started, 1)
    return {"target": target, "adversary": adversary, "controls": rows, "seconds": seconds}


def _document(control: Control) -> dict[str, object]:
    row = control.measurement
    return {
        "passed": control.passed, "measurement": row.name, "value": row.value, "low": row.low, "high": row.high,
        "chance": row.chance, "n": row.n, "slice": dict(row.slice), "reason": row.unavailable or "",
    }  # fmt: skip


def stored() -> Mapping[Key, Mapping[str, object]]:
    """The lines of the results."""
    if not RESULTS.exists():
        return {}
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    return {(row["target"], row["adversary"]): row for row in rows}


def run(adversaries: Sequence[str], only: Sequence[str], attacks: Sequence[str]) -> None:
    """Run every target and adversary that is not stored; of stored ones `attacks`, where they apply or are new."""
    known = {name for row in stored().values() for name in _controls(row)}
    for adversary, target in product(adversaries, targets()):
        before = stored().get((target, adversary))
        standing = {} if before is None else _controls(before)
        again = [name for name in attacks if name in standing or name not in known]
        if (only and target not in only) or (before is not None and not again):
            continue
        row = controlled(target, adversary, again)
        _store(row if before is None else {**before, "controls": {**standing, **_controls(row)}})
        print(target, adversary, row["seconds"], *_failed(row), flush=True)


def _store(row: Mapping[str, object]) -> None:
    """Write the line of one target and adversary in the place of the one that stands there."""
    rows = {**stored(), (str(row["target"]), str(row["adversary"])): row}
    write_atomic(RESULTS, "".join(json.dumps(each) + "\n" for each in rows.values()))


def _controls(row: Mapping[str, object]) -> Mapping[str, Mapping[str, object]]:
    controls = row["controls"]
    assert isinstance(controls, dict)
    return controls


def table() -> str:
    """The strongest row of each control, in Markdown, by target, adversary and attack."""
    lines = ["| target | attack | adversary | strongest row | value | 95% interval | chance | n | |", "|" + "---|" * 9]
    words: list[str] = []
    for target, adversary, attack, control in _rows():
        word = "passed" if control["passed"] else "failed" if control["value"] is not None else "no verdict"
        words.append(word)
        said = (f"{control['measurement']} | {_number(control['value'])} | [{_number(control['low'])}, "
                f"{_number(control['high'])}] | {_number(control['chance'])} | {control['n']}")  # fmt: skip
        if control["value"] is None:
            said = f"{control['reason']} | | | | "
        lines.append(f"| {target} | {attack} | {adversary} | {said} | {word} |")
    counts = ", ".join(f"{count} {word}" for word, count in Counter(words).items())
    return "\n".join([*lines, "", f"{counts}."])


def _rows() -> Iterator[tuple[str, str, str, Mapping[str, object]]]:
    for (target, adversary), row in sorted(stored().items(), key=lambda item: list(targets()).index(item[0][0])):
        for attack, control in _controls(row).items():
            yield target, adversary, attack, control


def _failed(row: Mapping[str, object]) -> list[str]:
    found = _controls(row).items()
    return [f"{name}: {control['reason'] or 'no leak'}" for name, control in found if not control["passed"]]


def _number(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float | int) else ""


def main() -> None:
    """Run the controls, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=("run", "table"))
    parser.add_argument("--adversary", nargs="*", choices=ADVERSARIES, default=(), help="adversaries")
    parser.add_argument("--only", nargs="*", default=(), help="names of targets")
    parser.add_argument(
        "--attack", nargs="*", default=(), help="attacks to run again where they stand in the results, or new ones"
    )
    given = parser.parse_args()
    if given.verb == "run":
        run(given.adversary or ADVERSARIES, given.only, given.attack)
        return
    print(table())
    write_table("attacks.md", "target controls", table())


if __name__ == "__main__":
    main()
