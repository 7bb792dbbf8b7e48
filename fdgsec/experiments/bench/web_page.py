"""The page of a table of accuracies: who is best on which unseen domain, with intervals, steps, curves and traffic."""

from collections.abc import Mapping, Sequence
from typing import Any

from fdgsec.experiments.bench.tables import (
    MEASURED,
    caption,
    cells_of,
    cost_cells_of,
    signed_percent,
    steps_text,
    validation_cells_of,
)
from fdgsec.experiments.report.bars import bar_in_words, curves
from fdgsec.experiments.report.findings import PROCEDURAL
from fdgsec.experiments.report.pages import page as filled
from fdgsec.experiments.report.words import listed, rate, short

Row = Mapping[str, Any]
CURVES = ("loss", "validation_accuracy", "accuracy")
"""What is drawn over rounds, of what rounds recorded."""


def page(found: Row) -> str:
    """A self-contained page of bench.json."""
    arms = found["arms"]
    drawn = {name: curves({arm: each.get("curve", ()) for arm, each in arms.items()}, name) for name in _recorded(arms)}
    return filled(
        "bench.html", title=f"{found['title']} on {found['dataset']}", sentence=sentence(found), caption=caption(found),
        contents=[("unseen", "Unseen domains"), ("own", "Own domains"), ("steps", "Steps and differences"),
                  ("curves", "Curves"), ("guarantee", "Guarantees"), ("traffic", "Traffic"), ("table", "Table")],
        metric=MEASURED[found["metric"]], changed=found["changed"],
        columns=[(name, _bars(arms, name)) for name in (*found["domains"], "average") if _known(arms, name)],
        own=_own(arms), steps=_steps(found),
        curves=[(name.replace("_", " "), svg) for name, svg in drawn.items() if svg is not None],
        guarantees=[(name, "; ".join(arm.get("guarantees", ())) or "none: no defense") for name, arm in arms.items()],
        traffic=_traffic(arms), tables=[cells_of(found), validation_cells_of(found), cost_cells_of(found)],
    ) + "\n"  # fmt: skip


def sentence(found: Row) -> str:
    """Each arm's average with its interval: `fedavg reaches .82 [.80, .84]` ..."""
    averages = {name: arm["accuracy"].get("average") for name, arm in found["arms"].items()}
    said = [f"{name} {mean_in_words(mean)}" for name, mean in averages.items() if mean is not None]
    done = f"{found['finished']} of {found['planned']} runs finished"
    if not said:
        return f"No arm has finished a seed on every domain; {done}."
    drawn = " (procedural images: no finding)" if found["dataset"] in PROCEDURAL else ""
    return f"Mean {MEASURED[found['metric']]} over unseen domains{drawn}: {listed(said)}; {done}."


def _recorded(arms: Row) -> list[str]:
    names = {name for arm in arms.values() for point in arm.get("curve", ()) for name in point}
    return [name for name in CURVES if name in names]


def _known(arms: Row, name: str) -> bool:
    return any(name in arm["accuracy"] for arm in arms.values())


def possible(mean: Row) -> dict[str, Any]:
    """A mean whose interval is cut at 0 and 1: Student's t knows of no limits."""
    ends = {end: min(max(mean[end], 0.0), 1.0) for end in ("low", "high") if mean[end] is not None}
    return {**mean, **ends}


def mean_in_words(mean: Row) -> str:
    """A mean over seeds with its interval: ".82 [.80, .84]"."""
    cut = possible(mean)
    bounds = "" if cut["low"] is None else f" [{short(cut['low'])}, {short(cut['high'])}]"
    return f"{rate(cut['value'])}{bounds}"


def score_bar(
    name: str, about: str, mean: Row | None, paper: float | None = None, *, baseline: float | None = None
) -> Mapping[str, object]:
    """The bar of a mean over seeds, from its `baseline`; without a mean, why there is none."""
    if mean is None:
        return bar_in_words(name, about, {"value": None}, css="open", said="", small="", note="no finished seed")
    printed = "" if paper is None else f"; paper {paper:g}%"
    seeds = f"{mean['n']} seed{'' if mean['n'] == 1 else 's'}{printed}"
    number = {**possible(mean), "chance": baseline}
    return bar_in_words(name, about, number, css="score", said=mean_in_words(mean), small=seeds)


def _bars(arms: Row, column: str) -> list[Mapping[str, object]]:
    return [score_bar(name, "", arm["accuracy"].get(column), arm["paper"].get(column)) for name, arm in arms.items()]


def _own(arms: Row) -> list[Mapping[str, object]]:
    return [score_bar(name, "clients' validation images", arm["own_domains"]) for name, arm in arms.items()]


def _steps(found: Row) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    for name, arm in found["arms"].items():
        gap = signed_percent(arm["difference"].get("average"))
        why = "the baseline" if name == found["baseline"] else "; ".join(arm["notes"]) or "comparable"
        rows.append((name, steps_text(arm["steps"]), gap or "\u2013", why))
    return rows


def _traffic(arms: Row) -> list[Sequence[str]]:
    return [
        (name, way, kind, f"{size:,.0f}")
        for name, arm in arms.items()
        for way, kinds in arm["bytes_per_round_and_client"].items()
        for kind, size in kinds.items()
    ]
