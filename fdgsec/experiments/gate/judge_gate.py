"""Whether a finished run keeps within its limits; what is missing, failed, inapplicable or unreliable never passes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fdgsec.experiments.gate.thresholds import ACCURACY, ASKED, DELTA, GUARANTEE, Threshold, check_names
from fdgsec.experiments.report.schema import AttackReport, AttackResult
from fdgsec.experiments.report.stored import consistent_report, stored_path
from fdgsec.experiments.report.text import described
from fdgsec.experiments.report.words import numbers
from fdgsec.metrics.measurement import Measurement
from fdgsec.privacy.ledger import epsilon_text, review_mark
from fdgsec.runtime.errors import UsageError

Judge = Literal["interval", "value"]
Outcome = Literal["passed", "failed", "error", "skipped"]
"""`failed` is beyond the limit; `error` could not be judged, which does not pass either."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One row held against one limit, or the reason why there is no row to hold against it."""

    threshold: Threshold
    row: str
    outcome: Outcome
    said: str

    def document(self) -> dict[str, Any]:
        """Plain data."""
        return {"limit": self.threshold.text, "row": self.row, "outcome": self.outcome, "said": self.said}


@dataclass(frozen=True, kw_only=True)
class Gate:
    """All checks of a run."""

    report: AttackReport
    path: Path
    judged_by: Judge
    checks: Sequence[Check]

    @property
    def passed(self) -> bool:
        """Whether no check failed, none was impossible, and at least one row was judged."""
        outcomes = [check.outcome for check in self.checks]
        return "passed" in outcomes and all(outcome in ("passed", "skipped") for outcome in outcomes)

    @property
    def sentence(self) -> str:
        """The result in one line."""
        counts = {
            each: sum(c.outcome == each for c in self.checks) for each in ("passed", "failed", "error", "skipped")
        }
        words = {"passed": "passed", "failed": "beyond their limit", "error": "could not be judged",
                 "skipped": "not applicable"}  # fmt: skip
        said = ", ".join(f"{count} {words[name]}" for name, count in counts.items() if count)
        return f"gate {'passed' if self.passed else 'FAILED'} for {self.path}: of {len(self.checks)} checks {said}"

    def document(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "schema": 1, "run": str(self.path), "target": self.report.target, "dataset": self.report.dataset["name"],
            "judged_by": self.judged_by, "passed": self.passed, "checks": [check.document() for check in self.checks],
        }  # fmt: skip


def gate(
    run: Path, thresholds: Sequence[Threshold], *, judged_by: Judge = "interval", allow_inapplicable: bool = False
) -> Gate:
    """Hold a finished run against limits.

    By "interval" the end of the 95% interval on the limit's side must keep it, by "value" the value. With
    `allow_inapplicable` an attack that does not apply to what is sent is skipped, unless nothing else is judged: then
    no limit was kept, and each is an error. Raises UsageError for a run that is none or that was altered, unknown
    names, and limits on the wrong side."""
    path = stored_path(run)
    report = consistent_report(path)
    for threshold in thresholds:
        check_names(threshold, report)
    checks = [check for each in thresholds for check in _checks(each, report, judged_by, allow_inapplicable)]
    if all(check.outcome == "skipped" for check in checks):
        checks = [replace(check, outcome="error", said=f"nothing was judged: {check.said}") for check in checks]
    return Gate(report=report, path=path, judged_by=judged_by, checks=checks)


def _checks(threshold: Threshold, report: AttackReport, judged_by: Judge, allowed: bool) -> list[Check]:
    if threshold.attack == GUARANTEE:
        return [_guarantee(threshold, report)]
    if threshold.attack == ACCURACY:
        return [_accuracy(threshold, report, judged_by)]
    results = [each for each in report.attacks if each.name == threshold.attack]
    if not results:
        return [_none(threshold, f"{threshold.attack} was not run")]
    return [check for result in results for check in _checks_of(threshold, result, judged_by, allowed)]


def _checks_of(threshold: Threshold, result: AttackResult, judged_by: Judge, allowed: bool) -> list[Check]:
    """The rows of one attack that the limit is about; those that describe, and are judged by nothing, are none."""
    if result.status != "done":
        left_out = result.status == "skipped" and result.reason.startswith("not applicable") and allowed
        said = result.reason if result.status == "skipped" else f"{result.status}: {result.reason}"
        return [_none(threshold, said or result.status, outcome="skipped" if left_out else "error")]
    rows = [row for row in result.measurements if row.name == threshold.measurement and _fits(row, threshold.where)]
    if not rows:
        return [_none(threshold, _lacks(threshold, result))]
    judged = [row for row in rows if row.higher_is != "descriptive"]
    if not judged:
        return [_none(threshold, f"{threshold.measurement} describes, and is no measure of a leak")]
    faults = _faults(result)
    return [_held(threshold, row, faults, judged_by) for row in judged]


def _fits(row: Measurement, where: Mapping[str, str]) -> bool:
    return all(str(row.slice.get(key)) == said for key, said in where.items())


def _none(threshold: Threshold, said: str, *, outcome: Outcome = "error") -> Check:
    return Check(threshold=threshold, row=f"{threshold.attack}.{threshold.measurement}", outcome=outcome, said=said)


def _lacks(threshold: Threshold, result: AttackResult) -> str:
    """Why no row fits, with what there is."""
    named = [row for row in result.measurements if row.name == threshold.measurement]
    if not named:
        known = ", ".join(dict.fromkeys(row.name for row in result.measurements)) or "nothing"
        return f"{result.name} has no row {threshold.measurement}; it measured {known}"
    asked = ", ".join(f"{key}={value}" for key, value in threshold.where.items())
    values = {key: dict.fromkeys(str(row.slice.get(key, "absent")) for row in named) for key in threshold.where}
    there = "; ".join(f"{key}: {', '.join(found)}" for key, found in values.items())
    return f"{result.name} has no row {threshold.measurement} with {asked}; its rows have {there}"


def _faults(result: AttackResult) -> str:
    """Why an attack's rows are not enough: a control that failed, none that shows that it works, open questions."""
    failed = {kind: sum(not one.passed for one in found) for kind, found in result.controls.items()}
    said = [
        f"{count} of {len(result.controls[kind])} {kind} controls failed" for kind, count in failed.items() if count
    ]
    if not result.positive:
        said.append("no positive control shows that the attack works")
    said += [f"{question} was not answered: {reason}" for question, reason in result.unanswered.items()]
    return "; ".join(said)


def _held(threshold: Threshold, row: Measurement, faults: str, judged_by: Judge) -> Check:
    name = f"{threshold.attack}.{row.name}" + (f" ({described(row)})" if row.slice else "")
    wrong = {"leak": "min", "safe": "max"}.get(row.higher_is)
    if threshold.side == wrong:
        better = "safe" if row.higher_is == "safe" else "a leak"
        other = "max" if wrong == "min" else "min"
        raise UsageError(f"{threshold.text}: a higher {row.name} is {better}; use --{other}.")
    reason = row.unavailable or faults or row.unread
    reason = reason or (f"attack not adapted to {row.not_adapted_to}" if row.not_adapted_to else "")
    if not reason and row.worse_than_chance:
        reason = "worse than chance, so the answers do depend on the truth"
    if reason or row.value is None:
        said = f"{'unavailable' if row.value is None else 'not reliable'}: {reason}"
        return Check(threshold=threshold, row=name, outcome="error", said=said)
    ends = {"value": row.value, "low": row.low, "high": row.high}
    return _within(threshold, name, ends, judged_by, numbers(row))


def _within(threshold: Threshold, name: str, ends: Mapping[str, float | None], judged_by: Judge, words: str) -> Check:
    end = ends["value"] if judged_by == "value" else ends["high" if threshold.side == "max" else "low"]
    if not threshold.can_be(ends["value"]):
        said = f"{words}: no {threshold.attack}.{threshold.measurement} has this value"
        return Check(threshold=threshold, row=name, outcome="error", said=said)
    if end is None:
        said = f"{words}: no interval is known; judge by the value (--by value)"
        return Check(threshold=threshold, row=name, outcome="error", said=said)
    kept = end <= threshold.limit if threshold.side == "max" else end >= threshold.limit
    what = "value" if judged_by == "value" else "upper end" if threshold.side == "max" else "lower end"
    relation = ("within" if kept else "above") if threshold.side == "max" else "at least" if kept else "below"
    said = f"{words}: {what} {end:.4g} is {relation} {threshold.limit:g}"
    return Check(threshold=threshold, row=name, outcome="passed" if kept else "failed", said=said)


def _accuracy(threshold: Threshold, report: AttackReport, judged_by: Judge) -> Check:
    if threshold.side == "max":
        raise UsageError(f"{threshold.text}: a higher accuracy is better; use --min.")
    found = report.accuracy
    if found is None:
        return _none(threshold, "no accuracy was measured: no round was trained")
    domains = found.get("per_domain", {})
    assert isinstance(domains, Mapping)
    asked = threshold.measurement
    score = found if asked in ("unseen", found["unseen_domain"]) else domains.get(asked)
    if not isinstance(score, Mapping):
        return _none(threshold, f"no accuracy on {asked} was measured; known: unseen, {', '.join(domains)}")
    ends = {key: None if score.get(key) is None else float(str(score[key])) for key in ("value", "low", "high")}
    words = f"accuracy {ends['value']:.3g}" + (
        "" if ends["low"] is None else f" [{ends['low']:.3g}, {ends['high']:.3g}]"
    )
    return _within(threshold, f"accuracy.{asked}", ends, judged_by, words)


def _guarantee(threshold: Threshold, report: AttackReport) -> Check:
    if threshold.side == "min":
        raise UsageError(f"{threshold.text}: a higher epsilon promises less; use --max.")
    stated = [each for each in report.guarantees if each["part"] == "run"]
    if not stated or stated[0]["epsilon"] is None:
        return _none(threshold, "the run has no guarantee" + ("" if stated else ": it had no defense"))
    epsilon, delta = _number(stated[0]["epsilon"]), _number(stated[0].get("delta", 1.0), most=1.0)
    if epsilon is None or delta is None:
        return _none(threshold, "the report states an epsilon or a delta that no guarantee has: it was not written so")
    has = {key: str(stated[0].get(key, "unknown")) for key in ASKED}
    words = f"epsilon {epsilon_text(epsilon)} at delta {delta:g} per {has['unit']} ({has['relation']})"
    words += review_mark(stated[0])
    if delta > (most := float(threshold.where.get("delta", DELTA))):
        return _none(threshold, f"{words}: a delta of at most {most:g} is asked for ([delta=...] asks for another)")
    if wrong := [f"{key}={said}" for key, said in threshold.where.items() if said != has.get(key, said)]:
        return _none(threshold, f"{words}: {' and '.join(wrong)} is asked for")
    return _within(threshold, "guarantee.epsilon", {"value": epsilon}, "value", words)


def _number(given: object, *, most: float = math.inf) -> float | None:
    """The number that a report states, from 0 to `most`; None for anything else."""
    try:
        found = math.nan if isinstance(given, bool) else float(str(given))
    except ValueError:
        return None
    return found if 0 <= found <= most else None
