"""From finished cells to tables: means over seeds, paired differences, traffic and time, in four formats."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy import stats

from fdgsec.experiments.bench.protocols import Metric, Protocol

Row = Mapping[str, Any]
MEASURED: Mapping[Metric, str] = {"accuracy": "accuracy", "auc": "weighted AUC", "f1": "weighted F1"}
"""The name of each metric in tables."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training run of a table; `settings` is the hash of everything that decides its numbers."""

    arm: str
    domain: str
    validation: str
    seed: int
    settings: str

    @property
    def key(self) -> str:
        """The cell's key in the results file."""
        split = f"{self.validation}>{self.domain}" if self.validation else self.domain
        return f"{self.arm}/{split}/seed{self.seed}/{self.settings[:16]}"


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A mean over seeds with Student's 95 % interval; `low` and `high` are None for fewer than two values."""

    value: float
    low: float | None
    high: float | None
    n: int

    def document(self) -> dict[str, float | int | None]:
        """Plain data."""
        return {"value": self.value, "low": self.low, "high": self.high, "n": self.n}


def mean_of(values: Sequence[float]) -> Mean:
    """Average `values` with their interval by Student's t. Raises ValueError for none."""
    if not values:
        raise ValueError("a mean needs at least one value.")
    count = len(values)
    middle = sum(values) / count
    if count < 2:
        return Mean(value=middle, low=None, high=None, n=count)
    error = math.sqrt(sum((value - middle) ** 2 for value in values) / (count - 1) / count)
    half = float(stats.t.ppf(0.975, count - 1)) * error
    return Mean(value=middle, low=middle - half, high=middle + half, n=count)


def summary(
    table: Protocol, dataset: str, rows: Sequence[Row], *, planned: int, changed: Sequence[str] = ()
) -> dict[str, Any]:
    """The table as plain data: per arm and domain the mean score, the paper's, and the difference to the baseline.

    Scores are fractions, `paper` the paper's percentages. "accuracy" holds the protocol's metric; for an arm that
    adapts, its accuracy after adaptation. "average" is over domains, of seeds with all domains; the paper's average is
    included only if its domains are the same. `changed` lists the user's changes to the protocol."""
    arms = list(dict.fromkeys(str(row["arm"]) for row in rows))
    domains = list(dict.fromkeys(str(row["domain"]) for row in rows))
    measured = {(row["arm"], row["domain"], row["seed"]): score_of(row, table.metric) for row in rows}
    scores = {key: value for key, value in measured.items() if value is not None}
    found: dict[str, object] = {}
    for arm in arms:
        columns = {name: _seeds(scores, arm, [name]) for name in domains}
        columns["average"] = _seeds(scores, arm, domains)
        base = {name: _seeds(scores, table.baseline, [name]) for name in domains}
        base["average"] = _seeds(scores, table.baseline, domains)
        own = [row for row in rows if row["arm"] == arm]
        found[arm] = {
            "accuracy": {name: mean_of(list(seeds.values())).document() for name, seeds in columns.items() if seeds},
            "paper": _comparable(table.printed(dataset, arm), domains),
            "difference": _differences(columns, base) if arm != table.baseline else {},
            "other_metrics": _others(own, table.metric),
            "bytes_per_round_and_client": _traffic(own),
            "seconds_per_run": sum(float(row["seconds"]) for row in own) / len(own),
            "cells": len(own),
        }
    return {
        "schema": 1, "title": table.title, "source": table.source, "dataset": dataset, "metric": table.metric,
        "baseline": table.baseline, "changed": list(changed), "domains": domains, "finished": len(rows),
        "planned": planned, "arms": found,
    }  # fmt: skip


def score_of(row: Row, metric: Metric) -> float | None:
    """One run's score, a fraction: after adaptation where the run adapted, None where the metric was undefined."""
    scores = row["accuracy"]
    if metric == "accuracy":
        return float(scores.get("adapted", scores)["value"])
    return float(scores[metric]["value"]) if metric in scores else None


def _comparable(printed: Mapping[str, float], domains: Sequence[str]) -> dict[str, float]:
    """The paper's numbers, without its average if that is over other domains than the table's."""
    whole = set(printed) - {"average"} == set(domains)
    return {name: value for name, value in printed.items() if whole or name != "average"}


def _seeds(scores: Mapping[tuple[str, str, int], float], arm: str, domains: Sequence[str]) -> dict[int, float]:
    """The mean over `domains` of each seed that has all of them."""
    seeds = sorted({seed for name, _, seed in scores if name == arm})
    complete = [seed for seed in seeds if all((arm, domain, seed) in scores for domain in domains)]
    return {seed: sum(scores[arm, domain, seed] for domain in domains) / len(domains) for seed in complete}


def _differences(
    columns: Mapping[str, Mapping[int, float]], base: Mapping[str, Mapping[int, float]]
) -> dict[str, object]:
    """Own minus baseline, paired by seed."""
    result: dict[str, object] = {}
    for name, seeds in columns.items():
        shared = [seed for seed in seeds if seed in base[name]]
        if shared:
            result[name] = mean_of([seeds[seed] - base[name][seed] for seed in shared]).document()
    return result


def _others(rows: Sequence[Row], metric: Metric) -> dict[str, object]:
    """Means over all cells of what the columns do not show; accuracy is that of the model as it was trained."""
    found: dict[str, object] = {}
    for name in MEASURED:
        scores = [row["accuracy"] if name == "accuracy" else row["accuracy"].get(name) for row in rows]
        values = [float(score["value"]) for score in scores if score is not None]
        adapted = name == "accuracy" and any("adapted" in row["accuracy"] for row in rows)
        if values and (name != metric or adapted):
            found[name] = sum(values) / len(values)
    return found


def _traffic(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    totals: dict[str, dict[str, float]] = {"up": {}, "down": {}}
    for row in rows:
        for way, kinds in row["traffic"].items():
            for kind, size in kinds.items():
                totals[way][kind] = totals[way].get(kind, 0.0) + size / len(rows)
    return totals


COLUMNS = (
    "arm", "validation", "domain", "seed", "accuracy", "low", "high", "n", "auc", "f1", "adapted", "up", "down",
    "seconds",
)  # fmt: skip


def spreadsheet(rows: Sequence[Row]) -> str:
    """One line per cell, as CSV."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        scores = row["accuracy"]
        own = [row["arm"], row["validation"], row["domain"], row["seed"]]
        plain = [scores["value"], scores["low"], scores["high"], scores["n"]]
        others = [scores[name]["value"] if name in scores else "" for name in ("auc", "f1", "adapted")]
        sent = [round(sum(row["traffic"][way].values())) for way in ("up", "down")]
        writer.writerow([*own, *plain, *others, *sent, round(row["seconds"], 1)])
    return buffer.getvalue()


def cells_of(found: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The table as text: a header, and per arm the accuracies in per cent with the paper's in brackets."""
    columns = [*found["domains"], "average"]
    header = ["", *columns, f"minus {found['baseline']}", "bytes up", "s per run"]
    lines = []
    for name, arm in found["arms"].items():
        cells = [_percent(arm["accuracy"].get(column), arm["paper"].get(column)) for column in columns]
        gap = arm["difference"].get("average")
        up = sum(arm["bytes_per_round_and_client"]["up"].values())
        lines.append([name, *cells, _signed(gap), f"{up:,.0f}", f"{arm['seconds_per_run']:,.0f}"])
    return header, lines


def _percent(mean: Mapping[str, Any] | None, paper: float | None) -> str:
    printed = "" if paper is None else f" (paper {paper:g})"
    if mean is None:
        return f"-{printed}"
    half = "" if mean["low"] is None else f" ± {100 * (mean['high'] - mean['value']):.1f}"
    return f"{100 * mean['value']:.1f}{half}{printed}"


def _signed(gap: Mapping[str, Any] | None) -> str:
    if gap is None:
        return ""
    bounds = "" if gap["low"] is None else f" [{100 * gap['low']:+.1f}, {100 * gap['high']:+.1f}]"
    return f"{100 * gap['value']:+.1f}{bounds}"


def caption(found: Mapping[str, Any]) -> str:
    """What the numbers are, in a few sentences."""
    printed = f" In brackets: what the paper prints ({found['source']})."
    if found["changed"]:
        printed += f" Not the protocol's: {', '.join(found['changed'])}; so the paper's numbers are no reference here."
    if not any(arm["paper"] for arm in found["arms"].values()):
        printed = ""
    return (
        f"{found['title']}, {found['dataset']}: {MEASURED[found['metric']]} on the unseen domain in per cent, mean "
        f"over seeds with Student's 95 % interval; {found['finished']} of {found['planned']} runs finished.{printed}"
    )


def markdown(found: Mapping[str, Any]) -> str:
    """The table in Markdown."""
    header, lines = cells_of(found)
    rule = ["---", *["---:"] * (len(header) - 1)]
    rows = ["| " + " | ".join(row) + " |" for row in (header, rule, *lines)]
    return f"{caption(found)}\n\n" + "\n".join(rows) + "\n"


def latex(found: Mapping[str, Any]) -> str:
    """The table in LaTeX (booktabs)."""
    header, lines = cells_of(found)
    escaped = [[_escaped(cell) for cell in row] for row in (header, *lines)]
    body = [" & ".join(row) + r" \\" for row in escaped]
    layout = "l" + "r" * (len(header) - 1)
    parts = [rf"\begin{{tabular}}{{{layout}}}", r"\toprule", body[0], r"\midrule", *body[1:], r"\bottomrule"]
    return f"% {caption(found)}\n" + "\n".join([*parts, r"\end{tabular}"]) + "\n"


def _escaped(text: str) -> str:
    for plain, written in (("&", r"\&"), ("%", r"\%"), ("_", r"\_"), ("±", r"$\pm$")):
        text = text.replace(plain, written)
    return text
