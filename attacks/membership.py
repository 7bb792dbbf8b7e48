"""Membership in a client's pooled style: was this image among the n behind the release?

CCST's overall style (eq. 8) is exactly a mean over images of t(x) = (mu_x, mu_x^2 + sigma_x^2), so the Gaussian likelihood
ratio for a record in a mean applies (fdgsec.privacy.tracing). Members and non-members come from one domain: centre and
scales are those of auxiliary images of that domain alone. Correlations come from the residuals of all auxiliary
domains, each about its own mean, because some hundred images do not determine those of hundreds of coordinates and what
separates domains must not enter."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fdgsec.artifacts import StyleStatistics
from fdgsec.data.domains import DomainDataset, join
from fdgsec.errors import UsageError
from fdgsec.planting import PlantedStatistics, planted_images, planted_moments, upload
from fdgsec.privacy.tracing import (
    TracingTest,
    Whitening,
    fit_whitening,
    held_out_dimension,
    likelihood_ratio,
    separation,
    simulated_aucs,
    standardised_score,
    theory_auc,
)  # fmt: skip
from fdgsec.rng import child
from fdgsec.styles import linear_statistic, recentred
from fdgsec.threats import Case, Guess, Knowledge, Plant, Prediction, Request, TargetFacts, Truth
from fdgsec.threats import Membership as MembershipAnswer


@dataclass(frozen=True, kw_only=True)
class _Population:
    """A domain as the adversary knows it; `mean` (C,) is where its second moments are taken about."""

    whiten: Whitening
    mean: Tensor
    reference: Tensor
    others: Sequence[Tensor]


@dataclass(frozen=True, kw_only=True)
class Membership:
    """Likelihood-ratio membership inference against pooled styles, at several client sizes."""

    name: ClassVar[str] = "membership"
    reads: ClassVar[frozenset[str]] = frozenset({"StyleStatistics"})
    needs: ClassVar[frozenset[str]] = frozenset({"encoder", "auxiliary", "client sizes", "victim domains"})
    sizes: tuple[int, ...] = (40, 130, 500)
    clients: int = 50
    statistic: Literal["standardised", "likelihood-ratio"] = "likelihood-ratio"

    def plan(self, facts: TargetFacts) -> Sequence[Request]:
        """Ask for re-drawn clients of each size: one client's members alone would prove nothing.

        Raises UsageError where styles are no means over images."""
        facts.check_pooled()
        return [Request(kind="resampled_clients", count=self.clients, records=size) for size in self.sizes]

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Guess:
        """Score every candidate of every client, and say what theory expects of each domain and size."""
        populations = _populations(cases, knowledge)
        return [
            *self._scores(cases, knowledge, populations),
            *_predictions(cases, populations, self._test(), child(rng, "theory")),
        ]

    def shuffled(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Guess:
        """Answer from releases of n auxiliary images each (drawn with replacement) instead of the clients' own.

        Other clients' releases would not do: re-drawn clients of one domain share images (500 of 700: most of them),
        and the members of one are then found, rightly, in the release of another. The mean that these releases scatter
        about is the auxiliary images' own, hence known."""
        populations = _populations(cases, knowledge)
        exchanged = [_replaced(case, knowledge, child(rng, "release", number)) for number, case in enumerate(cases)]
        return self._scores(exchanged, knowledge, populations, mean_known=True)

    def plant(self, knowledge: Knowledge, rng: torch.Generator) -> Plant:
        """Six clients of ten Gaussian records in 256 dimensions: d' is about 5, an AUC of almost one."""
        clients, size, channels, auxiliary = 6, 10, 128, 300
        count = auxiliary + clients * 2 * size
        mean = torch.randn(count, channels, generator=rng, dtype=torch.float64)
        variance = 9 + torch.randn(count, channels, generator=rng, dtype=torch.float64).clamp(-4, 4)
        statistics = PlantedStatistics(moments=planted_moments(mean, variance))
        nothing = torch.zeros(count, dtype=torch.int64)
        images = planted_images(nothing, nothing, class_names=("any",), domain_names=("planted",))
        cases, truths = [], []
        for number in range(clients):
            start = auxiliary + number * 2 * size
            release = statistics.moments.rows(torch.arange(start, start + size)).pooled().style(unbiased=False)
            order = torch.randperm(2 * size, generator=rng)
            artifact = StyleStatistics(mean=release[0][0].float(), std=release[1][0].float())
            cases.append(
                Case(
                    request="resampled_clients", views=(upload(artifact),), victim="client:0", records=size,
                    domain="planted", slice={"domain": "planted", "n_per_client": size}, candidates=images.subset(start + order),
                )
            )  # fmt: skip
            truths.append(Truth(members=order < size))
        planted = replace(
            knowledge,
            statistics=statistics,
            auxiliary=images.subset(torch.arange(auxiliary)),
            domain_names=("planted",),
        )
        return Plant(cases=cases, truths=truths, knowledge=planted, measurement="auc", at_least=0.9)

    def _test(self) -> TracingTest:
        return standardised_score if self.statistic == "standardised" else likelihood_ratio

    def _scores(
        self,
        cases: Sequence[Case],
        knowledge: Knowledge,
        populations: Mapping[str, _Population],
        *,
        mean_known: bool = False,
    ) -> list[MembershipAnswer]:
        test, answers = self._test(), []
        for name, population in populations.items():
            mine = [number for number in _asked(cases) if _domain(cases[number]) == name]
            candidates = _whitened_candidates([cases[number] for number in mine], population, knowledge)
            for number, v in zip(mine, candidates, strict=True):
                case = cases[number]
                release = linear_statistic(*case.released())
                if release.shape[0] != 1:
                    raise UsageError(
                        f"membership tests one pooled style per client; {case.victim} sent {len(release)} rows."
                    )
                u = population.whiten(recentred(release[0], population.mean))
                reference = None if mean_known else len(population.reference)
                scores = test(u, v, records=_size(case), reference=reference)
                answers.append(MembershipAnswer(case=number, scores=scores))
        return sorted(answers, key=lambda answer: answer.case)


def _asked(cases: Sequence[Case]) -> list[int]:
    return [number for number, case in enumerate(cases) if case.request == "resampled_clients"]


def _size(case: Case) -> int:
    if case.records is None:
        raise UsageError(
            f"membership needs the number of images behind the style of {case.victim}; the adversary does not know it."
        )
    return case.records


def _domain(case: Case) -> str:
    if case.domain is None:
        raise UsageError(f"membership needs the domain of the images of {case.victim}; the adversary does not know it.")
    return case.domain


def _auxiliary(knowledge: Knowledge) -> DomainDataset:
    if knowledge.auxiliary is None:
        raise UsageError(
            "membership needs auxiliary images of the victims' domains; the adversary knows none (see --adversary)."
        )
    return knowledge.auxiliary


def _populations(cases: Sequence[Case], knowledge: Knowledge) -> dict[str, _Population]:
    """Fit one whitening per domain of a victim."""
    auxiliary = _auxiliary(knowledge)
    records = knowledge.statistics(auxiliary).linear()
    channels = records.shape[1] // 2
    populations = {}
    for name in dict.fromkeys(_domain(cases[number]) for number in _asked(cases)):
        victim = auxiliary.domain_index(name)
        parts = {int(domain): records[auxiliary.domains == domain] for domain in auxiliary.domains.unique()}
        if victim not in parts or parts[victim].shape[0] < 2:
            raise UsageError(f"membership needs at least 2 auxiliary images of {name}; the adversary has fewer.")
        mean = parts[victim][:, :channels].mean(0)
        others = [
            recentred(part, part[:, :channels].mean(0))
            for domain, part in parts.items()
            if domain != victim and len(part) > 1
        ]
        reference = recentred(parts[victim], mean)
        populations[name] = _Population(
            whiten=fit_whitening(reference, others=others), mean=mean, reference=reference, others=others
        )
    return populations


def _whitened_candidates(cases: Sequence[Case], population: _Population, knowledge: Knowledge) -> list[Tensor]:
    """Whiten the candidates (G, 2C) of the cases of one domain, each image once however many cases it appears in."""
    sets = [case.candidates for case in cases if case.candidates is not None]
    if len(sets) != len(cases):
        raise UsageError("membership tests candidates; a case came without any.")
    images = join(sets)
    rows, where = images.rows.unique(return_inverse=True)
    first = torch.empty_like(rows).scatter_(0, where, torch.arange(len(where)))
    whitened = population.whiten(recentred(knowledge.statistics(images.subset(first)).linear(), population.mean))
    return [whitened[part] for part in where.split([len(candidates) for candidates in sets])]


def _replaced(case: Case, knowledge: Knowledge, rng: torch.Generator) -> Case:
    """The same question about a release that knows nothing of the candidates."""
    if case.request != "resampled_clients":
        return case
    images = _auxiliary(knowledge).of_domain(_domain(case))
    drawn = torch.randint(len(images), (_size(case),), generator=rng)
    mean, std = knowledge.statistics(images).rows(drawn).pooled().style(unbiased=False)
    artifact = StyleStatistics(mean=mean[0].float(), std=std[0].float())
    return replace(case, views=(upload(artifact, sender=case.victim),))


def _predictions(
    cases: Sequence[Case], populations: Mapping[str, _Population], test: TracingTest, rng: torch.Generator
) -> list[Prediction]:
    """Per domain and size: the effective dimension on held-out images, and the AUC to expect.

    Line "dimension" puts the effective dimension into the law sqrt(D / (n + n^2/n_ref)); line "simulation" runs the same
    test on Gaussian records with the shrunk covariance, whose flat tail makes it an optimistic one."""
    first: dict[str, dict[int, int]] = {name: {} for name in populations}
    for number in _asked(cases):
        first[_domain(cases[number])].setdefault(_size(cases[number]), number)
    answers = []
    for name, population in populations.items():
        reference, others = population.reference, population.others
        dimension = held_out_dimension(reference, others=others)
        sizes = sorted(first[name])
        simulated = simulated_aucs(
            population.whiten, test=test, records=sizes, reference=len(reference),
            others=[len(part) for part in others], rng=child(rng, name),
        )  # fmt: skip
        for size, area in zip(sizes, simulated, strict=True):
            number = first[name][size]
            law = theory_auc(separation(dimension, records=size, reference=len(reference)))
            answers += [
                Prediction(case=number, name="theory_auc", value=law, slice={"line": "dimension"}),
                Prediction(case=number, name="theory_auc", value=area, slice={"line": "simulation"}),
                Prediction(case=number, name="d_eff", value=dimension, unit="dimensions"),
            ]
    return answers
