"""Set reconstruction: the whole list of images behind a pooled release, from all of its equations at once.

A mean of D numbers over n images is D linear equations in the unknown 0/1 memberships of the adversary's candidates
(fdgsec.attacks.set_reconstruction.list_equations). Dinur and Nissim (PODS 2003) reconstruct a database from enough
noisy sums by solving for the closest one, and Dwork and Yekhanin (CRYPTO 2008) with as many sums as unknowns; here the
sums are those of known statistics of the candidates. Memberships are relaxed to [0, 1], and the most likely weights
under Gaussian errors are found (fdgsec.attacks.set_reconstruction.box_least_squares). For random matrices without
noise one solution is left where there are more than half as many equations as candidates (Donoho and Tanner, Discrete
and Computational Geometry 2010, on the faces of a projected cube); with more candidates, or with noise, the weights
still rank them. `membership` tests one candidate at a time instead."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from fdgsec.attacks.set_reconstruction.control import planted_lists
from fdgsec.attacks.set_reconstruction.given_candidates import (
    GIVEN,
    population_of_given,
    precision_of_candidates,
    questions_of_vectors,
    release_of_candidates,
)
from fdgsec.attacks.set_reconstruction.list_equations import ListEquations, list_equations
from fdgsec.attacks.statistics.defense_noise import ACCOUNTED, DefenseNoise, defense_noise_of_mean
from fdgsec.attacks.statistics.domain_populations import Population, auxiliary_images, populations_of
from fdgsec.attacks.statistics.pooled_questions import domain_of, independent_release, release_of, size_of
from fdgsec.attacks.statistics.release_precision import ROUNDINGS, rounded, rounding_noise
from fdgsec.metrics.roc import auc
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Answer, MemberList, Membership
from fdgsec.threats.attack import Answers, Case, PositiveControl, Question, TargetFacts
from fdgsec.threats.option_checks import check_at_least
from fdgsec.threats.positive_control_data import upload

PRIORS = (1.0, 0.1, 0.01)
"""Weights of the prior that are tried on a list of the adversary's own making."""
WHOLE = 1_000_000
"""More candidates than any domain has."""


@dataclass(frozen=True, kw_only=True)
class SetReconstruction:
    """Reconstruct the members of `clients` clients of each of `sizes`, in galleries that hold all of them.

    A gallery has `gallery` candidates for each member, or (0) all images of the domain that the adversary does not
    hold. `held` are shares of each gallery that the adversary has; less than all of them is asked of the first kind of
    gallery only. Every release is read once more in each of `roundings` (fdgsec.attacks.statistics.release_precision:
    "float16", "2 decimals"), as if it had been sent so."""

    name: ClassVar[str] = "set-reconstruction"
    reads: ClassVar[frozenset[str]] = frozenset({"StyleStatistics", "StyleDistribution", "Amplitudes"})
    needs: ClassVar[frozenset[str]] = frozenset({"encoder", "auxiliary", "client sizes", "victim domains"})
    accounts_for: ClassVar[frozenset[str]] = ACCOUNTED
    sizes: tuple[int, ...] = (40, 130, 500)
    clients: int = 15
    galleries: tuple[int, ...] = (2, 0)
    held: tuple[float, ...] = (1.0, 0.9, 0.5)
    roundings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_at_least(2, {"sizes": self.sizes})
        check_at_least(1, {"clients": self.clients})
        wrong = [gallery for gallery in self.galleries if gallery < 0 or gallery == 1]
        if wrong:
            raise UsageError(f"galleries must be 0 (all images) or at least 2 candidates a member; got {wrong[0]}.")
        outside = [share for share in self.held if not 0 < share <= 1]
        if outside:
            raise UsageError(f"held must be shares above 0 and up to 1; got {outside[0]}.")
        unknown = [rounding for rounding in self.roundings if rounding not in ROUNDINGS]
        if unknown:
            raise UsageError(f"unknown rounding {unknown[0]!r}; there are {', '.join(ROUNDINGS)}.")

    def plan(self, facts: TargetFacts) -> Sequence[Question]:
        """Ask for re-drawn clients with every gallery. Raises UsageError where styles are not means over images."""
        facts.check_pooled()
        if not facts.pooled:
            raise UsageError("reads styles that are means over a client's images; those of this target are not")
        return [
            Question(
                kind="resampled_clients", count=self.clients, records=size,
                gallery=gallery * size if gallery else WHOLE, held=held,
            )
            for size in self.sizes
            for number, gallery in enumerate(self.galleries)
            for held in (self.held if number == 0 else self.held[:1])
        ]  # fmt: skip

    def plan_of_vectors(self, facts: TargetFacts) -> Sequence[Question]:
        """Ask about every vector of the file. Raises UsageError without candidates' statistics, or numbers of
        images."""
        return questions_of_vectors(facts)

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Per client: a score for each candidate, and the list that the adversary believes in."""
        return self._answers(cases, knowledge, rng, cases)

    def negative_control(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Answer from releases of auxiliary images, which no candidate is behind; without any, of drawn candidates."""
        others = [
            (release_of_candidates if case.question == "given" else independent_release)(
                case, knowledge, child(rng, "release", n)
            )
            for n, case in enumerate(cases)
        ]
        return self._answers(cases, knowledge, rng, others)

    def _answers(
        self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator, seen: Sequence[Case]
    ) -> list[Answer]:
        """Answer from the releases of `seen`, and from each rounding of them."""
        populations = population_of_given(cases, knowledge)
        named = [domain_of(case) for case in cases if case.question != "given"]
        populations |= populations_of(named, knowledge) if named else {}
        noise = _NoiseOfMeans(knowledge=knowledge, populations=populations, rng=child(rng, "noise"))
        answers: list[Answer] = list(_answers(cases, seen, knowledge, noise, rng))
        for rounding in self.roundings:
            coarse = [_rounded(case, rounding) for case in seen]
            found = _answers(cases, coarse, knowledge, noise, rng)
            answers += [replace(answer, slice={"rounding": rounding}) for answer in found]
        return sorted(answers, key=lambda answer: answer.case)

    def positive_control(self, knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
        """Lists of planted images, whose means have several numbers for each candidate
        (fdgsec.attacks.set_reconstruction.control)."""
        return planted_lists(knowledge, rng)


def _answers(
    cases: Sequence[Case], seen: Sequence[Case], knowledge: Knowledge, noise: "_NoiseOfMeans", rng: torch.Generator
) -> list[Membership | MemberList]:
    """Answer the cases from the releases of `seen`, which may be others, or less precise."""
    answers: list[Membership | MemberList] = []
    for alike in _alike(cases):
        equations = {number: _equations(cases[number], seen[number], knowledge, noise) for number in alike}
        prior = _best_prior(equations[alike[0]], child(rng, "prior", alike[0]))
        for number, known in equations.items():
            found = known.solved(prior)
            answers += [
                Membership(case=number, scores=found.scores()), MemberList(case=number, believed=found.believed()),
            ]  # fmt: skip
    return answers


def _alike(cases: Sequence[Case]) -> Iterator[list[int]]:
    """The numbers of the cases of each domain, size and number of candidates, each question once.

    Two galleries are one where a domain has no more images."""
    found: dict[tuple[object, ...], dict[tuple[object, ...], int]] = {}
    for number, case in enumerate(cases):
        candidates = () if case.candidates is None else tuple(case.candidates.ids)
        sent = tuple(value.numpy().tobytes() for value in case.release().tensors().values())
        alike = found.setdefault((_population_of(case), size_of(case), len(candidates)), {})
        alike.setdefault((case.victim, sent, candidates), number)
    yield from (list(numbers.values()) for numbers in found.values())


def _population_of(case: Case) -> str:
    """The name of the population of the images behind a release."""
    return GIVEN if case.question == "given" else domain_of(case)


def _rounded(case: Case, rounding: str) -> Case:
    sent = rounded(case.release(), rounding)
    return replace(case, views=(upload(sent, sender=case.victim),))


@dataclass(kw_only=True)
class _NoiseOfMeans:
    """The effect of a defense on means of each domain and size, estimated when it is first needed."""

    knowledge: Knowledge
    populations: Mapping[str, Population]
    rng: torch.Generator
    found: dict[tuple[str, int], DefenseNoise | None] = field(default_factory=dict)

    def of(self, case: Case) -> DefenseNoise | None:
        """That on the release of `case`; None without a defense, which given vectors name none of."""
        if case.question == "given":
            return None
        name, size = domain_of(case), size_of(case)
        if (name, size) not in self.found:
            images = auxiliary_images(self.knowledge).of_domain(name)
            about = self.populations[name].about
            self.found[name, size] = defense_noise_of_mean(
                self.knowledge, images, records=size, about=about, rng=child(self.rng, name, size)
            )
        return self.found[name, size]


def _equations(case: Case, seen: Case, knowledge: Knowledge, noise: _NoiseOfMeans) -> ListEquations:
    """The equations of the release in `seen` for the candidates of `case`."""
    if case.candidates is None:
        raise UsageError(f"set-reconstruction looks for members among candidates; {case.victim} came without any.")
    population, statistic, size = noise.populations[_population_of(case)], knowledge.released_statistic, size_of(case)
    release = statistic.about(release_of(seen, knowledge), population.about)
    error = rounding_noise(seen.release(), statistic, population.about, images=size)
    defense = noise.of(case)
    if defense is not None:
        release, error = release - defense.shift, (error.square() + defense.variance).sqrt()
    moments = knowledge.statistics(case.candidates)
    if case.question == "given":
        error = (error.square() + precision_of_candidates(moments, population.about, images=size).square()).sqrt()
    candidates = statistic.about(statistic.records(moments), population.about)
    return list_equations(candidates, release, population, noise=error, images=size)


def _best_prior(known: ListEquations, rng: torch.Generator) -> float:
    """The weight of the prior under which a list that the adversary draws itself is found best."""
    listed = min(known.images, len(known.candidates) - 1)
    members = torch.zeros(len(known.candidates), dtype=torch.bool)
    members[torch.randperm(len(members), generator=rng)[:listed]] = True
    error = torch.randn(len(known.noise), generator=rng, dtype=torch.float64).numpy() * known.noise
    rehearsed = replace(known, release=known.candidates[members.numpy()].mean(0) + error, images=listed)
    areas = {}
    for prior in PRIORS:
        scores = rehearsed.solved(prior, absent=0.0).scores()
        areas[prior] = auc(scores[members], scores[~members])
    return max(PRIORS, key=lambda prior: areas[prior])
