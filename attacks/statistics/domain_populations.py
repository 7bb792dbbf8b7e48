"""Domain populations: whitening fitted on auxiliary images of a domain, and candidates in whitened coordinates.

`fdgsec.attacks.statistics.tracing` needs a population. Center and scales are those of the domain's own auxiliary
images. Correlations come from the residuals of all auxiliary domains, each centered on its own mean, because a few
hundred images do not determine those of hundreds of coordinates, and differences between domains must not enter."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fdgsec.attacks.statistics.tracing import Whitening, fit_whitening
from fdgsec.data.domains import DomainDataset, join
from fdgsec.federation.artifacts import Amplitudes, Artifact, StyleDistribution, StyleStatistics
from fdgsec.federation.released_statistics import MeanSpectra, MeanStyles, ReleasedStatistic, StyleDistributions
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.runtime.errors import UsageError
from fdgsec.threats.adversary import Knowledge

MIXED = "mixed"
"""The domain of a release of images of several domains (fdgsec.threats.attack.Case)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Population:
    """One domain: its auxiliary records `reference` (n, D), those of the `others`, and the whitening fitted on them.

    The squares in all records are centered on `about` (D,), their mean; those of the others, on theirs
    (ReleasedStatistic.about)."""

    whiten: Whitening
    about: Tensor
    reference: Tensor
    others: Sequence[Tensor]


def auxiliary_images(knowledge: Knowledge) -> DomainDataset:
    """The adversary's auxiliary images. Raises UsageError where it has none."""
    if knowledge.auxiliary is None:
        raise UsageError(
            "membership needs auxiliary images of the victims' domains; the adversary knows none (see --adversary)."
        )
    return knowledge.auxiliary


def images_of(knowledge: Knowledge, domain: str) -> DomainDataset:
    """The adversary's auxiliary images of a domain, or (MIXED) of all. Raises UsageError where it has none at all."""
    images = auxiliary_images(knowledge)
    return images if domain == MIXED else images.of_domain(domain)


def populations_of(domains: Iterable[str], knowledge: Knowledge) -> dict[str, Population]:
    """Fit one population per domain in `domains`, on t of the auxiliary images under the target's released statistic.

    That of several domains (MIXED) is fitted on all auxiliary images as they are: differences between domains are
    some of its variation. Raises UsageError for a domain with fewer than two auxiliary images."""
    auxiliary = auxiliary_images(knowledge)
    released_statistic = knowledge.released_statistic
    records = released_statistic.records(knowledge.statistics(auxiliary))
    populations = {}
    for name in dict.fromkeys(domains):
        if name == MIXED and len(records) > 1:
            about = records.mean(0)
            centered = released_statistic.about(records, about)
            populations[name] = Population(whiten=fit_whitening(centered), about=about, reference=centered, others=())
            continue
        victim = auxiliary.domain_index(name)
        parts = {int(domain): records[auxiliary.domains == domain] for domain in auxiliary.domains.unique()}
        if victim not in parts or parts[victim].shape[0] < 2:
            raise UsageError(f"membership needs at least 2 auxiliary images of {name}; the adversary has fewer.")
        about = parts[victim].mean(0)
        others = [
            released_statistic.about(part, part.mean(0))
            for domain, part in parts.items()
            if domain != victim and len(part) > 1
        ]
        reference = released_statistic.about(parts[victim], about)
        populations[name] = Population(
            whiten=fit_whitening(reference, others=others), about=about, reference=reference, others=others
        )
    return populations


def population_of_candidates(questions: Sequence[DomainDataset | None], knowledge: Knowledge) -> Population:
    """The population of a domain of which an adversary has nothing but the candidates of its `questions`."""
    images, _ = distinct_images([candidates for candidates in questions if candidates is not None])
    records = knowledge.released_statistic.records(knowledge.statistics(images))
    about = records.mean(0)
    centered = knowledge.released_statistic.about(records, about)
    return Population(whiten=fit_whitening(centered), about=about, reference=centered[:0], others=())


@dataclass(frozen=True, kw_only=True, eq=False)
class PlacedCandidates:
    """Distinct `images` with their centered `statistics` (U, D), and per question the positions (G,) of its
    candidates."""

    images: DomainDataset
    statistics: Tensor
    places: Sequence[Tensor]


def distinct_images(sets: Sequence[DomainDataset]) -> tuple[DomainDataset, Sequence[Tensor]]:
    """Keep each image of the `sets` once, and return for each set the positions of its images among those, (G,)."""
    images = join(sets)
    rows, where = images.rows.unique(return_inverse=True)
    first = torch.empty_like(rows).scatter_(0, where, torch.arange(len(where)))
    return images.subset(first), where.split([len(candidates) for candidates in sets])


def placed_candidates(
    questions: Sequence[DomainDataset | None], population: Population, knowledge: Knowledge
) -> PlacedCandidates:
    """The statistics of the candidates of the `questions` of one domain, each image once.

    Raises UsageError for a question without candidates."""
    sets = [candidates for candidates in questions if candidates is not None]
    if len(sets) != len(questions):
        raise UsageError("membership tests candidates; a case came without any.")
    images, places = distinct_images(sets)
    records = knowledge.released_statistic.records(knowledge.statistics(images))
    return PlacedCandidates(
        images=images, statistics=knowledge.released_statistic.about(records, population.about), places=places
    )


def pooled_release(found: Moments, released_statistic: ReleasedStatistic) -> Artifact:
    """The release of a client whose images have the moments `found`, under `released_statistic`; float32, as methods
    send it."""
    if isinstance(released_statistic, StyleDistributions):
        mean, std = found.style(unbiased=released_statistic.unbiased, eps=released_statistic.eps)
        spreads = [
            values.var(0, correction=1 if released_statistic.released and len(found) > 1 else 0)
            for values in (mean, std)
        ]
        if released_statistic.released:
            spreads = [(spread + released_statistic.eps).sqrt() for spread in spreads]
        return StyleDistribution(
            mean=mean.mean(0).float(), std=std.mean(0).float(), mean_spread=spreads[0].float(),
            std_spread=spreads[1].float(),
        )  # fmt: skip
    if isinstance(released_statistic, MeanSpectra):
        values = (
            found.mean.mean(0).float().reshape(1, -1, 1, 1)
        )  # one pixel's spectrum is the pixel: nothing is left out
        return Amplitudes(values=values, owner=torch.zeros(1, dtype=torch.int64))
    if isinstance(released_statistic, MeanStyles):
        style = released_statistic.records(found).mean(0)
        mean, std = style.float().chunk(2)
        return StyleStatistics(mean=mean, std=std)
    pooled_mean, pooled_std = found.pooled().style(unbiased=False)
    return StyleStatistics(mean=pooled_mean[0].float(), std=pooled_std[0].float())
