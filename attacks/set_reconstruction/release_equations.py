"""From a case to the equations of its release: candidates, population, and the error of the release."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from fdgsec.attacks.set_reconstruction.list_equations import ListEquations, list_equations
from fdgsec.attacks.set_reconstruction.whole_spectra import SpectraTable, whole_spectra
from fdgsec.attacks.statistics.defense_noise import DefenseNoise, defense_noise_of_mean
from fdgsec.attacks.statistics.domain_populations import Population, distinct_images, images_of, populations_of
from fdgsec.attacks.statistics.pooled_questions import domain_of, independent_release, release_of, size_of
from fdgsec.attacks.statistics.release_precision import rounding_noise
from fdgsec.data.domains import DomainDataset
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.attack import Case


class CandidateTable(Protocol):
    """What an adversary knows of one domain's candidates: t of each under its `knowledge`."""

    @property
    def knowledge(self) -> Knowledge:
        """Give the knowledge whose released statistic reads all numbers of these releases."""
        ...

    @property
    def about(self) -> Tensor:
        """Give the center about which squares in t are taken."""
        ...

    def equations(self, candidates: DomainDataset, release: Tensor, *, noise: Tensor, images: int) -> ListEquations:
        """Give the equations of a release (D,) whose error has the standard deviations `noise` (D,)."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class StatisticTable:
    """Candidates under the target's released statistic."""

    knowledge: Knowledge
    domain: str

    @cached_property
    def population(self) -> Population:
        """The domain's population."""
        return populations_of([self.domain], self.knowledge)[self.domain]

    @property
    def about(self) -> Tensor:
        """The mean of the adversary's images of the domain."""
        return self.population.about

    def equations(self, candidates: DomainDataset, release: Tensor, *, noise: Tensor, images: int) -> ListEquations:
        """Give the equations of a release (D,) whose error has the standard deviations `noise` (D,)."""
        statistic = self.knowledge.released_statistic
        records = statistic.about(statistic.records(self.knowledge.statistics(candidates)), self.about)
        return list_equations(records, release, self.population, noise=noise, images=images)


@dataclass(frozen=True, kw_only=True, eq=False)
class ReleaseReader:
    """Reads the releases of one domain's cases; `found` is the effect of a defense on one client's mean, by its size.

    Noise of several clients averages out in their sum."""

    table: CandidateTable
    domain: str
    rng: torch.Generator
    found: dict[int, DefenseNoise | None] = field(default_factory=dict)

    def equations(self, case: Case, seen: Case) -> ListEquations:
        """The equations of the release in `seen` for the candidates of `case`."""
        knowledge, about, size = self.table.knowledge, self.table.about, size_of(case)
        release = knowledge.released_statistic.about(release_of(seen, knowledge), about)
        error = rounding_noise(seen.release(), knowledge.released_statistic, about, images=size)
        defense = self._defense_noise(max(1, size // case.clients))
        if defense is not None:
            release, error = release - defense.shift, (error.square() + defense.variance / case.clients).sqrt()
        return self.table.equations(_candidates(case), release, noise=error, images=size)

    def independent(self, case: Case, rng: torch.Generator) -> Case:
        """The same question about a release of auxiliary images, which no candidate is behind."""
        return independent_release(case, self.table.knowledge, rng)

    def _defense_noise(self, size: int) -> DefenseNoise | None:
        """The effect of a defense on means of so many images, estimated when it is first needed; None without one."""
        if size not in self.found:
            knowledge, rng = self.table.knowledge, child(self.rng, self.domain, size)
            images = images_of(knowledge, self.domain)
            self.found[size] = defense_noise_of_mean(knowledge, images, records=size, about=self.table.about, rng=rng)
        return self.found[size]


def reader_of(cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> ReleaseReader:
    """The reader of the releases of `cases`, which are of one domain. Raises UsageError for one without candidates."""
    images, _ = distinct_images([_candidates(case) for case in cases])
    domain, spectra = domain_of(cases[0]), whole_spectra(cases[0], knowledge)
    if spectra is None:
        return ReleaseReader(table=StatisticTable(knowledge=knowledge, domain=domain), domain=domain, rng=rng)
    everything = replace(knowledge, statistics=spectra, released_statistic=spectra.released_statistic)
    table = SpectraTable(knowledge=everything, domain=domain, images=images, spectra=spectra)
    return ReleaseReader(table=table, domain=domain, rng=rng)


def _candidates(case: Case) -> DomainDataset:
    if case.candidates is None:
        raise UsageError(f"set-reconstruction looks for members among candidates; {case.victim} came without any.")
    return case.candidates
