"""From finished cells to tables: means over seeds, paired differences, steps, traffic and time, in four formats."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy import stats

from fdgsec.experiments.bench.comparability import (
    NOT_LEARNED,
    NOT_MEASURED,
    OTHER_IMAGES,
    Row,
    has_learned,
    on_other_images,
    own_domains_of,
    own_domains_unknown,
    plain_count,
    steps_of,
    unequal_steps,
)
from fdgsec.experiments.bench.protocols import Metric, Protocol
from fdgsec.experiments.report.text_tables import latex_table, markdown_table
from fdgsec.privacy.ledger import guarantee_line
from fdgsec.runtime.csv_cells import csv_text

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
    """A mean over seeds with Student's 95% interval; `low` and `high` are None for fewer than two values."""

    value: float
    low: float | None
    high: float | None
    n: int

    def document(self) -> dict[str, float | int | None]:
        """Plain data."""
        return {"value": self.value, "low": self.low, "high": self.high, "n": self.n}


TIE = 1e-9
"""Scores that differ by less are equal: differences of seeds have rounding errors."""


def mean_of(values: Sequence[float]) -> Mean:
    """Average `values` with their interval by Student's t; without one where all are equal: seeds that tie (often on
    few images) are no evidence of a spread of 0. Raises ValueError for none."""
    if not values:
        raise ValueError("a mean needs at least one value.")
    count = len(values)
    middle = sum(values) / count
    if count < 2 or max(values) - min(values) < TIE:
        return Mean(value=middle, low=None, high=None, n=count)
    error = math.sqrt(sum((value - middle) ** 2 for value in values) / (count - 1) / count)
    half = float(stats.t.ppf(0.975, count - 1)) * error
    return Mean(value=middle, low=middle - half, high=middle + half, n=count)


def summary(
    table: Protocol,
    dataset: str,
    rows: Sequence[Row],
    *,
    planned: int,
    changed: Sequence[str] = (),
    unequal: bool = False,
) -> dict[str, Any]:
    """The table as plain data: per arm and domain the mean score, the paper's, and the difference to the baseline.

    Scores are fractions, `paper` the paper's percentages. "accuracy" holds the protocol's metric; for an arm that
    adapts, its accuracy after adaptation. "average" is over domains, of seeds with all domains; the paper's average is
    included only if its domains are the same. "own_domains" is the accuracy on validation images of the clients'
    domains, "majority" by domain the accuracy of always naming its most frequent class, "validation" that on the domain
    that LTDO keeps for validation, by domain. Differences stand only between arms with equal optimizer steps, or
    between all with `unequal`; "notes" says what is unequal. `changed` lists the user's changes to the protocol."""
    arms = list(dict.fromkeys(str(row["arm"]) for row in rows))
    domains = list(dict.fromkeys(str(row["domain"]) for row in rows))
    found = {arm: _arm(table, dataset, arm, rows, domains, unequal) for arm in arms}
    return {
        "schema": 1, "title": table.title, "source": table.source, "dataset": dataset, "metric": table.metric,
        "baseline": table.baseline, "changed": list(changed), "domains": domains, "finished": len(rows),
        "planned": planned, "versions": _versions(rows),
        "majority": _majority(rows, domains) if table.metric == "accuracy" else {}, "arms": found,
    }  # fmt: skip


def _arm(
    table: Protocol, dataset: str, arm: str, rows: Sequence[Row], domains: Sequence[str], unequal: bool
) -> dict[str, object]:
    """One arm of a summary."""
    own, base = ([row for row in rows if row["arm"] == name] for name in (arm, table.baseline))
    columns, against = _columns(own, table.metric, domains), _columns(base, table.metric, domains)
    steps = unequal_steps(own, base) if arm != table.baseline else ""
    timed = [row["processor_seconds"] for row in own if "processor_seconds" in row]
    learned = _averages({(row["domain"], row["seed"]): own_domains_of(row) for row in own}, domains)
    images = OTHER_IMAGES if on_other_images(own, base) else ""
    unknown = NOT_MEASURED if own_domains_unknown(own, base) else ""
    notes = [steps, images, unknown, "" if has_learned(own, base) else NOT_LEARNED]
    compared = arm != table.baseline and not images and (unequal or not steps)
    return {
        "accuracy": {name: mean_of(list(seeds.values())).document() for name, seeds in columns.items() if seeds},
        "paper": _comparable(table.printed(dataset, arm), domains),
        "own_domains": mean_of(list(learned.values())).document() if learned else None,
        "validation": _validation(own),
        "paper_validation": table.printed_validation(dataset, arm),
        "paper_costs": table.printed_costs(dataset, arm),
        "steps": steps_of(own),
        "difference": _differences(columns, against) if compared else {},
        "notes": [note for note in notes if note],
        "other_metrics": _others(own, table.metric),
        "bytes_per_round_and_client": traffic_mean(own),
        "guarantees": _guarantees(own),
        "curve": mean_curve([row["curve"] for row in own if "curve" in row]),
        "seconds_per_run": sum(float(row["seconds"]) for row in own) / len(own),
        "seconds_per_client_and_round": _seconds_per_update(own),
        "processor_seconds_per_run": sum(timed) / len(timed) if timed else None,
        "cells": len(own),
    }


def _versions(rows: Sequence[Row]) -> int:
    """The number of versions of fdgsec and torch that computed the cells; those that do not say so are one."""
    said = [row.get("environment", {}) for row in rows]
    return len({(one.get("code_sha256"), one.get("torch")) for one in said})


def _majority(rows: Sequence[Row], domains: Sequence[str]) -> dict[str, float]:
    """The accuracy of always naming the most frequent class, by domain and on average: the mean over the cells that
    recorded it, whose test images may differ by seed. Cells of earlier versions did not."""
    known: dict[str, list[float]] = {}
    for row in rows:
        if "majority_share" in row["accuracy"]:
            known.setdefault(row["domain"], []).append(float(row["accuracy"]["majority_share"]))
    found = {name: sum(known[name]) / len(known[name]) for name in domains if name in known}
    return {**found, "average": sum(found.values()) / len(found)} if len(found) == len(domains) > 0 else found


def _columns(rows: Sequence[Row], metric: Metric, domains: Sequence[str]) -> dict[str, dict[int, float]]:
    """The scores of one arm by seed, for each domain and for the average over `domains`."""
    scores = {(row["domain"], row["seed"]): score_of(row, metric) for row in rows}
    return {name: _averages(scores, [name]) for name in domains} | {"average": _averages(scores, domains)}


def _seconds_per_update(rows: Sequence[Row]) -> float | None:
    """Seconds of a run, evaluation included, over its rounds and participants; None for rows without their number."""
    if not all("participants" in row for row in rows):
        return None
    updates = [int(row["rounds"]) * int(row["participants"]) for row in rows]
    return sum(float(row["seconds"]) / number for row, number in zip(rows, updates, strict=True)) / len(rows)


def _validation(rows: Sequence[Row]) -> dict[str, object]:
    """The mean accuracy on each domain that LTDO keeps for validation."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if (kept := row["accuracy"].get("validation_domain")) is not None:
            found.setdefault(str(kept["domain"]), []).append(float(kept["value"]))
    return {domain: mean_of(values).document() for domain, values in found.items()}


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


def _averages(scores: Mapping[tuple[str, int], float | None], domains: Sequence[str]) -> dict[int, float]:
    """The mean over `domains` of each seed that has all of them."""
    known = {key: value for key, value in scores.items() if value is not None}
    seeds = sorted({seed for _, seed in known})
    complete = [seed for seed in seeds if all((domain, seed) in known for domain in domains)]
    return {seed: sum(known[domain, seed] for domain in domains) / len(domains) for seed in complete}


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


def _guarantees(rows: Sequence[Row]) -> list[str]:
    """What the runs of an arm guarantee, each statement once; empty without defenses."""
    stated = [guarantee_line(each) for row in rows for each in row.get("guarantees", ()) if each["part"] == "run"]
    older = ["not recorded (runs of an older version)"] if any("guarantees" not in row for row in rows) else []
    return list(dict.fromkeys([*stated, *older]))


def mean_curve(curves: Sequence[Sequence[Mapping[str, float]]]) -> list[dict[str, float]]:
    """The mean over runs of what each round recorded, for rounds and names that all of them have."""
    by_round = [{point["round"]: point for point in curve} for curve in curves]
    rounds = [number for number in (by_round[0] if by_round else ()) if all(number in each for each in by_round)]
    found = []
    for number in rounds:
        names = set.intersection(*(set(each[number]) for each in by_round)) - {"round"}
        means = {name: sum(each[number][name] for each in by_round) / len(by_round) for name in sorted(names)}
        found.append({"round": number, **means})
    return found


def traffic_mean(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """The mean over runs of the bytes per round and participant, {"up"|"down": {kind: bytes}}."""
    totals: dict[str, dict[str, float]] = {"up": {}, "down": {}}
    for row in rows:
        for way, kinds in row["traffic"].items():
            for kind, size in kinds.items():
                totals[way][kind] = totals[way].get(kind, 0.0) + size / len(rows)
    return totals


COLUMNS = (
    "arm", "validation", "domain", "seed", "accuracy", "low", "high", "n", "auc", "f1", "adapted", "own_domains",
    "validation_domain", "steps_per_client_and_round", "steps", "up", "down", "seconds", "processor_seconds",
)  # fmt: skip


def spreadsheet(rows: Sequence[Row]) -> str:
    """One line per cell, as CSV."""
    return csv_text(COLUMNS, map(_cells, rows))


def _cells(row: Row) -> list[object]:
    scores = row["accuracy"]
    own = [row["arm"], row["validation"], row["domain"], row["seed"]]
    plain = [scores["value"], scores["low"], scores["high"], scores["n"]]
    others = [scores[name]["value"] if name in scores else "" for name in ("auc", "f1", "adapted")]
    kept = scores.get("validation_domain", {}).get("value", "")
    counted = steps_of([row])
    steps = ["", ""] if counted is None else [counted["per_client_and_round"], counted["total"]]
    sent = [round(sum(row["traffic"][way].values())) for way in ("up", "down")]
    spent = [round(row[name], 1) if name in row else "" for name in ("seconds", "processor_seconds")]
    return [*own, *plain, *others, own_domains_of(row), kept, *steps, *sent, *spent]


def cells_of(found: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The table as text: a header, and per arm the accuracies in percent with the paper's in brackets."""
    columns = [*found["domains"], "average"]
    costs = ["bytes up", "s per run", "CPU s per run"]
    header = ["method", *columns, "own domains", "steps (in all)", f"minus {found['baseline']}", *costs]
    lines = []
    seeds = {column: {arm["accuracy"].get(column, {}).get("n") for arm in found["arms"].values()} for column in columns}
    uneven = {column for column, counts in seeds.items() if len(counts - {None}) > 1}
    if constant := found.get("majority"):
        shares = [f"{100 * constant[column]:.1f}" if column in constant else "-" for column in columns]
        lines.append(["most frequent class", *shares, *[""] * (len(header) - 1 - len(columns))])
    for name, arm in found["arms"].items():
        cells = [
            _percent(arm["accuracy"].get(column), arm["paper"].get(column), seeds=column in uneven)
            for column in columns
        ]
        gap = "; ".join(filter(None, [signed_percent(arm["difference"].get("average")), *arm["notes"]]))
        up = sum(arm["bytes_per_round_and_client"]["up"].values())
        spent = arm["processor_seconds_per_run"]
        cost = [f"{up:,.0f}", f"{arm['seconds_per_run']:,.0f}", "-" if spent is None else f"{spent:,.0f}"]
        lines.append([name, *cells, _percent(arm["own_domains"], None), steps_text(arm["steps"]), gap, *cost])
    return header, lines


def validation_cells_of(found: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The accuracies on LTDO's validation domains as text; no lines for a table that leaves one domain out."""
    domains = list(dict.fromkeys(domain for arm in found["arms"].values() for domain in arm["validation"]))
    lines = [
        [name, *(_percent(arm["validation"].get(domain), arm["paper_validation"].get(domain)) for domain in domains)]
        for name, arm in found["arms"].items()
    ]
    return ["on the validation domain", *domains], lines if domains else []


def cost_cells_of(found: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Costs as text, beside the paper's; no lines where the paper prints none."""
    printed = list(dict.fromkeys(name for arm in found["arms"].values() for name in arm["paper_costs"]))
    lines = []
    for name, arm in found["arms"].items():
        megabytes = sum(arm["bytes_per_round_and_client"]["up"].values()) / 1e6
        costs = [f"{arm['paper_costs'][cost]:.2f}" if cost in arm["paper_costs"] else "-" for cost in printed]
        seconds = arm["seconds_per_client_and_round"]
        lines.append([name, f"{megabytes:.2f}", "-" if seconds is None else f"{seconds:.2f}", *costs])
    header = ["costs", "MB up per client and round", "s per client and round", *(f"paper: {cost}" for cost in printed)]
    return header, lines if printed else []


def steps_text(steps: Mapping[str, float] | None) -> str:
    """Steps per participant and round, and in all: `9 (216)`; a dash where they were not recorded."""
    return "-" if steps is None else f"{plain_count(steps['per_client_and_round'])} ({plain_count(steps['total'])})"


def _percent(mean: Mapping[str, Any] | None, paper: float | None, *, seeds: bool = False) -> str:
    printed = "" if paper is None else f" (paper {paper:g})"
    if mean is None:
        return f"-{printed}"
    half = "" if mean["low"] is None else f" ± {100 * (mean['high'] - mean['value']):.1f}"
    of = f", {mean['n']} seed{'' if mean['n'] == 1 else 's'}" if seeds else ""
    return f"{100 * mean['value']:.1f}{half}{of}{printed}"


def signed_percent(gap: Mapping[str, Any] | None) -> str:
    """A difference in points with its interval, empty for none."""
    if gap is None:
        return ""
    bounds = "" if gap["low"] is None else f" [{100 * gap['low']:+.1f}, {100 * gap['high']:+.1f}]"
    return f"{100 * gap['value']:+.1f}{bounds}"


def caption(found: Mapping[str, Any]) -> str:
    """What the numbers are, in a few sentences."""
    printed = ""
    if any(arm["paper"] for arm in found["arms"].values()):
        printed = f" In brackets: what the paper prints ({found['source']})."
    if found["changed"]:
        reference = "; so the paper's numbers are no reference here" if printed else ""
        printed += f" Not the protocol's: {', '.join(found['changed'])}{reference}."
    if (versions := found.get("versions", 1)) > 1:
        printed += f" Its cells were computed by {versions} versions of fdgsec or torch."
    return (
        f"{found['title']}, {found['dataset']}: {MEASURED[found['metric']]} on the unseen domain in percent, mean "
        f"over seeds with Student's 95% interval; {found['finished']} of {found['planned']} runs finished.{printed} "
        "Own domains: accuracy on validation images of the clients' domains. Steps: optimizer steps per participant "
        "and round. Differences at unequal steps are left out unless asked for."
    )


def markdown(found: Mapping[str, Any]) -> str:
    """The table in Markdown."""
    parts = [markdown_table(*cells, numbers="right") for cells in _tables(found)]
    return "\n".join([f"{caption(found)}\n", *parts])


def _tables(found: Mapping[str, Any]) -> list[tuple[list[str], list[list[str]]]]:
    """The tables that have lines: accuracies, those on validation domains, costs."""
    return [cells for cells in (cells_of(found), validation_cells_of(found), cost_cells_of(found)) if cells[1]]


def latex(found: Mapping[str, Any]) -> str:
    """The table in LaTeX (booktabs)."""
    parts = [latex_table(*cells) for cells in _tables(found)]
    return "\n".join([f"% {caption(found)}", *parts])
