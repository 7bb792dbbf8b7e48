"""The accuracy of CCST with public and with private styles, as a table in docs/results.md.

    fdgsec bench --ablation cpu-private-styles --dataset pacs --methods fedavg,ccst,private-8 --seeds 1 \
        --set method.plan.learning_rate=3e-4 --workers 2 --out benchmarks/results/cpu-private-styles
    python -m benchmarks.private_styles_table

The first command goes on where it stopped. Cells of several seeds are averaged; intervals are of test images alone, as
if the images of two arms were different ones, which they are not: they are too wide for that reason, and too narrow
because another seed is another training."""

from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

from benchmarks.written_tables import write_table
from fdgsec.experiments.bench.comparability import NOT_LEARNED, has_learned, own_domains_of
from fdgsec.experiments.bench.run_bench import stored
from fdgsec.experiments.report.text_tables import markdown_table
from fdgsec.experiments.report.words import short

RESULTS = Path(__file__).parent / "results" / "cpu-private-styles" / "results.json"
BASELINE = "fedavg"
WORDS = {
    "fedavg": "FedAvg, which shares no styles",
    "ccst": "CCST",
    "private-8": "CCST, `private-styles:epsilon=8`",
    "private-1": "CCST, `private-styles:epsilon=1`",
}
NORMAL = 1.959964  # two-sided 95%

Row = Mapping[str, Any]


def table(rows: Sequence[Row]) -> str:
    """One line per arm: each unseen domain's accuracy, their mean, own domains, and the difference to FedAvg.

    An arm has a mean once it has every domain; the difference is over the domains that both have."""
    domains = sorted({str(row["domain"]) for row in rows})
    arms = [arm for arm in WORDS if any(row["arm"] == arm for row in rows)]
    header = ["arm", *domains, "mean", "own domains", "minus FedAvg, points", "CPU minutes"]
    return markdown_table(header, [_line(rows, arm, domains) for arm in arms], numbers="right").strip()


def difference(rows: Sequence[Row], arm: str) -> tuple[float, float, float]:
    """The mean difference to FedAvg over the columns that both have, in points, and its 95% interval."""
    own, base = _columns(rows, arm), _columns(rows, BASELINE)
    shared = sorted(own.keys() & base.keys())
    middle = sum(_mean(own[key]) - _mean(base[key]) for key in shared) / len(shared)
    spread = sqrt(sum(_variance(own[key]) + _variance(base[key]) for key in shared)) / len(shared)
    return 100 * middle, 100 * (middle - NORMAL * spread), 100 * (middle + NORMAL * spread)


def main() -> None:
    """Write the table of the stored cells."""
    write_table("results.md", "private styles", table(list(stored(RESULTS).values())))


def _line(rows: Sequence[Row], arm: str, domains: Sequence[str]) -> list[str]:
    columns = _columns(rows, arm)
    own = [own_domains_of(row) or 0.0 for row in rows if row["arm"] == arm]
    minutes = [row["processor_seconds"] / 60 for row in rows if row["arm"] == arm]
    gap = "" if arm == BASELINE else "{:+.1f} [{:+.1f}, {:+.1f}]".format(*difference(rows, arm))
    learned = has_learned(*([row for row in rows if row["arm"] == name] for name in (arm, BASELINE)))
    gap += "" if learned else f"; {NOT_LEARNED}"
    mean = _decimals(sum(map(_mean, columns.values())) / len(columns)) if len(columns) == len(domains) else "-"
    cells = [_cell(columns[domain]) if domain in columns else "-" for domain in domains]
    return [
        WORDS[arm], *cells, mean, _decimals(sum(own) / len(own)), gap, f"{sum(minutes) / len(minutes):.0f}",
    ]  # fmt: skip


def _columns(rows: Sequence[Row], arm: str) -> dict[str, list[Row]]:
    """The scores of one arm by unseen domain, one for each seed."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row["arm"] == arm:
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
