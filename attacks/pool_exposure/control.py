"""Positive control of pool exposure: noisy single-color images, and a method that publishes rows of a share of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import ImageStyles
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.nn.styles.encoders import Pixels
from fdgsec.nn.styles.image_moments import image_moments
from fdgsec.threats.adversary import Knowledge, View
from fdgsec.threats.attack import Case, PositiveControl, Truth
from fdgsec.threats.positive_control_data import upload

SIDE = 16  # pixels; the smallest that encoders take


@dataclass(frozen=True, kw_only=True, eq=False)
class PixelStatistics:
    """Color statistics of any images, computed on demand."""

    def __call__(self, dataset: DomainDataset) -> Moments:
        """One row of moments per image of `dataset`."""
        return image_moments(Pixels(), dataset)


@dataclass(frozen=True, kw_only=True)
class PublishesShare:
    """A public method whose clients publish the color statistics of a random share `ratio` of their images."""

    ratio: float

    def __call__(self, data: Sequence[DomainDataset], rng: torch.Generator, *, rounds: int = 0) -> View:
        """The server's view of "client:1", "client:2", ... that hold `data`: fresh rows every round, once for 0."""
        messages = []
        for turn in range(max(rounds, 1)):
            for number, images in enumerate(data, 1):
                rows = torch.randperm(len(images), generator=rng)[: int(self.ratio * len(images))]
                sent = upload(pool_of(images.subset(rows)), sender=f"client:{number}").messages
                messages += [replace(message, round=turn) for message in sent]
        return View(messages=tuple(messages))


def pool_of(images: DomainDataset) -> ImageStyles:
    """One row per image: mean and std of its normalized channels, as FedAlign sends them."""
    mean, std = PixelStatistics()(images).style(unbiased=True)
    return ImageStyles(mean=mean.float(), std=std.float())


def colored_images(count: int, rng: torch.Generator) -> DomainDataset:
    """Make `count` images of one color each, close to gray, with Gaussian noise of its own strength per channel."""
    lightness = torch.rand(count, 1, 1, 1, generator=rng)
    hue, strength = torch.rand(2, count, 3, 1, 1, generator=rng)
    color = 0.75 * lightness + 0.25 * hue
    noise = torch.randn(count, 3, SIDE, SIDE, generator=rng)
    store = (255 * (color + 0.2 * strength * noise).clamp(0, 1)).round().to(torch.uint8)
    nothing = torch.zeros(count, dtype=torch.int64)
    return DomainDataset(
        name="planted", store=store, rows=torch.arange(count), labels=nothing, domains=nothing,
        ids=tuple(f"planted/{number}" for number in range(count)), class_names=("any",), domain_names=("planted",),
    )  # fmt: skip


def planted_client(
    candidates: DomainDataset, name: str, *, ratio: float, rounds: int, rng: torch.Generator
) -> tuple[Case, Truth]:
    """A client that holds half of the candidates, and publishes rows of a share `ratio` of these in every exchange."""
    size = len(candidates) // 2
    own = torch.randperm(2 * size, generator=rng)[:size]
    drawn = [own[torch.randperm(size, generator=rng)[: int(ratio * size)]] for _ in range(rounds)]
    members = torch.zeros(2 * size, dtype=torch.bool)
    members[torch.cat(drawn)] = True
    case = Case(
        question="rounds", views=tuple(upload(pool_of(candidates.subset(rows)), sender=name) for rows in drawn),
        victim=name, records=size, domain="planted", slice={"domain": "planted", "n_per_client": size},
        candidates=candidates,
    )  # fmt: skip
    return case, Truth(members=members)


def planted_pools(knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
    """Noisy single-color images, of which clients publish half in each of four exchanges: 94% of all.

    The rows "as if released" are sorted by brightness."""
    sizes, ratio, ordered, public = (20, 40) * 3, 0.5, 30, 40
    images = colored_images(2 * sum(sizes) + ordered + public, rng)
    asked, inside, auxiliary = (
        images.subset(part) for part in torch.arange(len(images)).split([2 * sum(sizes), ordered, public])
    )
    pairs = []
    for number, size in enumerate(sizes):
        candidates = asked.subset(2 * sum(sizes[:number]) + torch.randperm(2 * size, generator=rng))
        pairs.append(planted_client(candidates, f"client:{number}", ratio=ratio, rounds=4, rng=rng))
    bright = PixelStatistics()(inside).mean.sum(1).argsort()
    case = Case(
        question="as_if_released", views=(upload(pool_of(inside.subset(bright))),), victim="client:0",
        records=ordered, domain="planted", slice={"domain": "planted"}, candidates=inside,
    )  # fmt: skip
    domains = torch.zeros(ordered, dtype=torch.int64)
    pairs.append((case, Truth(rows=bright, images=inside.pixels(bright), domains=domains)))
    planted = replace(
        knowledge, statistics=PixelStatistics(), encoder=Pixels.name, domain_names=("planted",), own=None,
        auxiliary=auxiliary, simulate=PublishesShare(ratio=ratio),
    )  # fmt: skip
    return PositiveControl(
        cases=[case for case, _ in pairs], truths=[truth for _, truth in pairs], knowledge=planted,
        measurement="exposed_fraction", at_least=0.75,
    )  # fmt: skip
