"""Differencing: two pooled styles, before and after one image joined, give that image's own style away.

CCST's overall style (eq. 8) averages the per-image statistic t = (mu, sigma^2 + mu^2), so with n images before and one
more after, t(new) = (n + 1) t(r') - n t(r), exact up to the rounding of the two float32 releases. Averaging over any
number of images hides nothing from somebody who sees two averages that differ by one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fdgsec.artifacts import StyleStatistics
from fdgsec.errors import UsageError
from fdgsec.planting import PlantedStatistics, planted_images, planted_moments, upload
from fdgsec.rng import derangement
from fdgsec.styles import Moments, linear_statistic
from fdgsec.threats import Answer, Case, Guess, Knowledge, Plant, Ranking, Recovered, Request, TargetFacts, Truth


@dataclass(frozen=True, kw_only=True)
class Differencing:
    """Recover the added image's statistic, and name the image among those it may be.

    Candidates are ranked by |estimate - t(x)| / |t(x)|, unwhitened: the rounding error of a coordinate grows with its
    size, and whitening would blow it up just where images differ least. `records` is the number of added images per
    domain; None takes 20 (profile quick) or 50 (full). Knowing the victim's domain is no help to it, only to the blind
    guess that it is compared with."""

    name: ClassVar[str] = "differencing"
    reads: ClassVar[frozenset[str]] = frozenset({"StyleStatistics"})
    needs: ClassVar[frozenset[str]] = frozenset({"encoder", "client sizes", "auxiliary"})
    records: int | None = None

    def plan(self, facts: TargetFacts) -> Sequence[Request]:
        """Ask for pairs of runs with and without one more image.

        Raises UsageError where styles are no means over images."""
        facts.check_pooled()
        count = self.records if self.records is not None else (50 if facts.profile == "full" else 20)
        return [Request(kind="add_one_record", count=count)]

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Guess:
        """Per pair: the recovered statistic beside the public mean of its domain, and the ranking of the candidates."""
        return _answers(cases, knowledge, list(range(len(cases))))

    def shuffled(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Guess:
        """Answer each question from the pair of runs of another question about the same domain."""
        source = list(range(len(cases)))
        asked = [number for number, case in enumerate(cases) if case.request == "add_one_record"]
        for where in dict.fromkeys(tuple(sorted(cases[number].slice.items())) for number in asked):
            same = [number for number in asked if tuple(sorted(cases[number].slice.items())) == where]
            for here, there in zip(same, derangement(len(same), rng).tolist(), strict=True):
                source[here] = same[there]
        return _answers(cases, knowledge, source)

    def plant(self, knowledge: Knowledge, rng: torch.Generator) -> Plant:
        """Add one of thirty images to a client of twenty, six times: exact arithmetic must name it every time."""
        channels, holds, pool, auxiliary, added = 24, 20, 30, 40, 6
        count = holds + pool + auxiliary
        mean = 2 + torch.randn(count, channels, generator=rng, dtype=torch.float64)
        variance = 0.5 + torch.rand(count, channels, generator=rng, dtype=torch.float64)
        moments = planted_moments(mean, variance)
        nothing = torch.zeros(count, dtype=torch.int64)
        images = planted_images(nothing, nothing, class_names=("any",), domain_names=("planted",))
        candidates = images.subset(holds + torch.randperm(pool, generator=rng))
        inside = torch.arange(holds)
        before = upload(_pooled(moments.rows(inside)))
        cases, truths = [], []
        for number in range(added):
            row = candidates.rows[number].reshape(1)
            after = upload(_pooled(moments.rows(torch.cat([inside, row]))))
            cases.append(
                Case(
                    request="add_one_record", views=(before, after), victim="client:0", records=holds,
                    domain="planted", slice={"domain": "planted"}, candidates=candidates,
                )
            )  # fmt: skip
            truths.append(Truth(rows=torch.tensor([number]), statistic=moments.rows(row).linear()))
        planted = replace(
            knowledge, statistics=PlantedStatistics(moments=moments), domain_names=("planted",),
            auxiliary=images.subset(torch.arange(holds + pool, count)),
        )  # fmt: skip
        return Plant(cases=cases, truths=truths, knowledge=planted, measurement="top1", at_least=0.99)


def _pooled(moments: Moments) -> StyleStatistics:
    mean, std = moments.pooled().style(unbiased=False)
    return StyleStatistics(mean=mean[0].float(), std=std[0].float())


def _answers(cases: Sequence[Case], knowledge: Knowledge, source: Sequence[int]) -> list[Answer]:
    """Answer every pair of runs with what the views of case `source[i]` give away."""
    answers: list[Answer] = []
    for number, case in enumerate(cases):
        if case.request != "add_one_record":
            continue
        if case.candidates is None:
            raise UsageError(f"differencing names the added image among candidates; {case.victim} came without any.")
        estimate = _difference(cases[source[number]])
        known = knowledge.statistics(case.candidates).linear()
        distances = (known - estimate).norm(dim=1) / known.norm(dim=1)
        answers.append(Recovered(case=number, statistic=estimate.unsqueeze(0), without=_public_mean(case, knowledge)))
        answers.append(Ranking(case=number, distances=distances.unsqueeze(0)))
    return answers


def _difference(case: Case) -> Tensor:
    """t(new) = (n + 1) t(r') - n t(r), (2C,)."""
    if case.records is None:
        raise UsageError(f"differencing needs the number of images behind the style of {case.victim}; it is not known.")
    if len(case.views) != 2:
        raise UsageError(f"differencing needs a run before and a run after; got {len(case.views)} of {case.victim}.")
    before, after = (linear_statistic(*case.released(run)) for run in (0, 1))
    if len(before) != 1 or len(after) != 1:
        raise UsageError(
            f"differencing reads one pooled style per run; {case.victim} sent {len(before)} and {len(after)}."
        )
    return (case.records + 1) * after[0] - case.records * before[0]


def _public_mean(case: Case, knowledge: Knowledge) -> Tensor:
    """What to guess without the releases: the mean of public images, those of the victim's domain where it is known."""
    images = knowledge.public_images()
    known = case.domain
    if known is not None and known in images.domain_names and len(images.of_domain(known)):
        images = images.of_domain(known)
    return knowledge.statistics(images).linear().mean(0)
