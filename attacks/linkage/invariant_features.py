"""Features of clients' vectors that stay the same where no number of the vectors does.

A second release may have fresh noise that pairs of columns share, channels in an order of each client's own,
coordinates of its own, or fresh images, so that only their number is the same. Who belongs to whom is not used:
exchanging clients within a release exchanges their features and changes none, so that permutation tests stay valid."""

import torch
from torch import Tensor

from fdgsec.attacks.linkage.recurring_columns import median_and_deviation

BLOCK = 512
"""Columns or clients whose correlations or distances to all others are computed at once."""
DISTANCES = 256
"""Largest number of sorted distances that describe a client's place among the others."""
EXACT = 1000
"""Largest number of clients whose distances are sums of squares; those of more take matrix products, in a quarter of
the time."""
CLOSEST = 1e-12
"""Smallest 1 - |r| of two columns that are not one column: below it their difference is rounding."""
DECIMALS = 9
"""Decimals of a feature: what is the same for all clients up to rounding is the same."""


def invariant_features(first: Tensor, second: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Features of all vectors of two releases, (N, D) and (M, D), by the name of the distance between them.

    Only how they vary within a release is comparable: they are to be standardized in each."""
    return {
        "sorted numbers": (sorted_numbers(first), sorted_numbers(second)),
        "distances to others": distances_to_others(first, second),
        "size of deviation": (size_of_deviation(first), size_of_deviation(second)),
    }


def differences_of_columns(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Each column less the column that is most correlated with it, plus it where the correlation r is negative.

    Noise that two columns share, as one draw for the mean and the std of a channel, is not in their difference. The
    columns of `first` (N, D) and `second` (M, D) have mean 0 and standard deviation 1 in each; r is over all N + M
    rows. A difference of variance 2 (1 - |r|) is divided by 1 - |r|, so that it weighs the more, the more is shared.
    Columns that are one column are left out: (N, k) and (M, k)."""
    rows = torch.cat([first, second])
    rows = rows / rows.norm(dim=0)
    found = [_most_correlated(rows, start) for start in range(0, rows.shape[1], BLOCK)]
    if not found:
        return first, second
    partner, r = (torch.cat(parts) for parts in zip(*found, strict=True))
    left = 1 - r.abs()
    kept = left > CLOSEST
    one, other = ((part - r.sign() * part[:, partner])[:, kept] / left[kept] for part in (first, second))
    return one, other


def _most_correlated(rows: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """For `BLOCK` columns from `start` of `rows` (R, D), of length 1: the other column with the largest |r|, and r."""
    r = rows[:, start : start + BLOCK].T @ rows
    own = torch.arange(len(r))
    r[own, start + own] = 0.0
    partner = r.abs().argmax(1)
    return partner, r[own, partner]


def sorted_numbers(rows: Tensor) -> Tensor:
    """The numbers of each vector (N, 2C) in ascending order: means, stds, and all together, (N, 4C).

    They are the same in whatever order its channels are."""
    means, stds = rows.chunk(2, dim=1)
    return torch.cat([part.sort(dim=1).values for part in (means, stds, rows)], dim=1)


def distances_to_others(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """The distances of each vector to the others of its release, in ascending order: (N, k) and (M, k).

    k is at most `DISTANCES`. A release that is rotated, reflected, moved or scaled as a whole keeps them: they are in
    units of their mean in each release."""
    count = min(len(first) - 1, len(second) - 1, DISTANCES)
    return _sorted_distances(first, count), _sorted_distances(second, count)


def _sorted_distances(rows: Tensor, count: int) -> Tensor:
    """`count` evenly spaced ones of the sorted distances of each of `rows` (N, D) to all others: (N, count)."""
    places = torch.linspace(1, len(rows) - 1, count, dtype=torch.float64).round().to(torch.int64)  # 0 is its own
    rows = rows - rows.mean(0)  # matrix products lose what is small beside the vectors' lengths
    mode = "donot_use_mm_for_euclid_dist" if len(rows) <= EXACT else "use_mm_for_euclid_dist"
    blocks = [torch.cdist(part, rows, compute_mode=mode).sort(dim=1).values[:, places] for part in rows.split(BLOCK)]
    found = torch.cat(blocks)
    return (found / found.mean().clamp_min(torch.finfo(found.dtype).tiny)).round(decimals=DECIMALS)


def size_of_deviation(rows: Tensor) -> Tensor:
    """The logarithm of each vector's mean absolute deviation from the median vector of `rows` (N, D): (N, 1).

    Each column is in mean absolute deviations. A mean of few images deviates more than one of many, whichever they
    are, and so do a client's own noise and its distance from everybody."""
    center, deviation = median_and_deviation(rows)
    varies = deviation > 0
    scaled = (rows[:, varies] - center[varies]) / deviation[varies]
    size = scaled.abs().sum(1, keepdim=True) / max(1, scaled.shape[1])
    return size.clamp_min(torch.finfo(size.dtype).tiny).log().round(decimals=DECIMALS)
