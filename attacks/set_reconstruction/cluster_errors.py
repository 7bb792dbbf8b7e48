"""Means over clusters taken as means over images, up to an error that the adversary simulates.

FISC's style is a mean over clusters of the clusters' means and stds (section 2.2). Behind noise the weights of its
images cannot be told from one another, and its stds average over no t. Both are close to those of a mean over images.
How far off such a style is, the adversary learns from lists of the candidates, as many as the client has images: it
runs the public method on them, and takes the difference as Gaussian. Whitened by the covariance of that error and of
the noise, the equations are those of equal weights."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from scipy.linalg import solve_triangular
from sklearn.covariance import ledoit_wolf_shrinkage
from torch import Tensor

from fdgsec.attacks.set_reconstruction.box_least_squares import Array
from fdgsec.attacks.set_reconstruction.list_equations import LEAST_NOISE, ListEquations
from fdgsec.attacks.set_reconstruction.release_equations import ReleaseReader
from fdgsec.attacks.statistics.domain_populations import images_of
from fdgsec.attacks.statistics.pooled_questions import size_of
from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import Artifact
from fdgsec.federation.released_statistics import ChannelMeans, MeanStyles, ReleasedStatistic
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child
from fdgsec.threats.adversary import Knowledge, ListSharing
from fdgsec.threats.attack import Case

CLIENTS, MOST_CLIENTS = 200, 3000
"""Lists of candidates, of whose styles the error is learned; the latter where there is no noise and the method computes
the styles of many lists at once."""
KEPT = 2
"""Galleries whose lists are kept."""
MOST_CLUSTERED = 750_000
"""Images in these lists, if they are more than CLIENTS: 1,500 lists of 500."""


LEAST_SPREAD = 1e-9
"""Standard deviation over candidates, relative to their mean, from which a coordinate tells them apart."""


def nearest_mean(weighted: ReleasedStatistic) -> ReleasedStatistic:
    """The statistic of whose mean over images a mean of `weighted` over clusters is closest."""
    return MeanStyles() if isinstance(weighted, ChannelMeans) else weighted


@dataclass(frozen=True, kw_only=True, eq=False)
class ErrorCovariance:
    """The covariance diag(`own`) + `common`^T `common` of D errors: `own` (D,), `common` (k, D).

    Where it was learned from k errors, these are all that is kept, and no (D, D) matrix is factorized."""

    own: Array
    common: Array

    def plus(self, variances: Array) -> "ErrorCovariance":
        """The covariance with further errors of these `variances` (D,), independent of each other."""
        return replace(self, own=self.own + variances)

    def of(self, numbers: npt.NDArray[np.bool_]) -> "ErrorCovariance":
        """The covariance of some of the numbers, (D,) bool."""
        return ErrorCovariance(own=self.own[numbers], common=self.common[:, numbers])

    @property
    def matrix(self) -> Array:
        """The same as a matrix (D, D)."""
        return np.diag(self.own) + self.common.T @ self.common

    def whitened(self, vectors: Array) -> Array:
        """Vectors (n, D) in coordinates in which the errors are white; all of `own` must be above 0.

        In units of `own`, the covariance is I + W^T W, with W = U S V^T. Its inverse root shrinks what lies along V.
        Where there are more errors than numbers, the Cholesky factor of the covariance is used, which is cheaper."""
        unit = np.sqrt(self.own)
        if len(self.common) > len(unit):
            factor = np.linalg.cholesky(np.eye(len(unit)) + (self.common / unit).T @ (self.common / unit))
            found: Array = solve_triangular(factor, (vectors / unit).T, lower=True).T
            return found
        _, singular, along = np.linalg.svd(self.common / unit, full_matrices=False)
        scaled: Array = vectors / unit
        shrunk: Array = scaled - (scaled @ along.T * (1 - 1 / np.sqrt(1 + singular**2))) @ along
        return shrunk


@dataclass(frozen=True, kw_only=True, eq=False)
class NearlyEqual:
    """Reads releases of one domain as means over images, up to an error that is simulated for each number of images.

    `reader` reads the nearest mean, and `knowledge` is that of the target."""

    reader: ReleaseReader
    knowledge: Knowledge
    domain: str
    rng: torch.Generator
    found: dict["Asked", tuple[Tensor, ErrorCovariance]] = field(default_factory=dict)
    made: dict["Asked", "Simulated"] = field(default_factory=dict)

    def equations(self, case: Case, seen: Case) -> ListEquations:
        """The equations of the release in `seen` for the candidates of `case`, whitened so that the error is 1."""
        assert case.candidates is not None
        bias, covariance = self.error(case)
        release, noise = self.reader.release(case, seen)
        return whitened_equations(
            records_of(case.candidates, self.reader), release - bias, covariance.plus(noise.square().numpy()),
            images=size_of(case),
        )  # fmt: skip

    def error(self, case: Case) -> tuple[Tensor, ErrorCovariance]:
        """The mean (D,) and covariance of a release less the mean of t over its images, for lists as in `case`."""
        asked = asked_of(case)
        if asked not in self.found:
            made = self.simulated(case)
            records = records_of(made.gallery, self.reader)
            off = torch.stack([release_in(one, self.reader) for one in made.sent]) - records[made.lists].mean(1)
            kept_last(self.found)[asked] = off.mean(0), shrunk_covariance(off.numpy())
        return self.found[asked]

    def simulated(self, case: Case) -> "Simulated":
        """What clients with lists of the candidates, each as long as that of `case`, would release before any defense.

        The candidates are a population of which the client is a part: lists of other images have other errors."""
        asked = asked_of(case)
        if asked not in self.made:
            gallery, images = gallery_of(case), size_of(case)
            rng, share = child(self.rng, "clients", images, len(gallery)), shared_by(gallery, self.knowledge)
            lists = drawn_lists_of(len(gallery), images, CLIENTS, rng)
            shared = share(lists, child(rng, "styles"))
            sent, weights = list(shared.sent), shared.weights
            more = min(MOST_CLIENTS, MOST_CLUSTERED // images) - CLIENTS
            if weights is not None and self.knowledge.defended is None and more > 0:
                further = drawn_lists_of(len(gallery), images, more, child(rng, "more"))
                found = share(further, child(rng, "more styles"))
                assert found.weights is not None
                lists, weights = torch.cat([lists, further]), torch.cat([weights, found.weights])
                sent += found.sent
            kept_last(self.made)[asked] = Simulated(gallery=gallery, lists=lists, sent=sent, weights=weights)
        return self.made[asked]

    def client(self, images: int, rng: torch.Generator) -> DomainDataset:
        """A client of as many of the adversary's own images; of two thirds of them, where it has no more than that."""
        own = images_of(self.knowledge, self.domain)
        held = images if images < len(own) else max(2, 2 * len(own) // 3)
        return own.subset(torch.randperm(len(own), generator=rng)[:held])


Kept = TypeVar("Kept")
Asked = tuple[int, tuple[str, ...]]
"""The number of images, and the candidates."""


def kept_last(known: dict[Asked, Kept]) -> dict[Asked, Kept]:
    """The same dictionary without all but the last KEPT - 1 entries: where every client has a gallery of its own, what
    is known of those before is not asked for again."""
    for asked in list(known)[: len(known) - KEPT + 1]:
        del known[asked]
    return known


def asked_of(case: Case) -> Asked:
    """What distinguishes the lists of one case from those of another."""
    assert case.candidates is not None
    return size_of(case), tuple(sorted(case.candidates.ids))


def gallery_of(case: Case) -> DomainDataset:
    """The candidates of a case, in an order that is the same for all cases with the same ones."""
    assert case.candidates is not None
    ids = case.candidates.ids
    return case.candidates.subset(torch.tensor(sorted(range(len(ids)), key=ids.__getitem__)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Simulated:
    """Lists of a gallery's images (L, n), positions, what clients that hold them would release, and the weights (L, n),
    of sum 1, with which their images count; None where these are not known."""

    gallery: DomainDataset
    lists: Tensor
    sent: Sequence[Artifact]
    weights: Tensor | None


def drawn_lists_of(candidates: int, images: int, count: int, rng: torch.Generator) -> Tensor:
    """So many lists of `images` of the candidates each, (count, images) positions."""
    return torch.stack([torch.randperm(candidates, generator=rng)[:images] for _ in range(count)])


def records_of(images: DomainDataset, reader: ReleaseReader) -> Tensor:
    """t of each image, (n, D), of which the releases are means that `reader` reads."""
    knowledge, about = reader.table.readings[0]
    return knowledge.released_statistic.about(knowledge.released_statistic.records(knowledge.statistics(images)), about)


def release_in(artifact: Artifact, reader: ReleaseReader) -> Tensor:
    """The release (D,) of t that `reader` finds in an artifact."""
    knowledge, about = reader.table.readings[0]
    return knowledge.released_statistic.about(knowledge.released_statistic.release(artifact)[0], about)


def whitened_equations(
    candidates: Tensor, release: Tensor, covariance: ErrorCovariance, *, images: int
) -> ListEquations:
    """The equations of a release (D,) of t, given for `candidates` (G, D), whose error has this `covariance`.

    Coordinates in which candidates hardly differ, as those of channels that are never active, are left out."""
    center, spread = candidates.mean(0), candidates.std(0)
    varies = (spread > LEAST_SPREAD * (1 + center.abs())).numpy()
    errors = covariance.of(varies).plus((LEAST_NOISE * spread.numpy()[varies]) ** 2)
    white = errors.whitened(torch.cat([candidates - center, (release - center).unsqueeze(0)]).numpy()[:, varies])
    return ListEquations(
        candidates=white[:-1], release=white[-1], noise=np.ones(white.shape[1]), spread=white[:-1].std(0),
        images=images,
    )  # fmt: skip


def shrunk_covariance(errors: Array) -> ErrorCovariance:
    """The covariance of errors (n, D), shrunk toward its diagonal by Ledoit and Wolf's share (JMVA 2004)."""
    spread = errors.std(0)
    scaled = (errors - errors.mean(0)) / np.where(spread > 0, spread, 1.0)
    share = float(ledoit_wolf_shrinkage(scaled, assume_centered=True))
    own: Array = share * np.square(scaled).mean() * spread**2
    return ErrorCovariance(own=own, common=np.sqrt((1 - share) / len(errors)) * scaled * spread)


def shared_by(images: DomainDataset, knowledge: Knowledge) -> ListSharing:
    """What clients with parts of `images`, (L, N) positions, would release before any defense.

    Raises UsageError where the adversary cannot run the target's method."""
    if knowledge.sharing is None:
        raise UsageError("the errors of means over clusters are simulated; the adversary cannot run the target.")
    return knowledge.sharing(images)


def released_by(clients: Sequence[DomainDataset], knowledge: Knowledge, rng: torch.Generator) -> list[Artifact]:
    """What each of `clients`, of candidates or of the adversary's own images, would release.

    Raises UsageError where the adversary cannot run the target's method, or one releases nothing."""
    if knowledge.simulate is None:
        raise UsageError("the errors of means over clusters are simulated; the adversary cannot run the target.")
    view = knowledge.simulate(clients, rng)
    found = [view.artifact(f"client:{number}") for number in range(1, len(clients) + 1)]
    if any(one is None for one in found):
        raise UsageError("a simulated client released nothing.")
    return [one for one in found if one is not None]
