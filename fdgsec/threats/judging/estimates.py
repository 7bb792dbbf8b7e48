"""Judge estimated numbers: statistics recovered from a release, and numbers that theory predicts."""

import math

import torch
from torch import Tensor

from fdgsec.metrics.measurement import Measurement
from fdgsec.threats.answers import Prediction, Recovered
from fdgsec.threats.judging.groups import Group, Scale, finite, median_row, row, unavailable
from fdgsec.threats.judging.permutation_tests import PermutationTest, Scores, exchangeable


def measure_recovered(group: Group) -> list[Measurement]:
    """Give the median over records of |estimate - true| / |true|; chance is what the guess without a release gives."""
    entries, name = group.of(Recovered), "relative_error"
    errors, without = [], []
    for entry in entries:
        true, answer = entry.truth.statistic, entry.answer
        if true is None:
            reason = f"nobody knows the statistic of {entry.case.victim} in the {entry.case.question} run"
            return unavailable([name], group.slice, reason, n=len(entries))
        if true.shape != answer.statistic.shape or answer.without.shape != true.shape[1:]:
            raise ValueError(
                f"statistic must be {tuple(true.shape)} and without {tuple(true.shape[1:])}; "
                f"got {tuple(answer.statistic.shape)} and {tuple(answer.without.shape)}."
            )
        reason = finite({"recovered statistic": answer.statistic, "guess without": answer.without})
        if reason:
            return unavailable([name], group.slice, reason, n=len(entries))
        errors.append(relative_error(answer.statistic, true))
        without.append(relative_error(answer.without.expand_as(true), true))
    blind, sizes = torch.cat(without), list(map(len, errors))
    scale = Scale(chance=float(blind.quantile(0.5)), chance_kind="measured", higher_is="safe")
    return [median_row(name, group.slice, torch.cat(errors), scale, bounds=(0.0, None), sizes=sizes, without=blind)]


def relative_error(estimate: Tensor, true: Tensor) -> Tensor:
    """Give |estimate - true| / |true| per record, (R,) float64."""
    target = true.to(torch.float64)
    error: Tensor = (estimate.to(torch.float64) - target).norm(dim=1) / target.norm(dim=1)
    return error


def _recovery_scores(group: Group) -> Scores | None:
    entries = group.of(Recovered)
    truths = [entry.truth.statistic for entry in entries]
    known = [true.to(torch.float64) for true in truths if true is not None]
    guessed = [entry.answer.statistic.to(torch.float64) for entry in entries]
    if len(known) < len(entries) or finite({str(i): part for i, part in enumerate(guessed)}):
        return None
    blocks = []
    for part in exchangeable([len(true) for true in known], [None] * len(known)):
        own, guess = torch.cat([known[i] for i in part]), torch.cat([guessed[i] for i in part])
        error = torch.cdist(guess, own, compute_mode="donot_use_mm_for_euclid_dist") / own.norm(dim=1)
        blocks.append(-error.clamp_min(1e-15).log())
    return blocks


RECOVERY_TEST = PermutationTest(name="relative_error", scores=_recovery_scores, value=lambda mean: math.exp(-mean))


def measure_predictions(group: Group) -> list[Measurement]:
    """Average the predictions for the cases of one slice: descriptive, without chance or interval."""
    answers = [entry.answer for entry in group.of(Prediction)]
    values = torch.tensor([answer.value for answer in answers], dtype=torch.float64)
    reason = finite({answers[0].name: values})
    if reason:
        return unavailable([answers[0].name], group.slice, reason, n=len(answers))
    scale = Scale(chance=None, chance_kind="none", higher_is="descriptive", unit=answers[0].unit)
    return [row(answers[0].name, group.slice, float(values.mean()), None, len(values), scale)]
