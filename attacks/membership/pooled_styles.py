"""Membership inference on pooled styles: means over images, and means over clusters.

Rows of single images are answered in fdgsec.attacks.membership.image_styles."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fdgsec.attacks.membership.gallery_whitening import gallery_whitening
from fdgsec.attacks.membership.shadow_likelihood import ShadowSimulation
from fdgsec.attacks.statistics.auxiliary_subsets import lacking, nested_subset
from fdgsec.attacks.statistics.defense_noise import DefenseNoise, defense_noise_of_mean
from fdgsec.attacks.statistics.domain_populations import (
    Population,
    auxiliary_images,
    placed_candidates,
    population_of_candidates,
    populations_of,
)
from fdgsec.attacks.statistics.pooled_questions import domain_of, release_of, size_of
from fdgsec.attacks.statistics.release_precision import rounding_noise
from fdgsec.attacks.statistics.tracing import (
    TracingTest,
    Whitening,
    gaussian_auc,
    held_out_dimension,
    separation,
)
from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import Amplitudes, StyleDistribution, StyleStatistics
from fdgsec.runtime.random_streams import child
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Membership, Prediction
from fdgsec.threats.attack import Case

EXPECTED = "one_candidate_auc"
"""What a test of one candidate at a time can be expected to reach, which is not what an adversary can."""
ALONE = "auxiliary images alone"
"""The whitening of which the law of the effective dimension speaks."""


@dataclass(frozen=True, kw_only=True)
class CasesByRelease:
    """The numbers of the cases about a mean of images, about a release that is not a mean, and about rows.

    Styles that are not means are requested as `rounds`. For a target that releases rows, `rounds` asks which images it
    released and `resampled_clients` which it holds."""

    means: Sequence[int]
    clustered: Sequence[int]
    rows: Sequence[int]

    @classmethod
    def of(cls, cases: Sequence[Case]) -> "CasesByRelease":
        """Group all cases; those of other questions are ignored."""
        rounds = [n for n, case in enumerate(cases) if case.question == "rounds"]
        redrawn = [n for n, case in enumerate(cases) if case.question == "resampled_clients"]
        listed = {n for n in (*rounds, *redrawn) if not _pooled(cases[n])}
        asked_twice = any(n in listed for n in rounds)
        return cls(
            means=[n for n in redrawn if n not in listed or not asked_twice],
            clustered=[n for n in rounds if n not in listed],
            rows=[n for n in (*rounds, *redrawn) if n in listed and asked_twice],
        )


def _pooled(case: Case) -> bool:
    return isinstance(case.views[0].artifact(case.victim), StyleStatistics | StyleDistribution | Amplitudes)


def known_populations(asked: CasesByRelease, cases: Sequence[Case], knowledge: Knowledge) -> dict[str, Population]:
    """Fit the population of each domain that a pooled release is of."""
    pooled = [*asked.means, *asked.clustered]
    return populations_of([domain_of(cases[n]) for n in pooled], knowledge) if pooled else {}


def mean_answers(
    numbers: Sequence[int],
    cases: Sequence[Case],
    knowledge: Knowledge,
    populations: Mapping[str, Population],
    *,
    test: TracingTest,
    rng: torch.Generator,
    mean_known: bool = False,
) -> list[Membership | Prediction]:
    """Score candidates by a test for a record in a mean, and say which AUC it had in rehearsals for each size.

    The whitening is that of `gallery_whitening`, and includes the noise of a defense
    (fdgsec.attacks.statistics.defense_noise, by `rng`). `mean_known`: the release's expectation is the mean of
    auxiliary images; nothing is then said of rehearsals."""
    answers: list[Membership | Prediction] = []
    for name, population in populations.items():
        mine = [n for n in numbers if domain_of(cases[n]) == name]
        if not mine:
            continue
        placed = placed_candidates([cases[n].candidates for n in mine], population, knowledge)
        for size in dict.fromkeys(size_of(cases[n]) for n in mine):
            asked = [(n, places) for n, places in zip(mine, placed.places, strict=True) if size_of(cases[n]) == size]
            child_rng, about = child(rng, name, size), population.about
            error = _error_of_mean(cases[asked[0][0]], population, knowledge, child_rng)
            chosen = gallery_whitening(
                placed.statistics, population.reference, population.others, records=size, variance=error.variance,
                test=test, rng=child(child_rng, "rehearsals"),
            )  # fmt: skip
            releases = torch.stack([release_of(cases[n], knowledge) for n, _ in asked])
            off = chosen.whiten.center - population.whiten.center if mean_known else torch.zeros_like(about)
            u = chosen.whiten(knowledge.released_statistic.about(releases, about) - error.shift + off)
            reference = None if mean_known else chosen.images
            scores = test(u, chosen.whiten(placed.statistics), records=size, reference=reference)
            answers += [Membership(case=n, scores=row[places]) for (n, places), row in zip(asked, scores, strict=True)]
            if not mean_known:
                answers.append(
                    Prediction(case=asked[0][0], name=EXPECTED, value=chosen.rehearsed, slice={"line": "rehearsal"})
                )
    return sorted(answers, key=lambda answer: answer.case)


def answers_with_fewer(
    numbers: Sequence[int],
    cases: Sequence[Case],
    knowledge: Knowledge,
    *,
    images: int,
    test: TracingTest,
    rng: torch.Generator,
) -> list[Membership | Prediction]:
    """What `mean_answers` would be with only so many auxiliary `images` of each domain; 0: candidates alone.

    With the same `rng` more images contain fewer (fdgsec.attacks.statistics.auxiliary_subsets). No answers for domains
    that `too_few_auxiliary` names."""
    few = replace(knowledge, auxiliary=nested_subset(auxiliary_images(knowledge), images, rng))
    names = [
        name
        for name in dict.fromkeys(domain_of(cases[n]) for n in numbers)
        if not too_few_auxiliary(name, knowledge, images=images)
    ]
    if images:
        known = populations_of(names, few)
    else:
        known = {
            name: population_of_candidates([cases[n].candidates for n in numbers if domain_of(cases[n]) == name], few)
            for name in names
        }
    found = mean_answers(numbers, cases, few, known, test=test, rng=child(rng, images))
    return [replace(answer, slice={**answer.slice, "auxiliary": images}) for answer in found]


def too_few_auxiliary(name: str, knowledge: Knowledge, *, images: int) -> str:
    """Why `answers_with_fewer` cannot test a domain with so many auxiliary `images`; empty where it can."""
    if images == 1:
        return "one auxiliary image has no spread"
    if not images and knowledge.defended is not None:
        return "without auxiliary images the noise of a defense cannot be estimated"
    return lacking(auxiliary_images(knowledge), name, images)


def _error_of_mean(case: Case, population: Population, knowledge: Knowledge, rng: torch.Generator) -> DefenseNoise:
    """The error of a release like that of `case`: of its rounding, and of a defense on means of as many images."""
    name, size = domain_of(case), size_of(case)
    rounding = rounding_noise(case.release(), knowledge.released_statistic, population.about, images=size).square()
    noise = None
    if knowledge.defended is not None:
        images = auxiliary_images(knowledge).of_domain(name)
        noise = defense_noise_of_mean(knowledge, images, records=size, about=population.about, rng=rng)
    if noise is None:
        return DefenseNoise(shift=torch.zeros_like(population.about), variance=rounding)
    return replace(noise, variance=noise.variance + rounding)


def whitening_under_noise(
    population: Population,
    name: str,
    size: int,
    knowledge: Knowledge,
    rng: torch.Generator,
    *,
    reference: int | None = None,
) -> tuple[Whitening, Tensor]:
    """The whitening of records in a mean of `size` under a defense, and the shift of the mean (D,).

    A release has covariance S (1/n + 1/(n_ref + 1)) + V around the mean of `reference` records. This equals that of
    releases of records with covariance S + V / (1/n + 1/(n_ref + 1)), which is what tests of records in a mean take."""
    images = auxiliary_images(knowledge).of_domain(name)
    defense_noise = defense_noise_of_mean(knowledge, images, records=size, about=population.about, rng=rng)
    if defense_noise is None:
        return population.whiten, torch.zeros_like(population.about)
    share = 1 / size + (0.0 if reference is None else 1 / (reference + 1))
    return population.whiten.blurred(defense_noise.variance / share), defense_noise.shift


def mean_predictions(
    numbers: Sequence[int],
    cases: Sequence[Case],
    populations: Mapping[str, Population],
    rng: torch.Generator,
    *,
    knowledge: Knowledge,
) -> list[Prediction]:
    """Per domain and size: the effective dimension of a whitening on auxiliary images alone, and the AUC that a test
    with it can be expected to have.

    The law is sqrt(D / (n + n^2/n_ref)), D measured on images left out. Noise reduces the dimension: D falls by the
    factor by which the noisy whitening shortens the reference's records."""
    first: dict[str, dict[int, int]] = {}
    for number in numbers:
        first.setdefault(domain_of(cases[number]), {}).setdefault(size_of(cases[number]), number)
    answers = []
    for name, asked in first.items():
        population = populations[name]
        reference, others = population.reference, population.others
        dimension = held_out_dimension(reference, others=others)
        for size in sorted(asked):
            number, child_rng = asked[size], child(rng, "blur", name, size)
            whiten, _ = whitening_under_noise(population, name, size, knowledge, child_rng, reference=len(reference))
            left = float(whiten(reference).square().sum() / population.whiten(reference).square().sum())
            law = gaussian_auc(separation(left * dimension, records=size, reference=len(reference)))
            answers += [
                Prediction(case=number, name=EXPECTED, value=law, slice={"line": ALONE}),
                Prediction(case=number, name="d_eff", value=left * dimension, unit="dimensions"),
            ]
    return answers


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Simulation budget: clients without candidates, candidates tried, and clients with each of them."""

    shadows: int
    tried: int
    inserted: int


def populations_asked(numbers: Sequence[int], cases: Sequence[Case]) -> dict[tuple[str, int], list[int]]:
    """The cases of each domain and size."""
    found: dict[tuple[str, int], list[int]] = {}
    for number in numbers:
        found.setdefault((domain_of(cases[number]), size_of(cases[number])), []).append(number)
    return found


def shadow_populations(
    numbers: Sequence[int], cases: Sequence[Case], knowledge: Knowledge
) -> Iterator[tuple[str, int, list[int], DomainDataset]]:
    """For each domain and size of the victims, the cases and the public images to draw shadow clients from."""
    for (name, size), mine in populations_asked(numbers, cases).items():
        yield name, size, mine, auxiliary_images(knowledge).of_domain(name)


def clustered_answers(
    numbers: Sequence[int],
    cases: Sequence[Case],
    knowledge: Knowledge,
    populations: Mapping[str, Population],
    *,
    effort: Effort,
    rng: torch.Generator,
    own: bool = False,
) -> list[Membership]:
    """Score candidates by simulated likelihood ratios; with `own`, for releases of the adversary's own shadow clients.

    Domains with too few public images for a shadow client get no answer."""
    answers = []
    for name, size, mine, images in shadow_populations(numbers, cases, knowledge):
        if len(images) <= size:
            continue
        population, child_rng = populations[name], child(rng, name, size)
        if knowledge.defended is not None:  # simulated releases have the noise, so the metric must include it
            whiten, _ = whitening_under_noise(population, name, size, knowledge, child(child_rng, "blur"))
            population = replace(population, whiten=whiten)
        shadows = ShadowSimulation(knowledge=knowledge, population=population, images=images, records=size, known=own)
        placed = placed_candidates([cases[n].candidates for n in mine], population, knowledge)
        test = shadows.test(
            placed, shadows=effort.shadows, inserted=effort.inserted, tried=effort.tried, rng=child(child_rng, "test")
        )
        if own:
            drawn = shadows.clients(len(mine), child(child_rng, "own"))
            releases = shadows.releases(drawn, child(child_rng, "own releases"))
        else:
            releases = torch.stack([release_of(cases[n], knowledge) for n in mine])
            releases = knowledge.released_statistic.about(releases, population.about)
        for number, release, places in zip(mine, releases, placed.places, strict=True):
            answers.append(Membership(case=number, scores=test(release, places)))
    return sorted(answers, key=lambda answer: answer.case)
