"""report.html: one file, no network, every number from report.json."""

import base64
from collections.abc import Mapping
from importlib import resources

from jinja2 import Environment, StrictUndefined

from fdgsec.experiments.report.schema import AttackReport, AttackResult
from fdgsec.experiments.report.text import controls_of, described, interval, number, unread
from fdgsec.metrics.measurement import BOUNDED, Control, Measurement
from fdgsec.privacy.ledger import guarantee_line

QUIET = "no leak shown"


def _row(measurement: Measurement) -> dict[str, object]:
    return {
        "name": measurement.name,
        "slice": described(measurement),
        "value": measurement.unavailable or number(measurement.value),
        "interval": interval(measurement),
        "chance": number(measurement.chance),
        "chance_kind": measurement.chance_kind,
        "n": measurement.n,
        "method": measurement.method,
        "verdict": measurement.verdict,
        "css": "leaks" if measurement.leaks else "quiet" if measurement.verdict.startswith(QUIET) else "muted",
    }


def _control(side: str, control: Control) -> dict[str, object]:
    return {**_row(control.measurement), "side": side, "expected": control.expected, "passed": control.passed}


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


def _verdict(result: AttackResult) -> dict[str, object]:
    row = strongest(result)
    controls = [control for found in result.controls.values() for control in found]
    judged = [row for row in result.measurements if row.judged]
    leaking = sum(row.leaks for row in judged)
    return {
        "attack": result.name,
        "status": result.status,
        "reason": result.reason,
        "row": None if row is None else _row(row),
        "leaking": f"{leaking} of {len(judged)}",
        "controls": controls_of(result) if controls else "",
        "controls_passed": all(control.passed for control in controls),
    }


def _attack(result: AttackResult) -> dict[str, object]:
    figures = [
        {
            "title": figure.title,
            "caption": figure.caption,
            "src": "" if figure.png is None else "data:image/png;base64," + base64.b64encode(figure.png).decode(),
        }
        for figure in result.figures
    ]
    controls = [_control(kind, control) for kind, found in result.controls.items() for control in found]
    facts: Mapping[str, object] = {
        "name": result.name, "adversary": result.adversary, "status": result.status, "reason": result.reason,
        "seconds": result.seconds, "figures": figures, "rows": [_row(row) for row in result.measurements],
        "controls": controls, "controls_summary": controls_of(result),
    }  # fmt: skip
    return dict(facts)


def render(report: AttackReport) -> str:
    """Fill the bundled template; all data is HTML-escaped."""
    source = resources.files("fdgsec.experiments.report").joinpath("report.html").read_text()
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(source)
    return template.render(
        report=report.document(),
        promises=[guarantee_line(guarantee) for guarantee in report.guarantees],
        assumptions=report.guarantees[0]["assumptions"] if report.guarantees else [],
        family=sum(row.judged for result in report.attacks for row in result.measurements),
        verdicts=[_verdict(result) for result in report.attacks],
        unread=unread(report),
        attacks=[_attack(result) for result in report.attacks],
    )
