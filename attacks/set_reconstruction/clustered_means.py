"""Reads means over clusters: as means with unknown weights, or as means over images up to a simulated error.

Which of the two ranks better depends on the noise and on how many images there are; the adversary tries both on
galleries of its own images."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from fdgsec.attacks.set_reconstruction.cluster_errors import NearlyEqual, nearest_mean, released_by
from fdgsec.attacks.set_reconstruction.list_equations import MemberPosterior, best_prior
from fdgsec.attacks.set_reconstruction.release_equations import ReleaseReader, reader_of
from fdgsec.attacks.set_reconstruction.unequal_weights import listed_weights, ranked_weights, solved_unequal
from fdgsec.attacks.statistics.domain_populations import images_of
from fdgsec.attacks.statistics.pooled_questions import domain_of, size_of
from fdgsec.data.domains import DomainDataset
from fdgsec.metrics.roc import auc
from fdgsec.runtime.random_streams import child
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.attack import Case
from fdgsec.threats.positive_control_data import upload

REHEARSALS = 4
"""Galleries of the adversary's own images on which both readings are tried."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ClusterReader:
    """Reads the releases of one domain's cases, means over clusters of images.

    `weights` reads them with unknown weights; `near` as means over images, None where the adversary cannot run the
    target's method. `better` keeps which of them ranked the adversary's own images better."""

    weights: ReleaseReader
    near: NearlyEqual | None
    knowledge: Knowledge
    rng: torch.Generator
    better: dict[tuple[int, int], bool] = field(default_factory=dict)

    def solved(self, case: Case, seen: Case) -> MemberPosterior:
        """The weights of the candidates of `case` behind the release in `seen`."""
        known = self.weights.equations(case, seen)
        listed = listed_weights(known)
        if listed is not None:
            return listed
        if self.near is not None and self._nearer(self.near, case):
            return self._nearly(self.near, case, seen)
        return ranked_weights(known)

    def independent(self, case: Case, rng: torch.Generator) -> Case:
        """The same question about the release of a client of the adversary's own images, no candidates."""
        if self.near is None:
            return self.weights.independent(case, rng)
        clients = self.near.clients(size_of(case), 1, child(rng, "images"))
        (sent,) = released_by(clients, self.knowledge, child(rng, "release"))
        return replace(case, views=(upload(sent, sender=case.victim),))

    def _nearly(self, near: NearlyEqual, case: Case, seen: Case) -> MemberPosterior:
        known = near.equations(case, seen)
        return known.solved(best_prior(known, child(self.rng, "prior", size_of(case))), absent=0.0)

    def _nearer(self, near: NearlyEqual, case: Case) -> bool:
        """Whether means over images rank better in galleries of the adversary's images like that of `case`."""
        assert case.candidates is not None
        asked = size_of(case), len(case.candidates)
        if asked not in self.better:
            own, rng = images_of(self.knowledge, self.weights.domain), child(self.rng, "rehearsals", *asked)
            gallery = min(len(own), asked[1])
            listed = round(gallery * asked[0] / asked[1])
            self.better[asked] = 2 <= listed < gallery and self._gain(near, case, own, (listed, gallery), rng) > 0
        return self.better[asked]

    def _gain(
        self, near: NearlyEqual, case: Case, own: DomainDataset, sizes: tuple[int, int], rng: torch.Generator
    ) -> float:
        """By how much AUC the means rank better, over REHEARSALS galleries of `own` with `sizes`: members, and all."""
        listed, gallery = sizes
        drawn = [own.subset(torch.randperm(len(own), generator=rng)[:gallery]) for _ in range(REHEARSALS)]
        held = [images.subset(torch.arange(listed)) for images in drawn]
        gain = 0.0
        for images, sent in zip(drawn, released_by(held, self.knowledge, child(rng, "releases")), strict=True):
            rehearsed = replace(case, records=listed, candidates=images, views=(upload(sent, sender=case.victim),))
            readings = (
                self._nearly(near, rehearsed, rehearsed),
                solved_unequal(self.weights.equations(rehearsed, rehearsed)),
            )
            better, worse = (auc(found.scores()[:listed], found.scores()[listed:]) for found in readings)
            gain += better - worse
        return gain


def cluster_reader(cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> ClusterReader:
    """The reader of the releases of `cases`, which are of one domain. Raises UsageError for one without candidates."""
    weighted = knowledge.weighted_statistic
    assert weighted is not None
    by_weights, nearest = (
        reader_of(cases, replace(knowledge, released_statistic=statistic), child(rng, "defense"))
        for statistic in (weighted, nearest_mean(weighted))
    )
    near = NearlyEqual(reader=nearest, knowledge=knowledge, domain=domain_of(cases[0]), rng=child(rng, "near"))
    runs = knowledge.simulate is not None
    return ClusterReader(weights=by_weights, near=near if runs else None, knowledge=knowledge, rng=rng)
