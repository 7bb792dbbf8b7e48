"""From a case to the equations of its release: candidates, population, and the error of the release."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from fdgsec.attacks.set_reconstruction.list_equations import ListEquations, list_equations
from fdgsec.attacks.set_reconstruction.whole_spectra import SpectraTable, whole_spectra
from fdgsec.attacks.statistics.defense_noise import DefenseNoise, defense_noise_of_mean
from fdgsec.attacks.statistics.domain_populations import Population, distinct_images, images_of, populations_of
from fdgsec.attacks.statistics.pooled_questions import (
    candidates_of,
    domain_of,
    independent_release,
    release_of,
    size_of,
)
from fdgsec.attacks.statistics.release_precision import rounding_noise
from fdgsec.attacks.statistics.tracing import fit_whitening
from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import ModelState
from fdgsec.runtime.cached_values import computed_once
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.attack import Case


class CandidateTable(Protocol):
    """What an adversary knows of one domain's candidates: t of each, for every release of a case together."""

    @property
    def readings(self) -> Sequence[tuple[Knowledge, Tensor]]:
        """Give for each release the knowledge that reads it, and the center about which squares in t are taken."""
        ...

    def equations(self, candidates: DomainDataset, release: Tensor, *, noise: Tensor, images: int) -> ListEquations:
        """Give the equations of a release (D,) whose error has the standard deviations `noise` (D,)."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class StatisticTable:
    """Candidates under the target's released statistic, once for each knowledge: that of each round's model."""

    knowledges: Sequence[Knowledge]
    domain: str
    read: list[tuple[DomainDataset, Tensor]] = field(default_factory=list)
    """The candidates whose records were read last, with these: a case is read in several roundings, one by one."""

    @computed_once
    def populations(self) -> Sequence[Population]:
        """The domain's population in each release."""
        return [populations_of([self.domain], knowledge)[self.domain] for knowledge in self.knowledges]

    @computed_once
    def population(self) -> Population:
        """The domain's population in all releases together."""
        return self.populations[0] if len(self.populations) == 1 else stacked(self.populations)

    @property
    def readings(self) -> Sequence[tuple[Knowledge, Tensor]]:
        """Each knowledge, and the mean of the adversary's images of the domain."""
        return [(known, one.about) for known, one in zip(self.knowledges, self.populations, strict=True)]

    def equations(self, candidates: DomainDataset, release: Tensor, *, noise: Tensor, images: int) -> ListEquations:
        """Give the equations of a release (D,) whose error has the standard deviations `noise` (D,)."""
        return list_equations(self._records(candidates), release, self.population, noise=noise, images=images)

    def _records(self, candidates: DomainDataset) -> Tensor:
        """t of candidates (G, D), of all releases."""
        if not self.read or self.read[0][0] is not candidates:
            records = [
                known.released_statistic.about(known.released_statistic.records(known.statistics(candidates)), about)
                for known, about in self.readings
            ]
            self.read[:] = [(candidates, torch.cat(records, dim=1))]
        return self.read[0][1]


def stacked(populations: Sequence[Population]) -> Population:
    """One population in the numbers of several releases of the same images."""
    reference = torch.cat([one.reference for one in populations], dim=1)
    others = [torch.cat(parts, dim=1) for parts in zip(*(one.others for one in populations), strict=True)]
    return Population(
        whiten=fit_whitening(reference, others=others), about=torch.cat([one.about for one in populations]),
        reference=reference, others=others,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class ReleaseReader:
    """Reads the releases of one domain's cases, those of the `runs` of each, as one set of equations.

    `found` is the effect of a defense on one client's mean, by the run and its size. Noise of several clients averages
    out in their sum, and each release has its own."""

    table: CandidateTable
    domain: str
    rng: torch.Generator
    runs: Sequence[int] = (0,)
    found: dict[tuple[int, int], DefenseNoise | None] = field(default_factory=dict)

    def equations(self, case: Case, seen: Case) -> ListEquations:
        """The equations of the releases in `seen` for the candidates of `case`."""
        if case.dropped:
            return self._change(case, seen)
        if case.added:
            last, first, error = self._two(case, seen)
            release = (last - first) / case.added
            return self.table.equations(candidates_of(case), release, noise=error / case.added, images=case.added)
        read = [self._release(case, seen, number, run) for number, run in enumerate(self.runs)]
        release, error = (torch.cat(parts) for parts in zip(*read, strict=True))
        return self.table.equations(candidates_of(case), release, noise=error, images=size_of(case))

    def release(self, case: Case, seen: Case) -> tuple[Tensor, Tensor]:
        """The first release (D,) of t in `seen`, without the shift of a defense, and the deviation of its error."""
        return self._release(case, seen, 0, self.runs[0])

    def _change(self, case: Case, seen: Case) -> ListEquations:
        """The equations of the sum of t over new images less that over dropped ones, over the number of both.

        Coordinates have a center, which counts in each sum as often as there are images."""
        last, first, error = self._two(case, seen)
        changed, after, before = case.added + case.dropped, size_of(case), _before(case)
        placed = [
            self.table.equations(candidates_of(case), total / images, noise=error / changed, images=changed)
            for total, images in ((last, after), (first, before))
        ]
        return replace(placed[0], release=(after * placed[0].release - before * placed[1].release) / changed)

    def _two(self, case: Case, seen: Case) -> tuple[Tensor, Tensor, Tensor]:
        """The sums of t over the images behind the second release and the first, and their difference's error."""
        after, before = size_of(case), _before(case)
        last, first = (
            self._release(replace(case, records=size), replace(seen, records=size), 0, run)
            for run, size in ((1, after), (0, before))
        )
        error = ((after * last[1]).square() + (before * first[1]).square()).sqrt()
        return after * last[0], before * first[0], error

    def _release(self, case: Case, seen: Case, number: int, run: int) -> tuple[Tensor, Tensor]:
        """The release (D,) of t in one run, without the shift of a defense, and the standard deviation of its error."""
        (knowledge, about), size = self.table.readings[number], size_of(case)
        seen = replace(seen, views=(seen.views[run],))
        release = knowledge.released_statistic.about(release_of(seen, knowledge), about)
        error = rounding_noise(seen.release(), knowledge.released_statistic, about, images=size)
        defense = self._defense_noise(number, max(1, size // case.clients))
        if defense is None:
            return release, error
        return release - defense.shift, (error.square() + defense.variance / case.clients).sqrt()

    def independent(self, case: Case, rng: torch.Generator) -> Case:
        """The same question about releases of auxiliary images, which no candidate is behind."""
        if case.added or case.dropped:  # draws with replacement begin alike
            knowledge, _ = self.table.readings[0]
            two = [
                independent_release(replace(case, records=size), knowledge, child(rng, "images"), skipped=skipped)
                for size, skipped in ((_before(case), 0), (size_of(case), case.dropped))
            ]
            return replace(case, views=tuple(one.views[0] for one in two))
        made = [independent_release(case, knowledge, child(rng, "images")) for knowledge, _ in self.table.readings]
        views = {run: one.views[0] for run, one in zip(self.runs, made, strict=True)}
        return replace(case, views=tuple(views.get(run, view) for run, view in enumerate(case.views)))

    def _defense_noise(self, number: int, size: int) -> DefenseNoise | None:
        """The effect of a defense on means of so many images, estimated when it is first needed; None without one."""
        if (number, size) not in self.found:
            (knowledge, about), rng = self.table.readings[number], child(self.rng, self.domain, size, number)
            images = images_of(knowledge, self.domain)
            self.found[number, size] = defense_noise_of_mean(knowledge, images, records=size, about=about, rng=rng)
        return self.found[number, size]


def reader_of(cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> ReleaseReader:
    """The reader of the releases of `cases`, which are of one domain and one number of views.

    Raises UsageError for one without candidates."""
    images, _ = distinct_images([candidates_of(case) for case in cases])
    domain, spectra = domain_of(cases[0]), whole_spectra(cases[0], knowledge)
    if spectra is not None:
        everything = replace(knowledge, statistics=spectra, released_statistic=spectra.released_statistic)
        table = SpectraTable(knowledge=everything, domain=domain, images=images, spectra=spectra)
        return ReleaseReader(table=table, domain=domain, rng=rng)
    runs = _different_runs(cases) if cases[0].question == "model_rounds" else [0]
    known = [_under_model(cases[0], run, knowledge) for run in runs]
    return ReleaseReader(table=StatisticTable(knowledges=known, domain=domain), domain=domain, rng=rng, runs=runs)


def _different_runs(cases: Sequence[Case]) -> Sequence[int]:
    """The views whose releases are no copies of an earlier one's: equal ones are the same equations."""
    first = {
        tuple(value.numpy().tobytes() for case in cases for value in case.release(run).tensors().values()): run
        for run in reversed(range(len(cases[0].views)))
    }
    return sorted(first.values())


def _under_model(case: Case, run: int, knowledge: Knowledge) -> Knowledge:
    """The knowledge of statistics under the model that a view shows, where styles come from one."""
    if case.question != "model_rounds" or knowledge.statistics_under is None:
        return knowledge
    state = case.views[run].latest(ModelState)
    if state is None:
        raise UsageError(f"set-reconstruction needs the model of each round; none was sent to {case.victim}.")
    return replace(knowledge, statistics=knowledge.statistics_under(state))


def _before(case: Case) -> int:
    """The number of images behind the first of two releases."""
    return size_of(case) - case.added + case.dropped
