"""The accuracy of CCST with public and with private styles, as a table in docs/results.md.

    fdgsec bench --ablation cpu-private-styles --dataset pacs --methods fedavg,ccst,private-8 --seeds 3 \
        --set method.plan.learning_rate=3e-4 --workers 2 --out benchmarks/results/cpu-private-styles
    python -m benchmarks.private_styles_table

The first command goes on where it stopped. Only seeds count of which every arm has all domains, where there are any.
Differences are between cells of the same domain and seed. Of one seed the interval is of test images alone, as if the
images of two arms were different ones, which they are not: it is too wide for that reason, and too narrow because
another seed is another training. Of several it is Student's, of the differences of their means over domains."""

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
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

RESULTS = Path(__file__).parent / "results" / "cpu-private-styles" / "results.json"
BASELINE, PUBLIC = "fedavg", "ccst"
PRIVATE = "private-"
"""How the names of arms begin whose styles are private: these are compared with CCST's public ones too."""
WORDS = {
    "fedavg": "FedAvg, which shares no styles",
    "ccst": "CCST",
    "private-8": "CCST, `private-styles:epsilon=8`",
    "private-1": "CCST, `private-styles:epsilon=1`",
}
NORMAL = 1.959964  # two-sided 95%

Row = Mapping[str, Any]


def table(rows: Sequence[Row]) -> str:
    """One line per arm: each unseen domain's accuracy, their mean, own domains, and the differences to FedAvg and CCST.

    An arm has a mean once it has every domain. Raises DataError for two cells of one arm, domain and seed: they are
    runs of different settings."""
    cells = Counter((row["arm"], row["domain"], row["seed"]) for row in rows)
    twice = next((cell for cell, count in cells.items() if count > 1), None)
    if twice is not None:
        raise DataError(
            f"{RESULTS.name} has several cells of {twice[0]}, {twice[1]}, seed {twice[2]}: keep one's settings."
        )
    domains = sorted({str(row["domain"]) for row in rows})
    rows = of_whole_seeds(rows)
    arms = [arm for arm in WORDS if any(row["arm"] == arm for row in rows)]
    header = ["arm", *domains, "mean", "own domains", "minus FedAvg, points", "minus CCST, points", "CPU minutes"]
    return markdown_table(header, [_line(rows, arm, domains) for arm in arms], numbers="right").strip()


def of_whole_seeds(rows: Sequence[Row]) -> Sequence[Row]:
    """The cells of those seeds of which every arm has every domain; all where there is no such seed."""
    wanted = {(row["arm"], row["domain"]) for row in rows}
    arms, domains = {arm for arm, _ in wanted}, {domain for _, domain in wanted}
    cells = Counter(row["seed"] for row in rows)
    whole = [row for row in rows if cells[row["seed"]] == len(arms) * len(domains)]
    return whole or rows


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
    """Write the table of the stored cells."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args(arguments)
    write_table("results.md", "private styles", table(list(stored(RESULTS).values())))


def _line(rows: Sequence[Row], arm: str, domains: Sequence[str]) -> list[str]:
    own, columns = _of(rows, arm), _columns(rows, arm)
    known = [share for row in own if (share := own_domains_of(row)) is not None]
    minutes = sum(row["processor_seconds"] for row in own) / 60 / len(own)
    mean = _decimals(sum(map(_mean, columns.values())) / len(columns)) if len(columns) == len(domains) else "-"
    cells = [_cell(columns[domain]) if domain in columns else "-" for domain in domains]
    own_domains = _decimals(sum(known) / len(known)) if len(known) == len(own) else "-"
    cost = _gap(rows, arm, PUBLIC) if arm.startswith(PRIVATE) else ""
    return [WORDS[arm], *cells, mean, own_domains, _gap(rows, arm), cost, f"{minutes:.0f}"]


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
