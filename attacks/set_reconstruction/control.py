"""Positive control of set reconstruction: clients of planted images among as many others."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from fdgsec.attacks.set_reconstruction.grouped_rows import sends_groups
from fdgsec.attacks.set_reconstruction.whole_spectra import WholeSpectra
from fdgsec.attacks.statistics.domain_populations import pooled_release
from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import Amplitudes, Artifact, ImageStyles, StyleStatistics
from fdgsec.federation.released_statistics import MeanSpectra, PooledStyles, ReleasedStatistic
from fdgsec.metrics.measurement import Goal
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.threats.adversary import Knowledge, Statistics
from fdgsec.threats.attack import Case, PositiveControl, QuestionKind, Truth
from fdgsec.threats.positive_control_data import PlantedStatistics, planted_records, upload

CLIENTS, SIZE, CHANNELS, AUXILIARY = 6, 20, 64, 60
CLUSTERS = (4, 6, 10)
"""Sizes of a client's clusters, where releases are means over clusters."""
GROUPED = 5
"""Images of a group, where a defense replaces rows by means over groups."""
SIDE = 40
"""Of pictures, in pixels: their spectra have 2,520 numbers, of which other attacks read 1,683."""


def planted_lists(knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
    """Six clients of 20 of 40 candidates, whose mean has at least 64 numbers: every list is determined.

    Where releases are mean spectra, the images have pixels, and their whole spectra are read; where they are means with
    unknown weights, the images are in clusters; where a defense makes groups of rows, in groups. Of vectors alone,
    there are no auxiliary images, nor for an adversary without any, to whom size and domain are unknown."""
    count = AUXILIARY + CLIENTS * 2 * SIZE
    statistics, images = _planted(knowledge, count, rng)
    groups, unknown = sends_groups(knowledge), knowledge.auxiliary is None and not knowledge.vectors_alone
    question: QuestionKind = "given" if knowledge.vectors_alone else "rounds" if groups else "resampled_clients"
    cases, truths = [], []
    for number in range(CLIENTS):
        first = AUXILIARY + number * 2 * SIZE
        order = torch.randperm(2 * SIZE, generator=rng)
        found = statistics(images.subset(first + torch.arange(SIZE)))
        sent = grouped(found, GROUPED) if groups else _sent(found, knowledge)
        cases.append(Case(
            question=question, views=(upload(sent),), victim="client:0", records=None if unknown else SIZE,
            domain=None if unknown else "planted",
            slice={"domain": "planted", "n_per_client": SIZE}, candidates=images.subset(first + order),
        ))  # fmt: skip
        truths.append(Truth(members=order < SIZE))
    planted = replace(
        knowledge, statistics=statistics, domain_names=("planted",),
        auxiliary=None if unknown or knowledge.vectors_alone else images.subset(torch.arange(AUXILIARY)),
        defended=None if groups or unknown else knowledge.defended,
        shared=None if groups or unknown else knowledge.shared, sharing=None,
    )  # fmt: skip
    return PositiveControl(
        cases=cases, truths=truths, knowledge=planted, measurement="auc", at_least=0.99,
        also=(Goal(measurement="exact_list", at_least=0.99),),
    )  # fmt: skip


def _planted(knowledge: Knowledge, count: int, rng: torch.Generator) -> tuple[Statistics, DomainDataset]:
    """`count` images of one domain with their statistics: numbers at random, or pictures of random pixels."""
    moments, images = planted_records(count, CHANNELS, rng)
    if not isinstance(knowledge.released_statistic, MeanSpectra):
        return PlantedStatistics(moments=moments), images
    store = torch.randint(256, (count, 3, SIDE, SIDE), generator=rng).to(torch.uint8)
    return WholeSpectra(height=SIDE, columns=SIDE // 2 + 1), replace(images, store=store)


def _sent(found: Moments, knowledge: Knowledge) -> Artifact:
    """The pooled release of a client whose images have the moments `found`."""
    plain = knowledge.weighted_statistic is None
    return _released(found, knowledge.released_statistic) if plain else clustered(found, CLUSTERS)


def _released(found: Moments, statistic: ReleasedStatistic) -> Artifact:
    """The release of a client whose images have the moments `found`: a spectrum has its rows and columns."""
    sent = pooled_release(found, statistic)
    if not isinstance(sent, Amplitudes):
        return sent
    return replace(sent, values=sent.values.reshape(1, 3, SIDE, SIDE // 2 + 1))


def clustered(found: Moments, sizes: Sequence[int]) -> StyleStatistics:
    """The mean over clusters of their means of t, as a style: the first images are one cluster, and so on."""
    means = torch.stack([part.mean(0) for part in found.linear().split(list(sizes))]).mean(0, keepdim=True)
    channels = torch.zeros(found.channels)
    sent = PooledStyles().artifact(means, like=StyleStatistics(mean=channels, std=channels), images=sum(sizes))
    assert isinstance(sent, StyleStatistics)
    return sent


def grouped(found: Moments, size: int) -> ImageStyles:
    """Rows of single images, each replaced by the mean over its group: the first `size` images are one, and so on."""
    rows = torch.cat(found.style(unbiased=True), dim=1)
    means = torch.cat([part.mean(0).expand_as(part) for part in rows.split(size)])
    mean, std = means.float().chunk(2, dim=1)
    return ImageStyles(mean=mean.contiguous(), std=std.contiguous())
