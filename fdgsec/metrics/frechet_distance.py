"""The Frechet distance between two feature sets, each modeled as a Gaussian (Heusel et al. 2017).

    |m1 - m2|^2 + tr C1 + tr C2 - 2 tr (C1 C2)^(1/2)

The last trace is the sum of the singular values of A B^T for any A, B with A^T A = C1 and B^T B = C2. The result equals
that of pytorch-fid's `calculate_frechet_distance`, which calls scipy's general matrix root in a form that scipy 1.18 no
longer has, and that is inexact where covariances are singular (fewer images than dimensions). Covariances divide by
n - 1, as there. All arithmetic is float64 on the CPU.

The estimate is biased upwards by about a / n (Chong & Forsyth 2020): compare only at equal n."""

import math
from dataclasses import dataclass
from functools import reduce

import torch
from scipy import special
from torch import Tensor

REPEATS = 20
ROWS = 512  # feature vectors summed at once, so that the (D, D) sum is updated once for all of them


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
        between = torch.outer(gap, gap) * (self.count * other.count / total)
        return Gaussian(
            count=total, mean=self.mean + gap * (other.count / total), scatter=self.scatter + other.scatter + between
        )


def gaussian(features: Tensor) -> Gaussian:
    """Compute mean and scatter of features (N, D), in blocks. Raises ValueError unless finite and N >= 1."""
    vectors = check_features(features, "features")
    parts = (_summary(part.to("cpu", torch.float64)) for part in vectors.split(ROWS))
    return reduce(Gaussian.joined, parts)


def _summary(vectors: Tensor) -> Gaussian:
    mean = vectors.mean(0)
    centered = vectors - mean
    return Gaussian(count=len(vectors), mean=mean, scatter=centered.T @ centered)


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


def frechet_interval(
    first: Tensor, second: Tensor, *, value: float, rng: torch.Generator, repeats: int = REPEATS, level: float = 0.95
) -> Band | None:
    """Bound the expectation of `value`, the distance between these sets, at their own n, by resampling both sides.

    A bootstrap treats its own sample as the population, so resampling adds the bias a / n a second time: its
    percentiles lie above the value, often entirely. Therefore only its spread around its own mean is used, as a
    standard error with Student's quantile (`repeats` - 1 degrees of freedom); it is too wide where the two populations
    are alike. The interval covers the mean distance of other samples of these sizes, not the unbiased distance. None
    where nothing varies."""
    one, other = first.to("cpu", torch.float64), second.to("cpu", torch.float64)
    drawn = torch.tensor([_of(_again(one, rng), _again(other, rng)) for _ in range(repeats)], dtype=torch.float64)
    return student(value, float(drawn.std()), repeats, level=level, least=0.0)


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


def _again(vectors: Tensor, rng: torch.Generator) -> Tensor:
    return vectors[torch.randint(len(vectors), (len(vectors),), generator=rng)]


def _of(first: Tensor, second: Tensor) -> float:
    means = first.mean(0), second.mean(0)
    return _distance(means[0], _thin(first - means[0]), means[1], _thin(second - means[1]))


def _thin(centered: Tensor) -> Tensor:
    """Give A (min(n, D), D) with A^T A the covariance of the centered vectors (n, D)."""
    tall = centered.shape[0] > centered.shape[1]
    factor: Tensor = torch.linalg.qr(centered, mode="r").R if tall else centered
    return factor.div(math.sqrt(len(centered) - 1))


def _root(covariance: Tensor) -> Tensor:
    """Give A (D, D) with A^T A = `covariance`, whatever its rank."""
    values: Tensor
    vectors: Tensor
    values, vectors = torch.linalg.eigh(covariance)
    return (vectors * values.clamp_min(0).sqrt()).T


def _distance(first_mean: Tensor, first: Tensor, second_mean: Tensor, second: Tensor) -> float:
    """Compute the distance from means (D,) and factors A, B of the covariances."""
    cross = torch.linalg.svdvals(first @ second.T).sum()
    found = (first_mean - second_mean).square().sum() + first.square().sum() + second.square().sum() - 2 * cross
    return max(0.0, float(found))  # rounding may leave -1e-12 of the traces
