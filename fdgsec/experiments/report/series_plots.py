"""A report's figures drawn on axes that the caller owns, from the series that report.json holds."""

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from fdgsec.experiments.report.findings import Findings
from fdgsec.experiments.report.schema import Figure
from fdgsec.experiments.report.words import MEASURE_WORDS
from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#5c5c5c")
"""Okabe and Ito's palette, which all eyes can tell apart."""
MARKS = "osD^vP"
DASHES = ("-", "--", ":", "-.")
CURVE = re.compile(r"(?P<domain>.*) n=(?P<size>\d+) tpr")
"""The name of a ROC curve's series."""
PREDICTED = {"rehearsals": ":", "auxiliary images alone": "--"}
"""The lines of predicted AUC, with their dashes."""
VERDICT_COLORS = {"leaks": "#d55e00", "no leak shown": "#009e73"}
"""Colors of bars by how their verdict begins; others are gray."""
Series = Mapping[str, Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A ROC curve of one domain and client size: its true positive rates."""

    domain: str
    size: int
    rates: Sequence[float]


def curves_of(series: Series) -> list[Curve]:
    """The ROC curves among a figure's series, by domain and size."""
    named = [(found, rates) for name, rates in series.items() if (found := CURVE.fullmatch(name))]
    curves = [Curve(domain=found["domain"], size=int(found["size"]), rates=rates) for found, rates in named]
    return sorted(curves, key=lambda curve: (curve.domain, curve.size))


def plot_roc(axis: "Axes", series: Series, *, domain: str | None = None) -> None:
    """Draw the ROC curves of one `domain`, or of all, on log axes. Raises UsageError for an unknown domain."""
    every = curves_of(series)
    domains, sizes = sorted({curve.domain for curve in every}), sorted({curve.size for curve in every})
    if domain is not None and domain not in domains:
        raise unknown_name("domain", domain, domains)
    alone = domain is not None or len(domains) == 1
    for curve in every if domain is None else [curve for curve in every if curve.domain == domain]:
        place, size = domains.index(curve.domain), sizes.index(curve.size)
        axis.plot(
            series["fpr"], curve.rates, DASHES[0] if alone else DASHES[size % len(DASHES)],
            color=COLORS[(size if alone else place) % len(COLORS)],
            label=f"n = {curve.size}" if alone else f"{curve.domain}, n = {curve.size}",
        )  # fmt: skip
    axis.plot([1e-4, 1], [1e-4, 1], color="gray", linestyle="--", linewidth=1, label="baseline")
    axis.set(xscale="log", yscale="log", xlim=(3e-4, 1), ylim=(3e-4, 1.3), xlabel="false positive rate")
    if alone:
        axis.set_title(domain or domains[0])


def plot_auc_by_size(axis: "Axes", series: Series, *, domain: str | None = None) -> None:
    """Draw the AUC of one `domain`, or of all, against client size, with the predicted lines."""
    domains = sorted(name.removesuffix(" auc") for name in series if name.endswith(" auc"))
    if domain is not None and domain not in domains:
        raise unknown_name("domain", domain, domains)
    shown = domains if domain is None else [domain]
    ends = []
    for each in shown:
        index = domains.index(each)
        color, mark = COLORS[index % len(COLORS)], MARKS[index % len(MARKS)]
        sizes, values = series[f"{each} n"], series[f"{each} auc"]
        widths = series.get(f"{each} half width")
        axis.errorbar(sizes, values, yerr=widths, color=color, marker=mark, capsize=3, linewidth=1.5, label=each)
        for name, dash in PREDICTED.items():
            if f"{each} {name}" in series:
                axis.plot(sizes, series[f"{each} {name}"], dash, color=color, linewidth=1)
        ends.append((values[-1], each, color))
    sizes = sorted({size for each in shown for size in series[f"{each} n"]})
    axis.axhline(0.5, color="gray", linestyle="--", linewidth=1)
    axis.set(xscale="log", xlabel="images per client", ylabel="AUC, mean over clients", ylim=(0.45, 1.03))
    axis.set_xlim(0.8 * sizes[0], 1.6 * sizes[-1])
    axis.text(0.81 * sizes[0], 0.505, "baseline", fontsize=8, color="gray")
    _label_ends(axis, ends, at=1.06 * sizes[-1])
    axis.set_xticks(sizes, labels=[f"{size:g}" for size in sizes])
    axis.minorticks_off()


def _label_ends(axis: "Axes", ends: Sequence[tuple[float, str, str]], *, at: float, gap: float = 0.035) -> None:
    """Write each line's name at its right end, names that would overlap below each other."""
    free = math.inf
    for height, name, color in sorted(ends, reverse=True):
        free = min(height, free - gap)
        axis.text(at, free, name, color=color, va="center", fontsize=9)


PLOTS: Mapping[str, Callable[..., None]] = {"roc": plot_roc, "auc-by-n": plot_auc_by_size}
"""How the series of a figure are drawn, by the figure's name; other figures are pictures."""


def plot_figure(axis: "Axes", figure: Figure, *, domain: str | None = None) -> None:
    """Draw a figure of a report. Raises UsageError for one without series whose picture is not at hand."""
    if figure.name in PLOTS and figure.data:
        PLOTS[figure.name](axis, figure.data, domain=domain)
        return
    if figure.png is None:
        raise UsageError(
            f"the picture of figure {figure.name} is not at hand: it lies in the run's folder, beside report.json."
        )
    axis.imshow(np.asarray(Image.open(io.BytesIO(figure.png)).convert("RGB")))
    axis.set_axis_off()


def plot_answers(axis: "Axes", findings: Findings) -> None:
    """Draw one bar per question, from baseline to value with its interval, on the axis from 0 to 1."""
    for place, answer in enumerate(findings.answers):
        row = None if answer.lead is None else answer.lead.row
        if row is not None and _is_a_share(row):
            _plot_bar(axis, place, row, answer.verdict)
        else:
            axis.text(0.01, place, answer.verdict, va="center", fontsize=8, color="gray")
    count = len(findings.answers)
    axis.set_yticks(range(count), [answer.asks for answer in findings.answers])
    axis.set(xlim=(0, 1), ylim=(count - 0.4, -0.6), xlabel="baseline (dashed) to value; line: 95% interval")


def _is_a_share(row: Measurement) -> bool:
    """Whether a measurement has a place on the axis from 0 to 1."""
    numbers = [number for number in (row.value, row.low, row.high, row.chance) if number is not None]
    return row.value is not None and all(0 <= number <= 1 for number in numbers)


def _plot_bar(axis: "Axes", place: int, row: Measurement, verdict: str) -> None:
    color = next((color for begun, color in VERDICT_COLORS.items() if verdict.startswith(begun)), "#7d8896")
    start = row.chance or 0.0
    axis.barh(place, (row.value or 0.0) - start, left=start, height=0.5, color=color, label=verdict)
    if row.low is not None and row.high is not None:
        axis.plot([row.low, row.high], [place, place], color="black", linewidth=1.2)
    axis.plot([start, start], [place - 0.35, place + 0.35], color="black", linestyle="--", linewidth=1)
    axis.text(0.0, place + 0.42, f"{verdict}: {MEASURE_WORDS.get(row.name, row.name)}", fontsize=7, color="gray")
