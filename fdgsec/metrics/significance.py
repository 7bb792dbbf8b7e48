"""Permutation p-values, which are never zero, and Holm's adjustment for many tests.

A p-value counts the observed arrangement among the permuted ones (Phipson & Smyth 2010), so the least possible is
1 / (repeats + 1). Statistics within rounding of the observed one count as ties, against the attack."""

import math
from collections.abc import Sequence
from statistics import NormalDist

from fdgsec.metrics.roc import Numbers, as_vector

HALF_WIDTH = NormalDist().inv_cdf(0.975)
"""Standard errors from the estimate to the end of a 95% interval."""


def permutation_pvalue(observed: float, null_values: Numbers) -> float:
    """Give (1 + how many of `null_values` are at least as large as `observed`) / (1 + how many there are).

    Raises ValueError for NaN or no null values."""
    null = as_vector(null_values, "null_values")
    own = as_vector([observed], "observed")[0]
    slack = 1e-12 * max(1.0, float(null.abs().max()), float(own.abs()))
    return (int((null >= own - slack).sum()) + 1) / (len(null) + 1)


def normal_pvalue(value: float, low: float, high: float, limit: float) -> float:
    """Approximate the one-sided p-value of "at most `limit`" from a 95% interval alone, as if `value` were normal.

    The half of the interval towards `limit` is 1.96 standard errors. Negate all four for "at least"."""
    above = value - limit
    width = value - low if above > 0 else high - value
    if width <= 0:
        return 0.0 if above > 0 else 1.0
    return 0.5 * math.erfc(above * HALF_WIDTH / width / math.sqrt(2))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values, in the given order, for being one family (Holm 1979): reject where at most alpha.

    The probability of any false rejection is then at most alpha, however the tests depend on each other. Raises
    ValueError for p-values outside [0, 1]."""
    if any(not 0 <= p_value <= 1 for p_value in p_values):
        raise ValueError(f"p-values must lie in [0, 1]; got {list(p_values)}.")
    adjusted, running = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = running
    return adjusted
