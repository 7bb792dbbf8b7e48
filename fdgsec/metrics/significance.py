"""Permutation p-values, which are never zero.

A p-value counts the observed arrangement among the permuted ones (Phipson & Smyth 2010), so the least possible is
1 / (repeats + 1). Statistics within rounding of the observed one count as ties, against the attack."""

from fdgsec.metrics.roc import Numbers, as_vector


def permutation_pvalue(observed: float, null_values: Numbers) -> float:
    """Give (1 + how many of `null_values` are at least as large as `observed`) / (1 + how many there are).

    Raises ValueError for NaN or no null values."""
    null = as_vector(null_values, "null_values")
    own = as_vector([observed], "observed")[0]
    slack = 1e-12 * max(1.0, float(null.abs().max()), float(own.abs()))
    return (int((null >= own - slack).sum()) + 1) / (len(null) + 1)
