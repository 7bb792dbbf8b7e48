"""Whether one image moves a private training further than its cost says behind the optimizer of a run.

All other checks of training take plain steps of rate 1, whose weights show the noisy sums. A trainer that adds the
noise to the weights after the optimizer's step takes the same steps there; with momentum its sums add up and its noise
does not, and with Adam an image moves each weight by the learning rate whatever its gradient was clipped to. So
canaries of a pixel each (fdgsec.experiments.audit.gradient_canaries), half of them lit, are trained on with the
optimizer of a run, and the weights of lit pixels are compared with those of others: whatever an optimizer makes of
noisy sums tells an image no better than all steps may. What comes out of Adam is no Gaussian number, so that it is
counted how often both are told apart, by the weights and by their sizes."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fdgsec.experiments.audit.gradient_canaries import lit_pixels, moves
from fdgsec.experiments.audit.neighbor_tests import (
    Apart,
    Drawn,
    Test,
    along_a_direction,
    by_what_has_no_noise,
    by_what_is_sent,
)
from fdgsec.experiments.audit.neighboring_clients import Release, Site
from fdgsec.experiments.audit.one_run import canary_plan, trainings
from fdgsec.experiments.audit.step_distances import allowed_by
from fdgsec.federation.artifacts import Scores
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.method import Client, Clock
from fdgsec.nn.training.batches import TrainingSet
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.privacy.accounting import Use

RECORDS = 1024
SIDE = 19
"""Pixels: 3 x 19 x 19 values are as many as there are records, or more."""
STEPS = 8
"""After the first of them as well as after all, weights are compared: many steps may move far."""


def optimizer_moves(site: Site, defense_stack: DefenseStack, plans: Sequence[TrainingPlan]) -> list[str]:
    """What one image moves further than its cost allows in trainings with the optimizers of these plans, in words.

    Plain SGD is left out, and so is all where no Gaussian cost of all records is stated."""
    said = []
    for plan in plans:
        if plan.optimizer == "sgd" and not (plan.momentum or plan.weight_decay):
            continue
        tests: list[Test] = [by_what_has_no_noise, by_what_is_sent]
        tests.append(along_a_direction if plan.optimizer == "sgd" else _by_sizes)
        found = (test(lit, dark) for lit, dark in _trained(site, defense_stack, plan) for test in tests)
        far = next((one.words for one in found if one.too_far), None)
        named = plan.optimizer + (f" with momentum {plan.momentum:g}" if plan.momentum else "")
        said += [] if far is None else [f"one image moves a training by {named} {far}"]
    return said


def _by_sizes(lit: Drawn, dark: Drawn) -> Apart:
    """How often neighbors are told apart by the sizes of weights: who divides noisy sums by lengths without noise draws
    a sign that tells nothing, and a size that does."""
    first, second = (
        replace(one, sent=one.sent.abs().clamp_min(torch.finfo(one.sent.dtype).tiny).log()) for one in (lit, dark)
    )
    return by_what_is_sent(first, second)


def _trained(site: Site, defense_stack: DefenseStack, plan: TrainingPlan) -> Iterator[tuple[Drawn, Drawn]]:
    """The weights of lit pixels and of dark ones, a draw for each pixel, after one step and after STEPS; none where
    their cost does not say by how much one image may move them."""
    data = lit_pixels(RECORDS, SIDE)
    lit = torch.arange(RECORDS) % 2 == 0
    given = TrainingSet(images=data.pixels() * lit.view(-1, 1, 1, 1), labels=data.labels)
    tried = replace(
        canary_plan(site), epochs=STEPS, steps=None, batch_size=RECORDS, optimizer=plan.optimizer,
        learning_rate=plan.learning_rate, momentum=plan.momentum, weight_decay=plan.weight_decay,
    )  # fmt: skip
    once = replace(site, clocks=site.clocks[:1], client=replace(site.client, validation=None))
    named = replace(defense_stack, name=f"{defense_stack.name}/{plan.optimizer}/{plan.momentum:g}")
    moved = list[Tensor]()

    def train(with_trainer: Client, clock: Clock) -> None:
        moved.extend(moves(with_trainer, site.method, given, tried, clock=clock, sign=1.0, seed=site.seed))

    uses = [use for trainer in trainings(once, named, once.client, train) for use in trainer.uses]
    allowed = allowed_by(uses)
    if allowed is None:
        return
    for taken, paid in ((1, 1), (len(moved), sum(use.count for use in uses))):
        weights = torch.stack(moved[:taken]).double().sum(0)[:, :RECORDS]
        first, second = (
            _drawn(once, values.T, uses, allowed.present * math.sqrt(paid))
            for values in (weights[:, lit], weights[:, ~lit])
        )
        yield first, second


def _drawn(site: Site, values: Tensor, uses: Sequence[Use], allowed: float) -> Drawn:
    """The weights (pixels, T) as draws of a release."""
    artifact = Scores(values=values[0])
    return Drawn(
        release=Release(step="fit", slot="model", artifact=artifact, sender=site.sender(site.clocks[0], {})),
        sent=values, values=values, whole=torch.ones(values.shape[1], dtype=torch.bool), form=(), uses=uses,
        allowed=allowed,
    )  # fmt: skip
