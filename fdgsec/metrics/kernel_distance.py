"""The kernel distance between two feature sets: the unbiased squared MMD under (x.y / D + 1)^3 (Binkowski et al. 2018).

On Inception features this is KID. Its expectation does not depend on the number of images, and is 0 for equal
distributions, so estimates below 0 are normal. All arithmetic is float64 on the CPU, but for the inner products of
`kernel_subsets`, which have the precision of the features and are taken about their mean."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fdgsec.metrics.frechet_distance import Band, check_features, student

SUBSETS = 50
OWN_BLOCKS = 4  # pairs within one set: 10 of 16 pairs of blocks suffice
PAIRS = 1 + 2 * 10 / 16  # of vectors, per pair of a subset's places: across, and twice within
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
    smaller = min(_check_pair(first, second))
    if not 2 <= size <= smaller:
        raise ValueError(f"size must lie in 2..{smaller} (the smaller set); got {size}.")
    n, m = len(first), len(second)
    if PAIRS * subsets * size**2 >= n * n + n * m + m * m:  # the kernel of every pair once costs less
        one, other = _pair(first, second)
        picks = _picks(len(one), size, subsets, rng), _picks(len(other), size, subsets, rng)
        return _distances(one, other, *picks)
    center = first.detach().to("cpu").mean(0, dtype=torch.float64)
    sets = [_Factors.of(vectors.detach().to("cpu"), center) for vectors in (first, second)]
    found = []
    for _ in range(subsets):
        left, right = (part.drawn(torch.randperm(len(part.vectors), generator=rng)[:size]) for part in sets)
        across = left.kernel_sum(right) / size**2
        found.append((left.own_sum() + right.own_sum()) / (size * (size - 1)) - 2 * across)
    return torch.stack(found)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Factors:
    """Vectors about a center c over root D, and `share` (n,) of each in x.y / D + 1, in the features' own precision.

    x.y = (x - c).(y - c) + c.(x - c) + c.(y - c) + c.c; the last terms are as large as x.y, and exact to rounding."""

    vectors: Tensor
    share: Tensor

    @classmethod
    def of(cls, vectors: Tensor, center: Tensor) -> "_Factors":
        """The factors of features (n, D)."""
        width = vectors.shape[1]
        apart = vectors - center.to(vectors.dtype)
        along = torch.cat([part.double() @ center for part in apart.split(512)])
        share = (along + center @ center / 2) / width + 0.5
        return cls(vectors=apart.div_(math.sqrt(width)), share=share.to(vectors.dtype))

    def drawn(self, rows: Tensor) -> "_Factors":
        """Those of some vectors."""
        return _Factors(vectors=self.vectors[rows], share=self.share[rows])

    def kernel_sum(self, other: "_Factors", rows: slice = slice(None), columns: slice = slice(None)) -> Tensor:
        """Sum the kernel over the pairs of some of these vectors with some of the others."""
        values = self.vectors[rows] @ other.vectors[columns].T
        values.add_(self.share[rows, None]).add_(other.share[columns])
        return (values * values).mul_(values).sum(dtype=torch.float64)

    def own_sum(self) -> Tensor:
        """Sum the kernel over all pairs of two different vectors; each pair of blocks is computed once."""
        count = len(self.vectors)
        step = -(-count // OWN_BLOCKS)
        total = -(self.vectors.square().sum(1).double() + 2 * self.share).pow(3).sum()
        for start in range(0, count, step):
            rows = slice(start, start + step)
            total = total + self.kernel_sum(self, rows, rows)
            if start + step < count:
                total = total + 2 * self.kernel_sum(self, rows, slice(start + step, None))
        return total


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


def _check_pair(first: Tensor, second: Tensor) -> tuple[int, int]:
    """The numbers of vectors of two sets. Raises ValueError where they have no distance."""
    one, other = check_features(first, "first"), check_features(second, "second")
    if one.shape[1] != other.shape[1]:
        raise ValueError(f"features must have equal dimensions; got {one.shape[1]} and {other.shape[1]}.")
    if min(len(one), len(other)) < 2:
        raise ValueError(f"a kernel distance needs at least 2 vectors a side; got {len(one)} and {len(other)}.")
    return len(one), len(other)


def _pair(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    _check_pair(first, second)
    return first.detach().to("cpu", torch.float64), second.detach().to("cpu", torch.float64)


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
