"""The checks of private training beside its canaries, in one list for the audit of a run and for `check_defense`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from fdgsec.experiments.audit.free_numbers import told_for_free
from fdgsec.experiments.audit.gradient_canaries import OwnWeights
from fdgsec.experiments.audit.moved_by_optimizers import optimizer_moves
from fdgsec.experiments.audit.moved_weights import training_moves
from fdgsec.experiments.audit.neighboring_clients import Site
from fdgsec.experiments.audit.noise_checks import NoiseChecks, compared
from fdgsec.experiments.audit.noise_scale import SmallTraining
from fdgsec.experiments.audit.noise_within import DRAWS, NUMBERS, alike
from fdgsec.experiments.audit.one_run import Included, plan_of
from fdgsec.experiments.audit.sampled_records import sampling_faults
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.nn.training.training_loop import CrossEntropy
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.privacy.passed_checks import checked_once

OBJECTIVES = (CrossEntropy, Included, OwnWeights)
"""Each loss of theirs is of one record, whatever the weights: an audit checks networks with them in full once."""
each_kind_once = checked_once(*OBJECTIVES)
"""Decorates what makes many private trainings of few kinds."""


@dataclass(frozen=True, kw_only=True)
class TrainingFaults:
    """What one image moves further than its cost allows (`moved`), what is wrong with `samples`, and what could not be
    tried, in words."""

    moved: Sequence[str] = ()
    samples: Sequence[str] = ()
    untested: Sequence[str] = ()


def faults_of_training(
    site: Site, defense_stack: DefenseStack, plans: Sequence[TrainingPlan]
) -> Iterator[TrainingFaults]:
    """Look for faults in plain steps, behind the optimizers of `plans`, and in the samples of steps.

    Each is told as soon as it is found, so that who stops at the first pays for no further trainings."""
    for steps in training_moves(site, defense_stack):
        yield TrainingFaults(moved=steps.faults, untested=steps.untested)
    yield TrainingFaults(moved=optimizer_moves(site, defense_stack, plans))
    samples = sampling_faults(site, defense_stack)
    yield TrainingFaults(samples=samples.faults, untested=samples.untested)


def check_trainings(site: Site, *, releases: int, confidence: float) -> NoiseChecks:
    """Check the noise of a run's private trainer, and look for faults of its training.

    So many `releases` of trainings of one record are compared with each other (0: none)."""
    small, name = SmallTraining(site=site, records=1, side=2), site.defense_stack.name
    named = (replace(site.defense_stack, name=f"{name}/distinct/{number}") for number in range(releases))
    trained = (small.updates(stack)[0] for stack in named)
    again = (replace(site.defense_stack, name=f"{name}/within/{run}") for run in range(DRAWS))
    drawn = [torch.cat(small.updates(stack)[0])[:, small.records :].double().flatten() for stack in again]
    untouched = torch.stack(drawn)[:, :NUMBERS]
    found = list(faults_of_training(site, site.defense_stack, [plan_of(site)]))
    checks = NoiseChecks(
        confidence=confidence, within=["the updates of a training"] if alike(untouched) else [],
        trainings=[*(words for one in found for words in one.moved), *told_for_free(site, site.defense_stack)],
        samples=[words for one in found for words in one.samples],
        untested=[words for one in found for words in one.untested],
    )  # fmt: skip
    return compared(checks, (torch.cat(steps).double() for steps in trained))
