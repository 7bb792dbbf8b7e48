"""Set reconstruction from given numbers: pooled vectors of a file and a table of candidates' statistics.

There are no images to learn a population from: it is that of the candidates themselves. They may be written with less
precision than is computed with, which the equations allow for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fdgsec.attacks.set_reconstruction.list_equations import ListEquations, list_equations
from fdgsec.attacks.statistics.domain_populations import Population, population_of_candidates
from fdgsec.attacks.statistics.pooled_questions import release_of, size_of
from fdgsec.attacks.statistics.release_precision import rounding_noise, rounding_of_values
from fdgsec.data.domains import DomainDataset
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.runtime.errors import UsageError
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.attack import Case, Question, TargetFacts
from fdgsec.threats.positive_control_data import upload


def questions_of_vectors(facts: TargetFacts) -> Sequence[Question]:
    """Ask about every vector. Raises UsageError without a table of candidates, or numbers of images."""
    if not facts.candidate_statistics:
        raise UsageError(
            "needs the statistics of candidate images (--candidates FILE), or images with --dataset and --truth"
        )
    if "client sizes" not in facts.knows:
        raise UsageError(
            "needs the number of images behind each vector: --images-per-client, or a column member or client in "
            "--truth; an outsider does not know it"
        )
    return [Question(kind="given", scheme="candidates")]


@dataclass(frozen=True, kw_only=True, eq=False)
class GivenReader:
    """Reads given vectors as equations in the given candidates; no defense is known to be behind them."""

    knowledge: Knowledge
    population: Population

    def equations(self, case: Case, seen: Case) -> ListEquations:
        """The equations of the release in `seen` for the candidates of `case`."""
        knowledge, about, size = self.knowledge, self.population.about, size_of(case)
        statistic, moments = knowledge.released_statistic, knowledge.statistics(_candidates(case))
        release = statistic.about(release_of(seen, knowledge), about)
        error = rounding_noise(seen.release(), statistic, about, images=size)
        error = (error.square() + precision_of_candidates(moments, about, images=size).square()).sqrt()
        records = statistic.about(statistic.records(moments), about)
        return list_equations(records, release, self.population, noise=error, images=size)

    def independent(self, case: Case, rng: torch.Generator) -> Case:
        """The same question about a mean of candidates drawn with replacement, whoever the members are."""
        statistic = self.knowledge.released_statistic
        records = statistic.records(self.knowledge.statistics(_candidates(case)))
        drawn = records[torch.randint(len(records), (size_of(case),), generator=rng)]
        sent = statistic.artifact(drawn.mean(0, keepdim=True), like=case.release(), images=len(drawn))
        return replace(case, views=(upload(sent, sender=case.victim),))


def given_reader(cases: Sequence[Case], knowledge: Knowledge) -> GivenReader:
    """The reader of given vectors: their population is that of the candidates of all `cases`."""
    population = population_of_candidates([_candidates(case) for case in cases], knowledge)
    return GivenReader(knowledge=knowledge, population=population)


def _candidates(case: Case) -> DomainDataset:
    assert case.candidates is not None  # `plan_of_vectors` asks only where there are some
    return case.candidates


def precision_of_candidates(found: Moments, about: Tensor, *, images: int) -> Tensor:
    """The standard deviation (2C,) that the rounding of candidates' numbers leaves in a mean of t over `images`.

    `found` are their moments and `about` (2C,) the center of the squares in t = (mu, sigma^2 + (mu - center)^2)."""
    mean, std = found.style(unbiased=False)
    error = rounding_of_values([found.mean])
    first = error(mean)
    second = (2 * (mean - about.chunk(2)[0]) * first).square() + (
        2 * std.nan_to_num() * error(std.nan_to_num())
    ).square()
    both = torch.cat([first.square(), second], dim=1)
    return (both.mean(0) / (3 * images)).sqrt()  # a rounding error is uniform: a third of its square's bound
