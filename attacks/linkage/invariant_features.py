"""Features of clients' vectors that stay the same where no number of the vectors does.

A second release may have fresh noise that pairs of columns share, noise in a few directions, noise on most numbers of
a vector, others each time, channels in an order of each client's own, coordinates of its own, or fresh images, so that
only their number is the same. Who belongs to whom is not used:
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
TAKEN_OUT = (1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 60, 80, 120)
"""Numbers of directions that are taken out."""
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


def without_strongest_directions(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Both releases (N, D) and (M, D) without the directions in which vectors vary most: (N, k) and (M, k).

    Noise in a few fixed directions, however strong, is not in the others. Columns are centered in each release, and
    scaled in both together: else a direction is not the same one in both. Of TAKEN_OUT, up to half of all directions,
    so many are taken out that the nearest vectors of the other release are clearest: by the mean part by which the
    second nearest is farther off."""
    rows = torch.cat([part - part.mean(0) for part in (first, second)])
    size = rows.square().mean(0).sqrt()
    rows = rows[:, size > 0] / size[size > 0]
    directions, sizes, _ = torch.linalg.svd(rows, full_matrices=False)
    one, other = (directions * sizes).round(decimals=DECIMALS).split([len(first), len(second)])
    by_length = one[one.square().sum(1).argsort()]  # of many, a choice that does not hang on their order
    some = by_length[:: max(1, len(one) // BLOCK)]
    counts = [count for count in TAKEN_OUT if 2 * count <= len(sizes)]
    best = max(counts, key=lambda count: _clearness(some[:, count:], other[:, count:]), default=0)
    return one[:, best:], other[:, best:]


def _clearness(first: Tensor, second: Tensor) -> float:
    """By which part of its distance the second nearest of `second` (M, k) is farther than the nearest one, on average
    over `first` (N, k)."""
    if len(second) < 2:
        return 0.0
    nearest = torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist").topk(2, largest=False).values
    return float((1 - nearest[:, 0] / nearest[:, 1].clamp_min(torch.finfo(nearest.dtype).tiny)).mean())


def nearest_numbers(first: Tensor, second: Tensor) -> Tensor:
    """Minus the number of columns in which the numbers of two vectors are each other's nearest: (N, M).

    Where most numbers of a vector are others each time, those that are not still lie beside each other, however far
    off the others are. Numbers that several vectors of a release have, and those between two that are equally near,
    tell nobody apart."""
    found = torch.zeros(len(first), len(second), dtype=torch.float64)
    for ones, others in zip(first.T.contiguous(), second.T.contiguous(), strict=True):
        there, back = _nearest(ones, others), _nearest(others, ones)
        mine = (there >= 0).nonzero().flatten()
        mutual = mine[back[there[mine]] == mine]
        found[mutual, there[mutual]] -= 1
    return found


def _nearest(values: Tensor, among: Tensor) -> Tensor:
    """The place among others (M,) of the one that is nearest to each of the values (N,); -1 where several are, or
    several values are the same."""
    ordered, order = among.sort()
    place = torch.searchsorted(ordered, values)
    sides = torch.stack([place - 1, place]).clamp(0, len(ordered) - 1)
    apart = (ordered[sides] - values).abs()
    side = apart.argmin(0, keepdim=True)
    nearest, distance = sides.gather(0, side)[0], apart.gather(0, side)[0]
    alone = (apart[0] != apart[1]) | (sides[0] == sides[1])
    for step in (-1, 1):  # an equal one on either side in the order
        beside = (nearest + step).clamp(0, len(ordered) - 1)
        alone &= (beside == nearest) | ((ordered[beside] - values).abs() != distance)
    _, which, counts = torch.unique(values, return_inverse=True, return_counts=True)
    return torch.where(alone & (counts[which] == 1), order[nearest], torch.full_like(nearest, -1))


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
