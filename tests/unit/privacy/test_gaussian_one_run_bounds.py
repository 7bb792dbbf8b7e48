"""The one-run bound on mu: against a linear program, simulated audits of a Gaussian mechanism, and the (epsilon, delta) bound."""

import math

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from fdgsec.privacy import mechanisms
from fdgsec.privacy.gaussian_one_run_bounds import (
    gaussian_ceiling,
    gaussian_p_value,
    is_possible,
    one_run_gaussian_lower_bound,
    one_run_mu_lower_bound,
)
from fdgsec.privacy.one_run_bounds import ceiling, one_run_lower_bound, right_guesses
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream


def slow_largest_tail(m: int, guesses: int, correct: int, mu: float) -> float:
    """Maximize P[right >= correct] over all distributions of the number right, with G replaced by its tangents.

    Tangents lie above a concave function: the program is looser, by little with many of them."""
    places = np.concatenate([np.geomspace(1e-9, 0.5, 400), 1 - np.geomspace(1e-9, 0.5, 400)])
    heights = stats.norm.cdf(stats.norm.ppf(places) + mu)
    slopes = stats.norm.pdf(stats.norm.ppf(heights)) / stats.norm.pdf(stats.norm.ppf(places))
    counts = np.arange(guesses + 1)
    rows, limits = [], []
    for least in range(1, guesses + 1):
        right = np.where(counts >= least, counts / m, 0.0)
        wrong = np.where(counts >= least - 1, (guesses - counts) / m, 0.0)
        for place, height, slope in zip(places, heights, slopes, strict=True):
            rows.append(right - slope * wrong)  # R_i <= G(x) + G'(x) (H_{i-1} - x)
            limits.append(height - slope * place)
    found = optimize.linprog(
        -(counts >= correct).astype(float), A_ub=np.array(rows), b_ub=np.array(limits),
        A_eq=np.ones((1, guesses + 1)), b_eq=[1.0], bounds=(0, 1), method="highs",
    )  # fmt: skip
    assert found.fun is not None
    return -float(found.fun)


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.0])
@pytest.mark.parametrize(("m", "guesses", "correct"), [(12, 12, 9), (12, 12, 12), (20, 8, 7), (20, 8, 5)])
def test_the_p_value_is_the_largest_tail_that_a_linear_program_finds(m: int, guesses: int, correct: int, mu: float):
    found = gaussian_p_value(m, guesses, correct, mu=mu)

    assert found == pytest.approx(slow_largest_tail(m, guesses, correct, mu), rel=2e-3, abs=1e-6)


def gaussian_mechanism(mu: float, m: int, *, run: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inclusion of every canary, and the release: inclusion times mu plus standard normal noise, one number each."""
    rng = stream(run, "attack", "simulated audit")
    included = torch.rand(m, generator=rng) < 0.5
    return included, included.double() * mu + torch.randn(m, generator=rng, dtype=torch.float64)


@pytest.mark.parametrize(("mu", "m", "guesses"), [(0.5, 500, 50), (1.0, 500, 50), (1.0, 100, 100), (2.0, 300, 150)])
def test_bounds_of_a_known_gaussian_mechanism_lie_below_its_mu(mu: float, m: int, guesses: int):
    bounds, published = [], []
    counted = dict[int, tuple[float, float]]()
    for run in range(1000):
        included, release = gaussian_mechanism(mu, m, run=run)
        right = right_guesses(release, included, guesses=guesses)
        if right not in counted:
            counted[right] = (one_run_mu_lower_bound(m, guesses, right), one_run_lower_bound(m, guesses, right, 1e-5))
        bounds.append(counted[right][0])
        published.append(counted[right][1])

    assert sum(bound < mu for bound in bounds) >= 950
    epsilons = [mechanisms.epsilon_of(1 / bound, 1e-5) if bound else 0.0 for bound in bounds]
    assert sum(epsilons) > 1.3 * sum(published)


def test_a_sum_of_all_canaries_that_one_canary_moves_by_mu_is_bounded_as_well():
    mu, m, guesses, above = 1.0, 100, 50, 0
    for run in range(2000):
        rng = stream(run, "attack", "shared noise")
        included = torch.rand(m, generator=rng) < 0.5
        release = float((2.0 * included.double() - 1).sum()) * mu / 2 + float(torch.randn(1, generator=rng))
        right = int((included[:guesses] == (release > 0)).sum())
        above += one_run_mu_lower_bound(m, guesses, right) > mu

    assert above / 2000 <= 0.05


@pytest.mark.parametrize("guesses", [20, 102, 204, 512, 1024])
def test_the_bound_is_above_the_one_at_a_single_epsilon_and_delta_wherever_there_is_evidence(guesses: int):
    step = max(1, guesses // 20)
    for correct in range(guesses, guesses // 2, -step):
        tighter = one_run_gaussian_lower_bound(1024, guesses, correct, 1e-5, 0.975)
        looser = one_run_lower_bound(1024, guesses, correct, 1e-5, 0.975)

        assert tighter > 1.1 * looser or looser < 0.05  # both are next to nothing there


@pytest.mark.parametrize(("m", "guesses", "correct"), [(1024, 102, 90), (64, 40, 40), (200, 200, 150)])
def test_every_mu_under_the_bound_is_rejected_and_the_bound_is_not(m: int, guesses: int, correct: int):
    bound = one_run_mu_lower_bound(m, guesses, correct)

    assert bound > 0
    assert all(gaussian_p_value(m, guesses, correct, mu=bound * step / 6) < 0.05 for step in range(6))
    assert is_possible(m, guesses, correct, 0.05, mu=bound + 1e-6)


def test_the_p_value_falls_with_every_right_guess_and_rises_with_mu():
    by_right = [gaussian_p_value(200, 50, right, mu=0.5) for right in range(34, 51, 4)]
    by_mu = [gaussian_p_value(200, 50, 45, mu=mu) for mu in (0.1, 0.5, 1.0, 2.0)]

    assert by_right == sorted(by_right, reverse=True)
    assert by_mu == sorted(by_mu)
    assert len(set(by_right)) == 5


def test_without_evidence_the_bound_is_zero_and_a_higher_confidence_proves_less():
    assert one_run_mu_lower_bound(1024, 102, 51) == 0
    assert one_run_gaussian_lower_bound(1024, 102, 0, 1e-5) == 0
    bounds = [one_run_mu_lower_bound(1024, 102, 95, confidence) for confidence in (0.9, 0.95, 0.99)]
    assert bounds == sorted(bounds, reverse=True)


def test_a_ceiling_is_the_bound_of_no_error_and_lies_above_the_other_one():
    assert gaussian_ceiling(1024, 102, 1e-5) == one_run_gaussian_lower_bound(1024, 102, 102, 1e-5)
    assert gaussian_ceiling(1024, 102, 1e-5) > ceiling(1024, 102, 1e-5)
    assert math.isfinite(gaussian_ceiling(1024, 1024, 1e-5))


def test_impossible_arguments_are_refused():
    with pytest.raises(UsageError, match="0 <= right <= guesses <= canaries; got 5, 4 and 10"):
        one_run_mu_lower_bound(10, 4, 5)
    with pytest.raises(UsageError, match="confidence must lie strictly"):
        one_run_mu_lower_bound(10, 4, 2, 1.0)
    with pytest.raises(UsageError, match="delta must lie strictly"):
        gaussian_ceiling(10, 4, 0.0)
    with pytest.raises(UsageError, match="mu is at least 0"):
        is_possible(10, 4, 2, 0.5, mu=-1.0)
