"""Measurements, controls and guarantees as text, for the terminal and the HTML page."""

from collections.abc import Mapping, Sequence

from fdgsec.experiments.report.schema import AttackReport, AttackResult
from fdgsec.experiments.report.words import CONTROL_WORDS, idle_defenses, listed
from fdgsec.metrics.measurement import Measurement
from fdgsec.privacy.ledger import guarantee_line


def number(value: float | None) -> str:
    """A number with three significant digits, or nothing."""
    return "" if value is None else f"{value:.3g}" if abs(value) < 1e-2 and value else f"{value:.3f}"


def interval(row: Measurement) -> str:
    """[low, high], or nothing."""
    return "" if row.low is None or row.high is None else f"[{number(row.low)}, {number(row.high)}]"


def described(row: Measurement) -> str:
    """The slice in words."""
    return ", ".join(f"{key} {CONTROL_WORDS.get(str(value), value)}" for key, value in row.slice.items())


def headline(row: Measurement) -> bool:
    """Whether the terminal shows a row; the report has all rows."""
    if row.name == "psnr_gain":
        return row.slice.get("over") in ("B0", "B2", "B3") or row.unavailable is not None
    if row.name.startswith("gallery_"):
        return row.name == "gallery_top1" and row.slice.get("distance") == "mse"
    if row.name == "accuracy" and "run" in row.slice:  # honest_accuracy_drop shows it
        return False
    return row.name in HEADLINES


HEADLINES = (
    "top1", "auc", "one_candidate_auc", "tpr_at_1pct_fpr", "relative_error", "balanced_accuracy", "accuracy",
    "exposed_fraction", "exact_list", "refused", "ended",
    "honest_accuracy_drop",
)  # fmt: skip


def controls_of(result: AttackResult) -> str:
    """The number of passed controls, e.g. "positive controls 1/1 passed, negative controls 9/9 passed"."""
    single = {"single variants'": result.variants} if result.variants else {}
    return ", ".join(
        f"{kind} controls {sum(one.passed for one in found)}/{len(found)} passed"
        for kind, found in {**result.controls, **single}.items()
    )


def unread(report: AttackReport) -> str:
    """What the adversary saw and no attack of the report read; empty if there was nothing."""
    kinds = ", ".join(report.unread_kinds)
    return f"seen by the adversary and read by no attack of this report: {kinds}" if kinds else ""


def promises(report: AttackReport) -> list[str]:
    """The defenses with their options and guarantees; empty without defenses."""
    if not report.defenses:
        return []
    stated = []
    idle = idle_defenses(report)
    for defense in report.defenses:
        options = defense["options"]
        assert isinstance(options, Mapping)
        said = ", which changed nothing: clients sent nothing that it acts on" if defense["name"] in idle else ""
        stated.append(f"{defense['name']}({', '.join(f'{key}={value}' for key, value in options.items())}){said}")
    return [
        f"defenses: {'; '.join(stated) if idle else ', '.join(stated)}",
        *(f"guarantee, {guarantee_line(each)}" for each in reversed(report.guarantees)),
    ]


def undecided_by(results: Sequence[AttackResult]) -> str:
    """Why attacks that ran decide nothing, in words: what kept them from measuring, or what alone they measured."""
    empty = [each for each in results if all(row.unavailable is not None for row in each.measurements)]
    others = [each.name for each in results if each not in empty]
    said = []
    for each in empty:
        reasons = list(dict.fromkeys(row.unavailable for row in each.measurements if row.unavailable))
        said.append(f"{each.name} could measure nothing" + (f" ({reasons[0]})" if reasons else ""))
    if others:
        said.append(f"no judged measurement of the messages themselves by {listed(others)}")
    return "; ".join(said)
