"""Means over clusters taken as means over images, up to an error that the adversary simulates.

FISC's style is a mean over clusters of the clusters' means and stds (section 2.2). Behind noise the weights of its
images cannot be told from one another, and its stds average over no t. Both are close to those of a mean over images.
How far off such a style is, the adversary learns from clients of its own images: it runs the public method, and takes
the difference as Gaussian. Whitened by the covariance of that error and of the noise, the equations are those of equal
weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch
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
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.attack import Case

CLIENTS = 200
"""Clients of the adversary's own images, of whose styles the error is learned."""
LARGEST_SHARE = 2 / 3
"""Of the adversary's images of a domain that one such client holds; all of them would be one client."""


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

        In units of `own`, the covariance is I + W^T W, with W = U S V^T. Its inverse root shrinks what lies along V."""
        unit = np.sqrt(self.own)
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
    found: dict[int, tuple[Tensor, ErrorCovariance]] = field(default_factory=dict)
    sent: dict[int, tuple[DomainDataset, Tensor, Sequence[Artifact]]] = field(default_factory=dict)

    def equations(self, case: Case, seen: Case) -> ListEquations:
        """The equations of the release in `seen` for the candidates of `case`, whitened so that the error is 1."""
        assert case.candidates is not None
        bias, covariance = self.error(size_of(case))
        release, noise = self.reader.release(case, seen)
        return whitened_equations(
            records_of(case.candidates, self.reader), release - bias, covariance.plus(noise.square().numpy()),
            images=size_of(case),
        )  # fmt: skip

    def error(self, images: int) -> tuple[Tensor, ErrorCovariance]:
        """The mean (D,) and covariance of a release less the mean of t over its images, for so many of them."""
        if images not in self.found:
            own, lists, sent = self.simulated(images)
            records = records_of(own, self.reader)
            off = torch.stack([release_in(one, self.reader) for one in sent]) - records[lists].mean(1)
            self.found[images] = off.mean(0), shrunk_covariance(off.numpy())
        return self.found[images]

    def simulated(self, images: int) -> tuple[DomainDataset, Tensor, Sequence[Artifact]]:
        """The adversary's own images, those of CLIENTS clients of so many, (CLIENTS, n) positions, and what each would
        release before any defense."""
        if images not in self.sent:
            own, lists = self._lists(images, CLIENTS, child(self.rng, "clients", images))
            self.sent[images] = own, lists, shared_by(own, self.knowledge)(lists, child(self.rng, "styles", images))
        return self.sent[images]

    def clients(self, images: int, count: int, rng: torch.Generator) -> list[DomainDataset]:
        """Clients of the adversary's own images, of at most LARGEST_SHARE of them each."""
        own, lists = self._lists(images, count, rng)
        return [own.subset(rows) for rows in lists]

    def _lists(self, images: int, count: int, rng: torch.Generator) -> tuple[DomainDataset, Tensor]:
        """The adversary's own images, and those of each client, (count, n) positions."""
        own = images_of(self.knowledge, self.domain)
        held = min(images, max(2, int(LARGEST_SHARE * len(own))))
        return own, torch.stack([torch.randperm(len(own), generator=rng)[:held] for _ in range(count)])


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


def shared_by(images: DomainDataset, knowledge: Knowledge) -> Callable[[Tensor, torch.Generator], Sequence[Artifact]]:
    """What clients with parts of `images`, (L, N) positions, would release before any defense."""
    if knowledge.sharing is not None:
        return knowledge.sharing(images)
    if knowledge.shared is None:  # there is no defense
        return lambda lists, rng: released_by([images.subset(rows) for rows in lists], knowledge, rng)
    shared = knowledge.shared
    return lambda lists, rng: [shared(images.subset(rows), child(rng, number)) for number, rows in enumerate(lists)]


def released_by(clients: Sequence[DomainDataset], knowledge: Knowledge, rng: torch.Generator) -> list[Artifact]:
    """What each of `clients`, of the adversary's own images, would release.

    Raises UsageError where the adversary cannot run the target's method, or one releases nothing."""
    if knowledge.simulate is None:
        raise UsageError("the errors of means over clusters are simulated; the adversary cannot run the target.")
    view = knowledge.simulate(clients, rng)
    found = [view.artifact(f"client:{number}") for number in range(1, len(clients) + 1)]
    if any(one is None for one in found):
        raise UsageError("a simulated client released nothing.")
    return [one for one in found if one is not None]
