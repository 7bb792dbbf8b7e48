"""Whether a private training takes the steps that it pays for, whatever its plan and its images.

A cost is of so many steps. How many a training takes follows from its plan: epochs of a client's images in batches, or
a number that is given. Who counts epochs for steps, or stops where the loss is low, takes others than were paid for, or
tells of the loss by their number. A step that happens to take no image counts as well: without noise, it shows that it
took none."""

from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fdgsec.experiments.audit.gradient_canaries import EVERYWHERE, moves
from fdgsec.experiments.audit.neighboring_clients import Site
from fdgsec.experiments.audit.one_run import canary_plan, trainings
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.method import Client, Clock
from fdgsec.nn.training.batches import TrainingSet
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.privacy.accounting import Use

SIDE = 2
GIVEN, EPOCHS = 5, 3
"""Steps of a plan that says how many, and its epochs, which then say nothing."""
IMAGES, BATCH = 12, 4
"""Images of a client, and of a batch, whose epochs are of several steps."""
FEW, OFTEN = 4, 16
"""Images of a client, of which a step is expected to take one, and epochs, each of as many steps as images."""


@dataclass(frozen=True, kw_only=True)
class Counted:
    """The steps that trainings took, and those that they paid for."""

    steps: int
    paid: int

    @classmethod
    def of(cls, steps: Sized, uses: Iterable[Use]) -> "Counted":
        """Count what steps moved, and what they cost."""
        return cls(steps=len(steps), paid=sum(use.count for use in uses))


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What is wrong with trainings (`faults`), and what could not be tried of them, in words."""

    faults: Sequence[str] = field(default_factory=list)
    untested: Sequence[str] = field(default_factory=list)


def miscounted(site: Site, defense_stack: DefenseStack, alike: Sequence[Counted]) -> Iterator[Findings]:
    """Compare steps with costs: of trainings that are `alike` but for their images, and of other plans."""
    plan = canary_plan(site)
    asked = {
        "given": (IMAGES, replace(plan, steps=GIVEN, epochs=EPOCHS, batch_size=BATCH)),
        "epochs": (IMAGES, replace(plan, steps=None, epochs=EPOCHS, batch_size=BATCH)),
        "own": (len(site.client.data), plan),
    }
    if len({one.steps for one in alike}) > 1:
        yield Findings(faults=["the number of a training's steps follows its images"])
    found = [*alike, *(_counted(site, defense_stack, name, images, plan) for name, (images, plan) in asked.items())]
    more = next((one for one in found if one.steps > one.paid), None)
    if more is not None:
        yield Findings(faults=[f"a training takes {more.steps} steps; its cost is of {more.paid}"])
    fewer = next((one for one in found if one.steps < one.paid), None)
    if fewer is not None:
        early = f"steps after the first {fewer.steps} of {fewer.paid} that a training pays for"
        yield Findings(untested=[early])
    if _follows_samples(site, defense_stack, plan):
        yield Findings(faults=["a step of training that takes no image moves nothing, and noise does not hide it"])


def _follows_samples(site: Site, defense_stack: DefenseStack, plan: TrainingPlan) -> bool:
    """Whether two trainings, of which a third of the steps take none of FEW images, move nothing in different steps."""
    sampled = replace(plan, steps=None, epochs=OFTEN, batch_size=1)
    found = []
    for name in ("sampled", "sampled again"):
        steps = _steps(site, defense_stack, name, FEW, sampled)[0]
        found.append([number for number, step in enumerate(steps) if not bool(step.any())])
    return found[0] != found[1]


def _counted(site: Site, defense_stack: DefenseStack, name: str, images: int, plan: TrainingPlan) -> Counted:
    """The steps of a training on so many images in one round, and what it pays for."""
    return Counted.of(*_steps(site, defense_stack, name, images, plan))


def _steps(
    site: Site, defense_stack: DefenseStack, name: str, images: int, plan: TrainingPlan
) -> tuple[Sequence[Tensor], Sequence[Use]]:
    """What the steps of a training on so many images move in one round, and what they cost."""
    given = TrainingSet(
        images=torch.full((images, 3, SIDE, SIDE), 255, dtype=torch.uint8), labels=torch.full((images,), EVERYWHERE)
    )
    named = replace(defense_stack, name=f"{defense_stack.name}/counted/{name}")
    steps = list[Tensor]()

    def train(with_trainer: Client, clock: Clock) -> None:
        steps.extend(moves(with_trainer, site.method, given, plan, clock=clock, sign=1.0, seed=site.seed))

    once = replace(site, clocks=site.clocks[:1])
    trainers = trainings(once, named, replace(site.client, validation=None), train)
    return steps, [use for trainer in trainers for use in trainer.uses]
