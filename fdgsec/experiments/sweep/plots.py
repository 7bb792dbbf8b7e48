"""A sweep's two figures: attack success against the defense's option, and accuracy against attack success.

Every mark is a number of sweep.json with its 95% interval. Defenses grow stronger from left to right, so that an axis
of epsilon runs down; no defense, and values without a logarithm, have places of their own beside it. Where the option
is a scale of noise, a second axis gives it in standard deviations between clients, and FISC's own settings are marked
(its Table 10). Accuracies that do not compare with that of no defense (optimizer steps that differ or are not known,
own domains not learned) are crosses that no line joins."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from fdgsec.experiments.report.figures import png
from fdgsec.experiments.report.series_plots import COLORS, MARKS

Row = Mapping[str, Any]

FISC = (0.02, 0.05)
NAMES = {
    "top1": "top-1", "auc": "AUC", "balanced_accuracy": "balanced accuracy", "accuracy": "accuracy",
    "tpr_at_1pct_fpr": "TPR at 1% FPR", "top5": "top-5", "gallery_top1": "top-1", "gallery_top5": "top-5",
}  # fmt: skip
LABELS = {"scale": "noise scale s", "epsilon": "epsilon (smaller promises more)"}
SMALL = 8
NOT_COMPARABLE = "not comparable (see notes)"


def figures(found: Row) -> dict[str, bytes]:
    """Draw what there is data for: "noise" needs two values with attacks, "pareto" two accuracies beside some."""
    drawn: dict[str, bytes] = {}
    if found["followed"] and sum(point["value"] is not None for point in found["privacy"]) > 1:
        drawn["noise"] = png(against_option(found))
    measured = {point["value"] for point in found["accuracy"]} & {point["value"] for point in found["privacy"]}
    if found["followed"] and len(measured) > 1:
        drawn["pareto"] = png(pareto(found))
    return drawn


@dataclass(frozen=True, kw_only=True)
class OptionAxis:
    """Where values stand from left (mild) to right (strong), in decades: `places` of all, no defense (None) first.

    `direction` is 1 where larger values are stronger, else -1; `step` is how far those without a logarithm stand
    apart."""

    places: Mapping[float | None, float]
    direction: int
    step: float

    @classmethod
    def of(cls, found: Row) -> "OptionAxis":
        """Place every value of a sweep; zero and infinity stand one step beside the others."""
        both = [*found["privacy"], *found["accuracy"]]
        values = sorted({float(point["value"]) for point in both if point["value"] is not None})
        direction = 1 if found["rising"] else -1
        logs: dict[float | None, float] = {
            value: direction * math.log10(value) for value in values if value > 0 and math.isfinite(value)
        }
        low, high = min(logs.values(), default=0.0), max(logs.values(), default=0.0)
        step = max(0.3, 0.12 * (high - low))
        places = dict(logs)
        for value in (each for each in values if each not in logs):
            mild = (value > 0) != (direction > 0)
            places[value] = low - step if mild else high + step
        places[None] = min(places.values(), default=0.0) - step
        return cls(places=places, direction=direction, step=step)

    def finite(self) -> list[float]:
        """The places of values that have a logarithm."""
        return [place for value, place in self.places.items() if value and math.isfinite(value)]

    def dress(self, axes: Axes) -> None:
        """Put ticks where values stand: decades where there are two or more, else all values; the others by name."""
        finite = sorted(self.finite())
        inside = range(math.ceil(finite[0] - 1e-9), math.floor(finite[-1] + 1e-9) + 1) if finite else range(0)
        decades = [float(place) for place in inside] if len(inside) > 2 else finite
        named: dict[float, str] = {}
        for place in decades:
            if not named or place - max(named) > 0.2 * self.step:  # else one label would lie over the other
                named[place] = f"{10 ** (self.direction * place):.6g}"
        for value, place in self.places.items():
            if value is None or not value or math.isinf(value):
                named[place] = "none" if value is None else "0" if not value else "inf"
                axes.axvspan(place - 0.35 * self.step, place + 0.35 * self.step, color="black", alpha=0.05, linewidth=0)
        axes.set_xticks(list(named), list(named.values()))
        axes.set_xticks(finite if len(inside) > 2 else [], minor=True)
        spread = [*self.places.values()]
        axes.set_xlim(min(spread) - 0.6 * self.step, max(spread) + 0.4 * self.step)


def against_option(found: Row) -> Canvas:
    """Attack success over the option, a line per attack with band, chance dashed, expected dotted; accuracy below."""
    scores = {point["value"]: point["score"] for point in found["accuracy"]}
    unlike = _not_comparable(found)
    canvas = Canvas(figsize=(7.6, 6.0 if scores else 4.4), layout="constrained")
    upper, lower = (
        canvas.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": (3, 1.4)})
        if scores
        else (canvas.subplots(), None)
    )
    axis = OptionAxis.of(found)
    for number, name in enumerate(found["followed"]):
        _curve(upper, found, axis, name, number)
    axis.dress(upper)
    upper.set_ylim(-0.03, 1.05)
    upper.set_ylabel("attack success")
    upper.grid(alpha=0.2)
    if found["option"] == "scale":
        _noise_axis(upper, found, axis)
    if lower is not None:
        _accuracy(lower, axis, scores, unlike)
    (lower or upper).set_xlabel(f"{LABELS.get(found['option'], found['option'])}; more privacy to the right")
    handles, labels = upper.get_legend_handles_labels()
    handles.append(Line2D([], [], color="0.35", linestyle="--", linewidth=1))
    labels.append("chance")
    if any(_law(found, name) for name in found["followed"]):
        handles.append(Line2D([], [], color="0.35", linestyle=":", linewidth=1))
        labels.append("expected")
    if unlike:
        handles.append(Line2D([], [], color="black", linestyle="", marker="x", markersize=5))
        labels.append(f"accuracy {NOT_COMPARABLE}")
    canvas.legend(handles, labels, fontsize=SMALL, loc="outside lower center", ncols=3, frameon=False)
    canvas.suptitle(_title(found), fontsize=10)
    return canvas


def pareto(found: Row) -> Canvas:
    """Accuracy on the unseen domain over attack success, a panel per attack; values by color, the mildest darkest."""
    names = list(found["followed"])
    canvas = Canvas(figsize=(3.3 * len(names) + 1.5, 3.7), layout="constrained")
    panels = canvas.subplots(1, len(names), sharey=True, squeeze=False)[0]
    scores = {point["value"]: point["score"] for point in found["accuracy"]}
    rows = {point["value"]: point["rows"] for point in found["privacy"]}
    unlike = _not_comparable(found)
    place = OptionAxis.of(found).places
    values = sorted((value for value in scores if value in rows), key=lambda value: place[value])
    shades = {value: to_hex(colormaps["viridis"](0.85 * n / max(len(values) - 1, 1))) for n, value in enumerate(values)}
    for axes, name in zip(panels, names, strict=True):
        both = [value for value in values if _measured(rows[value].get(name))]
        line = [(rows[value][name]["value"], scores[value]["value"]) for value in both if value not in unlike]
        axes.plot(*zip(*line, strict=True), color="0.75", linewidth=0.8, zorder=1) if line else None
        for value in both:
            row, score = rows[value][name], scores[value]
            axes.errorbar(
                [row["value"]], [score["value"]], xerr=_reach([row]), yerr=_reach([score]), elinewidth=0.8, capsize=2,
                markersize=6, **_mark(value, shades[value], unlike),
            )  # fmt: skip
        chance = rows[both[0]][name]["chance"] if both else None
        if chance is not None:
            axes.axvline(chance, color="0.35", linestyle="--", linewidth=1, zorder=0)
        axes.set_xlabel(f"{name}, {_measure(found, name)}", fontsize=9)
        axes.set_xlim(-0.04, 1.06)
        axes.grid(alpha=0.2)
    panels[0].set_ylabel("accuracy, unseen domain")
    handles = [Line2D([], [], linestyle="", markersize=6, **_mark(value, shades[value], unlike)) for value in values]
    handles.append(Line2D([], [], color="0.35", linestyle="--", linewidth=1))
    labels = [*("none" if value is None else f"{value:g}" for value in values), "chance"]
    if unlike & set(values):
        handles.append(Line2D([], [], color="0.35", linestyle="", marker="x", markersize=6))
        labels.append(NOT_COMPARABLE.replace(" (", "\n("))
    canvas.legend(
        handles, labels, title=found["option"], fontsize=SMALL, title_fontsize=SMALL,
        loc="outside right center", frameon=False,
    )  # fmt: skip
    canvas.suptitle(_title(found), fontsize=10)
    return canvas


def _not_comparable(found: Row) -> set[float | None]:
    """The values whose accuracy does not compare with that of no defense."""
    return {point["value"] for point in found["accuracy"] if point.get("notes")}


def _mark(value: float | None, shade: str, unlike: set[float | None]) -> dict[str, Any]:
    """Hollow where there is no defense, a cross where the accuracy does not compare."""
    marker = "x" if value in unlike else "o"
    return {"marker": marker, "color": shade, "markerfacecolor": "white" if value is None else shade}


def _measured(row: Row | None) -> bool:
    return row is not None and row["value"] is not None


def _reach(rows: Sequence[Row]) -> list[list[float]] | None:
    """The lengths of intervals below and above the values; None where there are none (a single seed)."""
    if any(row["low"] is None or row["high"] is None for row in rows):
        return None
    return [
        [max(row["value"] - row["low"], 0.0) for row in rows],
        [max(row["high"] - row["value"], 0.0) for row in rows],
    ]


def _curve(axes: Axes, found: Row, axis: OptionAxis, name: str, number: int) -> None:
    """One attack: a line with its band over the values, and hollow where there is no defense."""
    known = [point for point in found["privacy"] if _measured(point["rows"].get(name))]
    known.sort(key=lambda point: axis.places[point["value"]])
    color, mark = COLORS[number % 6], MARKS[number % 6]
    line = [point for point in known if point["value"] is not None]
    across, rows = [axis.places[point["value"]] for point in line], [point["rows"][name] for point in line]
    middle = [row["value"] for row in rows]
    label = f"{name}, {_measure(found, name)}"
    axes.plot(across, middle, mark + "-", color=color, markersize=4, linewidth=1.4, label=label)
    if (reach := _reach(rows)) is not None:
        low, high = ([row[side] for row in rows] for side in ("low", "high"))
        axes.fill_between(across, low, high, color=color, alpha=0.13, linewidth=0)
        axes.errorbar(across, middle, yerr=reach, fmt="none", ecolor=color, elinewidth=0.7, alpha=0.7)
    for point in known:
        row = point["rows"][name]
        if point["value"] is None:
            aside = (
                0.2 * axis.step * (number - (len(found["followed"]) - 1) / 2)
            )  # intervals of one size stand side by side
            axes.errorbar(
                [axis.places[None] + aside], [row["value"]], yerr=_reach([row]), fmt=mark, color=color,
                markerfacecolor="white", markersize=5, elinewidth=0.8, capsize=2,
            )  # fmt: skip
    if known and known[0]["rows"][name]["chance"] is not None:
        axes.axhline(known[0]["rows"][name]["chance"], color=color, linestyle="--", linewidth=1, alpha=0.8)
    if law := _law(found, name):
        axes.plot(*zip(*sorted((axis.places[value], area) for value, area in law), strict=True), ":", color=color)


def _law(found: Row, name: str) -> list[tuple[float, float]]:
    return [
        (point["value"], point["expected"][name])
        for point in found["privacy"]
        if point["value"] is not None and point["expected"].get(name) is not None
    ]


def _noise_axis(axes: Axes, found: Row, axis: OptionAxis) -> None:
    """Mark FISC's settings, and give the scale in standard deviations between clients where linkage measured one."""
    finite = sorted(axis.finite())
    if not finite or axis.direction < 0:
        return
    for setting in FISC:
        if finite[0] <= math.log10(setting) <= finite[-1]:
            axes.axvline(math.log10(setting), color="black", linewidth=0.8, linestyle="-.", alpha=0.6)
    if any(finite[0] <= math.log10(setting) <= finite[-1] for setting in FISC):
        axes.plot([], [], color="black", linewidth=0.8, linestyle="-.", alpha=0.6, label="FISC's settings, Table 10")
    spread = found["between_client_sd"]
    if spread:
        shift = math.log10(spread)
        second = axes.secondary_xaxis("top", functions=_shifted(shift))
        inside = [float(n) for n in range(math.ceil(finite[0] - shift), math.floor(finite[-1] - shift) + 1)]
        marked = inside if len(inside) > 1 else [finite[0] - shift, finite[-1] - shift]
        second.set_xticks(marked, [f"{10.0**place:.3g}" for place in marked])
        second.set_xlabel("in standard deviations between clients (median over coordinates)", fontsize=SMALL)
        second.tick_params(labelsize=SMALL)


def _shifted(by: float) -> tuple[Callable[[ArrayLike], ArrayLike], Callable[[ArrayLike], ArrayLike]]:
    """There and back between two axes in decades."""
    return (
        lambda place: np.asarray(place, dtype=np.float64) - by,
        lambda place: np.asarray(place, dtype=np.float64) + by,
    )


def _accuracy(axes: Axes, axis: OptionAxis, scores: Mapping[float | None, Row], unlike: set[float | None]) -> None:
    values = sorted((value for value in scores if value is not None), key=lambda value: axis.places[value])
    for drawn, mark in (([v for v in values if v not in unlike], "ks-"), ([v for v in values if v in unlike], "kx")):
        rows = [scores[value] for value in drawn]
        axes.errorbar(
            [axis.places[value] for value in drawn], [row["value"] for row in rows], yerr=_reach(rows), fmt=mark,
            markersize=4, linewidth=1, capsize=2, elinewidth=0.8,
        )  # fmt: skip
    bare = scores.get(None)
    if bare is not None:
        axes.axhline(bare["value"], color="black", linestyle=(0, (1, 2)), linewidth=1)
        axes.errorbar(
            [axis.places[None]], [bare["value"]], yerr=_reach([bare]), fmt="ks", markerfacecolor="white", markersize=5,
            capsize=2, elinewidth=0.8,
        )  # fmt: skip
    seeds = sorted({int(row["n"]) for row in scores.values()})
    axes.set_ylabel("accuracy,\nunseen domain" + (",\none seed" if seeds == [1] else ""))
    axes.margins(y=0.15)
    axes.grid(alpha=0.2)


def _measure(found: Row, name: str) -> str:
    measurement = str(found["followed"][name]["measurement"])
    return NAMES.get(measurement, measurement)


def _title(found: Row) -> str:
    return f"{found['target']} on {found['dataset']} under {' then '.join(found['defenses'])}"
