"""Judge controls: on exchanged artifacts the attack must find nothing, and planted information must be found.

If the positive control of an attack fails, its failure on the target proves nothing; if the negative control fails,
neither does its success. A control of one variant speaks for that variant's rows alone."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from fdgsec.metrics.measurement import Control, Goal, Measurement
from fdgsec.threats.attack import Answers, PositiveControl, VariantControl
from fdgsec.threats.judging.judge import Judge
from fdgsec.threats.judging.permutation_tests import NullRow


def negative_controls(rows: Sequence[NullRow], *, comparisons: int, alpha: float = 0.05) -> list[Control]:
    """Pass each row whose permutation p-value is at least alpha / `comparisons`, the control rows of the whole report.

    A p-value as small as its permutations allow fails even where that is above the level: it could not have failed
    otherwise. Raises ValueError for fewer comparisons than rows."""
    if comparisons < len(rows):
        raise ValueError(
            f"{len(rows)} control rows are part of the report's comparisons; got comparisons={comparisons}."
        )
    return [_negative(row, comparisons, alpha) for row in rows]


def _negative(row: NullRow, comparisons: int, alpha: float) -> Control:
    measured = Measurement(
        name=row.name, value=row.value, low=None, high=None, chance=None, chance_kind="none", n=row.n,
        higher_is="descriptive", method="permutation", slice=row.slice,
    )  # fmt: skip
    least = 1 / (row.permutations + 1)
    passed = row.p_value >= alpha / comparisons and row.p_value > least * (1 + 1e-9)
    return Control(
        measurement=measured,
        expected=f"permutation p = {row.p_value:.4g} {'>=' if passed else 'should be >='} {alpha:g}/{comparisons}",
        passed=passed,
    )


def positive_control(
    planted_control: PositiveControl, answers: Answers, judge: Judge, rng: torch.Generator
) -> list[Control]:
    """Measure `answers` to the planted cases; every row of the control's measurement must reach its goal.

    So must the further goals. A control fails, with the reason, where one of its measurements is unavailable, or where
    its goal is no higher than the measurement's chance level, for guesses would reach it."""
    rows = replace(judge, reconstructions_as_sets=False).measure(
        answers, planted_control.cases, planted_control.truths, rng
    )
    goal = Goal(
        measurement=planted_control.measurement, at_least=planted_control.at_least, without=planted_control.without
    )
    goals = [goal, *planted_control.also]
    return [control for goal in goals for control in _controls_of_goal(goal, rows)]


def variant_controls(
    control: VariantControl, answers: Answers, judge: Judge, rng: torch.Generator
) -> Mapping[str, list[Control]]:
    """Measure `answers` to the planted cases, and hold every variant to the goal: its controls, by variant.

    A variant without a row fails, as does every one where there are no cases."""
    rows = judge.measure(answers, control.cases, control.truths, rng) if control.cases else []
    return {
        variant: _controls_of_goal(
            replace(control.goal, where={**control.goal.where, control.key: variant}), rows, lacking=control.lacking
        )
        for variant in control.variants
    }  # fmt: skip


def without_evidence(
    rows: Sequence[Measurement], control: VariantControl, controls: Mapping[str, Sequence[Control]]
) -> list[Measurement]:
    """The rows, of which those that `control` speaks for are unread where their variant has not passed."""
    passed = {variant for variant, found in controls.items() if found and all(one.passed for one in found)}
    reason = control.lacking or control.failed
    return [
        replace(row, unread=row.unread or reason)
        if control.speaks_for(row) and row.slice[control.key] not in passed else row
        for row in rows
    ]  # fmt: skip


def _controls_of_goal(goal: Goal, rows: Sequence[Measurement], *, lacking: str = "") -> list[Control]:
    found = [row for row in rows if goal.fits(row)]
    if not found:
        reason = lacking or f"the attack gave no {goal.measurement} on its positive control"
        found = [
            Measurement(
                name=goal.measurement, value=None, low=None, high=None, chance=None, chance_kind="none", n=0,
                slice=goal.where, unavailable=reason,
            )
        ]  # fmt: skip
    return [_positive(row, goal) for row in found]


def _positive(row: Measurement, goal: Goal) -> Control:
    expected, reached = f">= {goal.at_least:g}", row.value is not None and row.value >= goal.at_least
    if row.chance is not None and goal.at_least <= row.chance:
        return Control(measurement=row, expected=f"{expected}, a goal above chance ({row.chance:g})", passed=False)
    return Control(measurement=row, expected=expected, passed=reached)
