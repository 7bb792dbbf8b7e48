"""Positive control of linkage: two releases of single-class clients whose means lie far apart."""

from dataclasses import replace

import torch

from fdgsec.attacks.statistics.domain_populations import pooled_release
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.attack import Case, PositiveControl, Truth
from fdgsec.threats.positive_control_data import PlantedStatistics, lifted, planted_images, planted_moments, upload


def planted_pairs(knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
    """Twelve clients with one class each, of twelve classes whose means lie far apart, as public images show."""
    clients, size, channels, auxiliary = 12, 15, 24, 240
    own = 4 * torch.randn(clients, channels, generator=rng, dtype=torch.float64)
    public = torch.arange(auxiliary) % clients
    labels = torch.cat([public, torch.arange(clients).repeat_interleave(2 * size)])
    center = own[labels]
    mean = lifted(center + torch.randn(len(center), channels, generator=rng, dtype=torch.float64))
    variance = 0.5 + torch.rand(len(center), channels, generator=rng, dtype=torch.float64)
    moments = planted_moments(mean, variance)
    classes = tuple(str(number) for number in range(clients))
    images = planted_images(labels, torch.zeros_like(labels), class_names=classes, domain_names=("planted",))
    order = torch.randperm(clients, generator=rng)
    cases, truths = [], []
    for half in ("A", "B"):
        for number in range(clients):
            client = number if half == "A" else int(order[number])
            start = auxiliary + client * 2 * size + (size if half == "B" else 0)
            artifact = pooled_release(moments.rows(torch.arange(start, start + size)), knowledge.released_statistic)
            cases.append(
                Case(
                    question="halves", views=(upload(artifact),), victim="client:0", records=size,
                    slice={"clients": "planted", "half": half},
                )
            )  # fmt: skip
            place = int((order == number).nonzero())
            truths.append(Truth(partner=place if half == "A" else None))
    planted = replace(
        knowledge, statistics=PlantedStatistics(moments=moments), domain_names=("planted",),
        auxiliary=images.subset(torch.arange(auxiliary)),
    )  # fmt: skip
    return PositiveControl(cases=cases, truths=truths, knowledge=planted, measurement="top1", at_least=0.9)
