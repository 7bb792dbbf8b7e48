"""Success against noise on Gaussian records: it falls, follows the law, and ends at chance."""

import math

import pytest
import torch
from scipy.optimize import isotonic_regression
from scipy.stats import spearmanr

from fdgsec.attacks.statistics.tracing import likelihood_ratio, standardized_score
from fdgsec.runtime.random_streams import stream
from tests.support.noise_curve import NoisePoint, noise_curve

NOISES = [10 ** (power / 5) for power in range(-10, 11)]
"""Five per decade from .01 to 100 standard deviations of a record."""


@pytest.fixture(scope="module")
def curve() -> list[NoisePoint]:
    return noise_curve(NOISES, dimension=512, records=20, clients=60, rng=stream(0, "world", "curve"))


@pytest.mark.medium
def test_noise_lowers_the_area_within_its_intervals_from_almost_one_to_chance(curve: list[NoisePoint]):
    areas = [point.auc for point in curve]

    fit = isotonic_regression(areas, increasing=False).x

    assert all(p.interval.low <= level <= p.interval.high for p, level in zip(curve, fit, strict=True))
    assert spearmanr(NOISES, areas).statistic <= -0.9
    assert areas[0] > 0.98
    assert curve[-1].interval.low <= 0.5 <= curve[-1].interval.high


@pytest.mark.medium
def test_between_98_percent_and_twice_chance_more_noise_always_finds_fewer(curve: list[NoisePoint]):
    found = [(point.noise, point.tpr) for point in curve if point.tpr is not None and 0.02 <= point.tpr <= 0.98]

    assert len(curve) == sum(point.tpr is not None for point in curve)
    assert len(found) >= 6
    assert spearmanr([noise for noise, _ in found], [tpr for _, tpr in found]).statistic <= -0.9


def test_the_law_of_noise_predicts_every_area(curve: list[NoisePoint]):
    # an area of 20 against 20 has a standard deviation below .09; the mean of 60 below .012
    assert all(point.auc == pytest.approx(point.theory, abs=0.04) for point in curve)


def test_noise_is_also_given_in_standard_deviations_of_the_release(curve: list[NoisePoint]):
    assert all(point.in_release_sds == pytest.approx(point.noise * math.sqrt(20)) for point in curve)


def test_the_curve_of_another_test_may_be_asked_for():
    standard, ratio = (
        noise_curve([0.1], dimension=32, records=10, clients=8, test=test, rng=stream(0, "world", "other"))
        for test in (standardized_score, likelihood_ratio)
    )

    assert ratio[0].auc != standard[0].auc
    assert ratio[0].tpr is None  # 80 non-members resolve no 1%


def test_one_client_gives_no_interval_and_is_refused():
    with pytest.raises(ValueError, match="2 clients"):
        noise_curve([0.1], dimension=4, records=5, clients=1, rng=torch.Generator())
