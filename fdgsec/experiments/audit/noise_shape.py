"""Whether noise that a cost calls Gaussian is: no mixture of small and large noise, and no release almost without any.

A test along one direction sees the spread of the noise, not its shape: a number that gets a thousandth of its noise
half of the time, and the root of 2 of it else, has the right variance and no epsilon. Every number is standardized by
its own draws; numbers of which draws were cut are left out. Two statistics are compared with those of Gaussian noise:
the mean kurtosis over numbers, and the squared length of each draw. Both depend on how many numbers vary independently,
which is estimated from their correlations (the participation ratio of the eigenvalues).

Numbers that all have noise of the stated size may leave a direction without any: noise in a public subspace of 153 of
512 dimensions hides no mean. Of more draws than there are numbers, the least variance along any direction is that of
the least eigenvalue of their correlations. For independent noise it is near (1 - sqrt(D / runs))^2 (Marchenko and
Pastur 1967), and fluctuates by a part of order D^(-2/3)."""

import math

import torch
from scipy import stats
from torch import Tensor

FEWEST_INDEPENDENT = 4.0
"""Fewer numbers that vary independently have too few draws to tell a shape."""
DEVIATIONS = 8.0
"""Standard deviations by which a mean kurtosis may miss that of Gaussian draws: its tails are heavier than Gaussian."""
DRAWS_A_NUMBER = 3
"""Draws, for each number, by which directions are compared: independent noise then has (1 - sqrt(1/3))^2 = .18."""
THIN = 0.5
"""The part of that below which a direction has less noise than its numbers: a third of the stated deviation is seen."""
SUSPECT = 0.8
"""The part below which a canary is to tell: half of the stated deviation is seen, and 28 of 6,000 sound sets at 32
numbers, 2 of 3,000 at 64 and none of 620 at 128 and 512 fell below it."""
FEWEST_DIRECTIONS = 32
"""Fewer numbers have a least eigenvalue that fluctuates too much."""
RARE = 1e-9
"""The probability of a draw as short as one that counts as a release without noise."""


def not_gaussian(draws: Tensor, valid: Tensor) -> bool:
    """Whether the noise of `draws` (runs, D), of which `valid` ones were not cut, is not Gaussian."""
    standard = standardized(draws, valid)
    runs, numbers = standard.shape
    if not numbers:
        return False
    independent = independent_numbers(standard)
    if independent < FEWEST_INDEPENDENT:
        return False
    kurtosis = float(standard.pow(4).mean())
    expected, spread = 3 * (runs - 1) / (runs + 1), math.sqrt(24 / (runs * independent))
    shortest = float(standard.square().sum(1).min()) * independent / numbers
    return abs(kurtosis - expected) > DEVIATIONS * spread or float(stats.chi2.cdf(shortest, independent)) < RARE / runs


def leaves_directions_out(draws: Tensor, valid: Tensor) -> bool:
    """Whether the noise of `draws` (runs, D), of which `valid` ones were not cut, is less along some direction than in
    the numbers. Numbers beyond a third of the runs are not looked at."""
    return least_along(draws, valid) < THIN


def least_along(draws: Tensor, valid: Tensor) -> float:
    """The least variance along any direction, as a part of what independent noise has; infinite for too few numbers."""
    standard = standardized(draws, valid)[:, : len(draws) // DRAWS_A_NUMBER]
    runs, numbers = standard.shape
    if numbers < FEWEST_DIRECTIONS:
        return math.inf
    least = float(torch.linalg.eigvalsh(standard.T @ standard / runs)[0])
    return least / (1 - math.sqrt(numbers / runs)) ** 2


def thinnest_direction(draws: Tensor, valid: Tensor) -> Tensor | None:
    """The direction (D,) of length 1 along which `draws` (runs, D) vary least, of numbers of which none was cut.

    None where those are too few. Numbers beyond a third of the runs are not looked at."""
    chosen = valid.all(0).nonzero().flatten()[: len(draws) // DRAWS_A_NUMBER]
    if len(chosen) < FEWEST_DIRECTIONS:
        return None
    off = draws[:, chosen] - draws[:, chosen].mean(0)
    direction = torch.zeros(draws.shape[1], dtype=draws.dtype)
    direction[chosen] = torch.linalg.eigh(off.T @ off)[1][:, 0]
    return direction


def standardized(draws: Tensor, valid: Tensor) -> Tensor:
    """The draws (runs, D') of numbers that vary and were never cut, about their means and in their deviations."""
    whole = draws[:, valid.all(0)]
    off = whole - whole.mean(0)
    size = off.square().mean(0).sqrt()
    varying = size > torch.finfo(draws.dtype).eps * whole.abs().amax(0).clamp_min(1) if len(size) else size > 0
    return off[:, varying] / size[varying]


def independent_numbers(standard: Tensor) -> float:
    """How many numbers of standardized draws (runs, D) vary independently, as their correlations say."""
    runs, numbers = standard.shape
    products = (standard @ standard.T if runs <= numbers else standard.T @ standard) / runs
    return float(products.diagonal().sum().square() / products.square().sum())
