import math

import pytest

from fdgsec.metrics.significance import holm, normal_pvalue, permutation_pvalue


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


def test_holm_agrees_with_its_definition_and_keeps_the_order() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])  # Holm 1979, four tests
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
    with pytest.raises(ValueError, match="p-values"):
        holm([1.5])


def test_an_approximate_pvalue_agrees_with_the_interval_that_it_is_from() -> None:
    assert normal_pvalue(0.6, 0.5, 0.7, 0.5) == pytest.approx(0.025)
    assert normal_pvalue(0.4, 0.3, 0.5, 0.5) == pytest.approx(0.975)
    assert normal_pvalue(1.0, 1.0, 1.0, 0.5) == 0.0
