import math

import pytest

from fdgsec.metrics.significance import permutation_pvalue


def test_a_permutation_pvalue_counts_the_observation_itself() -> None:
    null = [0.1, 0.2, 0.3, 0.4]

    assert permutation_pvalue(0.9, null) == 1 / 5
    assert permutation_pvalue(0.3, null) == 3 / 5
    assert permutation_pvalue(0.0, null) == 1.0


def test_values_within_rounding_of_the_observation_are_ties() -> None:
    assert permutation_pvalue(0.1 + 0.2, [0.3, 0.3, 0.3]) == 1.0


def test_a_null_with_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="null_values"):
        permutation_pvalue(0.5, [0.1, math.nan])
