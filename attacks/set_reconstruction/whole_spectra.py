"""Whole mean spectra: all frequencies of a release as equations, 3 x H x (W // 2 + 1) of them.

Other attacks compare low frequencies (`MeanSpectra`), since a covariance of 24,960 numbers does not fit in memory. A
least-squares problem needs none: in coordinates in which the release's error is white, it depends on a release only
through its projection on the span of the candidates, which has at most as many dimensions as there are candidates. The
factor of their Gram matrix gives coordinates there (`Span`), and nothing is lost. Where members are missing from the
gallery, their sum is one more error, whose covariance is that of public images: the span therefore holds the
adversary's images of the domain as well, and what correlates with directions outside of it is left unused."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpstrf
from torch import Tensor

from fdgsec.attacks.set_reconstruction.absent_members import ImageDistribution
from fdgsec.attacks.set_reconstruction.box_least_squares import Array
from fdgsec.attacks.set_reconstruction.list_equations import LEAST_NOISE, ListEquations
from fdgsec.attacks.statistics.domain_populations import images_of, populations_of
from fdgsec.attacks.statistics.tracing import SMALLEST_SCALE, Whitening
from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.federation.artifacts import Amplitudes
from fdgsec.federation.released_statistics import MeanSpectra
from fdgsec.nn.styles.amplitude_spectra import amplitudes
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.nn.styles.image_styles import resized
from fdgsec.runtime.cached_values import computed_once
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.attack import Case

AT_ONCE = 64
"""Images that are transformed at a time."""
ALIKE = 0.5
"""Standard deviation over frequencies of the logarithm of two errors' ratio, up to which they are alike."""
COLUMNS = 2048
"""Numbers of each image that are held in float64 at a time."""


@dataclass(frozen=True, kw_only=True, eq=False)
class WholeSpectra:
    """The statistics of images under a release of `height` x `columns` frequencies: all amplitudes, D = 3 H (W//2 + 1).

    Computed in float64, once for each image, and kept in float32, as they are sent."""

    height: int
    columns: int
    known: dict[int, Tensor] = field(default_factory=dict)

    def __call__(self, dataset: DomainDataset) -> Moments:
        """One row of moments per image, whose maps are one cell: the mean is t (n, D)."""
        mean = self.rows(dataset).double()
        return Moments(count=mean.new_ones(len(mean)), mean=mean, m2=mean.new_zeros(()).expand_as(mean))

    @property
    def released_statistic(self) -> MeanSpectra:
        """The statistic that reads all frequencies."""
        return MeanSpectra(frequencies=max(self.height, self.columns))

    def rows(self, dataset: DomainDataset) -> Tensor:
        """t of each image, (n, D) float32."""
        missing = torch.tensor([n for n, row in enumerate(dataset.rows.tolist()) if row not in self.known])
        fits = dataset.image_size[0] == self.height and dataset.image_size[1] // 2 + 1 == self.columns
        for part in missing.split(AT_ONCE) if len(missing) else ():
            pixels = resized(dataset.pixels(part), None if fits else self.height)
            found = amplitudes(as_float(pixels).double()).flatten(1).float()
            self.known.update(zip(dataset.rows[part].tolist(), found, strict=True))
        return torch.stack([self.known[row] for row in dataset.rows.tolist()])


def whole_spectra(case: Case, knowledge: Knowledge) -> WholeSpectra | None:
    """The statistics of all numbers of the spectrum in `case`; None where the target's statistic reads all of them."""
    statistic, release = knowledge.released_statistic, case.release()
    if not isinstance(statistic, MeanSpectra) or not isinstance(release, Amplitudes):
        return None
    if release.values[0].numel() == statistic.release(release).shape[1]:
        return None
    height, columns = (int(side) for side in release.values.shape[2:])
    return WholeSpectra(height=height, columns=columns)


@dataclass(kw_only=True, eq=False)
class SpectraTable:
    """The candidates of one domain's cases, `images`, under whole spectra, each placed once in the span of all.

    `knowledge` is that of `spectra`. Errors of releases of one precision are alike in all frequencies up to a factor,
    so that the span is found for the first of them."""

    knowledge: Knowledge
    domain: str
    images: DomainDataset
    spectra: WholeSpectra
    spans: list["Span"] = field(default_factory=list)
    covariances: dict[int, Array] = field(default_factory=dict)

    @property
    def readings(self) -> Sequence[tuple[Knowledge, Tensor]]:
        """The knowledge that reads the one release of a case; there are no squares in a spectrum."""
        return [(self.knowledge, torch.zeros(0, dtype=torch.float64))]

    @computed_once
    def reference(self) -> Tensor:
        """t of the adversary's images of the domain, (n, D) float32."""
        return self.spectra.rows(images_of(self.knowledge, self.domain))

    def equations(self, candidates: DomainDataset, release: Tensor, *, noise: Tensor, images: int) -> ListEquations:
        """The equations for t of `candidates` and of a release (D,), in coordinates in which its errors are white.

        `noise` (D,) is the standard deviation of the release's error."""
        number, factor = self._span(noise)
        span, shown = self.spans[number], len(candidates)
        rows = {row: place for place, row in enumerate(self.images.rows.tolist())}
        mine = [rows[row] for row in candidates.rows.tolist()] + list(range(len(self.images), len(span.vectors)))
        basis = np.linalg.qr(span.coordinates[mine].T)[0]  # of the span of this gallery, in that of all
        placed = span.coordinates[mine[:shown]] @ basis
        seen = span.projected(((release - span.center) / span.error).unsqueeze(1))[:, 0] @ basis

        def others() -> ImageDistribution:
            mean = (span.coordinates[mine] @ basis).mean(0)
            covariance = basis.T @ self._covariance(number) @ basis
            return ImageDistribution(mean=mean, covariance=covariance, images=len(mine))

        return ListEquations(
            candidates=placed, release=seen, noise=np.full(placed.shape[1], factor), spread=placed.std(0),
            images=images, population=others,
        )  # fmt: skip

    def _span(self, noise: Tensor) -> tuple[int, float]:
        """The number of the span for errors like `noise`, and by which factor they are larger than those it is for."""
        for number, span in enumerate(self.spans):
            ratio = (noise / span.error).clamp_min(torch.finfo(torch.float64).tiny).log()
            if float(ratio.std()) < ALIKE:
                return number, math.exp(float(ratio.mean()))
        center, scale = self.reference.double().mean(0), self.reference.double().std(0)
        error = torch.maximum(noise, LEAST_NOISE * scale.clamp_min(SMALLEST_SCALE * float(scale.median())))
        vectors = torch.cat([self.spectra.rows(self.images), self.reference])
        self.spans.append(Span.of(vectors, center=center, error=error))
        return len(self.spans) - 1, 1.0

    def _covariance(self, number: int) -> Array:
        """The covariance (K, K) of the domain's images in a span."""
        if number not in self.covariances:
            population = populations_of([self.domain], self.knowledge)[self.domain]
            self.covariances[number] = covariance_in(self.spans[number], population.whiten)
        return self.covariances[number]


def covariance_in(span: "Span", whiten: Whitening) -> Array:
    """The covariance of a population in the coordinates of `span`, (K, K)."""
    stretch = whiten.scale / span.error
    lengths = whiten.roots.square() - whiten.floor**2
    along = span.projected(whiten.directions * stretch.unsqueeze(1))
    found: Array = (along * lengths.numpy()) @ along.T + whiten.floor**2 * span.stretched(stretch.square())
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Span:
    """An orthonormal basis (K, D) of the span of `vectors` (n, D), about `center` and in units of `error`.

    For K independent ones of these, the rows of B, the basis is L^-1 B where B B' = L L' is a Cholesky factorization
    with pivots (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, section 10.3). `pivots` (K,) are their
    numbers, `factor` (K, K) is L, and `coordinates` (n, K) are those of all vectors."""

    vectors: Tensor
    center: Tensor
    error: Tensor
    pivots: Array
    factor: Array
    coordinates: Array

    @classmethod
    def of(cls, vectors: Tensor, *, center: Tensor, error: Tensor) -> "Span":
        """Find the basis; K is the numerical rank."""
        gram = torch.zeros(len(vectors), len(vectors), dtype=torch.float64)
        for _, block in _blocks(vectors, center, error):
            gram += block @ block.T
        lower, order, rank, _ = dpstrf(gram.numpy(), lower=1)
        order, rank = np.asarray(order) - 1, int(rank)
        coordinates = np.zeros((len(vectors), rank))
        coordinates[order] = np.tril(lower)[:, :rank]
        return cls(
            vectors=vectors, center=center, error=error, pivots=order[:rank], factor=np.tril(lower)[:rank, :rank],
            coordinates=coordinates,
        )  # fmt: skip

    def projected(self, others: Tensor) -> Array:
        """Coordinates (K, m) of the columns of `others` (D, m), which are in units of `error` and about `center`."""
        product = torch.zeros(len(self.pivots), others.shape[1], dtype=torch.float64)
        for columns, block in self._independent():
            product += block @ others[columns]
        found: Array = solve_triangular(self.factor, product.numpy(), lower=True)
        return found

    def stretched(self, variances: Tensor) -> Array:
        """The covariance (K, K) of independent errors with these `variances` (D,) in units of `error`^2."""
        product = torch.zeros(len(self.pivots), len(self.pivots), dtype=torch.float64)
        for columns, block in self._independent():
            product += (block * variances[columns]) @ block.T
        half = solve_triangular(self.factor, product.numpy(), lower=True)
        found: Array = solve_triangular(self.factor, half.T, lower=True)
        return found

    def _independent(self) -> Iterator[tuple[slice, Tensor]]:
        return _blocks(self.vectors[torch.from_numpy(self.pivots.astype(np.int64))], self.center, self.error)


def _blocks(vectors: Tensor, center: Tensor, error: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The vectors about `center` in units of `error`, some columns at a time, in float64."""
    for start in range(0, vectors.shape[1], COLUMNS):
        columns = slice(start, start + COLUMNS)
        yield columns, (vectors[:, columns].double() - center[columns]) / error[columns]
