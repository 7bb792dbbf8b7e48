"""The kernel distance between two feature sets: the unbiased squared MMD under (x.y / D + 1)^3 (Binkowski et al. 2018).

On Inception features this is KID. Its expectation does not depend on the number of images, and is 0 for equal
distributions, so estimates below 0 are normal. All arithmetic is float64 on the CPU."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from fdgsec.metrics.frechet_distance import Band, check_features, student

SUBSETS = 50
_ELEMENTS = 4_000_000  # in a block of kernel values: 32 MB


def kernel_distance(first: Tensor, second: Tensor) -> float:
    """Compute the unbiased squared MMD of (n, D) and (m, D). Raises ValueError for fewer than two vectors a side."""
    one, other = _pair(first, second)
    every = torch.ones(1, len(one), dtype=torch.float64), torch.ones(1, len(other), dtype=torch.float64)
    return float(_distances(one, other, *every))


def kernel_subsets(first: Tensor, second: Tensor, *, size: int, subsets: int, rng: torch.Generator) -> Tensor:
    """Compute the distance of `subsets` pairs of random subsets of `size`, drawn without replacement: (subsets,).

    Papers usually report their mean and standard deviation as KID. The deviation describes how much a distance of
    `size` images varies; it is not a standard error of the mean. Raises ValueError unless 2 <= size <= n, m."""
    one, other = _pair(first, second)
    if not 2 <= size <= min(len(one), len(other)):
        raise ValueError(f"size must lie in 2..{min(len(one), len(other))} (the smaller set); got {size}.")
    picks = _picks(len(one), size, subsets, rng), _picks(len(other), size, subsets, rng)
    return _distances(one, other, *picks)


def kernel_estimate(
    first: Tensor, second: Tensor, *, rng: torch.Generator, subsets: int = SUBSETS, level: float = 0.95
) -> tuple[float, Band | None]:
    """Compute the distance of all vectors, and an interval for the population's from random halves of both sets.

    This is the delete-half jackknife (Shao & Wu 1989). A half has about twice the variance of the whole, and differs
    from the whole by as much as the whole differs from the truth. Therefore the root mean square of half minus whole is
    a standard error of the whole; it is too large where the populations are equal. No interval where nothing varies, or
    a side has fewer than four vectors."""
    one, other = _pair(first, second)
    if min(len(one), len(other)) < 4:
        return kernel_distance(one, other), None
    picks = [
        torch.cat([torch.ones(1, count, dtype=torch.float64), _picks(count, count // 2, subsets, rng)])
        for count in (len(one), len(other))
    ]
    whole, halves = _distances(one, other, picks[0], picks[1]).split([1, subsets])
    error = float((halves - whole).square().mean().sqrt())
    return float(whole), student(float(whole), error, subsets, level=level)


def _pair(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    one, other = check_features(first, "first"), check_features(second, "second")
    if one.shape[1] != other.shape[1]:
        raise ValueError(f"features must have equal dimensions; got {one.shape[1]} and {other.shape[1]}.")
    if min(len(one), len(other)) < 2:
        raise ValueError(f"a kernel distance needs at least 2 vectors a side; got {len(one)} and {len(other)}.")
    return one.to("cpu", torch.float64), other.to("cpu", torch.float64)


def _picks(count: int, size: int, subsets: int, rng: torch.Generator) -> Tensor:
    """Draw subsets of 0..count - 1 as rows of zeros and ones: (subsets, count)."""
    chosen = torch.rand(subsets, count, generator=rng, dtype=torch.float64).argsort(1)[:, :size]
    return torch.zeros(subsets, count, dtype=torch.float64).scatter_(1, chosen, 1.0)


def _distances(first: Tensor, second: Tensor, in_first: Tensor, in_second: Tensor) -> Tensor:
    """Compute the distance of each pair of subsets, rows of `in_first` (R, n) and `in_second` (R, m): (R,).

    Kernel values are computed once for all subsets, a block of rows at a time."""
    n, m = in_first.sum(1), in_second.sum(1)
    own = _sums(first, first, in_first, in_first) - in_first @ _kernel_diagonal(first)
    others = _sums(second, second, in_second, in_second) - in_second @ _kernel_diagonal(second)
    across = _sums(first, second, in_first, in_second)
    return own / (n * (n - 1)) + others / (m * (m - 1)) - 2 * across / (n * m)


def _sums(left: Tensor, right: Tensor, in_left: Tensor, in_right: Tensor) -> Tensor:
    """Sum the kernel over all pairs of each left and right subset: (R,)."""
    total = torch.zeros(len(in_left), dtype=torch.float64)
    for rows in _blocks(len(left), len(right)):
        values = (left[rows] @ right.T / left.shape[1] + 1) ** 3
        total += ((in_left[:, rows] @ values) * in_right).sum(1)
    return total


def _kernel_diagonal(vectors: Tensor) -> Tensor:
    return (vectors.square().sum(1) / vectors.shape[1] + 1) ** 3


def _blocks(rows: int, columns: int) -> Iterator[slice]:
    size = max(1, math.floor(_ELEMENTS / columns))
    return (slice(start, start + size) for start in range(0, rows, size))
