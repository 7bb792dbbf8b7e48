"""Whether private training moves further with one image than its cost says, in all tensors of a network together.

DP-SGD bounds the length of an image's whole gradient. A trainer that clips each tensor by itself lets through the root
of their number times as much; one that measures the length without some tensors lets through all that is in these; one
that clips the sum of a batch turns it around with one image; one that adds no noise to some tensors, or the same noise
to every tensor, hides nothing along some direction; and one that takes its bound from the images tells by the size of
its noise what they are. So images with a gradient in all tensors, or in some
(fdgsec.experiments.audit.gradient_canaries), are trained on many times, with and without one of them, and what that
one moves is compared with the noise of the weights beside it, in all steps and in each; the run's own network takes a
step as well (fdgsec.experiments.audit.tensors_without_noise). A cost is of so many steps with new noise each: these are
counted, and their noise is compared with each other's."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fdgsec.experiments.audit.gradient_canaries import (
    AGAINST,
    EVERYWHERE,
    FAINT,
    IN_ONE_KIND,
    INFINITE,
    NOT_A_NUMBER,
    moves,
)
from fdgsec.experiments.audit.neighbor_tests import DEVIATIONS, FACTOR
from fdgsec.experiments.audit.neighboring_clients import Site, late
from fdgsec.experiments.audit.noise_of_records import SIZE_DEVIATIONS
from fdgsec.experiments.audit.noise_within import repeats
from fdgsec.experiments.audit.one_run import canary_plan, inverse_variances, trainings
from fdgsec.experiments.audit.tensors_without_noise import trained_without_noise
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.dp_sgd_joint import StepsJointly
from fdgsec.federation.method import Client, Clock
from fdgsec.nn.training.batches import TrainingSet
from fdgsec.privacy.accounting import Use
from fdgsec.runtime.errors import UsageError

STEPS = 64
PAIRED = 160
"""Steps with an image against another one, and without it: a clip of their sum moves twice as far as it may."""
FEW = 8
"""Steps with an image whose gradient is in some tensors: where these are left out of its length, it is not bounded."""
SIDE = 2
WITHOUT = 1e6
"""Standard deviations from which on there is no noise but that of rounding."""
VERSIONS = 32
"""Entries of one image: where each is clipped by itself, it moves so many times as far as it may."""
LARGE = 64
"""Pixels: 12,288 numbers in each tensor, among which noise that comes again is sought."""
IN_ONE_STEP = 12.0
"""Standard deviations by which a step must exceed what is allowed to count alone: it has one draw, and its noise a size
that few numbers tell."""
RELATED = 6.0
"""Standard deviations of the correlation of unrelated noise, beyond which that of two steps is related."""


@dataclass(frozen=True, kw_only=True)
class MovedWeights:
    """By how many standard deviations of the noise one image moves a training, and by how many it may."""

    distance: float
    error: float
    allowed: float
    furthest: float = 0.0
    """The distance in that step in which it is largest, by the noise of this step alone."""

    @property
    def too_far(self) -> bool:
        """Whether the distance is beyond what is allowed and estimation explains, in all steps or in one."""
        return self._in_one_step or self.distance - DEVIATIONS * self.error > FACTOR * self.allowed

    @property
    def _in_one_step(self) -> bool:
        return self.furthest - IN_ONE_STEP > FACTOR * self.allowed

    @property
    def words(self) -> str:
        """Both, in words."""
        by = self.furthest if self._in_one_step else self.distance
        if by > WITHOUT:
            return f"in which nothing hides it; {self.allowed:.1f} standard deviations of noise are allowed"
        return f"by {by:.1f} standard deviations of its noise; {self.allowed:.1f} are allowed"


def training_moves(site: Site, defense_stack: DefenseStack) -> list[str]:
    """What one image moves further in a step of a client's training than its cost allows, in words; nothing where no
    Gaussian cost of all records is stated."""
    tried = _Tried(site=site, defense_stack=defense_stack)
    alone, uses = tried.steps(STEPS, [EVERYWHERE])
    allowed = allowed_by(uses)
    if allowed is None:
        return []
    both, without = (tried.steps(PAIRED, [EVERYWHERE, AGAINST], lit=lit)[0] for lit in (2, 1))
    found = [apart(alone, torch.zeros_like(alone), allowed), apart(without, both, allowed)]
    for label in IN_ONE_KIND:
        part = tried.steps(FEW, [label])[0]
        found.append(apart(part, torch.zeros_like(part), allowed))
    found.append(_moved_late(site, defense_stack))
    said = [f"one image moves a step of training {moved.words}" for moved in found if moved.too_far][:1]
    said += _moved_by_versions(tried, allowed)
    if len(alone) > (paid := sum(use.count for use in uses)):
        said.append(f"a training takes {len(alone)} steps; its cost is of {paid}")
    if related(alone[..., 1:]):
        said.append("the noise of a step of training comes again in another one")
    if any(repeats(tensor) for tensor in tried.steps(1, [EVERYWHERE], side=LARGE)[0][0]):
        said.append("the noise of a training comes again in the numbers of a tensor")
    if _of_another_size(alone, tried.steps(STEPS, [FAINT])[0]):
        said.append("the size of a training's noise follows the gradient of its image")
    said += _not_finite(tried, alone, allowed)
    if not said and (tensor := trained_without_noise(site, defense_stack)):
        said.append(f"one image changes {tensor!r} of the network, in which nothing hides it")
    return said


def _moved_by_versions(tried: "_Tried", allowed: float) -> list[str]:
    """What an image of several entries moves further than it may; nothing where the trainer refuses such images."""
    if isinstance(tried.site.method, StepsJointly):  # these refuse them all
        return []
    try:
        moved = tried.steps(STEPS, [EVERYWHERE], versions=VERSIONS)[0]
    except UsageError:
        return []
    found = apart(moved, torch.zeros_like(moved), allowed)
    return [f"one image of several versions moves a step of training {found.words}"] if found.too_far else []


def _of_another_size(one: Tensor, other: Tensor) -> bool:
    """Whether the noise of as many steps of two clients differs in size."""
    sizes = [moved[..., 1:].square().mean().log() for moved in (one, other)]
    return abs(float(sizes[0] - sizes[1])) > SIZE_DEVIATIONS * math.sqrt(4 / one[..., 1:].numel())


def _not_finite(tried: "_Tried", alone: Tensor, allowed: float) -> list[str]:
    """What an image whose gradient is infinite, or no number, does to a training, in words: a clip that multiplies by
    the bound over a length gives no number, and whoever fails with such an image tells that it is there."""
    for label in (INFINITE, NOT_A_NUMBER):
        try:
            moved = tried.steps(STEPS, [label])[0]
        except (ArithmeticError, RuntimeError, ValueError, UsageError) as error:
            return [f"a training fails with an image whose gradient is not finite, and tells of it so ({error})"]
        if not bool(moved.isfinite().all()):
            return ["an image whose gradient is not finite makes the weights so, in which nothing hides it"]
        if apart(moved, torch.zeros_like(moved), allowed).too_far or _of_another_size(alone, moved):
            return ["an image whose gradient is not finite moves a step of training further than its noise hides"]
    return []


def _moved_late(site: Site, defense_stack: DefenseStack) -> MovedWeights:
    """What one image moves in a late round, whose noise may be less than that of the first."""
    tried = _Tried(site=replace(site, clocks=[late(site.clocks[0])]), defense_stack=defense_stack)
    moved, uses = tried.steps(FEW, [EVERYWHERE])
    return apart(moved, torch.zeros_like(moved), allowed_by(uses) or math.inf)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Tried:
    """Trainings of a client of a few images through the defense's own trainer, in all rounds."""

    site: Site
    defense_stack: DefenseStack

    def steps(
        self,
        count: int,
        labels: Sequence[int],
        *,
        lit: int | None = None,
        side: int = SIDE,
        versions: int = 1,
    ) -> tuple[Tensor, Sequence[Use]]:
        """What each of `count` steps a round moves, (steps of all rounds, tensors, weights) float64, and what they
        cost.

        All images light the first pixel, or the first `lit` of them; each has so many equal `versions`."""
        images = torch.zeros(len(labels), 3, side, side, dtype=torch.uint8)
        images[:lit, 0, 0, 0] = 255
        owners, found = torch.arange(len(labels)).repeat_interleave(versions), list[Tensor]()
        given = TrainingSet(
            images=images[owners], labels=torch.tensor(labels)[owners], owners=None if versions == 1 else owners
        )
        plan = replace(canary_plan(self.site), epochs=count, steps=None, batch_size=len(owners))
        named = replace(self.defense_stack, name=f"{self.defense_stack.name}/moved/{labels}/{lit}/{side}/{versions}")

        def train(with_trainer: Client, clock: Clock) -> None:
            moved = moves(with_trainer, self.site.method, given, plan, clock=clock, sign=1.0, seed=self.site.seed)
            found.extend(step.double() for step in moved)

        trainers = trainings(self.site, named, replace(self.site.client, validation=None), train)
        return torch.stack(found), [use for trainer in trainers for use in trainer.uses]


def allowed_by(uses: Sequence[Use]) -> float | None:
    """By how many standard deviations an image may move a step of these costs; None where that is not stated."""
    if not uses or not all(use.mechanism == "gaussian" and use.noise and use.sampling_rate == 1 for use in uses):
        return None
    return max(use.sensitivity.get("zero-out", 0.0) / use.noise for use in uses) or None


def apart(one: Tensor, other: Tensor, allowed: float) -> MovedWeights:
    """Compare what steps of two clients move, (steps, T, weights), of which the first weight is the one that differs.

    A gradient is as long in every tensor of which it is, so that each counts by its inverse variance beside it. Of
    trainings of different lengths, the steps of the shorter one count."""
    one, other = one[: len(other)], other[: len(one)]
    beside = torch.cat([one[..., 1:], other[..., 1:]]) if bool(other.any()) else one[..., 1:]
    variances = beside.square().mean((0, 2))
    along = inverse_variances(variances)
    noise = float(torch.einsum("rto,t->ro", beside, along).square().mean().sqrt())
    shifts = (one[..., 0] - other[..., 0]) @ along
    error = math.sqrt(len(beside)) / len(one)
    if not noise:
        return MovedWeights(distance=math.inf, error=error, allowed=allowed)
    noisy = variances > 0
    sizes = (one[:, noisy, 1:].square().mean(2) / variances[noisy]).mean(1).sqrt()
    return MovedWeights(
        distance=float(shifts.mean()) / noise,
        error=error,
        allowed=allowed,
        furthest=float((shifts / sizes).max()) / noise,
    )


def related(noise: Tensor) -> bool:
    """Whether two of R steps (R, T, weights) have noise that is related; every tensor counts by its own noise."""
    size = noise.square().mean((0, 2)).sqrt()
    rows = (noise[:, size > 0] / size[size > 0, None]).flatten(1)
    rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
    found = (rows @ rows.T).fill_diagonal_(0).abs().max()
    return rows.shape[1] > 0 and float(found) > RELATED / math.sqrt(rows.shape[1])
