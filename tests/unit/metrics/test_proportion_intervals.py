"""Proportions against enumeration: the fixed points of all permutations, and the coverage of accuracies near one."""

import itertools
from collections.abc import Callable

import pytest
from scipy import stats

from fdgsec.metrics.interval import Interval
from fdgsec.metrics.proportion_intervals import clopper_pearson, fixed_points_pvalue, matching_rate, wilson


@pytest.mark.parametrize("n", [1, 2, 4, 7])
def test_the_pvalue_of_matches_counts_the_fixed_points_of_all_permutations(n: int) -> None:
    fixed = [sum(place == i for i, place in enumerate(order)) for order in itertools.permutations(range(n))]

    for hits in range(n + 1):
        expected = sum(count >= hits for count in fixed) / len(fixed)
        assert fixed_points_pvalue(hits, n) == pytest.approx(expected)
    assert fixed_points_pvalue(1.9, n) == fixed_points_pvalue(1, n)  # shared credit counts as no more than was hit
    assert fixed_points_pvalue(300, 300) == pytest.approx(0.0)


def test_the_pvalue_of_matches_in_groups_counts_the_fixed_points_of_all_permutations_of_each() -> None:
    groups = [[sum(place == i for i, place in enumerate(order)) for order in itertools.permutations(range(n))]
              for n in (2, 3, 4)]  # fmt: skip
    fixed = [sum(counts) for counts in itertools.product(*groups)]

    for hits in range(10):
        expected = sum(count >= hits for count in fixed) / len(fixed)
        assert fixed_points_pvalue(hits, 2, 3, 4) == pytest.approx(expected)
    assert matching_rate(9, 2, 3, 4).p_value(3 / 9) >= 1 / (2 * 6 * 24) * (1 - 1e-6)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 10, 30])
def test_a_matching_excludes_chance_no_more_often_than_random_permutations_allow(n: int) -> None:
    for hits in range(2, n + 1):
        assert matching_rate(hits, n).p_value(1 / n) >= min(fixed_points_pvalue(hits, n), 0.5) * (1 - 1e-6)


@pytest.mark.parametrize(("n", "rate"), [(50, 0.98), (100, 0.9), (100, 0.99), (1000, 0.99)])
def test_accuracies_have_intervals_that_cover_near_one_where_wilsons_do_not(n: int, rate: float) -> None:
    def covered(interval: Callable[[float, int], Interval]) -> float:
        found = [interval(k, n) for k in range(n + 1)]
        return sum(float(stats.binom.pmf(k, n, rate)) for k, one in enumerate(found) if one.low <= rate <= one.high)

    assert covered(clopper_pearson) >= 0.95
    assert n == 1000 or covered(wilson) < 0.95
