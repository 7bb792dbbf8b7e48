"""Whether one image decides what a private training makes of the others.

A clip bounds what an image adds to a step. Who leaves out images that are far from the mean of their client's, or whose
loss is, or weighs them by how many have their label, lets one image decide about all others: their gradients come and
go with it. So a client of images that differ in brightness is trained on, beside an image of no gradient that is black
and of a label of its own, or of the others' label, or white and of a large loss: with gradients that are clipped, and
with shorter ones, which a weight makes longer. Nor may the size of the noise, or of the steps, follow that image."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from fdgsec.experiments.audit.gradient_canaries import (
    COSTLY,
    EVERYWHERE,
    FAINT,
    PARTS,
    SLOPE,
    TENSORS,
    lit_pixels,
    moves,
)
from fdgsec.experiments.audit.neighboring_clients import Site
from fdgsec.experiments.audit.one_run import canary_plan, trainings
from fdgsec.experiments.audit.step_distances import Allowed, apart, of_another_size
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.method import Client, Clock
from fdgsec.nn.training.batches import TrainingSet

IMAGES = 32
FEWEST, MOST = 64, 1024
ENOUGH = 48.0
"""Steps times the square of what is allowed: with so many, twice that is found."""
SIDE = 4
BACKGROUND = slice(1, 9)
"""Values of an image beside the first one that are as bright as it is; all further ones are black."""
USUAL, UNUSUAL, RARE = 2, 120, 8
"""The brightness of images grows by USUAL from one to the next; every RARE-th is UNUSUAL."""
DARK = slice(BACKGROUND.stop, None)
BESIDE = ((FAINT, 0), (EVERYWHERE, 0), (COSTLY, 255))
"""Labels and brightness of the image beside the others, none of which has a gradient."""
SHORT = 0.25
"""Length of a gradient that is not clipped, in units of the bound, in the weights of the first pixel."""
FEWER = 4
"""Steps with such gradients are this many times fewer, but at least FEWEST."""


def moved_by_others(site: Site, defense_stack: DefenseStack, allowed: Allowed, bound: float) -> list[str]:
    """Say so if an image without a gradient moves a step of training further than one with a gradient may, or is told
    by the size of a step.

    `bound` is the length to which gradients are clipped, as the cost states it: of a trainer that clips at less than a
    quarter of that, no shorter gradients are tried."""
    count = min(max(FEWEST, math.ceil(ENOUGH / allowed.present**2)), MOST)
    for slope, steps in ((SLOPE, count), (SHORT * bound / math.sqrt(TENSORS), max(count // FEWER, FEWEST))):
        worlds = [_steps(site, defense_stack, one, slope, steps) for one in BESIDE]
        for other in worlds[1:]:
            for one, two in ((worlds[0], other), (other, worlds[0])):
                found = apart(one, two, allowed.present, rate=allowed.rate, images=IMAGES, columns=DARK)
                if found.too_far:
                    return [f"one image changes what a step of training makes of the others, {found.words}"]
            if of_another_size(worlds[0][..., DARK], other[..., DARK]):
                return ["the size of a training's steps, or of their noise, follows what one image is"]
    return []


def _steps(site: Site, defense_stack: DefenseStack, beside: tuple[int, int], slope: float, count: int) -> Tensor:
    """What each of so many steps moves (steps, T, weights), in one round, beside an image of a label and brightness."""
    label, brightness = beside
    images = torch.zeros(IMAGES, 3 * SIDE**2, dtype=torch.uint8)
    usual = torch.arange(IMAGES) * USUAL
    images[:, BACKGROUND] = torch.where(torch.arange(IMAGES) % RARE == 0, UNUSUAL, usual).to(torch.uint8)[:, None]
    images[:, 0] = 255
    images[-1] = brightness
    labels = torch.full((IMAGES,), EVERYWHERE)
    labels[-1] = label
    data = replace(
        lit_pixels(IMAGES, SIDE), store=images.view(IMAGES, 3, SIDE, SIDE), labels=labels,
        class_names=tuple(map(str, range(len(PARTS)))),
    )  # fmt: skip
    plan = replace(canary_plan(site), epochs=count, steps=None, batch_size=IMAGES)
    named = replace(defense_stack, name=f"{defense_stack.name}/beside/{label}/{brightness}/{slope}")
    found = list[Tensor]()

    def train(with_trainer: Client, clock: Clock) -> None:
        given = TrainingSet.of(data)
        found.extend(moves(with_trainer, site.method, given, plan, clock=clock, sign=1.0, seed=site.seed, slope=slope))

    trainings(replace(site, clocks=site.clocks[:1]), named, replace(site.client, data=data, validation=None), train)
    return torch.stack(found).double()
