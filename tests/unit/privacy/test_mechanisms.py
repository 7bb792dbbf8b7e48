import math
from itertools import pairwise

import pytest
from scipy.integrate import quad
from scipy.stats import norm

from fdgsec.privacy.accounting import Use, epsilon
from fdgsec.privacy.mechanisms import (
    classical_multiplier,
    delta_of,
    epsilon_of,
    laplace_scale,
    multiplier_per_release,
    noise_multiplier,
)
from fdgsec.runtime.errors import UsageError

GRID = [(e, d) for e in (0.01, 0.5, 1.0, 4.0, 16.0, 60.0) for d in (1e-9, 1e-5, 1e-2)]


def hockey_stick(multiplier: float, epsilon: float) -> float:
    """Integrate what N(0, z^2) has above e^epsilon times N(1, z^2): the definition of delta, without Theorem 8."""

    def surplus(x: float) -> float:
        return max(0.0, norm.pdf(x, scale=multiplier) - math.exp(epsilon) * norm.pdf(x, loc=1, scale=multiplier))

    edge = 0.5 - epsilon * multiplier**2  # to its right the privacy loss is under epsilon
    low = min(edge, 0.0) - 12 * multiplier
    pieces = [low + (edge - low) * step / 40 for step in range(41)]
    return math.fsum(quad(surplus, a, b, epsabs=0, epsrel=1e-11)[0] for a, b in pairwise(pieces))


@pytest.mark.parametrize(
    ("epsilon", "multiplier"), [(0.5, 7.032), (1, 3.731), (2, 1.994), (4, 1.081), (8, 0.600), (16, 0.344)]
)
def test_the_published_multipliers_at_delta_1e_5_are_met(epsilon: float, multiplier: float):
    assert noise_multiplier(epsilon, 1e-5) == pytest.approx(multiplier, abs=1e-3)


@pytest.mark.parametrize(("multiplier", "epsilon"), [(7.0, 0.5), (3.731, 1.0), (1.0, 2.0), (0.6, 8.0), (0.3, 20.0)])
def test_delta_is_the_integral_of_the_surplus_density(multiplier: float, epsilon: float):
    assert delta_of(multiplier, epsilon) == pytest.approx(hockey_stick(multiplier, epsilon), rel=1e-8)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-5), (2.0, 1e-7), (8.0, 1e-3)])
def test_the_multiplier_spends_exactly_the_delta_that_integration_measures(epsilon: float, delta: float):
    assert hockey_stick(noise_multiplier(epsilon, delta), epsilon) == pytest.approx(delta, rel=1e-8)


@pytest.mark.parametrize(("epsilon", "delta"), GRID)
def test_the_multiplier_is_never_under_what_its_delta_needs(epsilon: float, delta: float):
    multiplier = noise_multiplier(epsilon, delta)

    assert delta_of(multiplier, epsilon) <= delta
    assert delta_of(multiplier * (1 - 1e-8), epsilon) > delta


@pytest.mark.parametrize(("epsilon", "delta"), GRID)
def test_epsilon_and_multiplier_are_each_others_inverse(epsilon: float, delta: float):
    assert epsilon_of(noise_multiplier(epsilon, delta), delta) == pytest.approx(epsilon, rel=1e-9)


def test_less_epsilon_and_less_delta_need_more_noise():
    by_epsilon = [noise_multiplier(10.0**power, 1e-5) for power in range(-8, 7)]
    by_delta = [noise_multiplier(1.0, 10.0**power) for power in range(-200, 0, 5)]

    assert by_epsilon == sorted(by_epsilon, reverse=True)
    assert len(set(by_epsilon)) == len(by_epsilon)
    assert by_delta == sorted(by_delta, reverse=True)
    assert len(set(by_delta)) == len(by_delta)


@pytest.mark.parametrize("epsilon", [1e3, 1e6, 1e12])
def test_a_huge_epsilon_needs_about_the_root_of_half_its_inverse(epsilon: float):
    # mu^2 / 2 = epsilon to leading order; e^epsilon itself overflows
    assert noise_multiplier(epsilon, 1e-5) == pytest.approx(1 / math.sqrt(2 * epsilon), rel=0.11)


def test_an_infinite_epsilon_needs_no_noise_and_no_noise_costs_an_infinite_one():
    assert noise_multiplier(math.inf, 1e-5) == 0
    assert laplace_scale(math.inf) == 0
    assert epsilon_of(0.0, 1e-5) == math.inf
    assert delta_of(0.0, 5.0) == 1


def test_endless_noise_costs_nothing():
    assert epsilon_of(math.inf, 1e-5) == 0
    assert epsilon_of(1e6, 1e-5) == 0  # 2 Phi(mu / 2) - 1 is 4e-7 already at epsilon 0
    assert delta_of(math.inf, 0.0) == 0


def test_delta_at_epsilon_zero_is_the_total_variation():
    assert delta_of(2.0, 0.0) == pytest.approx(2 * norm.cdf(0.25) - 1, rel=1e-13)


def test_a_tiny_delta_does_not_underflow_in_the_search():
    multiplier = noise_multiplier(1.0, 1e-300)

    assert math.log(delta_of(multiplier, 1.0)) == pytest.approx(math.log(1e-300), rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0])
def test_the_classical_mechanism_wastes_noise_where_it_is_proven(epsilon: float):
    assert classical_multiplier(epsilon, 1e-5) == pytest.approx(math.sqrt(2 * math.log(125000)) / epsilon, rel=1e-12)
    assert classical_multiplier(epsilon, 1e-5) > noise_multiplier(epsilon, 1e-5)


def test_the_classical_mechanism_is_refused_above_epsilon_one_where_it_would_end_under_the_need():
    formula = math.sqrt(2 * math.log(125000)) / 16

    assert formula < noise_multiplier(16.0, 1e-5)
    with pytest.raises(UsageError, match="epsilon <= 1 only; got 16: use noise_multiplier"):
        classical_multiplier(16.0, 1e-5)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan])
def test_an_epsilon_that_is_not_positive_is_refused(epsilon: float):
    for calibrate in (noise_multiplier, classical_multiplier):
        with pytest.raises(UsageError, match="epsilon must be above 0"):
            calibrate(epsilon, 1e-5)
    with pytest.raises(UsageError, match="epsilon must be above 0"):
        laplace_scale(epsilon)


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, 2.0, math.nan])
def test_a_delta_outside_the_open_unit_interval_is_refused(delta: float):
    for calibrate in (noise_multiplier, classical_multiplier, epsilon_of):
        with pytest.raises(UsageError, match="delta must lie strictly between 0 and 1"):
            calibrate(1.0, delta)


def test_negative_multipliers_and_epsilons_are_refused():
    with pytest.raises(UsageError, match="must not be negative"):
        epsilon_of(-1.0, 1e-5)
    with pytest.raises(UsageError, match="must not be negative"):
        delta_of(-1.0, 1.0)
    with pytest.raises(UsageError, match="must not be negative"):
        delta_of(1.0, -1.0)


@pytest.mark.parametrize("releases", [1, 7, 50])
def test_releases_with_root_r_times_the_noise_cost_together_what_one_costs(releases: int):
    each = multiplier_per_release(noise_multiplier(2.0, 1e-5), releases=releases)
    together = Use(mechanism="gaussian", noise=each, sensitivity={"replace-one": 1.0}, count=releases)

    assert epsilon([together], delta=1e-5, relation="replace-one") == pytest.approx(2.0, rel=1e-9)


def test_fifty_releases_at_epsilon_eight_need_the_published_multiplier():
    assert multiplier_per_release(noise_multiplier(8.0, 1e-5), releases=50) == pytest.approx(4.24, abs=0.005)
    with pytest.raises(UsageError, match="releases must be at least 1; got 0"):
        multiplier_per_release(1.0, releases=0)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_laplace_noise_bounds_the_privacy_loss_by_epsilon(epsilon: float):
    scale = laplace_scale(epsilon)

    def loss(x: float) -> float:
        return (abs(x - 1) - abs(x)) / scale

    assert max(loss(x / 10) for x in range(-100, 101)) == pytest.approx(epsilon, rel=1e-12)
