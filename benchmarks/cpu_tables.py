"""Accuracies in the `cpu` protocol and its ablations, as tables in docs/results.md.

    fdgsec bench --ablation cpu-private-styles --dataset pacs --methods fedavg,ccst,private-8 --seeds 3 \
        --set method.plan.learning_rate=3e-4 --workers 2 --out benchmarks/results/cpu-private-styles
    fdgsec bench --protocol cpu --dataset pacs --seeds 1 --set method.plan.learning_rate=3e-4 --workers 2 \
        --methods fedavg,fedavg-equal,fedprox,feddg-ga,mixstyle,ccst,stablefdg,fisc,fedalign,fedccrl,centralized \
        --out benchmarks/results/cpu-one-rate
    fdgsec bench --ablation cpu-dp-head --dataset pacs --seeds 5 --workers 2 --out benchmarks/results/cpu-dp-head
    python -m benchmarks.cpu_tables

The commands of `bench` go on where they stopped. Of an arm only seeds count that have every domain that it has at all,
where there are any. Differences are between cells of the same domain and seed. Of one seed the interval is of test
images alone, as if the images of two arms were different ones, which they are not: it is too wide for that reason, and
too narrow because another seed is another training. Of several it is Student's, of the differences of their means over
domains."""

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

from scipy import stats

from benchmarks.written_tables import write_table
from fdgsec.experiments.bench.comparability import NOT_LEARNED, has_learned, own_domains_of, paired, unequal_steps
from fdgsec.experiments.bench.run_bench import stored
from fdgsec.experiments.report.text_tables import markdown_table
from fdgsec.experiments.report.words import short
from fdgsec.runtime.errors import DataError

RESULTS = Path(__file__).parent / "results"
BASELINE, PUBLIC = "fedavg", "ccst"
PRIVATE = "private-"
"""How the names of arms begin whose styles are private: these are compared with CCST's public ones too."""
NORMAL = 1.959964  # two-sided 95%

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A table: the `name` of its marks in the page, the folder of its runs, and the arms in order with their words."""

    name: str
    folder: str
    words: Mapping[str, str]

    @property
    def rows(self) -> Sequence[Row]:
        """The stored cells of its arms; those of the runs that chose a learning rate have no accuracy to show."""
        cells = stored(RESULTS / self.folder / "results.json").values()
        return [row for row in cells if row["arm"] in self.words and "value" in row["accuracy"]]


PRIVATE_STYLES = Shown(
    name="private styles", folder="cpu-private-styles",
    words={
        "fedavg": "FedAvg, which shares no styles", "ccst": "CCST", "private-8": "CCST, `private-styles:epsilon=8`",
        "private-1": "CCST, `private-styles:epsilon=1`",
    },
)  # fmt: skip
ONE_RATE = Shown(
    name="one learning rate", folder="cpu-one-rate",
    words={
        "fedavg": "FedAvg", "fedavg-equal": "FedAvg, every client alike", "fedprox": "FedProx", "feddg-ga": "FedDG-GA",
        "mixstyle": "MixStyle", "ccst": "CCST", "stablefdg": "StableFDG", "fisc": "FISC", "fedalign": "FedAlign",
        "fedccrl": "FedCCRL",
        "centralized": "one party with all images",
    },
)  # fmt: skip
DP_HEAD = Shown(
    name="private heads", folder="cpu-dp-head",
    words={"fedavg": "FedAvg, not private", "clip": "clipped, without noise"}
    | {f"dp-{epsilon}": f"epsilon {epsilon}" for epsilon in (16, 8, 4, 2, 1)},
)  # fmt: skip
TABLES = (PRIVATE_STYLES, ONE_RATE, DP_HEAD)


def table(rows: Sequence[Row], words: Mapping[str, str] = PRIVATE_STYLES.words) -> str:
    """One line per arm of `words`: each unseen domain's accuracy, their mean, own domains, and the difference to FedAvg
    (of private styles to CCST, too).

    An arm has a mean once it has every domain. Raises DataError for two cells of one arm, domain and seed: they are
    runs of different settings."""
    cells = Counter((row["arm"], row["domain"], row["seed"]) for row in rows)
    twice = next((cell for cell, count in cells.items() if count > 1), None)
    if twice is not None:
        raise DataError(
            f"results.json has several cells of {twice[0]}, {twice[1]}, seed {twice[2]}: keep one's settings."
        )
    domains = sorted({str(row["domain"]) for row in rows})
    rows = of_whole_seeds(rows)
    arms = [arm for arm in words if any(row["arm"] == arm for row in rows)]
    bases = ["minus FedAvg, points", *(["minus CCST, points"] if any(arm.startswith(PRIVATE) for arm in words) else [])]
    header = ["arm", *domains, "mean", "own domains", *bases, "CPU minutes"]
    lines = [[words[arm], *_line(rows, arm, domains, of_styles=len(bases) > 1)] for arm in arms]
    return markdown_table(header, lines, numbers="right").strip()


def of_whole_seeds(rows: Sequence[Row]) -> Sequence[Row]:
    """The cells of those seeds of which an arm has every domain that it has at all; all where there is no such seed."""
    found = list[Row]()
    for arm in {row["arm"]: None for row in rows}:
        own = _of(rows, arm)
        domains, cells = {row["domain"] for row in own}, Counter(row["seed"] for row in own)
        found += [row for row in own if cells[row["seed"]] == len(domains)] or own
    return found


def by_seed(rows: Sequence[Row], arm: str, base: str = BASELINE) -> Mapping[int, float]:
    """The mean difference to the arm `base` over domains, in points, of each seed."""
    found: dict[int, list[float]] = {}
    for own, other in paired(_of(rows, arm), _of(rows, base)):
        found.setdefault(int(own["seed"]), []).append(own["accuracy"]["value"] - other["accuracy"]["value"])
    return {seed: 100 * sum(gaps) / len(gaps) for seed, gaps in sorted(found.items())}


def difference(rows: Sequence[Row], arm: str, base: str = BASELINE) -> tuple[float, float, float] | None:
    """The mean difference to the arm `base` over the domains that both have, in points, and its 95% interval.

    Each domain's is over the seeds that both have there; None without such a cell. The interval is over seeds where
    there are several, else over test images."""
    seeds = list(by_seed(rows, arm, base).values())
    if len(seeds) > 1:
        middle = sum(seeds) / len(seeds)
        error = sqrt(sum((gap - middle) ** 2 for gap in seeds) / (len(seeds) - 1) / len(seeds))
        reach = float(stats.t.ppf(0.975, len(seeds) - 1)) * error
        return middle, middle - reach, middle + reach
    found: dict[str, list[tuple[Row, Row]]] = {}
    for own, other in paired(_of(rows, arm), _of(rows, base)):
        found.setdefault(str(own["domain"]), []).append((own["accuracy"], other["accuracy"]))
    if not found:
        return None
    sides = [[[pair[side] for pair in pairs] for side in (0, 1)] for pairs in found.values()]
    middle = sum(_mean(own) - _mean(other) for own, other in sides) / len(sides)
    spread = sqrt(sum(_variance(own) + _variance(other) for own, other in sides)) / len(sides)
    return 100 * middle, 100 * (middle - NORMAL * spread), 100 * (middle + NORMAL * spread)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the tables of the stored cells."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args(arguments)
    for shown in TABLES:
        write_table("results.md", shown.name, table(shown.rows, shown.words))


def _line(rows: Sequence[Row], arm: str, domains: Sequence[str], *, of_styles: bool) -> list[str]:
    own, columns = _of(rows, arm), _columns(rows, arm)
    known = [share for row in own if (share := own_domains_of(row)) is not None]
    minutes = sum(row["processor_seconds"] for row in own) / 60 / len(own)
    mean = _decimals(sum(map(_mean, columns.values())) / len(columns)) if len(columns) == len(domains) else "-"
    cells = [_cell(columns[domain]) if domain in columns else "-" for domain in domains]
    own_domains = _decimals(sum(known) / len(known)) if len(known) == len(own) else "-"
    cost = [_gap(rows, arm, PUBLIC) if arm.startswith(PRIVATE) else ""] if of_styles else []
    return [*cells, mean, own_domains, _gap(rows, arm), *cost, f"{minutes:.1f}" if minutes < 1 else f"{minutes:.0f}"]


def _gap(rows: Sequence[Row], arm: str, base: str = BASELINE) -> str:
    """The difference to the arm `base`, with what forbids the comparison."""
    if arm == base:
        return ""
    found, own, other = difference(rows, arm, base), _of(rows, arm), _of(rows, base)
    if found is None:
        return "-"
    reasons = [unequal_steps(own, other), "" if has_learned(own, other) else NOT_LEARNED]
    seeds = list(by_seed(rows, arm, base).values())
    each = f" ({', '.join(f'{gap:+.1f}' for gap in seeds)})" if len(seeds) > 1 else ""
    return "; ".join(["{:+.1f} [{:+.1f}, {:+.1f}]".format(*found) + each, *filter(None, reasons)])


def _of(rows: Sequence[Row], arm: str) -> list[Row]:
    return [row for row in rows if row["arm"] == arm]


def _columns(rows: Sequence[Row], arm: str) -> dict[str, list[Row]]:
    """The scores of one arm by unseen domain, one for each seed."""
    found: dict[str, list[Row]] = {}
    for row in _of(rows, arm):
        found.setdefault(str(row["domain"]), []).append(row["accuracy"])
    return found


def _mean(scores: Sequence[Row]) -> float:
    return sum(float(score["value"]) for score in scores) / len(scores)


def _variance(scores: Sequence[Row]) -> float:
    """Of the mean accuracy over drawings of the test images, which all seeds share."""
    return _mean(scores) * (1 - _mean(scores)) / int(scores[0]["n"])


def _cell(scores: Sequence[Row]) -> str:
    if len(scores) > 1:
        return f"{_decimals(_mean(scores))} ({len(scores)} seeds)"
    (score,) = scores
    return f"{_decimals(score['value'])} [{short(score['low'])}, {short(score['high'])}], n = {score['n']:,}"


def _decimals(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


if __name__ == "__main__":
    main()
