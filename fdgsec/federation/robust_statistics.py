"""Robust centers and outlier scores of a few vectors, one per client, of which some may be malicious.

Coordinate-wise median and trimmed mean: Yin, Chen, Ramchandran & Bartlett, ICML 2018, https://arxiv.org/abs/1803.01498.
Krum: Blanchard, El Mhamdi, Guerraoui & Stainer, NIPS 2017, https://arxiv.org/abs/1703.02757. Robust z-scores use the
median and the median absolute deviation (MAD), times 1.4826, which makes it the standard deviation of a Gaussian
sample.

`values` is (n, D) throughout: one row per client. NaN counts as the largest value of its coordinate and as infinitely
far away, so that it is trimmed, outvoted or rejected like any other."""

import math

import torch
from torch import Tensor

GAUSSIAN_MAD = 1.4826
"""1 / Phi^-1(3/4): the MAD of N(0, 1) is 0.6745."""


def median(values: Tensor) -> Tensor:
    """Compute each coordinate's median, (D,): for even n the mean of the two in the middle.

    With fewer than n / 2 malicious rows every coordinate lies between the least and the largest honest value."""
    _check(values)
    return trimmed_mean(values, trim=(values.shape[0] - 1) // 2)


def trimmed_mean(values: Tensor, *, trim: int) -> Tensor:
    """Compute each coordinate's mean without its `trim` largest and `trim` smallest values, (D,).

    With at most `trim` malicious rows every coordinate lies between the least and the largest honest value. Raises
    ValueError where nothing would be left."""
    _check(values)
    count = values.shape[0]
    if not 0 <= trim < count / 2:
        raise ValueError(f"trim must leave a value of {count}: it lies in [0, {count / 2:g}); got {trim}.")
    return _sorted(values)[trim : count - trim].mean(0)


def krum_scores(values: Tensor, *, hostile: int) -> Tensor:
    """Compute each row's sum of squared distances to the n - hostile - 2 rows nearest to it, (n,) float64.

    Raises ValueError unless n > 2 hostile + 2, which the paper's guarantee needs."""
    _check(values)
    count = values.shape[0]
    if hostile < 0 or count <= 2 * hostile + 2:
        raise ValueError(
            f"krum needs more than 2f + 2 rows, which are {2 * hostile + 2} for f = {hostile}; got {count}."
        )
    rows = values.double()
    distances = torch.stack([(rows - row).square().sum(1) for row in rows])
    distances = distances.nan_to_num(nan=math.inf, posinf=math.inf)
    distances.fill_diagonal_(math.inf)  # a row is not its own neighbor
    return distances.sort(1).values[:, : count - hostile - 2].sum(1)


def krum(values: Tensor, *, hostile: int) -> int:
    """Give the row with the least Krum score, the first of equals. Raises ValueError as `krum_scores` does."""
    return int(krum_scores(values, hostile=hostile).argmin())


def spread(values: Tensor) -> Tensor:
    """Compute each coordinate's median absolute deviation from the median, times 1.4826, (D,)."""
    return GAUSSIAN_MAD * median((values - median(values)).abs())


def robust_z(values: Tensor) -> Tensor:
    """Compute |value - median| / (1.4826 MAD) by coordinate, (n, D).

    Where the MAD is 0 it is 0 at the median and infinite elsewhere."""
    away = (values - median(values)).abs().nan_to_num(nan=math.inf, posinf=math.inf)
    return torch.where(away == 0, torch.zeros_like(away), away / spread(values))


def distance_z(values: Tensor) -> Tensor:
    """Compute the robust z of each row's L2 distance from the coordinate-wise median, (n,) float64, 0 for near rows.

    It is one number for a whole row, so a test of it does not depend on the number of coordinates."""
    distances = (values.double() - median(values.double())).norm(dim=1, keepdim=True)
    center = median(distances)
    far = (distances >= center) | distances.isnan()
    return torch.where(far, robust_z(distances), torch.zeros_like(distances)).squeeze(1)


def winsorized(values: Tensor, *, bound: float) -> Tensor:
    """Clip every value with a robust z above `bound` to the nearest value at it, (n, D); NaN becomes the median."""
    center, reach = median(values), bound * spread(values)
    held = torch.minimum(torch.maximum(values, center - reach), center + reach)
    return torch.where(values.isnan(), center.expand_as(values), held)


def _sorted(values: Tensor) -> Tensor:
    """Sort each coordinate, with NaN at the end."""
    return values.sort(0).values


def _check(values: Tensor) -> None:
    if values.ndim != 2 or not values.shape[0] or not values.is_floating_point():
        raise ValueError(f"values must be float (n, D) with n >= 1; got {values.dtype} {tuple(values.shape)}.")
