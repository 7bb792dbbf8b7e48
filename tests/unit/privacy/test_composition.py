"""Composed losses against closed forms, and the grid: fine enough, never under the true value, and no finer than needed."""

import logging
import math

import dp_accounting
import pytest
from dp_accounting import pld

from fdgsec.privacy import composition
from fdgsec.privacy.mechanisms import Step, delta_of, epsilon_of
from fdgsec.runtime.errors import UsageError


def gaussian(multiplier: float, count: int = 1, *, rate: float = 1.0) -> Step:
    return Step("gaussian", multiplier, rate, count)


def laplace(scale: float, count: int = 1, *, rate: float = 1.0) -> Step:
    return Step("laplace", scale, rate, count)


@pytest.mark.parametrize(("multiplier", "count"), [(1.0, 1), (3.0, 1), (5.0, 20), (0.5, 2)])
def test_full_gaussian_steps_cost_what_theorem_8_says_and_never_less(multiplier: float, count: int):
    exact = epsilon_of(multiplier / math.sqrt(count), 1e-5)

    found = composition.epsilon((gaussian(multiplier, count),), 1e-5)

    assert exact * (1 - 1e-9) <= found <= exact * (1 + 2e-3) + 2e-5


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_their_delta_too(epsilon: float):
    exact = delta_of(0.5, epsilon)

    assert exact * (1 - 1e-9) <= composition.delta((gaussian(1.0, 4),), epsilon) <= exact * 1.01


@pytest.mark.parametrize(("scale", "count"), [(2.0, 1), (0.5, 1), (10.0, 3)])
def test_laplace_steps_cost_at_most_their_sum(scale: float, count: int):
    found = composition.epsilon((laplace(scale, count),), 1e-9)

    assert found <= count / scale * (1 + 1e-3)
    if count == 1:
        assert found == pytest.approx(1 / scale, rel=1e-3)


def test_sampled_laplace_noise_costs_what_amplification_says():
    # pure epsilon of a q-sampled release: ln(1 + q (e^(1 / b) - 1)) (Balle, Barthe & Gaboardi 2018, Theorem 8)
    pure = math.log1p(0.1 * math.expm1(1.0))

    assert composition.epsilon((laplace(1.0, rate=0.1),), 1e-11) == pytest.approx(pure, rel=2e-3)


def on_a_fine_grid(step: dp_accounting.DpEvent, count: int) -> pld.PLDAccountant:
    accountant = pld.PLDAccountant(value_discretization_interval=1e-5)
    accountant.compose(dp_accounting.SelfComposedDpEvent(step, count))
    return accountant


@pytest.mark.medium
def test_a_first_grid_that_is_far_too_coarse_is_refined():
    """Rare steps of Laplace noise: by the first grid, epsilon is .75 and not .32; rare Gaussian ones: delta is 9% off."""
    rare = dp_accounting.PoissonSampledDpEvent(1e-3, dp_accounting.LaplaceDpEvent(1.0))
    fine = on_a_fine_grid(rare, 10_000).get_epsilon(1e-5)

    assert composition.epsilon((laplace(1.0, 10_000, rate=1e-3),), 1e-5) == pytest.approx(fine, rel=5e-3)

    rare = dp_accounting.PoissonSampledDpEvent(1e-3, dp_accounting.GaussianDpEvent(4.0))
    fine = on_a_fine_grid(rare, 100_000).get_delta(0.188)

    assert composition.delta((gaussian(4.0, 100_000, rate=1e-3),), 0.188) == pytest.approx(fine, rel=0.02)


@pytest.mark.medium
def test_sampling_less_costs_less_and_more_steps_cost_more():
    few, half, many = (
        composition.epsilon((gaussian(1.0, count, rate=rate),), 1e-5)
        for count, rate in ((10, 0.05), (10, 0.1), (40, 0.1))
    )

    assert few < half < many


@pytest.mark.parametrize("epsilon", [0.0, 0.2])
def test_delta_at_a_small_epsilon_is_the_distance_of_two_laplace_laws(epsilon: float):
    # 1 - e^((epsilon - 1 / b) / 2) for one release at distance 1 (Balle & Wang 2018's companion bound is exact here)
    assert composition.delta((laplace(1.0),), epsilon) == pytest.approx(1 - math.exp((epsilon - 1) / 2), rel=1e-3)


def test_delta_beyond_the_pure_epsilon_is_zero():
    assert composition.delta((laplace(2.0),), 0.501) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("delta", [1e-13, 0.99e-12])
def test_a_delta_that_is_not_resolved_is_refused(delta: float):
    with pytest.raises(UsageError, match="not resolved at delta"):
        composition.epsilon((gaussian(1.0),), delta)


def test_the_smallest_delta_is_resolved():
    assert composition.epsilon((gaussian(1.0),), 1e-12) == pytest.approx(epsilon_of(1.0, 1e-12), rel=3e-3)


@pytest.mark.parametrize("count", [1, 16])
def test_renyi_accounting_of_gaussian_steps_is_the_best_order_of_the_exact_curve(count: int):
    # alpha mu^2 / 2 at each order, converted as in Canonne, Kamath & Steinke 2020, Proposition 12
    rho = count / (2 * 4.0**2)
    best = min(
        rho * order + math.log1p(-1 / order) - math.log(1e-5 * order) / (order - 1)
        for order in (1 + step / 100 for step in range(5, 6300))
    )

    assert composition.renyi_epsilon((gaussian(4.0, count),), 1e-5) == pytest.approx(best, rel=2e-3)


def test_renyi_accounting_takes_laplace_noise_only_without_sampling():
    assert composition.renyi_epsilon((laplace(2.0),), 1e-5) == pytest.approx(0.5, rel=0.05)
    assert composition.renyi_epsilon((gaussian(2.0, rate=0.1),), 1e-5) > 0
    with pytest.raises(UsageError, match="cannot compose sampled Laplace noise"):
        composition.renyi_epsilon((gaussian(2.0), laplace(2.0, rate=0.5)), 1e-5)


@pytest.mark.parametrize("level", [logging.DEBUG, logging.CRITICAL])
def test_accounting_leaves_the_librarys_logger_as_it_was(level: int):
    logger = logging.getLogger("absl")
    before = logger.level
    try:
        logger.setLevel(level)
        composition.renyi_epsilon.__wrapped__((gaussian(0.9, 7, rate=0.2),), 1e-6)
        assert logger.level == level
    finally:
        logger.setLevel(before)
