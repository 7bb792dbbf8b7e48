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


MARKERS = ("circle", "square", "diamond", "circle", "square", "diamond")
"""Points of lines: their shape says what their color says, for eyes and printers that tell no colors apart."""
LEFT, RIGHT, TOP, BOTTOM = 44.0, 250.0, 12.0, 148.0
MOST_DIGITS = 5  # of a label, for which there is room at the axis


def curve(points: Sequence[Mapping[str, float]], key: str) -> Markup | None:
    """A line over rounds of the entries `key` with axes; None for fewer than two."""
    return curves({"": points}, key)


def curves(lines: Mapping[str, Sequence[Mapping[str, float]]], key: str) -> Markup | None:
    """Lines over rounds of the entries `key` by label, on one pair of axes; None where none has two points."""
    every = {name: [(each["round"], each[key]) for each in points if key in each] for name, points in lines.items()}
    every = {name: found for name, found in every.items() if len(found) > 1}
    if not every:
        return None
    across, up = zip(*(point for found in every.values() for point in found), strict=True)
    (first, last), (lowest, highest) = (min(across), max(across)), (min(up), max(up))

    def place(x: float, y: float) -> tuple[float, float]:
        right = (x - first) / max(last - first, 1e-9)
        height = (y - lowest) / max(highest - lowest, 1e-9) if highest > lowest else 0.5
        return LEFT + right * (RIGHT - LEFT), BOTTOM - height * (BOTTOM - TOP)

    least, most = _told_apart(lowest, highest)
    ends = _spread([(place(*found[-1])[1], name) for name, found in every.items()])
    parts = [
        Markup('<path class="axis" d="M{0} {1}V{2}H{3}"/>').format(LEFT, TOP - 4, BOTTOM + 4, RIGHT),
        _text(LEFT - 4, BOTTOM + 4, least, "end"), _text(LEFT, BOTTOM + 18, f"round {first:g}", "middle"),
        _text(RIGHT, BOTTOM + 18, f"round {last:g}", "middle"),
    ]  # fmt: skip
    parts += [_text(LEFT - 4, TOP + 4, most, "end")] if highest > lowest else []
    for number, (name, found) in enumerate(every.items()):
        parts.append(_line([place(*point) for point in found], number))
        parts += [_text(RIGHT + 8, ends[name] + 4, name, "start")] if name else []
    label = f"{key.replace('_', ' ')} by round" + (f": {', '.join(filter(None, every))}" if any(every) else "")
    return Markup('<svg class="curve" viewBox="0 0 360 176" role="img" aria-label="{}">{}</svg>').format(
        label, Markup("").join(parts)
    )


def _told_apart(lowest: float, highest: float) -> tuple[str, str]:
    """Both numbers in three digits, or in as many as tell them apart, at most MOST_DIGITS."""
    digits = 3
    while digits < MOST_DIGITS and lowest < highest and f"{lowest:.{digits}g}" == f"{highest:.{digits}g}":
        digits += 1
    return f"{lowest:.{digits}g}", f"{highest:.{digits}g}"


def _line(places: Sequence[tuple[float, float]], number: int) -> Markup:
    """A line with points, each in the color and the shape of its number; of many rounds, without points."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    marker = MARKERS[number % len(MARKERS)]
    drawn = Markup('<polyline class="series{}" points="{}"/>').format(number % 6, path)
    shown = places if len(places) <= 25 else places[-1:]
    shapes = {
        "circle": '<circle class="series{0}" cx="{1:.1f}" cy="{2:.1f}" r="3"/>',
        "square": '<rect class="series{0}" x="{3:.1f}" y="{4:.1f}" width="6" height="6"/>',
        "diamond": '<path class="series{0}" d="M{1:.1f} {4:.1f}l3.6 3l-3.6 3.6l-3.6 -3.6z"/>',
    }
    shape = Markup(shapes[marker])
    return drawn + Markup("").join(shape.format(number % 6, x, y, x - 3, y - 3) for x, y in shown)


def _spread(ends: Sequence[tuple[float, str]]) -> dict[str, float]:
    """Heights for labels at the ends of lines, 12 apart so that none lies over another."""
    found: dict[str, float] = {}
    least = -12.0
    for height, name in sorted(ends):
        least = max(height, least + 12)
        found[name] = least
    return found


def _text(x: float, y: float, text: str, anchor: str) -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(x, y, anchor, text)


def _percent(value: float) -> float:
    return 100 * min(max(value, 0.0), 1.0)
