"""The strongest row of an attack, by which controls through the target are judged; answers have `headlines`."""

from fdgsec.experiments.report.schema import AttackResult
from fdgsec.metrics.measurement import BOUNDED, Measurement

QUIET = "no leak shown"


def strongest(result: AttackResult) -> Measurement | None:
    """The leaking row whose interval lies farthest beyond chance, in units of the room between chance and certainty.

    Else a row that is undecided or no evidence, before one without a leak. Linkage of the same data comes after that of
    different data: two sessions on the same images, with little noise, are linked nearly by equality."""
    judged = [row for row in result.measurements if row.judged]
    return max(judged, key=_margin, default=None)


def _margin(row: Measurement) -> tuple[bool, bool, bool, bool, float]:
    if row.low is None or row.high is None or row.chance is None:
        raise ValueError(f"{row.name} is descriptive; it has no margin.")
    beyond = row.low - row.chance if row.higher_is == "leak" else row.chance - row.high
    bounded = row.name in BOUNDED
    room = max(1 - row.chance, 1e-9) if bounded and row.higher_is == "leak" else max(abs(row.chance), 1.0)
    return row.leaks, not row.verdict.startswith(QUIET), row.slice.get("data") != "the same", bounded, beyond / room
