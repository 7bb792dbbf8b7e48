"""A small world whose styles are the colors of four quadrants, and what an inversion is asked about it."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from fdgsec.attacks.style_inversion.attack import StyleInversion
from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import ImageStyles, StyleStatistics
from fdgsec.metrics.measurement import Measurement
from fdgsec.nn.styles.channel_statistics import Moments, moments
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Reconstructions
from fdgsec.threats.attack import Case
from fdgsec.threats.positive_control_data import upload

DOMAINS = ("red", "green", "blue", "lines")
MSE = StyleInversion(losses=("mse",), size=8)
INTRA = replace(MSE, priors=("intra",))


def child_rng(seed: int = 0) -> torch.Generator:
    return stream(seed, "attack", "test")


def quadrant_statistics(dataset: DomainDataset) -> Moments:
    """An encoder whose channels are the three colors of each quarter of the image: twelve means, twelve spreads."""
    pixels = dataset.pixels().to(torch.float32) / 255
    half = pixels.shape[-1] // 2
    quarters = [pixels[:, :, a : a + half, b : b + half] for a in (0, half) for b in (0, half)]
    return moments(torch.cat(quarters, dim=1))


def world(per_domain: int = 24, size: int = 16, seed: int = 5) -> DomainDataset:
    """Noisy images with a random color per quarter; `lines` are gray."""
    rng = torch.Generator().manual_seed(seed)
    count = per_domain * len(DOMAINS)
    quarters = torch.rand(count, 3, 2, 2, generator=rng)
    domains = torch.arange(len(DOMAINS)).repeat_interleave(per_domain)
    for domain in range(3):
        quarters[domains == domain, domain] += 0.5
    quarters[domains == 3] = quarters[domains == 3].mean(1, keepdim=True)
    pixels = quarters.repeat_interleave(size // 2, 2).repeat_interleave(size // 2, 3) / 1.5
    pixels += 0.05 * torch.randn(count, 1, size, size, generator=rng)
    return DomainDataset(
        name="world", store=(pixels.clamp(0, 1) * 255).to(torch.uint8), rows=torch.arange(count),
        labels=torch.zeros(count, dtype=torch.int64), domains=domains, ids=tuple(f"i{n}" for n in range(count)),
        class_names=("any",), domain_names=DOMAINS,
    )  # fmt: skip


WORLD = world()


def knowledge(
    auxiliary: DomainDataset | None = None, unseen: DomainDataset | None = None, own: DomainDataset | None = None
) -> Knowledge:
    return Knowledge(
        statistics=quadrant_statistics, encoder="quadrants", class_names=("any",), domain_names=DOMAINS,
        auxiliary=auxiliary, unseen=unseen, own=own,
    )  # fmt: skip


AUXILIARY = WORLD.subset(torch.cat([torch.arange(n * 24, n * 24 + 16) for n in range(3)]))
SERVER = knowledge(AUXILIARY, WORLD.of_domain("lines"))


def victims(domain: int, count: int = 6) -> DomainDataset:
    return WORLD.subset(torch.arange(domain * 24 + 16, domain * 24 + 16 + count))


def image_rows(images: DomainDataset, domain: str) -> Case:
    mean, std = quadrant_statistics(images).style(unbiased=True)
    view = upload(ImageStyles(mean=mean.float(), std=std.float()))
    return Case(
        question="as_if_released", views=(view,), victim="client:0", domain=domain, slice={"domain": domain},
        candidates=images,
    )  # fmt: skip


def pooled_pair(holds: DomainDataset, added: DomainDataset, domain: str) -> Case:
    views = []
    for rows in (holds.rows, torch.cat([holds.rows, added.rows])):
        mean, std = quadrant_statistics(WORLD.subset(rows)).pooled().style(unbiased=False)
        views.append(upload(StyleStatistics(mean=mean[0].float(), std=std[0].float())))
    return Case(
        question="add_one_record", views=tuple(views), victim="client:0", domain=domain, slice={"domain": domain},
        records=len(holds),
    )  # fmt: skip


def reconstructions(attack: StyleInversion, cases: Sequence[Case], known: Knowledge) -> list[Reconstructions]:
    return [answer for answer in attack.run(cases, known, child_rng()) if isinstance(answer, Reconstructions)]


def lacking(attack: StyleInversion, cases: Sequence[Case], known: Knowledge) -> list[Measurement]:
    """What the attack misses, but for the recognition of classes, of which this world has one."""
    return [row for row in attack.missing(cases, known) if "class_from" not in row.slice]
