"""Positive control of differencing: one image is added to a client, and nothing hides the difference."""

from dataclasses import replace

import torch

from fdgsec.attacks.statistics.domain_populations import pooled_release
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.attack import Case, PositiveControl, Truth
from fdgsec.threats.positive_control_data import PlantedStatistics, lifted, planted_images, planted_moments, upload


def planted_additions(knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
    """Add one of thirty images to a client of twenty, six times: exact differences must identify it every time."""
    channels, holds, pool, auxiliary, added = 24, 20, 30, 40, 6
    count = holds + pool + auxiliary
    mean = 2 + lifted(torch.randn(count, channels, generator=rng, dtype=torch.float64))
    variance = 0.5 + torch.rand(count, channels, generator=rng, dtype=torch.float64)
    moments = planted_moments(mean, variance)
    nothing = torch.zeros(count, dtype=torch.int64)
    images = planted_images(nothing, nothing, class_names=("any",), domain_names=("planted",))
    candidates = images.subset(holds + torch.randperm(pool, generator=rng))
    inside = torch.arange(holds)
    before = upload(pooled_release(moments.rows(inside), knowledge.released_statistic))
    cases, truths = [], []
    for number in range(added):
        row = candidates.rows[number].reshape(1)
        after = upload(pooled_release(moments.rows(torch.cat([inside, row])), knowledge.released_statistic))
        cases.append(
            Case(
                question="add_one_record", views=(before, after), victim="client:0", records=holds,
                domain="planted", slice={"domain": "planted"}, candidates=candidates,
            )
        )  # fmt: skip
        truths.append(
            Truth(rows=torch.tensor([number]), statistic=knowledge.released_statistic.truth(moments.rows(row)))
        )
    planted = replace(
        knowledge, statistics=PlantedStatistics(moments=moments), domain_names=("planted",),
        auxiliary=images.subset(torch.arange(holds + pool, count)),
    )  # fmt: skip
    return PositiveControl(cases=cases, truths=truths, knowledge=planted, measurement="top1", at_least=0.99)
