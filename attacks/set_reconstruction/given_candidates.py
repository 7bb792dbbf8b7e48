"""Set reconstruction from given numbers: pooled vectors of a file and a table of candidates' statistics.

There are no images to learn a population from: it is that of the candidates themselves. They may be written with less
precision than is computed with, which the equations allow for."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fdgsec.attacks.statistics.domain_populations import Population, population_of_candidates
from fdgsec.attacks.statistics.pooled_questions import size_of
from fdgsec.attacks.statistics.release_precision import rounding_of_values
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.runtime.errors import UsageError
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.attack import Case, Question, TargetFacts
from fdgsec.threats.positive_control_data import upload

GIVEN = "given candidates"
"""The name of the population of all candidates of given vectors."""


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


def population_of_given(cases: Sequence[Case], knowledge: Knowledge) -> dict[str, Population]:
    """The population of the candidates of all cases of given vectors, by its name; empty without such cases."""
    given = [case.candidates for case in cases if case.question == "given"]
    return {GIVEN: population_of_candidates(given, knowledge)} if given else {}


def release_of_candidates(case: Case, knowledge: Knowledge, rng: torch.Generator) -> Case:
    """The same question about a mean of candidates drawn with replacement, whoever the members are."""
    assert case.candidates is not None
    statistic = knowledge.released_statistic
    records = statistic.records(knowledge.statistics(case.candidates))
    drawn = records[torch.randint(len(records), (size_of(case),), generator=rng)]
    sent = statistic.artifact(drawn.mean(0, keepdim=True), like=case.release(), images=len(drawn))
    return replace(case, views=(upload(sent, sender=case.victim),))


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
