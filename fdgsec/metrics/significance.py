"""Permutation tests with p-values that are never zero, and corrections for multiple tests.

A p-value counts the observed arrangement among the permuted ones (Phipson & Smyth 2010), so the least possible is
1 / (repeats + 1). Statistics within rounding of the observed one count as ties, against the attack."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from fdgsec.metrics.roc import Numbers, sample

Alternative = Literal["greater", "less", "two-sided"]
EXACT_UP_TO = 12  # pairs: 2**12 sign patterns are enumerated
_ELEMENTS = 4_000_000  # in a block of permutations: 32 MB


def permutation_pvalue(observed: float, null_values: Numbers, *, alternative: Alternative = "greater") -> float:
    """Compute (1 + the number of `null_values` at least as extreme as `observed`) / (1 + the number of `null_values`).

    "two-sided" doubles the smaller tail. Raises ValueError for NaN or no null values."""
    null = sample(null_values, "null_values")
    own = sample([observed], "observed")[0]
    return _tail(own, null, alternative, added=1)


def bonferroni(pvalue: float, tests: int) -> float:
    """Correct one p-value for being one of `tests`: min(1, p * tests)."""
    _check_pvalues([pvalue])
    if tests < 1:
        raise ValueError(f"tests must be at least 1; got {tests}.")
    return min(1.0, pvalue * tests)


def holm(pvalues: Sequence[float]) -> list[float]:
    """Adjust p-values by Holm's step-down (1979), in the given order: reject where the adjusted value is <= alpha.

    Controls the probability of any false rejection under every dependence, and is nowhere larger than `bonferroni`."""
    _check_pvalues(pvalues)
    adjusted = [0.0] * len(pvalues)
    running = 0.0
    for rank, position in enumerate(sorted(range(len(pvalues)), key=lambda index: pvalues[index])):
        running = max(running, min(1.0, (len(pvalues) - rank) * pvalues[position]))
        adjusted[position] = running
    return adjusted


def sign_flip_pvalue(
    differences: Numbers, *, rng: torch.Generator, repeats: int = 9999, alternative: Alternative = "greater"
) -> float:
    """Test whether paired differences (n,) have mean zero, by flipping their signs; valid where they are symmetric.

    Up to 12 pairs all 2**n patterns are enumerated and the p-value is exact; beyond that, `repeats` are drawn."""
    values = sample(differences, "differences")
    n = len(values)
    if n <= EXACT_UP_TO:
        patterns = torch.arange(2**n).unsqueeze(1) >> torch.arange(n) & 1
        return _tail(values.mean(), (1 - 2 * patterns.to(torch.float64)) @ values / n, alternative, added=0)
    rows = max(1, _ELEMENTS // n)
    null = []
    for start in range(0, repeats, rows):
        signs = 1 - 2 * torch.randint(2, (min(rows, repeats - start), n), generator=rng).to(torch.float64)
        null.append(signs @ values / n)
    return _tail(values.mean(), torch.cat(null), alternative, added=1)


def label_permutation_pvalue(
    first: Tensor,
    second: Tensor,
    *,
    statistic: Callable[[Tensor, Tensor], float],
    rng: torch.Generator,
    repeats: int = 999,
    alternative: Alternative = "greater",
) -> float:
    """Test whether `first` (n, ...) and `second` (m, ...) are exchangeable, by any statistic of the two groups.

    The n + m records are reassigned to groups of the same sizes `repeats` times. Raises ValueError for an empty group
    or records of different shapes."""
    if not len(first) or not len(second) or first.shape[1:] != second.shape[1:]:
        raise ValueError(
            "two non-empty groups of equally shaped records are needed; "
            f"got {tuple(first.shape)} and {tuple(second.shape)}."
        )
    pooled = torch.cat([first, second])
    null = []
    for _ in range(repeats):
        order = torch.randperm(len(pooled), generator=rng).to(pooled.device)
        null.append(statistic(pooled[order[: len(first)]], pooled[order[len(first) :]]))
    return permutation_pvalue(statistic(first, second), null, alternative=alternative)


def _tail(observed: Tensor, null: Tensor, alternative: Alternative, *, added: int) -> float:
    """Compute the p-value with `added` more arrangements (the observed one, unless `null` already contains it)."""
    slack = 1e-12 * max(1.0, float(null.abs().max()), float(observed.abs()))
    above = (int((null >= observed - slack).sum()) + added) / (len(null) + added)
    below = (int((null <= observed + slack).sum()) + added) / (len(null) + added)
    if alternative == "greater":
        return above
    if alternative == "less":
        return below
    return min(1.0, 2 * min(above, below))


def _check_pvalues(pvalues: Sequence[float]) -> None:
    if any(not 0 <= pvalue <= 1 for pvalue in pvalues):
        raise ValueError(f"p-values must lie in [0, 1]; got {list(pvalues)}.")
