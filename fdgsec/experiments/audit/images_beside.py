"""Whether one image decides what a private training makes of the others.

A clip bounds what an image adds to a step. Who leaves out images that are far from the mean of their client's, or whose
loss is, lets one image decide about all others: their gradients come and go with it. So a client of images that differ
in brightness is trained on, beside an image of no gradient that is black, or white, or of a large loss."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from fdgsec.experiments.audit.gradient_canaries import COSTLY, EVERYWHERE, FAINT, moves
from fdgsec.experiments.audit.neighboring_clients import Site
from fdgsec.experiments.audit.one_run import canary_plan, trainings
from fdgsec.experiments.audit.step_distances import Allowed, apart
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.method import Client, Clock
from fdgsec.nn.training.batches import TrainingSet

IMAGES = 32
FEWEST, MOST = 64, 1024
"""Steps: so many that what is allowed is more than the error of their mean, or MOST."""
SIDE = 4
BACKGROUND = slice(1, 9)
"""Values of an image beside the first one that are as bright as it is; all further ones are black."""
USUAL, UNUSUAL, RARE = 2, 120, 8
"""The brightness of images grows by USUAL from one to the next; every RARE-th is UNUSUAL."""
DARK = slice(BACKGROUND.stop, None)


def moved_by_others(site: Site, defense_stack: DefenseStack, allowed: Allowed) -> list[str]:
    """Say so if an image without a gradient moves a step of training further than one with a gradient may."""
    count = min(max(FEWEST, math.ceil(FEWEST / allowed.present**2)), MOST)
    dark = _steps(site, defense_stack, FAINT, 0, count)
    for label, brightness in ((FAINT, 255), (COSTLY, 0)):
        other = _steps(site, defense_stack, label, brightness, count)
        for one, two in ((dark, other), (other, dark)):
            found = apart(one, two, allowed.present, rate=allowed.rate, images=IMAGES, columns=DARK)
            if found.too_far:
                return [f"one image changes what a step of training makes of the others, {found.words}"]
    return []


def _steps(site: Site, defense_stack: DefenseStack, label: int, brightness: int, count: int) -> Tensor:
    """What each of so many steps moves (steps, T, weights), in one round, beside an image of this label."""
    images = torch.zeros(IMAGES, 3 * SIDE**2, dtype=torch.uint8)
    usual = torch.arange(IMAGES) * USUAL
    images[:, BACKGROUND] = torch.where(torch.arange(IMAGES) % RARE == 0, UNUSUAL, usual).to(torch.uint8)[:, None]
    images[:, 0] = 255
    images[-1] = brightness
    labels = torch.full((IMAGES,), EVERYWHERE)
    labels[-1] = label
    given = TrainingSet(images=images.view(IMAGES, 3, SIDE, SIDE), labels=labels)
    plan = replace(canary_plan(site), epochs=count, steps=None, batch_size=IMAGES)
    named = replace(defense_stack, name=f"{defense_stack.name}/beside/{label}/{brightness}")
    found = list[Tensor]()

    def train(with_trainer: Client, clock: Clock) -> None:
        found.extend(moves(with_trainer, site.method, given, plan, clock=clock, sign=1.0, seed=site.seed))

    trainings(replace(site, clocks=site.clocks[:1]), named, replace(site.client, validation=None), train)
    return torch.stack(found).double()
