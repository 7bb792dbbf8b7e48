"""Positive control of interpolation leakage: federations of distinct clients under a public method.

Clients upload the pooled style of their images, and the median over FINCH's clusters of the uploads is published."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fdgsec.attacks.interpolation_leakage.cohort_tracing import PublicRule, style_vector
from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import InterpolationStyle, StyleStatistics
from fdgsec.federation.wire import SERVER, Message
from fdgsec.threats.adversary import Knowledge, View
from fdgsec.threats.attack import Case, PositiveControl, Truth
from fdgsec.threats.positive_control_data import PlantedStatistics, planted_images, planted_moments

POOL, SIZE, CHANNELS, FEDERATIONS = 20, 8, 32, 6
RULE = PublicRule(partition="last", median="mean of middle")


@dataclass(frozen=True, kw_only=True, eq=False)
class PlantedMethod:
    """The public method, on images whose statistics come from a table."""

    statistics: PlantedStatistics

    def __call__(self, data: Sequence[DomainDataset], rng: torch.Generator, *, rounds: int = 0) -> View:
        """Upload the styles of "client:1", "client:2", ... that hold `data`, and publish one style; nothing is
        trained."""
        sent = []
        for images in data:
            mean, std = self.statistics(images).pooled().style(unbiased=False)
            sent.append(StyleStatistics(mean=mean[0].float(), std=std[0].float()))
        mean, std = RULE(torch.stack([style_vector(style) for style in sent])).chunk(2)
        answer = InterpolationStyle(mean=mean.float(), std=std.float())
        names = [f"client:{number}" for number in range(1, len(sent) + 1)]
        up = [
            Message(round=0, stage="share", sender=name, receiver=SERVER, artifact=style)
            for name, style in zip(names, sent, strict=True)
        ]
        down = [Message(round=0, stage="broadcast", sender=SERVER, receiver=name, artifact=answer) for name in names]
        return View(messages=(*up, *down))


def planted_cohorts(knowledge: Knowledge, rng: torch.Generator, *, informative: bool = True) -> PositiveControl:
    """Six federations of half of twenty clients each, in three distant domains, known by the images that they hold.

    A client differs from others of its domain by half as much as an image from others of its client. With `informative`
    False the truth names random clients of the pool: there is nothing to find."""
    domains = torch.arange(POOL * FEDERATIONS).repeat_interleave(SIZE) % 3
    centers = 6 + 2 * torch.randn(3, CHANNELS, generator=rng, dtype=torch.float64)
    own = 0.5 * torch.randn(POOL * FEDERATIONS, CHANNELS, generator=rng, dtype=torch.float64)
    noise = torch.randn(len(domains), CHANNELS, generator=rng, dtype=torch.float64)
    mean = centers[domains] + own.repeat_interleave(SIZE, dim=0) + noise
    statistics = PlantedStatistics(moments=planted_moments(mean, 1 + noise.square()))
    images = planted_images(domains, domains, class_names=("a", "b", "c"), domain_names=("a", "b", "c"))
    method, cases, truths = PlantedMethod(statistics=statistics), list[Case](), list[Truth]()
    groups = torch.arange(POOL).repeat_interleave(SIZE)
    for number in range(FEDERATIONS):
        shown = images.subset(torch.arange(number * POOL * SIZE, (number + 1) * POOL * SIZE))
        members = torch.randperm(POOL, generator=rng) < POOL // 2
        view = method([shown.subset(groups == group) for group in members.nonzero().flatten()], rng)
        everybody = View(messages=tuple(message for message in view.messages if message.sender == SERVER))
        cases.append(
            Case(
                question="cohorts", views=(everybody,), victim=SERVER, slice={"clients": "planted"}, candidates=shown,
                groups=groups,
            )
        )  # fmt: skip
        asked = members if informative else torch.randperm(POOL, generator=rng) < POOL // 2
        truths.append(Truth(members=asked))
    planted = replace(
        knowledge, statistics=statistics, simulate=method, own=None, auxiliary=None, class_names=images.class_names,
        domain_names=images.domain_names,
    )  # fmt: skip
    return PositiveControl(cases=cases, truths=truths, knowledge=planted, measurement="auc", at_least=0.8)
