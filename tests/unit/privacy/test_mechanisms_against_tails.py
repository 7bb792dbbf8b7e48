"""Theorem 8 of Balle & Wang term by term, where the two tails can be subtracted in float64, over all branches."""

import math

import pytest
from scipy import special
from scipy.stats import norm

from fdgsec.privacy.mechanisms import (
    classical_multiplier,
    delta_of,
    epsilon_of,
    multiplier_per_release,
    noise_multiplier,
)
from fdgsec.runtime.errors import UsageError


def two_tails(mu: float, epsilon: float) -> float:
    """Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)."""
    return float(special.ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * special.ndtr(-mu / 2 - epsilon / mu))


@pytest.mark.parametrize("mu", [0.02, 0.04, 0.0499, 0.0501, 0.3, 1.0, 1.9, 2.1, 5.0, 10.0])
@pytest.mark.parametrize("tail", [0.0, 0.3, 1.0, 2.5, 4.9, 5.1, 6.0, 8.0, 12.0, 20.0])
def test_delta_is_the_difference_of_the_two_tails(mu: float, tail: float):
    """`tail` is how far out the first of them begins: the noise of small mu meets its epsilon in far tails only."""
    epsilon = mu * (tail + mu / 2)

    # the difference has lost at most the factor 2 x / mu of its digits
    assert delta_of(1 / mu, epsilon) == pytest.approx(two_tails(mu, epsilon), rel=3e-11)


@pytest.mark.parametrize("mu", [0.01, 0.04, 0.5, 3.0])
@pytest.mark.parametrize("tail", [0.1, 4.0, 6.0, 30.0])
def test_epsilon_undoes_delta_and_the_multiplier_undoes_both(mu: float, tail: float):
    epsilon = mu * (tail + mu / 2)
    delta = delta_of(1 / mu, epsilon)

    assert epsilon_of(1 / mu, delta) == pytest.approx(epsilon, rel=1e-9)
    assert noise_multiplier(epsilon, delta) == pytest.approx(1 / mu, rel=1e-9)


def test_delta_at_epsilon_zero_is_the_total_variation_for_little_and_much_noise():
    for mu in (1e-12, 3e-10, 1e-9, 7e-8, 1e-6, 0.04, 0.3, 4.0):
        assert delta_of(1 / mu, 0.0) == pytest.approx(math.erf(mu / math.sqrt(8)), rel=1e-12)


@pytest.mark.parametrize("delta", [0.5, 0.9, 0.999])
def test_a_delta_above_one_half_is_calibrated_too(delta: float):
    multiplier = noise_multiplier(0.1, delta)

    assert two_tails(1 / multiplier, 0.1) == pytest.approx(delta, rel=1e-10)


def test_the_cost_is_zero_just_where_the_total_variation_is_within_delta():
    multiplier = 1 / (2 * norm.ppf((1 + 1e-5) / 2))  # 2 Phi(mu / 2) - 1 = 1e-5

    assert epsilon_of(multiplier * (1 + 1e-9), 1e-5) == 0
    assert 0 < epsilon_of(multiplier * (1 - 1e-9), 1e-5) < 1e-8


@pytest.mark.parametrize("epsilon", [1e-6, 0.3, 1.0, 7.0])
def test_all_epsilons_above_zero_have_a_multiplier(epsilon: float):
    assert noise_multiplier(epsilon, 1e-5) > 0
    if epsilon <= 1:
        assert classical_multiplier(epsilon, 1e-5) == pytest.approx(4.844805262605389 / epsilon, rel=1e-12)


def test_a_share_of_a_multiplier_is_refused_below_zero_and_zero_stays_zero():
    assert multiplier_per_release(0.0, releases=4) == 0
    with pytest.raises(UsageError, match="must not be negative"):
        multiplier_per_release(-1e-9, releases=4)


def test_an_epsilon_just_above_one_is_outside_the_classical_proof():
    with pytest.raises(UsageError, match="proven for epsilon <= 1"):
        classical_multiplier(1.005, 1e-5)


@pytest.mark.parametrize("mu", [1e3, 1e6, 1e9, 1e11])
def test_next_to_no_noise_costs_half_of_its_squared_mu(mu: float):
    """The terms of epsilon and of the tail are far larger than their difference, which overflows where it is rounded."""
    quantile = float(norm.ppf(1e-5))

    # the first tail alone: mu / 2 - epsilon / mu = quantile
    assert epsilon_of(1 / mu, 1e-5) == pytest.approx(mu * (mu / 2 - quantile), rel=1e-5)
    assert delta_of(1 / mu, mu * mu / 2) == pytest.approx(0.5, abs=1e-3)


def test_a_delta_below_the_smallest_float_is_zero():
    """The first tail begins at 40 standard deviations and beyond, where the slope of Mills' ratio is lost, too."""
    for multiplier in (100.0, 3.0):
        for power in range(20, 1200):
            assert delta_of(multiplier, 40 * 10 ** (power / 20 - 1)) == 0


@pytest.mark.parametrize("delta", [1e-15, 1e-100, 1e-300, 5e-324])
@pytest.mark.parametrize("multiplier", [3.0, 30.0, 3000.0])
def test_the_smallest_deltas_are_met_from_far_tails(multiplier: float, delta: float):
    epsilon = epsilon_of(multiplier, delta)

    mu = 1 / multiplier
    first, second = (float(special.log_ndtr(sign * mu / 2 - epsilon / mu)) for sign in (1, -1))
    # logarithms of the two tails, of order 700, leave ten digits of their ratio
    assert first + math.log(-math.expm1(epsilon + second - first)) == pytest.approx(math.log(delta), rel=1e-9)
