"""What attacks still read behind the defenses that reports recommend, on PACS.

    FDGSEC_DATA=... python -m benchmarks.what_is_left    # hours on one core; goes on where it stopped

Each case is `fdgsec attack` at 128 px with encoder `mini` (StableFDG: the first stage of the untrained tiny backbone;
FedAlign: pixels), seed 0, profile quick, sketch unseen, and the attacks on whose data it is. Of each attack the row is
kept that stands for it in the report (fdgsec.experiments.report.headlines), and behind a defense the same row, of the
same measurement and slice, of the same method with the same options and without the defense. Reports go to
runs/what-is-left, the rows to benchmarks/results/what-is-left.json. `fdgsec.experiments.report.remedies` quotes them on
pages, and notebook 02 draws them."""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fdgsec
from benchmarks.written_tables import write_table
from fdgsec.experiments.report.findings import finding_of
from fdgsec.experiments.report.schema import AttackResult
from fdgsec.experiments.report.words import MEASURE_WORDS, rate, short
from fdgsec.metrics.measurement import Measurement

RESULTS = Path(__file__).parent / "results" / "what-is-left.json"
RUNS = Path("runs/what-is-left")
POOLED, ROWS = ("set-reconstruction", "membership", "linkage"), ("reidentification", "membership", "linkage")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A target behind a defense as --defense takes it, empty for none, with what --set has to say for it."""

    target: str
    attacks: Sequence[str]
    defense: str = ""
    assignments: Sequence[str] = ()

    @property
    def method(self) -> str:
        """The target with its options in words."""
        return f"{self.target}, one style of all images" if self.assignments else self.target

    @property
    def name(self) -> str:
        """The folder of its run."""
        return f"{self.method}-{self.defense or 'none'}".translate(str.maketrans(":,= ", "----"))


OF_ALL_IMAGES = ("method.local_clustering=false", "method.sigma=mixture")
"""Under which FISC takes private-styles: the pooled style of all images, another method than the paper's."""
NOISE = {"ccst-overall": 1, "ccst-single": 20, "stablefdg": 500, "fisc": 100, "fedalign": 1}
"""By target the size of style-noise that reports recommend."""
KINDS = {"ccst-overall": POOLED, "ccst-single": ROWS, "stablefdg": POOLED, "fisc": POOLED, "fedalign": ROWS}
STYLES = "private-styles:epsilon=8"
CASES = [
    case
    for target, attacks in KINDS.items()
    for case in (
        Case(target=target, attacks=attacks),
        *([Case(target=target, attacks=attacks, assignments=OF_ALL_IMAGES)] if target == "fisc" else []),
        Case(
            target=target, attacks=attacks, defense=STYLES, assignments=OF_ALL_IMAGES if target == "fisc" else (),
        ),
        Case(target=target, attacks=attacks, defense=f"style-noise:p=0.1,scale={NOISE[target]}"),
    )
]  # fmt: skip
"""The first case of a method has no defense."""


def rows_of(case: Case, report: fdgsec.AttackReport, bare: fdgsec.AttackReport) -> list[dict[str, Any]]:
    """The row that stands for each attack of a report, with its value in the `bare` report of the same target without a
    defense; an attack without one says so."""
    found = []
    for result in report.attacks:
        finding = finding_of(result)
        row = None if finding is None else finding.row
        without = None if row is None else _same_row(row, next(one for one in bare.attacks if one.name == result.name))
        found.append({
            "target": case.target, "method": case.method, "defense": case.defense,
            "assignments": list(case.assignments), "encoder": report.encoder, "attack": result.name,
            "verdict": "none" if finding is None else finding.verdict,
            **({} if row is None else {
                "measurement": row.name, "slice": dict(row.slice), "value": row.value, "low": row.low,
                "high": row.high, "baseline": row.chance, "n": row.n,
                "without": None if without is None else {"value": without.value, "n": without.n},
            }),
        })  # fmt: skip
    return found


def _same_row(row: Measurement, result: AttackResult) -> Measurement | None:
    """The measurement of another run with this one's name and slice; its metric is the best one for that run."""

    def kind(one: Measurement, *left_out: str) -> tuple[str, dict[str, str | int]]:
        return one.name, {key: value for key, value in one.slice.items() if key not in left_out}

    exact = [one for one in result.measurements if kind(one) == kind(row)]
    alike = [one for one in result.measurements if kind(one, "distance") == kind(row, "distance")]
    return next(iter([*exact, *alike]), None)


def in_words(rows: Sequence[Mapping[str, Any]], target: str, defense: str) -> str:
    """What is left of a target behind a defense, with the same row without it; pages quote it."""
    said = []
    for row in rows:
        if (row["target"], row["defense"]) != (target, defense) or row.get("value") is None:
            continue
        bare = _undefended(rows, row["method"])
        bounds = "" if row["low"] is None else f" [{short(row['low'])}, {short(row['high'])}]"
        said.append(
            f"{row['attack']}: {_word(row)} {rate(row['value'])}{bounds}, baseline {rate(row['baseline'])} "
            f"({_without(row, bare[row['attack']])})"
        )
    return "; ".join(said)


def _undefended(rows: Sequence[Mapping[str, Any]], method: str) -> Mapping[str, Mapping[str, Any]]:
    """By attack the row of a method without a defense."""
    return {row["attack"]: row for row in rows if row["method"] == method and not row["defense"]}


def _without(row: Mapping[str, Any], bare: Mapping[str, Any]) -> str:
    """What the same row has without the defense; of runs that did not keep it, what stands for the attack there."""
    if row.get("without") is not None:
        return f"without it {rate(row['without']['value'])}"
    kinds = [(one["measurement"], {k: v for k, v in one["slice"].items() if k != "distance"}) for one in (row, bare)]
    if kinds[0] == kinds[1]:
        return f"without it {rate(bare['value'])}"
    return f"without it, in other rows: {_word(bare)} {rate(bare['value'])}"


def _word(row: Mapping[str, Any]) -> str:
    return MEASURE_WORDS.get(row["measurement"], row["measurement"])


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a table of docs/results.md: a line for each case, a column for each attack."""
    attacks = ("set-reconstruction", "reidentification", "membership", "linkage")
    lines = ["| target | defense | " + " | ".join(attacks) + " |", "|---" * (2 + len(attacks)) + "|"]
    for method, defense in dict.fromkeys((row["method"], row["defense"]) for row in rows):
        found = {row["attack"]: row for row in rows if (row["method"], row["defense"]) == (method, defense)}
        bare = _undefended(rows, method)
        cells = [_cell(found.get(attack), bare.get(attack)) for attack in attacks]
        lines.append(f"| {method} | {f'`{defense}`' if defense else 'none'} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(row: Mapping[str, Any] | None, bare: Mapping[str, Any] | None) -> str:
    if row is None or bare is None or row.get("value") is None:
        return ""
    bounds = "" if row["low"] is None else f" [{short(row['low'])}, {short(row['high'])}]"
    verdict = row["verdict"].partition(":")[0]
    without = f"; {_without(row, bare)}" if row["defense"] else ""
    return (
        f"{_word(row)}{_of(row)} {rate(row['value'])}{bounds}, baseline {_fine(row['baseline'])}, n = {row['n']:,}: "
        f"{verdict}{without}"
    )


def _fine(value: float) -> str:
    """A baseline, of which values next to it may be a few times as large: with three decimals below .01."""
    return f"{value:.3f}".lstrip("0") if 0.0005 <= value < 0.01 else rate(value)


def _of(row: Mapping[str, Any]) -> str:
    """Of which images a row is: of two linked releases whether they are the same, else the domain and what of it."""
    found = row["slice"]
    if row["attack"] == "linkage":
        return " (the same images twice)" if found.get("data") == "the same" else " (other images)"
    domain = str(found["domain"]).replace("_", " ")
    if row["attack"] == "reidentification":
        return f" ({domain}, rows {str(found['rows']).replace('_', ' ')})"
    among = f" among {found['gallery']}" if "gallery" in found else " images"
    return f" ({domain}, clients of {found['n_per_client']}{among})"


def kept(rows: Sequence[Mapping[str, Any]], case: Case, attacks: Sequence[str]) -> list[dict[str, Any]]:
    """The stored rows of a case that are not of these attacks; none of a case that was not run."""
    return [
        {**row, "method": case.method}
        for row in rows
        if (row["target"], row["defense"], tuple(row["assignments"])) == (case.target, case.defense, case.assignments)
        and row["attack"] not in attacks
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the cases that are not there yet, and write the rows of all.

    With --attack, cases that were run before, and whose report is gone, are run again by these attacks alone, and their
    other rows stay."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--attack", action="append", default=[])
    only = parser.parse_args(arguments).attack
    stored = json.loads(RESULTS.read_text())["rows"] if only else []
    rows: list[dict[str, Any]] = []
    bare: dict[str, fdgsec.AttackReport] = {}
    for case in CASES:
        others = [] if (RUNS / case.name).is_dir() else kept(stored, case, only)
        attacks = [name for name in case.attacks if name in only] if others else case.attacks
        folder = RUNS / "-".join([case.name, *(attacks if others else [])])
        if folder.is_dir():
            report = fdgsec.AttackReport.load(folder)
        else:
            report = fdgsec.attack(
                case.target, dataset="pacs", image_size=128, attacks=attacks, out=folder,
                defenses=(case.defense,) if case.defense else (), assignments=case.assignments,
            )  # fmt: skip
        more = rows_of(case, report, bare.setdefault(case.method, report))
        found = {row["attack"]: row for row in [*others, *more]}
        rows += [found[name] for name in case.attacks]
        print(case.name, *(f"{row['attack']}: {row.get('value')} ({row['verdict']})" for row in more), flush=True)
        if not only or len(rows) >= len(stored):  # the rows that stay are read from there
            RESULTS.write_text(json.dumps({"cases": len(CASES), "rows": rows}, indent=1) + "\n")
    write_table("results.md", "what is left", table(rows))


if __name__ == "__main__":
    main()
