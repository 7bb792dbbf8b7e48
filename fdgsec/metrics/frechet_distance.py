"""The Frechet distance between two feature sets, each modeled as a Gaussian (Heusel et al. 2017).

    |m1 - m2|^2 + tr C1 + tr C2 - 2 tr (C1 C2)^(1/2)

The last trace is the sum of the singular values of P = A B^T for any A, B with A^T A = C1 and B^T B = C2: Cholesky
factors, or the centered vectors themselves where they are fewer than dimensions. Singular values are the roots of the
eigenvalues of P P^T, which cost half as much; where the squares lose digits, they are computed as such. The result
equals that of pytorch-fid's `calculate_frechet_distance`, which calls scipy's general matrix root in a form that scipy
1.18 no longer has, and that is inexact where covariances are singular (fewer images than dimensions). Covariances
divide by n - 1, as there. All arithmetic is float64 on the CPU.

The estimate is biased upwards by about a / n (Chong & Forsyth 2020): compare only at equal n."""

import math
from dataclasses import dataclass

import torch
from scipy import special
from torch import Tensor

ROWS = 512  # feature vectors summed at once, so that the (D, D) sum is updated once for all of them
LOST = 1e-8  # of the traces: the largest error that eigenvalues of squares may leave in the last one
FLATTEST = 1e-6  # of the largest pivot: below it a Cholesky factor is mostly rounding


@dataclass(frozen=True, kw_only=True)
class Band:
    """A two-sided interval for the expectation of an estimate at its own n."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Gaussian:
    """Mean (D,) and scatter (D, D), the sum of outer products of deviations, of `count` vectors; float64."""

    count: int
    mean: Tensor
    scatter: Tensor

    @property
    def covariance(self) -> Tensor:
        """Compute the unbiased covariance (D, D). Raises ValueError for fewer than two vectors."""
        if self.count < 2:
            raise ValueError(f"a covariance needs at least 2 vectors; got {self.count}.")
        return self.scatter / (self.count - 1)

    def joined(self, other: "Gaussian") -> "Gaussian":
        """Merge the statistics of both sets, exact up to rounding in any order (Chan, Golub & LeVeque 1979)."""
        if self.mean.shape != other.mean.shape:
            raise ValueError(f"features must have equal dimensions; got {len(self.mean)} and {len(other.mean)}.")
        total = self.count + other.count
        gap = other.mean - self.mean
        within = self.scatter + other.scatter
        return Gaussian(
            count=total, mean=self.mean + gap * (other.count / total),
            scatter=within.addr_(gap, gap, alpha=self.count * other.count / total),
        )  # fmt: skip


def gaussian(features: Tensor) -> Gaussian:
    """Compute mean and scatter of features (N, D), in blocks. Raises ValueError unless finite and N >= 1."""
    vectors = check_features(features, "features")
    mean = vectors.to("cpu").mean(0, dtype=torch.float64)
    scatter = torch.zeros(len(mean), len(mean), dtype=torch.float64)
    left = torch.zeros_like(mean)
    for part in vectors.split(ROWS):
        centered = part.to("cpu", torch.float64) - mean
        scatter.addmm_(centered.T, centered)
        left += centered.sum(0)
    # what rounding left of the sum of deviations would count as spread where means are large
    return Gaussian(count=len(vectors), mean=mean, scatter=scatter.addr_(left, left, alpha=-1 / len(vectors)))


def frechet_distance(first: Gaussian, second: Gaussian) -> float:
    """Compute the squared Frechet distance between two Gaussians, never below 0.

    Raises ValueError where dimensions differ or a set has fewer than two vectors."""
    if first.mean.shape != second.mean.shape:
        raise ValueError(f"features must have equal dimensions; got {len(first.mean)} and {len(second.mean)}.")
    return _distance(first.mean, _root(first.covariance), second.mean, _root(second.covariance))


def frechet_of(first: Tensor, second: Tensor) -> float:
    """Compute the squared Frechet distance between feature sets (n, D) and (m, D), by the smaller of n and D."""
    one, other = check_features(first, "first"), check_features(second, "second")
    if one.shape[1] != other.shape[1]:
        raise ValueError(f"features must have equal dimensions; got {one.shape[1]} and {other.shape[1]}.")
    if min(len(one), len(other)) < 2:
        raise ValueError(f"a Frechet distance needs at least 2 vectors a side; got {len(one)} and {len(other)}.")
    return _of(one.to("cpu", torch.float64), other.to("cpu", torch.float64))


def frechet_interval(first: Tensor, second: Tensor, *, value: float, level: float = 0.95) -> Band | None:
    """Bound the expectation of `value`, the distance between these sets, at their n, by the infinitesimal jackknife.

    The standard error comes from every vector's influence: the derivative of the distance by its weight (Efron 1982,
    chapter 6), in closed form from one decomposition of P = A B^T. It is what the spread of infinitely many bootstrap
    resamples tends to, without the bias a / n that resampling adds a second time, and too large where the two
    populations are alike. The interval is Student's for the logarithm, because a distance varies in proportion to its
    size where it is small. It covers the mean distance of other samples of these sizes, not the unbiased distance. None
    where nothing varies."""
    one, other = first.to("cpu", torch.float64), second.to("cpu", torch.float64)
    gap = one.mean(0) - other.mean(0)
    centered = one - one.mean(0), other - other.mean(0)
    in_first, in_second = _overlaps(*centered)
    influences = (
        centered[0].square().sum(1) - in_first + 2 * centered[0] @ gap,
        centered[1].square().sum(1) - in_second - 2 * centered[1] @ gap,
    )
    error = math.sqrt(sum(float(part.var()) / len(part) for part in influences))
    if value <= 0 or error <= 1e-12 * max(1.0, value):
        return None
    half = float(special.stdtrit(min(len(one), len(other)) - 1, (1 + level) / 2)) * error / value
    return Band(low=value * math.exp(-half), high=value * math.exp(min(half, 700.0)))


def _overlaps(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """What each centered vector (n, D), (m, D) adds to the last trace, per unit of its weight: (n,) and (m,).

    That is x^T T x, T the transport map between the Gaussians, and needs no inverse: with P = U diag(s) W, a row of A
    adds the sum of s u^2, and a row of B that of s w^2, where W = diag(1/s) U^T P."""
    one, other = _thin(first), _thin(second)
    product = one @ other.T
    values: Tensor
    left: Tensor
    values, left = torch.linalg.eigh(product @ product.T)
    roots = values.clamp_min(0).sqrt()
    tiny = FLATTEST * roots[-1]  # below it a root is rounding; what it adds is no larger
    right = (product.T @ left) / torch.where(roots > tiny, roots, torch.inf)
    return _overlap(first, one, left, roots), _overlap(second, other, right, roots)


def _overlap(centered: Tensor, factor: Tensor, side: Tensor, values: Tensor) -> Tensor:
    """Sum of s (u^T y)^2 over singular vectors u, for y with A^T y = x: the vectors in terms of the factor's rows."""
    count = len(centered)
    if len(factor) == count:  # the factor's rows are the vectors, divided by the root of n - 1
        terms = side * math.sqrt(count - 1)
    elif float(factor.diagonal().abs().min()) < FLATTEST * float(factor.diagonal().abs().max()) or not bool(
        factor.any()
    ):
        terms = (torch.linalg.pinv(factor.T, rtol=FLATTEST) @ centered.T).T @ side
    else:
        terms = torch.linalg.solve_triangular(factor.T, centered.T, upper=False).T @ side
    return terms.square() @ values


def student(
    value: float, error: float, repeats: int, *, level: float, least: float = -math.inf, greatest: float = math.inf
) -> Band | None:
    """Build Student's interval around `value`, clipped to the possible range.

    `error` is a standard error estimated from `repeats` values."""
    if repeats < 2:
        raise ValueError(f"an interval needs at least 2 resamples; got repeats={repeats}.")
    if error <= 1e-12 * max(1.0, abs(value)):
        return None
    half = float(special.stdtrit(repeats - 1, (1 + level) / 2)) * error
    return Band(low=max(least, value - half), high=min(greatest, value + half))


def check_features(features: Tensor, name: str) -> Tensor:
    """Detach `features`. Raises ValueError, with `name`, unless (N >= 1, D >= 1), floating and finite."""
    if features.ndim != 2 or not features.numel() or not features.is_floating_point():
        raise ValueError(f"{name} must be floating (N, D), N and D >= 1; got {tuple(features.shape)} {features.dtype}.")
    if not bool(features.isfinite().all()):
        raise ValueError(f"{name} must be finite; {int((~features.isfinite()).sum())} values are not.")
    return features.detach()


def _of(first: Tensor, second: Tensor) -> float:
    means = first.mean(0), second.mean(0)
    return _distance(means[0], _thin(first - means[0]), means[1], _thin(second - means[1]))


def _thin(centered: Tensor) -> Tensor:
    """Give A (min(n, D), D) with A^T A the covariance of the centered vectors (n, D), upper triangular where n > D."""
    scale = len(centered) - 1
    if centered.shape[0] <= centered.shape[1]:
        return centered / math.sqrt(scale)
    factor = _cholesky(centered.T @ centered / scale)
    if factor is not None:
        return factor
    triangle: Tensor = torch.linalg.qr(centered, mode="r").R
    return triangle / math.sqrt(scale)


def _root(covariance: Tensor) -> Tensor:
    """Give A (D, D) with A^T A = `covariance`, whatever its rank."""
    factor = _cholesky(covariance)
    if factor is not None:
        return factor
    values: Tensor
    vectors: Tensor
    values, vectors = torch.linalg.eigh(covariance)
    return (vectors * values.clamp_min(0).sqrt()).T


def _cholesky(covariance: Tensor) -> Tensor | None:
    """Give the upper triangular A (D, D) with A^T A = `covariance`; None where that is singular or nearly so."""
    factor: Tensor
    info: Tensor
    factor, info = torch.linalg.cholesky_ex(covariance, upper=True)
    pivots = factor.diagonal()
    return None if int(info) or float(pivots.min()) < FLATTEST * float(pivots.max()) else factor


def _distance(first_mean: Tensor, first: Tensor, second_mean: Tensor, second: Tensor) -> float:
    """Compute the distance from means (D,) and factors A, B of the covariances."""
    traces = first.square().sum() + second.square().sum()
    cross = _trace_of_root(first @ second.T, tolerance=LOST * float(traces))
    found = (first_mean - second_mean).square().sum() + traces - 2 * cross
    return max(0.0, float(found))  # rounding may leave -1e-12 of the traces


def _trace_of_root(product: Tensor, *, tolerance: float) -> Tensor:
    """Sum the singular values of P (p, q), from the eigenvalues of P P^T where these leave no error over `tolerance`.

    An eigenvalue is off by some units in the last place of the largest one, and so its root by much where it is
    small."""
    wide = product if len(product) <= product.shape[1] else product.T
    squares: Tensor = torch.linalg.eigvalsh(wide @ wide.T).clamp_min(0)
    unit = 4 * torch.finfo(squares.dtype).eps * squares[-1]
    roots = squares.sqrt()
    error = torch.minimum(unit.sqrt(), unit / (2 * roots)).sum() if float(squares[-1]) > 0 else squares.sum()
    values: Tensor = roots if float(error) <= tolerance else torch.linalg.svdvals(product)
    return values.sum()
