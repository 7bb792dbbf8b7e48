"""Whether noise that a cost calls Gaussian is: no mixture of small and large noise, and no release almost without any.

A test along one direction sees the spread of the noise, not its shape: a number that gets a thousandth of its noise
half of the time, and the root of 2 of it else, has the right variance and no epsilon. Every number is standardized by
its own draws; numbers of which draws were cut are left out. Two statistics are compared with those of Gaussian noise:
the mean kurtosis over numbers, and the squared length of each draw. Both depend on how many numbers vary independently,
which is estimated from their correlations (the participation ratio of the eigenvalues)."""

import math

import torch
from scipy import stats
from torch import Tensor

FEWEST_INDEPENDENT = 4.0
"""Fewer numbers that vary independently have too few draws to tell a shape."""
DEVIATIONS = 8.0
"""Standard deviations by which a mean kurtosis may miss that of Gaussian draws: its tails are heavier than Gaussian."""
RARE = 1e-9
"""The probability of a draw as short as one that counts as a release without noise."""


def not_gaussian(draws: Tensor, valid: Tensor) -> bool:
    """Whether the noise of `draws` (runs, D), of which `valid` ones were not cut, is not Gaussian."""
    whole = draws[:, valid.all(0)]
    off = whole - whole.mean(0)
    size = off.square().mean(0).sqrt()
    varying = size > torch.finfo(draws.dtype).eps * whole.abs().amax(0).clamp_min(1) if len(size) else size > 0
    standard = off[:, varying] / size[varying]
    runs, numbers = standard.shape
    if not numbers:
        return False
    independent = _independent(standard)
    if independent < FEWEST_INDEPENDENT:
        return False
    kurtosis = float(standard.pow(4).mean())
    expected, spread = 3 * (runs - 1) / (runs + 1), math.sqrt(24 / (runs * independent))
    shortest = float(standard.square().sum(1).min()) * independent / numbers
    return abs(kurtosis - expected) > DEVIATIONS * spread or float(stats.chi2.cdf(shortest, independent)) < RARE / runs


def _independent(standard: Tensor) -> float:
    """How many numbers of standardized draws (runs, D) vary independently, as their correlations say."""
    runs, numbers = standard.shape
    products = (standard @ standard.T if runs <= numbers else standard.T @ standard) / runs
    return float(products.diagonal().sum().square() / products.square().sum())
