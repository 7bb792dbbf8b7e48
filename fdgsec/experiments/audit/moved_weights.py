"""Whether private training moves further with one image than its cost says, in all tensors of a network together.

DP-SGD bounds the length of an image's whole gradient. A trainer that clips each tensor by itself lets through the root
of their number times as much; one that adds no noise to vectors, or the same noise to every tensor, hides nothing
along some direction. So one image is trained on many times that has a gradient in every tensor
(fdgsec.experiments.audit.gradient_canaries), and what it moves is compared with the noise of the weights beside it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fdgsec.experiments.audit.neighbor_tests import DEVIATIONS, FACTOR
from fdgsec.experiments.audit.neighboring_clients import Site
from fdgsec.experiments.audit.noise_scale import SmallTraining
from fdgsec.federation.defense import Uses
from fdgsec.federation.defense_stack import DefenseStack

TRAININGS = 64
LEAST = 1e-12
"""Of a tensor's noise, as a part of the largest variance."""


@dataclass(frozen=True, kw_only=True)
class MovedWeights:
    """By how many standard deviations of the noise one image moves a training, and by how many it may."""

    distance: float
    error: float
    allowed: float

    @property
    def too_far(self) -> bool:
        """Whether the distance is beyond what is allowed and estimation explains."""
        return self.distance - DEVIATIONS * self.error > FACTOR * self.allowed

    @property
    def words(self) -> str:
        """Both, in words."""
        return f"by {self.distance:.1f} standard deviations of its noise; {self.allowed:.1f} are allowed"


def moved_weights(site: Site, defense_stack: DefenseStack) -> MovedWeights | None:
    """How far the only image of a client moves its training in all rounds; None where no Gaussian cost is stated."""
    small = SmallTraining(site=site, records=1, side=2)
    names = [f"{defense_stack.name}/moved/{run}" for run in range(TRAININGS)]
    trained = [small.updates(replace(defense_stack, name=name)) for name in names]
    allowed = allowed_by(trained[0][1])
    if allowed is None:
        return None
    moved = torch.stack([torch.cat(steps).double() for steps, _ in trained])  # trainings, tensors of all steps, weights
    return apart(moved[..., 0], moved[..., 1:], allowed)


def allowed_by(costs: Sequence[Uses]) -> float | None:
    """By how many standard deviations an image may move trainings of these costs; None where that is not stated."""
    uses = [use for cost in costs for use in cost or ()]
    if not uses or not all(use.mechanism == "gaussian" and use.noise and use.sampling_rate == 1 for use in uses):
        return None
    return math.sqrt(sum(use.count * (use.sensitivity.get("zero-out", 0.0) / use.noise) ** 2 for use in uses)) or None


def apart(moved: Tensor, beside: Tensor, allowed: float) -> MovedWeights:
    """Compare what the image moves, (runs, T), with the weights `beside` it (runs, T, others).

    It is as long in every tensor, so that each counts by its inverse variance."""
    variance = beside.square().mean((0, 2))
    along = 1 / variance.clamp_min(max(LEAST * float(variance.max()), torch.finfo(torch.float64).tiny))
    noise = float(torch.einsum("rto,t->ro", beside, along).square().mean().sqrt())
    shift = float((moved @ along).mean())
    return MovedWeights(
        distance=shift / noise if noise else math.inf, error=1 / math.sqrt(len(moved)), allowed=allowed
    )  # fmt: skip
