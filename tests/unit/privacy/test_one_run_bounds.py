import math

import pytest
import torch

from fdgsec.privacy.one_run_bounds import audit_one_run, ceiling, one_run_lower_bound, p_value, right_guesses
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream


def slow_p_value(m: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Sum the formula term by term, every i from 1 to m, with exact binomial coefficients."""
    right = math.exp(epsilon) / (1 + math.exp(epsilon))
    mass = [math.comb(guesses, k) * right**k * (1 - right) ** (guesses - k) for k in range(guesses + 1)]
    at_least = math.fsum(mass[correct:])
    nearly = max(math.fsum(mass[max(0, correct - i) : correct]) / i for i in range(1, m + 1))
    return min(1.0, at_least + 2 * m * delta * nearly)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 2.5, 6.0])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-2])
@pytest.mark.parametrize(("m", "guesses", "correct"), [(1024, 102, 90), (100, 100, 60), (50, 20, 20), (30, 7, 2)])
def test_the_p_value_is_the_formula_summed_term_by_term(
    m: int, guesses: int, correct: int, epsilon: float, delta: float
):
    found = p_value(m, guesses, correct, epsilon=epsilon, delta=delta)

    assert found == pytest.approx(slow_p_value(m, guesses, correct, epsilon, delta), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("guesses", "limit"), [(20, 1.79), (50, 2.76), (100, 3.46), (200, 4.17), (500, 5.09)])
def test_the_published_ceilings_of_1024_canaries_are_met(guesses: int, limit: float):
    assert ceiling(1024, guesses, 1e-5) == pytest.approx(limit, abs=0.005)


@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-3])
@pytest.mark.parametrize(("m", "guesses", "correct"), [(1024, 102, 90), (200, 200, 150), (64, 40, 40)])
def test_every_epsilon_under_the_bound_is_rejected_and_the_bound_is_not(
    m: int, guesses: int, correct: int, delta: float
):
    bound = one_run_lower_bound(m, guesses, correct, delta)

    assert all(slow_p_value(m, guesses, correct, bound * step / 12, delta) < 0.05 for step in range(12))
    assert slow_p_value(m, guesses, correct, bound + 1e-6, delta) >= 0.05


@pytest.mark.parametrize("correct", [0, 10, 51, 55])
def test_guesses_that_a_coin_could_have_made_prove_nothing(correct: int):
    assert one_run_lower_bound(1024, 102, correct, 1e-5) == 0


def test_without_delta_all_right_of_r_prove_what_one_line_of_algebra_says():
    # q^r = 0.05 with q = e^eps / (1 + e^eps)
    q = 0.05 ** (1 / 30)

    assert one_run_lower_bound(500, 30, 30, 0.0) == pytest.approx(math.log(q / (1 - q)), abs=1e-8)


def test_a_delta_of_one_in_the_number_of_canaries_swamps_any_evidence():
    assert one_run_lower_bound(1000, 100, 100, 0.1) == 0


def test_a_higher_confidence_proves_less():
    bounds = [one_run_lower_bound(1024, 102, 95, 1e-5, confidence) for confidence in (0.9, 0.95, 0.99)]

    assert bounds == sorted(bounds, reverse=True)
    assert len(set(bounds)) == 3


def test_half_of_the_guesses_call_the_highest_in_and_half_the_lowest_out():
    scores = [5.0, 4.0, 3.0, 2.0, 1.0, 0.0]
    included = torch.tensor([True, False, True, False, True, False])

    assert right_guesses(scores, included, guesses=2) == 2
    assert right_guesses(scores, included, guesses=3) == 2  # the odd guess calls the second highest in: wrong
    assert right_guesses(scores, included, guesses=4) == 2
    assert right_guesses(scores, included, guesses=6) == 4


def test_an_audit_puts_its_ceiling_beside_a_saturated_bound():
    included = torch.rand(1024, generator=stream(0, "attack")) < 0.5

    found = audit_one_run(included.to(torch.float64), included, guesses=102, claimed_epsilon=4.0, delta=1e-5)

    assert found.lower_bound == found.ceiling == pytest.approx(3.485, abs=0.001)
    assert found.auditor == "one-run"
    assert not found.exceeded


def test_impossible_counts_are_refused():
    with pytest.raises(UsageError, match="0 <= right <= guesses <= canaries; got 5, 4 and 10"):
        one_run_lower_bound(10, 4, 5, 1e-5)
    with pytest.raises(UsageError, match="got 4, 20 and 10"):
        p_value(10, 20, 4, epsilon=1.0, delta=0.0)
    with pytest.raises(UsageError, match="epsilon must not be negative"):
        p_value(10, 4, 2, epsilon=-1.0, delta=0.0)
    with pytest.raises(UsageError, match=r"delta must lie in \[0, 1\)"):
        ceiling(10, 4, 1.0)
    with pytest.raises(UsageError, match="confidence must lie strictly"):
        one_run_lower_bound(10, 4, 2, 0.0, confidence=0.0)
    with pytest.raises(ValueError, match="guesses must lie between 1 and 3"):
        right_guesses([1.0, 2.0, 3.0], torch.ones(3, dtype=torch.bool), guesses=4)
    with pytest.raises(ValueError, match="included must be bool"):
        right_guesses([1.0, 2.0, 3.0], torch.ones(3), guesses=2)
