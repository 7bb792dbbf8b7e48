"""Linkage by the columns that come again: those whose values in two releases are alike, whoever sent them.

Most columns may carry fresh noise, and a few the same numbers as before: rounded, as codes that several clients share,
with a little noise, in another unit, standardized, or with the opposite sign. Sorted, the values of such a column are
nearly the same in both releases, after each release was standardized. This compares margins alone: who belongs to whom
is not used, so that exchanging clients within a release changes no weight, and permutation tests stay valid."""

import math

import torch
from torch import Tensor

STEEPNESS = 6
"""A column's weight is its gap to this power, inverted: a hundred columns of fresh noise together must weigh less than
one whose gap is a third of theirs."""
ROUNDING = 1e-6
"""Values of a column are one value where they differ by less than this times its range."""


def recurring_distances(seen: Tensor, first: Tensor, second: Tensor) -> Tensor | None:
    """The weighted sums of absolute differences between the vectors `seen` (n, D) and the `second` ones (N, D): (n, N).

    `first` (N, D) are all vectors of the release that `seen` are of. Each column is in mean absolute deviations about
    its median in its own release, and the first one's has the sign by which the sorted values are more alike. None
    where the releases have unequal numbers of clients, or no column varies in both."""
    if len(first) != len(second):
        return None
    scales = [median_and_deviation(rows) for rows in (first, second)]
    varies = (scales[0][1] > 0) & (scales[1][1] > 0)
    if not bool(varies.any()):
        return None
    own, others = (_scaled(rows, *scale, varies) for rows, scale in zip((first, second), scales, strict=True))
    gap, opposite = relative_gap(own, others), relative_gap(-own, others)
    sign = torch.where(opposite < gap, -1.0, 1.0).to(own.dtype)
    gap = torch.minimum(gap, opposite)
    weight = (gap / gap.min()) ** -STEEPNESS
    return torch.cdist(_scaled(seen, *scales[0], varies) * sign * weight, others * weight, p=1.0)


def relative_gap(first: Tensor, second: Tensor) -> Tensor:
    """The mean absolute difference of each column's sorted values in two releases (N, D), in units of what it would be
    between independent draws: (D,), positive.

    Two empirical distributions of N independent values with distribution function F differ by about the integral of
    sqrt(4 F (1 - F) / (pi N)), where F is estimated from all 2 N values. A column of few different values may agree by
    chance, so the gap is at least half of what exchanging two neighboring values makes of it."""
    clients = len(first)
    pooled = torch.cat([first, second]).sort(0).values
    steps, width = pooled.diff(dim=0), pooled[-1] - pooled[0]
    below = torch.arange(1, 2 * clients, dtype=pooled.dtype).unsqueeze(1) / (2 * clients)
    expected = math.sqrt(4 / (math.pi * clients)) * ((below * (1 - below)).sqrt() * steps).sum(0)
    gap = (first.sort(0).values - second.sort(0).values).abs().mean(0)
    neighbors = width / (steps > ROUNDING * width).sum(0)
    return gap.clamp_min(neighbors / (2 * clients)) / expected


def median_and_deviation(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The median of each column of `rows` (N, D), and the mean absolute deviation from it: (D,) each, float64."""
    ordered = rows.to(torch.float64).sort(0).values
    center = (ordered[(len(rows) - 1) // 2] + ordered[len(rows) // 2]) / 2  # of minus the rows, it is minus this
    return center, (ordered - center).abs().mean(0)


def _scaled(rows: Tensor, center: Tensor, spread: Tensor, kept: Tensor) -> Tensor:
    return (rows[:, kept].to(torch.float64) - center[kept]) / spread[kept]
