"""Whether private training moves further with one image than its cost says, in all tensors of a network together.

DP-SGD bounds the length of an image's whole gradient. A trainer that clips each tensor by itself lets through the root
of their number times as much; one that measures the length without some tensors lets through all that is in these; one
that clips the sum of a batch turns it around with one image; one that adds no noise to some tensors, or the same noise
to every tensor, hides nothing along some direction; and one that takes its bound from the images tells by the size of
its noise what they are. So images with a gradient in all tensors, or in some
(fdgsec.experiments.audit.gradient_canaries), are trained on many times, with and without one of them, or with another
one in its place, and what that one moves is compared with the noise of the weights beside it, in all steps and in each
(fdgsec.experiments.audit.step_distances); the run's own network takes a step as well
(fdgsec.experiments.audit.tensors_without_noise). A trainer may draw images at a rate of its own: then it takes so many
more steps, and an image may move them on average by that share. A cost is of so many steps with new noise each: these
are counted (fdgsec.experiments.audit.counted_steps), and their noise is compared with each other's."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fdgsec.experiments.audit.counted_steps import Counted, Findings, miscounted
from fdgsec.experiments.audit.gradient_canaries import (
    AGAINST,
    COSTLY,
    EVERYWHERE,
    FAINT,
    IN_ONE_KIND,
    INFINITE,
    NOT_A_NUMBER,
    moves,
)
from fdgsec.experiments.audit.images_beside import moved_by_others
from fdgsec.experiments.audit.neighbor_tests import DEVIATIONS, FACTOR
from fdgsec.experiments.audit.neighboring_clients import Site, late
from fdgsec.experiments.audit.noise_within import repeats
from fdgsec.experiments.audit.one_run import canary_plan, trainings
from fdgsec.experiments.audit.step_distances import (
    Allowed,
    MovedWeights,
    allowed_by,
    apart,
    of_another_size,
    related,
    squares_paid,
)
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
VERSIONS = 32
"""Entries of one image: where each is clipped by itself, it moves so many times as far as it may."""
LARGE = 64
"""Pixels: 12,288 numbers in each tensor, among which noise that comes again is sought."""
MOST_TIMES = 16
"""By how many more steps are taken, at most, where an image takes part in a share of them."""


def training_moves(site: Site, defense_stack: DefenseStack) -> Iterator[Findings]:
    """Yield what one image moves further in a step of a client's training than its cost allows, and what else is wrong
    with steps, as soon as it is found: who needs one fault pays for no further trainings."""
    tried = _Tried(site=site, defense_stack=defense_stack)
    alone, uses = tried.steps(STEPS, [EVERYWHERE])
    allowed = allowed_by(uses)
    if allowed is None:
        if uses and all(use.noise for use in uses):
            yield Findings(untested=["steps whose cost is not of Gaussian noise for a stated distance"])
        return
    if allowed.rate < 1 and len(alone) * allowed.rate < STEPS * len(site.clocks):  # as many with an image as else
        tried = replace(tried, times=min(MOST_TIMES, math.ceil(1 / allowed.rate)))
        alone, uses = tried.steps(STEPS, [EVERYWHERE])
    if not bool(alone.any()):
        yield Findings(untested=["steps in which nothing moves"])
        return
    sound = True
    for found in _moved_in_turn(tried, alone, allowed, uses):
        sound = sound and not found.faults
        yield found
    if sound and (tensor := trained_without_noise(site, defense_stack)):
        yield Findings(faults=[f"one image changes {tensor!r} of the network, in which nothing hides it"])


def _moved_in_turn(tried: "_Tried", alone: Tensor, allowed: Allowed, uses: Sequence[Use]) -> Iterator[Findings]:
    """What is wrong with steps of networks that are made for it."""
    moved = False
    for words in _moved_further(tried, alone, allowed):
        moved = True
        yield Findings(faults=[words])
    if not moved and (words := _further_in_all(alone, allowed, uses)):
        yield Findings(faults=[words])
    if related(alone[..., 1:]):
        again = "the noise of a step of training comes again in another one (momentum inside the trainer does this; set"
        yield Findings(faults=[f"{again} it in the plan instead)"])
    site, defense_stack = tried.site, tried.defense_stack
    faint, costly = (tried.steps(STEPS, [label]) for label in (FAINT, COSTLY))
    yield from miscounted(site, defense_stack, [Counted.of(*one) for one in ((alone, uses), faint, costly)])
    if any(repeats(tensor) for tensor in tried.steps(1, [EVERYWHERE], side=LARGE)[0][0]):
        yield Findings(faults=["the noise of a training comes again in the numbers of a tensor"])
    if of_another_size(alone[..., 1:], faint[0][..., 1:]):
        yield Findings(faults=["the size of a training's noise follows the gradient of its image"])
    bound = min(min(use.sensitivity.values()) for use in uses)
    yield Findings(faults=_not_finite(tried, alone, allowed))
    yield Findings(faults=moved_by_others(site, defense_stack, allowed, bound))


def _moved_further(tried: "_Tried", alone: Tensor, allowed: Allowed) -> Iterator[str]:
    """What one image moves further than it may, in words: left out, exchanged or late, and of several entries."""
    distances = _distances(tried, alone, allowed)
    if (moved := next((one for one in distances if one.too_far), None)) is not None:
        yield f"one image moves a step of training {moved.words}"
    yield from _moved_by_versions(tried, allowed)


def _distances(tried: "_Tried", alone: Tensor, allowed: Allowed) -> Iterator[MovedWeights]:
    nothing, (present, rate) = torch.zeros_like, (allowed.present, allowed.rate)
    yield apart(alone, nothing(alone), present, rate=rate)
    both, without = (tried.steps(PAIRED, [EVERYWHERE, AGAINST], lit=lit)[0] for lit in (2, 1))
    yield apart(without, both, present, rate=rate, images=2)
    yield apart(alone, tried.steps(STEPS, [AGAINST])[0], allowed.replaced, rate=rate)
    for label in IN_ONE_KIND:
        part = tried.steps(FEW, [label])[0]
        yield apart(part, nothing(part), present, rate=rate)
    yield _moved_late(tried)


def _further_in_all(alone: Tensor, allowed: Allowed, uses: Sequence[Use]) -> str:
    """Say so if an image moves steps of several costs, in all, further than these add up to.

    Each may move no further than the most expensive one."""
    if len({(use.noise, use.sampling_rate, *use.sensitivity.items()) for use in uses}) == 1:
        return ""
    found, (paid, variance) = (
        apart(alone, torch.zeros_like(alone), allowed.present, rate=allowed.rate),
        squares_paid(uses),
    )
    if found.squares - DEVIATIONS * math.sqrt(found.squares_error**2 + variance) <= FACTOR**2 * paid:
        return ""
    further = f"{math.sqrt(found.squares):.1f} standard deviations of their noise in all; {math.sqrt(paid):.1f} are"
    return f"one image moves the steps of a training by {further} paid for"


def _moved_by_versions(tried: "_Tried", allowed: Allowed) -> list[str]:
    """What an image of several entries moves further than it may; nothing where the trainer refuses such images."""
    if isinstance(tried.site.method, StepsJointly):  # these refuse them all
        return []
    try:
        moved = tried.steps(STEPS, [EVERYWHERE], versions=VERSIONS)[0]
    except UsageError:
        return []
    found = apart(moved, torch.zeros_like(moved), allowed.present, rate=allowed.rate)
    return [f"one image of several versions moves a step of training {found.words}"] if found.too_far else []


def _not_finite(tried: "_Tried", alone: Tensor, allowed: Allowed) -> list[str]:
    """What an image whose gradient is infinite, or no number, does to a training, in words: a clip that multiplies by
    the bound over a length gives no number, and whoever fails with such an image tells that it is there."""
    for label in (INFINITE, NOT_A_NUMBER):
        try:
            moved = tried.steps(STEPS, [label])[0]
        except (ArithmeticError, RuntimeError, ValueError, UsageError) as error:
            return [f"a training fails with an image whose gradient is not finite, and tells of it so ({error})"]
        if not bool(moved.isfinite().all()):
            return ["an image whose gradient is not finite makes the weights so, in which nothing hides it"]
        found = apart(moved, torch.zeros_like(moved), allowed.present, rate=allowed.rate)
        if found.too_far or of_another_size(alone[..., 1:], moved[..., 1:]):
            return ["an image whose gradient is not finite moves a step of training further than its noise hides"]
    return []


def _moved_late(tried: "_Tried") -> MovedWeights:
    """What one image moves in a late round, whose noise may be less than that of the first."""
    last = replace(tried, site=replace(tried.site, clocks=[late(tried.site.clocks[0])]))
    moved, uses = last.steps(FEW, [EVERYWHERE])
    allowed = allowed_by(uses) or Allowed(present=math.inf, replaced=math.inf, rate=1.0)
    return apart(moved, torch.zeros_like(moved), allowed.present, rate=allowed.rate)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Tried:
    """Trainings of a client of a few images through the defense's own trainer, in all rounds, of so many `times` the
    steps that are asked for."""

    site: Site
    defense_stack: DefenseStack
    times: int = 1

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
        plan = replace(canary_plan(self.site), epochs=self.times * count, steps=None, batch_size=len(owners))
        named = replace(self.defense_stack, name=f"{self.defense_stack.name}/moved/{labels}/{lit}/{side}/{versions}")

        def train(with_trainer: Client, clock: Clock) -> None:
            moved = moves(with_trainer, self.site.method, given, plan, clock=clock, sign=1.0, seed=self.site.seed)
            found.extend(step.double() for step in moved)

        trainers = trainings(self.site, named, replace(self.site.client, validation=None), train)
        return torch.stack(found), [use for trainer in trainers for use in trainer.uses]
