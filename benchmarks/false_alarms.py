"""How often does each kind of row show a leak where answers and truth are independent?

    python -m benchmarks.false_alarms                       # 2,000 nulls of each design, goes on where it stopped
    python -m benchmarks.false_alarms --kinds linkage harm  # of these kinds alone
    python -m benchmarks.false_alarms --summary             # the stored table
    python -m benchmarks.false_alarms --summary --table     # the highest rate of each row, into docs/metrics.md

The judge measures answers that `benchmarks.exchangeable` draws independently of the truth. A false alarm is a
row whose 95% interval excludes chance in the direction of a leak, nominally 2.5% of the rows at most. A rate is too
high where Clopper-Pearson's 95% interval of it lies above 2.5%. Rows without an interval, as where answers are too few,
have no verdict and count as no alarm; so do rows that are unavailable."""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.exchangeable import choices, estimates
from benchmarks.exchangeable.design import Design
from benchmarks.written_tables import write_table
from fdgsec.metrics.interval import TAIL
from fdgsec.metrics.measurement import Measurement
from fdgsec.metrics.proportion_intervals import clopper_pearson
from fdgsec.runtime.random_streams import child, stream
from fdgsec.threats.judging.judge import Judge

RESULTS = Path(__file__).parent / "results" / "false-alarms.jsonl"
NULLS = 2000


@dataclass(frozen=True, kw_only=True)
class Rate:
    """How many of `nulls` rows of one measurement of a design were false alarms, and how many had a verdict at all."""

    kind: str
    design: str
    measurement: str
    nulls: int
    judged: int
    alarms: int

    @property
    def bounds(self) -> tuple[float, float]:
        """The 95% interval of the rate."""
        interval = clopper_pearson(self.alarms, self.nulls)
        return interval.low, interval.high

    @property
    def too_high(self) -> bool:
        """Whether the rate exceeds the nominal one beyond chance."""
        return self.bounds[0] > TAIL

    def cells(self) -> list[str]:
        """One row of the table."""
        low, high = self.bounds
        held = f"{self.alarms / self.nulls:.2%} [{low:.2%}, {high:.2%}]"
        return [self.kind, self.measurement, self.design, f"{self.nulls:,}", f"{self.judged:,}", held]


def designs() -> list[Design]:
    """All designs, in the order of the table."""
    return [*choices.designs(), *estimates.designs()]


def measured(design: Design, nulls: int) -> list[Rate]:
    """Judge `nulls` draws of a design, and count the false alarms of each measurement."""
    judge, seen, alarms = Judge(bootstrap_repeats=design.repeats), dict[str, int](), dict[str, int]()
    for number in range(nulls):
        rng = stream(number, "attack", "false alarms", design.kind, design.name)
        answers, cases, truths = design.draw(child(rng, "null"))
        for row in judge.measure(answers, cases, truths, child(rng, "judge")):
            name = _name(row)
            seen[name] = seen.get(name, 0) + row.judged
            alarms[name] = alarms.get(name, 0) + (row.judged and row.p_value is not None and row.p_value <= TAIL)
    return [
        Rate(
            kind=design.kind, design=design.name, measurement=name, nulls=nulls, judged=seen[name], alarms=alarms[name]
        )
        for name in seen
        if seen[name]
    ]


def _name(row: Measurement) -> str:
    told = [str(row.slice[key]) for key in ("matching", "over") if key in row.slice]
    return " ".join([row.name, *told])


def stored(path: Path) -> list[Rate]:
    """The rates of earlier calls."""
    return [Rate(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def table(rates: Sequence[Rate]) -> str:
    """All rates, one a line."""
    head = ["kind", "row", "design", "nulls", "with a verdict", "false alarms (nominal 2.5% at most)"]
    lines = [head, ["---"] * len(head), *(rate.cells() for rate in rates)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def worst(rates: Sequence[Rate]) -> Mapping[tuple[str, str], Rate]:
    """The largest rate of each row of each kind."""
    found: dict[tuple[str, str], Rate] = {}
    for rate in rates:
        key = (rate.kind, rate.measurement)
        if key not in found or rate.alarms / rate.nulls > found[key].alarms / found[key].nulls:
            found[key] = rate
    return found


def main() -> None:
    """Measure the designs that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", nargs="+", default=sorted({design.kind for design in designs()}))
    parser.add_argument("--nulls", type=int, default=NULLS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--summary", action="store_true", help="print the stored table only")
    parser.add_argument("--table", action="store_true", help="write the highest rates into docs/metrics.md")
    told = parser.parse_args()
    done = {(rate.kind, rate.design) for rate in stored(told.out)}
    for design in [] if told.summary else designs():
        if design.kind not in told.kinds or (design.kind, design.name) in done:
            continue
        begun = time.monotonic()
        found = measured(design, told.nulls)
        with told.out.open("a") as out:
            out.writelines(json.dumps(vars(rate)) + "\n" for rate in found)
        print(f"{design.kind}, {design.name}: {time.monotonic() - begun:.1f} s", flush=True)
    rates = stored(told.out)
    print(table(rates))
    if told.table:
        write_table("metrics.md", "false alarms", table(list(worst(rates).values())))
    high = [rate for rate in rates if rate.too_high]
    print(f"{len(rates)} rates, {len(high)} above the nominal one beyond chance")


if __name__ == "__main__":
    main()
