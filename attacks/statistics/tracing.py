"""Tracing a record in a published mean: whitening, the Gaussian likelihood ratio, and its theoretical power.

A release r is the mean of n records of a population N(m, Sigma). Sankararaman et al. (Nature Genetics 2009) use the
likelihood ratio of "y is one of the n" to "y is a fresh draw"; Dwork et al. (FOCS 2015) show that the same inner
product traces without a Gaussian assumption. Here u = Sigma^-1/2 (r - m) and v = Sigma^-1/2 (y - m) are *whitened*;
float64 throughout."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Protocol

import torch
from torch import Tensor

from fdgsec.runtime.errors import TooFewImagesError

SMALLEST_SHRINKAGE = 1e-6  # keeps the whitening finite where Ledoit-Wolf gives none and a direction never varies
AT_ONCE = 256  # records whose inner products with all others are held
SMALLEST_SCALE = 1e-3  # of the median coordinate's spread: lower bound for coordinates that do not vary


@dataclass(frozen=True, kw_only=True, eq=False)
class Whitening:
    """A Gaussian population and the linear map that standardizes it.

    A record is `center` + `scale` * z, where z has standard deviation `roots` (k,) along the orthonormal columns of
    `directions` (D, k) and `floor` across them. `shrinkage` is the share of the identity in the covariance of z."""

    center: Tensor
    scale: Tensor
    directions: Tensor
    roots: Tensor
    floor: float
    shrinkage: float = 0.0

    def __call__(self, statistics: Tensor) -> Tensor:
        """Whiten records (..., D) into (..., D) float64."""
        z = (statistics.to(torch.float64) - self.center) / self.scale
        along = z @ self.directions
        return z / self.floor + (along * (1 / self.roots - 1 / self.floor)) @ self.directions.T

    def covariance(self) -> Tensor:
        """The covariance of z, (D, D)."""
        along = self.directions * (self.roots.square() - self.floor**2)
        return along @ self.directions.T + self.floor**2 * torch.eye(len(self.scale), dtype=torch.float64)

    def variances(self) -> Tensor:
        """The variances of z, (D,): the diagonal of its covariance, without the rest."""
        return self.directions.square() @ (self.roots.square() - self.floor**2) + self.floor**2

    def blurred(self, variance: Tensor) -> "Whitening":
        """The whitening of the same records with independent noise of `variance` (D,), by one D x D
        eigendecomposition."""
        noise = variance.to(torch.float64) / self.scale.square()
        values, directions = torch.linalg.eigh(self.covariance() + noise.diag())
        least = min(float(self.roots.min()), self.floor)  # noise never reduces the variance
        roots = values.clamp_min(0).sqrt().clamp_min(least)
        return replace(self, directions=directions, roots=roots, floor=float(roots.min()))


@dataclass(frozen=True, kw_only=True, eq=False)
class Correlations:
    """The sample correlations of standardized records: `values` (k,) along the orthonormal columns of `directions`.

    A record is `center` + `scale` * z (D,). `optimal` is Ledoit and Wolf's share of the identity."""

    center: Tensor
    scale: Tensor
    directions: Tensor
    values: Tensor
    optimal: float

    def shrunk(self, share: float | None = None) -> Whitening:
        """The whitening under a `share` of the identity in the covariance of z; None: the optimal one."""
        shrinkage = max(self.optimal, SMALLEST_SHRINKAGE) if share is None else share
        average = float(self.values.sum()) / len(self.scale)
        return Whitening(
            center=self.center, scale=self.scale, directions=self.directions,
            roots=((1 - shrinkage) * self.values + shrinkage * average).sqrt(), floor=math.sqrt(shrinkage * average),
            shrinkage=shrinkage,
        )  # fmt: skip


def fit_whitening(reference: Tensor, *, others: Sequence[Tensor] = ()) -> Whitening:
    """Estimate a whitening from `reference` records (n_ref, D) and `others` (`correlations_of`), shrunk by Ledoit and
    Wolf (2004).

    Raises ValueError for fewer than two records, or where nothing varies."""
    return correlations_of(reference, others=others).shrunk()


def correlations_of(reference: Tensor, *, others: Sequence[Tensor] = ()) -> Correlations:
    """Correlations of `reference` records (n_ref, D); center and scales are theirs alone.

    Coordinates are standardized first: a squared mean and a variance differ by orders of magnitude, and shrinkage
    toward the identity requires comparable scales. The correlations come from the standardized reference and from
    `others`: records of related populations (n, D), each standardized by itself so that no difference *between*
    populations enters. Takes O(n D min(n, D)).

    Raises ValueError for fewer than two records, or where nothing varies."""
    if any(records.ndim != 2 or records.shape[0] < 2 for records in (reference, *others)):
        shapes = [tuple(records.shape) for records in (reference, *others)]
        raise ValueError(f"a whitening needs at least two records (n, D) of every population; got {shapes}.")
    center, scale = _center_and_scale(reference)
    blocks = [(reference.to(torch.float64) - center) / scale]
    for records in others:
        theirs = _center_and_scale(records)
        blocks.append((records.to(torch.float64) - theirs[0]) / theirs[1])
    z = torch.cat(blocks)
    values, directions = _spectrum(z)
    return Correlations(
        center=center, scale=scale, directions=directions, values=values, optimal=_ledoit_wolf(z, values)
    )


def _spectrum(z: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (k,) and eigenvectors (D, k) of z'z / n by the smaller of n and D, for `z` (n, D)."""
    if z.shape[0] > z.shape[1]:
        values, directions = torch.linalg.eigh(z.T @ z / z.shape[0])
        return values.clamp_min(0), directions
    _, singular, rows = torch.linalg.svd(z, full_matrices=False)
    return singular.square() / z.shape[0], rows.T


def _center_and_scale(records: Tensor) -> tuple[Tensor, Tensor]:
    values = records.to(torch.float64)
    spread = values.std(0, correction=0)
    if not bool((spread > 0).any()):
        raise ValueError(
            f"none of the {spread.shape[0]} coordinates varies over {records.shape[0]} records; nothing to trace by."
        )
    return values.mean(0), spread.clamp_min(SMALLEST_SCALE * float(spread[spread > 0].median()))


def _ledoit_wolf(z: Tensor, values: Tensor) -> float:
    """The optimal share of the identity (Ledoit & Wolf 2004, lemma 3.3) for centered `z` with spectrum `values`."""
    n, dimension = z.shape
    squares = float(values.square().sum())
    distance = squares / dimension - (float(values.sum()) / dimension) ** 2
    noise = (float(z.square().sum(1).square().sum()) / n - squares) / (n * dimension)
    return 0.0 if distance <= 0 else min(max(noise, 0.0) / distance, 1.0)


def likelihood_ratio(u: Tensor, v: Tensor, *, records: int, reference: int | None = None) -> Tensor:
    """The log likelihood ratio that each candidate `v` (..., G, D) is one of the `records` behind `u` (..., D): (...,
    G).

    With known m and Sigma (`reference` None): r ~ N(m, Sigma/n) for a non-member and N(m + (y - m)/n, (n-1)/n^2 Sigma)
    for a member, which is n/(n-1) u.v - |v|^2/(2(n-1)) - n/(2(n-1)) |u|^2 + (D/2) ln(n/(n-1)).

    Where m is the mean of `reference` other records, it is integrated out under a flat prior: y itself is then evidence
    about m, so u is shifted toward v/(n_ref+1) even for a non-member. For many releases with the same number of
    records, one set of candidates (G, D) is enough: nothing of size R x G x D or G x G is held. Raises ValueError for
    fewer than two records."""
    if records < 2:
        raise ValueError(f"the mean of {records} record is the record; a likelihood ratio needs at least 2.")
    square, length, product = u.square().sum(-1, keepdim=True), v.square().sum(-1), _products(u, v)
    pull = 0.0 if reference is None else 1 / (reference + 1)
    keep = 1 - 1 / records
    lean_out, lean_in = pull, pull * keep + 1 / records
    spread_out, spread_in = 1 / records + pull, keep / records + keep**2 * pull
    out = square - 2 * lean_out * product + lean_out**2 * length
    member = square - 2 * lean_in * product + lean_in**2 * length
    return out / (2 * spread_out) - member / (2 * spread_in) + v.shape[-1] / 2 * math.log(spread_out / spread_in)


def _products(u: Tensor, v: Tensor) -> Tensor:
    """The inner product of every release (..., D) with every candidate (..., G, D): (..., G)."""
    return (u.unsqueeze(-2) @ v.mT).squeeze(-2)


def standardized_score(u: Tensor, v: Tensor, *, records: int, reference: int | None = None) -> Tensor:
    """The projection of `u` (..., D) on each `v` (..., G, D), in standard deviations of a non-member's.

    (u.v - |v|^2/(n_ref+1)) / (|v| sqrt(1/n + 1/(n_ref+1))): standard Gaussian for every non-member, however unusual, so
    that without a release the AUC is 1/2 for *any* two sets of candidates. The likelihood ratio also depends on how
    unusual v is. Where the same few non-members are tested against every client, this contribution repeats and looks
    like evidence. Raises ValueError for fewer than two records."""
    if records < 2:
        raise ValueError(f"the mean of {records} record is the record; a score needs at least 2.")
    pull = 0.0 if reference is None else 1 / (reference + 1)
    length: Tensor = torch.linalg.vector_norm(v, dim=-1).clamp_min(torch.finfo(torch.float64).tiny)
    return (_products(u, v) / length - pull * length) / math.sqrt(1 / records + pull)


class TracingTest(Protocol):
    """A test for membership in a mean: likelihood_ratio or standardized_score."""

    def __call__(self, u: Tensor, v: Tensor, *, records: int, reference: int | None = None) -> Tensor:
        """Score candidates `v` (..., G, D) against a release `u` (..., D): (..., G), larger means member."""
        ...


def separation(dimension: float, *, records: int, reference: int | None = None, noise: float = 0.0) -> float:
    """Distance d' between members and non-members in standard deviations: sqrt(D / (n + n^2/n_ref + n^2 s^2)).

    `dimension` is the effective one, `noise` s the standard deviation of noise on the release in whitened units."""
    n = float(records)
    return math.sqrt(dimension / (n + (0.0 if reference is None else n**2 / reference) + (n * noise) ** 2))


def gaussian_auc(d: float) -> float:
    """The area under the ROC curve of two unit Gaussians `d` apart."""
    return NormalDist().cdf(d / math.sqrt(2))


def effective_dimension(whitened: Tensor) -> float:
    """Estimate (tr M)^2 / tr M^2, M the covariance of `whitened` (n, D) records that the whitening was not fitted on.

    tr M is the mean squared length, tr M^2 the mean squared inner product of two different records; D itself for a
    perfect whitening. Raises TooFewImagesError for fewer than two records."""
    if whitened.shape[0] < 2:
        raise TooFewImagesError(f"an effective dimension needs two records or more; got {whitened.shape[0]}.")
    n = whitened.shape[0]
    length = whitened.square().sum(1)
    squares = sum(float((part @ whitened.T).square().sum()) for part in whitened.split(AT_ONCE))
    across = (squares - float(length.square().sum())) / (n * (n - 1))
    return float(length.mean()) ** 2 / across


def held_out_dimension(reference: Tensor, *, others: Sequence[Tensor] = (), folds: int = 5) -> float:
    """The effective dimension of a whitening fitted on `reference` (n_ref, D), from records left out of the fit.

    Averages over `folds` interleaved folds, so it needs no randomness. The fit uses (folds - 1)/folds of the records,
    and the estimate is too small accordingly. Raises ValueError for fewer than two records per fold."""
    parts = []
    for fold in range(folds):
        left_out = torch.arange(reference.shape[0]) % folds == fold
        whiten = fit_whitening(reference[~left_out], others=others)
        parts.append(effective_dimension(whiten(reference[left_out])))
    return sum(parts) / folds
