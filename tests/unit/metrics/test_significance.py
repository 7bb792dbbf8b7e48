import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from fdgsec.metrics.roc import auc
from fdgsec.metrics.significance import (
    Alternative,
    bonferroni,
    holm,
    label_permutation_pvalue,
    permutation_pvalue,
    sign_flip_pvalue,
)
from fdgsec.runtime.random_streams import stream


def test_a_permutation_pvalue_counts_the_observation_itself() -> None:
    null = [0.1, 0.2, 0.3, 0.4]

    assert permutation_pvalue(0.9, null) == 1 / 5
    assert permutation_pvalue(0.3, null) == 3 / 5
    assert permutation_pvalue(0.0, null) == 1.0
    assert permutation_pvalue(0.1, null, alternative="less") == 2 / 5
    assert permutation_pvalue(0.9, null, alternative="two-sided") == 2 / 5


def test_values_within_rounding_of_the_observation_are_ties() -> None:
    assert permutation_pvalue(0.1 + 0.2, [0.3, 0.3, 0.3]) == 1.0


def test_a_null_with_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="null_values"):
        permutation_pvalue(0.5, [0.1, math.nan])


def test_bonferroni_multiplies_and_stops_at_one() -> None:
    assert bonferroni(0.01, 3) == pytest.approx(0.03)
    assert bonferroni(0.6, 3) == 1.0


def test_holm_agrees_with_its_definition() -> None:
    pvalues = [0.04, 0.01, 0.03, 0.005, 0.9]

    def smallest_rejecting_level(position: int) -> float:
        order = sorted(pvalues)
        place = order.index(pvalues[position])
        return max(min(1.0, (5 - i) * order[i]) for i in range(place + 1))

    assert holm(pvalues) == pytest.approx([smallest_rejecting_level(i) for i in range(5)])
    assert holm(pvalues) == pytest.approx([0.09, 0.04, 0.09, 0.025, 0.9])
    assert holm([]) == []


@pytest.mark.parametrize("pvalue", [-0.1, 1.1, math.nan])
def test_impossible_pvalues_are_refused(pvalue: float) -> None:
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        holm([0.5, pvalue])


@pytest.mark.parametrize("alternative", ["greater", "less", "two-sided"])
def test_few_pairs_get_the_exact_sign_flip_pvalue(alternative: Alternative) -> None:
    differences = np.array([0.4, -0.1, 0.7, 0.2, 0.2, -0.3])
    every = [np.dot(signs, differences) for signs in itertools.product([-1, 1], repeat=6)]
    above = np.mean([one >= differences.sum() - 1e-9 for one in every])
    below = np.mean([one <= differences.sum() + 1e-9 for one in every])

    pvalue = sign_flip_pvalue(differences, rng=stream(0, "attack"), alternative=alternative)

    expected = {"greater": above, "less": below, "two-sided": min(1.0, 2 * min(above, below))}
    assert pvalue == pytest.approx(expected[alternative])


def test_many_pairs_approach_the_t_test() -> None:
    differences = torch.randn(60, generator=stream(1, "attack"), dtype=torch.float64) + 0.25

    pvalue = sign_flip_pvalue(differences, rng=stream(2, "attack"), repeats=20000)

    oracle = stats.ttest_1samp(differences.numpy(), 0.0, alternative="greater").pvalue
    assert pvalue == pytest.approx(oracle, rel=0.25)


def test_sign_flips_raise_few_false_alarms() -> None:
    rng = stream(3, "attack")

    alarms = [
        sign_flip_pvalue(torch.randn(20, generator=rng, dtype=torch.float64), rng=rng, repeats=199) <= 0.05
        for _ in range(400)
    ]

    assert np.mean(alarms) <= 0.08  # expectation .05, standard error .011


def mean_gap(first: Tensor, second: Tensor) -> float:
    return float(first.mean() - second.mean())


def test_label_permutation_agrees_with_every_assignment() -> None:
    first, second = torch.tensor([3.0, 2.5, 2.0]), torch.tensor([1.0, 2.2, 0.5, 1.5])
    pooled = torch.cat([first, second])
    gaps = [
        mean_gap(pooled[list(group)], pooled[[i for i in range(7) if i not in group]])
        for group in itertools.combinations(range(7), 3)
    ]
    exact = np.mean([gap >= mean_gap(first, second) - 1e-6 for gap in gaps])

    pvalue = label_permutation_pvalue(first, second, statistic=mean_gap, rng=stream(4, "attack"), repeats=4000)

    assert pvalue == pytest.approx(exact, abs=0.015)  # four standard errors at p = 2/35


def test_label_permutation_takes_any_statistic_and_finds_a_planted_difference() -> None:
    rng = stream(5, "attack")
    hits, others = torch.randn(30, generator=rng) + 2, torch.randn(30, generator=rng)

    planted = label_permutation_pvalue(hits, others, statistic=auc, rng=rng, repeats=199)
    absent = [
        label_permutation_pvalue(
            torch.randn(10, generator=rng), torch.randn(10, generator=rng), statistic=auc, rng=rng, repeats=39
        )
        for _ in range(100)
    ]

    assert planted == 1 / 200
    assert np.mean([pvalue <= 0.05 for pvalue in absent]) <= 0.12  # expectation .05, standard error .022


def test_groups_of_differently_shaped_records_are_refused() -> None:
    with pytest.raises(ValueError, match="equally shaped"):
        label_permutation_pvalue(torch.zeros(3, 2), torch.zeros(3, 4), statistic=mean_gap, rng=stream(0, "attack"))
