"""Reads means over clusters: as means with unknown weights, with stds of the same weights or without, or as means over
images up to a simulated error.

Which of them ranks best depends on the noise and on how many images there are; the adversary tries all on lists of the
candidates that it draws itself, and sends as the client would. There it tries, too, whether lists that it refines with
the method itself rank better still. A refined list that explains what was received is believed in any case."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from fdgsec.attacks.set_reconstruction.cluster_errors import (
    NearlyEqual,
    drawn_lists_of,
    gallery_of,
    nearest_mean,
    released_by,
)
from fdgsec.attacks.set_reconstruction.list_equations import ListEquations, MemberPosterior, best_prior
from fdgsec.attacks.set_reconstruction.partition_refinement import PartitionRefinement
from fdgsec.attacks.set_reconstruction.release_equations import ReleaseReader, reader_of
from fdgsec.attacks.set_reconstruction.unequal_weights import listed_weights, ranked_weights
from fdgsec.attacks.set_reconstruction.weighted_spreads import WeightedSpreads
from fdgsec.attacks.statistics.pooled_questions import domain_of, size_of
from fdgsec.federation.released_statistics import ChannelMeans
from fdgsec.metrics.roc import auc
from fdgsec.runtime.random_streams import child
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.attack import Case
from fdgsec.threats.positive_control_data import upload

Reading = Literal["weights", "means over images", "stds"]
REHEARSALS = 4
"""Lists of candidates on which readings are tried."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ClusterReader:
    """Reads the releases of one domain's cases, means over clusters of images.

    `weights` reads them with unknown weights; `near` as means over images, None where the adversary cannot run the
    target's method; `spreads` with unknown weights and stds, where there are any. `best` keeps which of them ranked the
    members of lists that the adversary drew best, by the numbers of images and candidates, and `refines` whether
    refined lists, though none is verified, do so still more."""

    weights: ReleaseReader
    near: NearlyEqual | None
    knowledge: Knowledge
    rng: torch.Generator
    spreads: WeightedSpreads | None = None
    best: dict[tuple[int, int], Reading] = field(default_factory=dict)
    refines: dict[tuple[int, int], bool] = field(default_factory=dict)

    def solved(self, case: Case, seen: Case) -> MemberPosterior:
        """The weights of the candidates of `case` behind the release in `seen`."""
        known = self.weights.equations(case, seen)
        listed = listed_weights(known)
        if listed is not None:
            return listed
        found = self._unrefined(case, seen, known)
        if self.near is None:
            return found
        refinement = PartitionRefinement(weighted=self.weights, nearest=self.near.reader, knowledge=self.knowledge)
        if not refinement.suits(case, seen):
            return found
        refined = refinement.refined(case, seen, found, child(self.rng, "refined", case.victim, size_of(case)))
        return refined.posterior if refined.verified or self._refines(refinement, case) else found

    def _unrefined(self, case: Case, seen: Case, known: ListEquations) -> MemberPosterior:
        """What ranks the candidates where no list explains the release: means over images, or weights."""
        if self.near is None:
            return ranked_weights(known)
        return self._read(self._best(self.near, case), self.near, case, seen, known)

    def _read(
        self, reading: Reading, near: NearlyEqual, case: Case, seen: Case, known: ListEquations
    ) -> MemberPosterior:
        """What this reading ranks."""
        if reading == "means over images":
            return self._nearly(near, case, seen)
        if reading == "stds":
            assert self.spreads is not None
            return self.spreads.solved(case, seen, known)
        return ranked_weights(known)

    def independent(self, case: Case, rng: torch.Generator) -> Case:
        """The same question about the release of a client of the adversary's own images, no candidates."""
        if self.near is None:
            return self.weights.independent(case, rng)
        client = self.near.client(size_of(case), child(rng, "images"))
        (sent,) = released_by([client], self.knowledge, child(rng, "release"))
        return replace(case, views=(upload(sent, sender=case.victim),))

    def _nearly(self, near: NearlyEqual, case: Case, seen: Case) -> MemberPosterior:
        known = near.equations(case, seen)
        return known.solved(best_prior(known, child(self.rng, "prior", size_of(case))))

    def _best(self, near: NearlyEqual, case: Case) -> Reading:
        """The reading that ranks best in lists of the candidates of `case`."""
        asked = _asked(case)
        if asked not in self.best:
            areas: dict[Reading, float] = {"weights": 0.0, "means over images": 0.0}
            if self.spreads is not None:
                areas["stds"] = 0.0
            for one, listed in self._rehearsals(case, child(self.rng, "rehearsals", *asked)):
                known = self.weights.equations(one, one)
                exact = listed_weights(known)
                for reading in areas:
                    found = exact if exact is not None and reading == "weights" else None
                    areas[reading] += _area(found or self._read(reading, near, one, one, known), listed)
            self.best[asked] = max(areas, key=areas.__getitem__)  # the first of equal ones
        return self.best[asked]

    def _refines(self, refinement: PartitionRefinement, case: Case) -> bool:
        """Whether refined lists rank better among the candidates of `case`, where they are not verified."""
        asked = _asked(case)
        if asked not in self.refines:
            gain, rng = 0.0, child(self.rng, "refined", *asked)
            for number, (one, listed) in enumerate(self._rehearsals(case, rng)):
                found = self._unrefined(one, one, self.weights.equations(one, one))
                refined = refinement.refined(one, one, found, child(rng, number))
                if not refined.verified:
                    gain += _area(refined.posterior, listed) - _area(found, listed)
            self.refines[asked] = gain > 0
        return self.refines[asked]

    def _rehearsals(self, case: Case, rng: torch.Generator) -> Sequence[tuple[Case, Tensor]]:
        """REHEARSALS cases like `case`, of lists of its candidates that the adversary draws; with their members (G,).

        Empty where all candidates are members."""
        gallery, images = gallery_of(case), size_of(case)
        if images >= len(gallery):
            return []
        lists = drawn_lists_of(len(gallery), images, REHEARSALS, rng)
        sent = released_by([gallery.subset(rows) for rows in lists], self.knowledge, child(rng, "releases"))
        return [
            (
                replace(case, candidates=gallery, views=(upload(one, sender=case.victim),)),
                torch.zeros(len(gallery), dtype=torch.bool).index_fill(0, rows, value=True),
            )
            for rows, one in zip(lists, sent, strict=True)
        ]


def _asked(case: Case) -> tuple[int, int]:
    """The numbers of images and of candidates."""
    assert case.candidates is not None
    return size_of(case), len(case.candidates)


def _area(found: MemberPosterior, members: Tensor) -> float:
    """The AUC of what was found, with these members (G,)."""
    return auc(found.scores()[members], found.scores()[~members])


def cluster_reader(cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> ClusterReader:
    """The reader of the releases of `cases`, which are of one domain. Raises UsageError for one without candidates."""
    weighted = knowledge.weighted_statistic
    assert weighted is not None
    by_weights, nearest = (
        reader_of(cases, replace(knowledge, released_statistic=statistic), child(rng, "defense"))
        for statistic in (weighted, nearest_mean(weighted))
    )
    near = NearlyEqual(reader=nearest, knowledge=knowledge, domain=domain_of(cases[0]), rng=child(rng, "near"))
    if knowledge.simulate is None or knowledge.sharing is None:
        return ClusterReader(weights=by_weights, near=None, knowledge=knowledge, rng=rng)
    spreads = WeightedSpreads(weights=by_weights, near=near) if isinstance(weighted, ChannelMeans) else None
    return ClusterReader(weights=by_weights, near=near, knowledge=knowledge, rng=rng, spreads=spreads)
