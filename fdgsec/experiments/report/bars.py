"""Bars of the page: value, interval, baseline and 1.0 on one axis, as SVG in the colors of its style sheet."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from fdgsec.metrics.measurement import Measurement


def strip(value: float, *, low: float | None, high: float | None, baseline: float | None, css: str) -> Markup:
    """One bar on the axis from 0 to 1: from baseline to value, a whisker for the interval, a tick for the baseline.

    The picture stretches to the width it is given; its words stand beside it as text."""
    start = 0.0 if baseline is None else _percent(baseline)
    end = _percent(value)
    parts = [
        Markup('<line class="axis" x1="0" x2="100" y1="11" y2="11"/>'),
        Markup('<rect class="bar {}" x="{:.2f}" width="{:.2f}" y="3" height="6"/>').format(
            css, min(start, end), max(abs(end - start), 0.4)
        ),
    ]
    if low is not None and high is not None:
        left, right = _percent(low), _percent(high)
        parts.append(
            Markup('<path class="whisker" d="M{0:.2f} 6H{1:.2f}M{0:.2f} 3.5V8.5M{1:.2f} 3.5V8.5"/>').format(left, right)
        )
    if baseline is not None:
        parts.append(Markup('<line class="baseline" x1="{0:.2f}" x2="{0:.2f}" y1="1" y2="11"/>').format(start))
    return Markup(
        '<svg class="strip" viewBox="0 0 100 12" preserveAspectRatio="none" aria-hidden="true">{}</svg>'
    ).format(Markup("").join(parts))


def bar_of(row: Measurement, css: str) -> Markup | None:
    """The bar of a measurement that lies between 0 and 1; None for others, as gains in dB and ranks."""
    numbers = [number for number in (row.value, row.low, row.high, row.chance) if number is not None]
    if row.value is None or any(not 0 <= number <= 1 for number in numbers):
        return None
    return strip(row.value, low=row.low, high=row.high, baseline=row.chance, css=css)


def bar_in_words(
    what: str, about: str, number: Mapping[str, Any], *, css: str, said: str, small: str, note: str = ""
) -> Mapping[str, object]:
    """A labeled bar of plain data: value, low, high and chance, any but the first None; `said` stands beside it.

    What does not lie between 0 and 1 has `note` in place of a bar."""
    value, low, high, chance = (number.get(name) for name in ("value", "low", "high", "chance"))
    fits = value is not None and all(end is None or 0 <= end <= 1 for end in (value, low, high, chance))
    strip_ = strip(float(value), low=low, high=high, baseline=chance, css=css) if value is not None and fits else None
    return {
        "what": what, "attack": about, "strip": strip_, "note": note or "not on the axis from 0 to 1", "verdict": said,
        "css": css, "numbers": small,
    }  # fmt: skip


def curve(points: Sequence[Mapping[str, float]], key: str) -> Markup | None:
    """A line over rounds of the entries `key`, scaled to their range; None for fewer than two."""
    found = [(point["round"], point[key]) for point in points if key in point]
    if len(found) < 2:
        return None
    (first, _), (last, _) = found[0], found[-1]
    lowest, highest = (bound(value for _, value in found) for bound in (min, max))
    across, up = max(last - first, 1e-9), max(highest - lowest, 1e-9)
    path = " ".join(f"{100 * (x - first) / across:.2f},{28 - 26 * (y - lowest) / up:.2f}" for x, y in found)
    return Markup(
        '<svg class="curve" viewBox="0 0 100 30" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<polyline points="{}"/></svg>'
    ).format(f"{key} by round", path)


def _percent(value: float) -> float:
    return 100 * min(max(value, 0.0), 1.0)
