"""Looking up images whose styles were taken of random crops, through a defense's noise."""

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d

from fdgsec.attacks.membership.attack import Membership
from fdgsec.attacks.membership.image_styles import random_crops
from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.data.shapes import shapes
from fdgsec.federation.artifacts import ImageStyles
from fdgsec.metrics.roc import auc
from fdgsec.nn.styles.channel_statistics import Moments, moments
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Membership as Scores
from fdgsec.threats.attack import Case
from fdgsec.threats.positive_control_data import upload
from tests.support.noisy_styles import Noise, world

SIZE, CLIENTS = 20, 12


@dataclass(frozen=True, kw_only=True, eq=False)
class Filters:
    """An encoder of fixed random filters (C, 3, 5, 5)."""

    weight: Tensor

    def __call__(self, dataset: DomainDataset) -> Moments:
        return moments(conv2d(as_float(dataset.pixels()), self.weight).relu())


def cropped_world() -> tuple[Knowledge, DomainDataset]:
    """An adversary that holds half of some photos, and the other half."""
    rng = stream(0, "world")
    photos = shapes(image_size=32, per_domain=480).of_domain("photo")
    knowledge = replace(
        world(4, channels=4, domains=1, rng=rng),
        statistics=Filters(weight=torch.randn(16, 3, 5, 5, generator=rng)),
        auxiliary=photos.subset(torch.arange(0, 480, 2)), domain_names=photos.domain_names,
    )  # fmt: skip
    return knowledge, photos.subset(torch.arange(1, 480, 2))


def cases_of(
    knowledge: Knowledge, held: DomainDataset, noise: Noise | None, extraction: str
) -> tuple[list[Case], list[Tensor]]:
    """Clients of SIZE images that send one noisy row for each image, and as many images that nobody holds."""
    cases, members = list[Case](), list[Tensor]()
    for number in range(CLIENTS):
        rng = stream(number, "world", "clients")
        order = torch.randperm(len(held), generator=rng)[: 2 * SIZE]
        inside = held.subset(order[:SIZE])
        shown = random_crops(inside, least=0.8, rng=rng) if extraction else inside
        mean, std = knowledge.statistics(shown).style(unbiased=True)
        released = ImageStyles(mean=mean.float(), std=std.float())
        seen = released if noise is None else noise.on(released, stream(number, "attack"))
        place = torch.randperm(2 * SIZE, generator=rng)
        cases.append(
            Case(
                question="rounds", views=(upload(seen),), victim="client:0", records=SIZE, domain="photo",
                slice={"n_per_client": SIZE, **({"extraction": extraction} if extraction else {})},
                candidates=held.subset(order[place]),
            )
        )  # fmt: skip
        members.append(place < SIZE)
    return cases, members


def found(scale: float | None, extraction: str = "random crop", look: str = "whole image") -> float:
    """The mean AUC over clients of a look-up through noise of `scale`; None: no defense."""
    knowledge, held = cropped_world()
    noise = None if scale is None else Noise(scale=scale)
    cases, members = cases_of(knowledge, held, noise, extraction)
    answers = Membership(crops=4).run(cases, replace(knowledge, defended=noise), stream(0, "attack"))
    scored = [a for a in answers if isinstance(a, Scores) and a.slice.get("look") == look]
    assert len(scored) == CLIENTS
    return sum(auc(a.scores[members[a.case]].numpy(), a.scores[~members[a.case]].numpy()) for a in scored) / CLIENTS


@pytest.mark.medium
def test_hardly_any_noise_hides_crops_no_better_than_none():
    """Weighing by noise alone would follow directions in which a crop differs from its image more than images do."""
    bare, slight = found(None), found(1e-3)

    assert bare > 0.9
    assert slight > bare - 0.005


@pytest.mark.medium
def test_more_noise_hides_crops_better():
    scores = [found(scale) for scale in (1e-3, 0.03, 0.3, 3.0)]

    assert scores[0] > scores[-1] + 0.2
    assert all(later < sooner + 0.03 for sooner, later in pairwise(scores))


@pytest.mark.medium
def test_looking_at_crops_of_its_own_finds_at_least_as_much():
    assert found(0.03, look="4 crops") > found(0.03) - 0.02


@pytest.mark.medium
def test_whole_images_are_looked_up_as_before():
    assert found(1e-3, extraction="") == pytest.approx(1.0)
