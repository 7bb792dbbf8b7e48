import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import beta, binom, norm

from fdgsec.privacy.epsilon_bounds import (
    AuditResult,
    audit_runs,
    exceeds,
    multi_run_ceiling,
    multi_run_lower_bound,
    strongest,
    summary,
)
from fdgsec.privacy.mechanisms import delta_of
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream

DELTA = 1e-5


def separated(runs: int, mu: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = stream(seed, "attack", "audit")
    noise = torch.randn(2, runs, generator=rng, dtype=torch.float64)
    return noise[0], noise[1] + mu


def slow_gaussian_bound(wrong_out: int, n_out: int, wrong_in: int, n_in: int) -> float:
    """Bound both rates by scipy's beta quantile, take mu from them, and solve Theorem 8 for epsilon by bisection."""
    fpr = beta.ppf(0.975, wrong_out + 1, n_out - wrong_out)
    fnr = beta.ppf(0.975, wrong_in + 1, n_in - wrong_in)
    mu = norm.ppf(1 - fpr) - norm.ppf(fnr)
    return float(brentq(lambda epsilon: delta_of(1 / mu, epsilon) - DELTA, 0, 200)) if mu > 0 else 0.0


def result(lower_bound: float, claimed_epsilon: float = 1.0, confidence: float = 0.95, repeats: int = 1) -> AuditResult:
    return AuditResult(
        lower_bound=lower_bound,
        ceiling=9.0,
        confidence=confidence,
        repeats=repeats,
        auditor="gaussian",
        claimed_epsilon=claimed_epsilon,
        delta=DELTA,
        unit="record",
    )


def test_the_gaussian_bound_is_the_one_of_the_error_counts_at_a_fixed_threshold():
    absent, present = [-1.0] * 95 + [1.0] * 5, [1.0] * 180 + [-1.0] * 20

    bound = multi_run_lower_bound(absent, present, delta=DELTA, threshold=0.0)

    assert bound == pytest.approx(slow_gaussian_bound(5, 100, 20, 200), rel=1e-9)


def test_the_approximate_bound_is_the_larger_of_the_two_logarithms():
    absent, present = [-1.0] * 99 + [1.0], [1.0] * 150 + [-1.0] * 50
    fpr, fnr = beta.ppf(0.975, 2, 99), beta.ppf(0.975, 51, 150)

    bound = multi_run_lower_bound(absent, present, delta=0.01, threshold=0.0, curve="approximate")

    assert bound == pytest.approx(math.log((1 - 0.01 - fnr) / fpr), rel=1e-9)
    assert bound > math.log((1 - 0.01 - fpr) / fnr)


def test_only_the_second_half_is_judged_by_the_threshold_of_the_first():
    absent = [0.0] * 50 + [0.0] * 45 + [9.0] * 5
    present = [9.0] * 50 + [9.0] * 40 + [0.0] * 10

    assert multi_run_lower_bound(absent, present, delta=DELTA) == pytest.approx(
        slow_gaussian_bound(5, 50, 10, 50), rel=1e-9
    )


def test_scores_that_fall_with_the_canary_prove_as_much_as_scores_that_rise():
    absent, present = separated(400, 2.0)

    assert multi_run_lower_bound(-absent, -present, delta=DELTA) == pytest.approx(
        multi_run_lower_bound(absent, present, delta=DELTA), rel=1e-9
    )


def test_thousands_of_runs_prove_most_of_a_gaussian_mechanisms_epsilon():
    absent, present = separated(20_000, 1 / 1.0812)  # sd / sensitivity of epsilon 4

    bound = multi_run_lower_bound(absent, present, delta=DELTA)

    assert 3.4 < bound < 4.0


@pytest.mark.parametrize("curve", ["gaussian", "approximate"])
def test_equal_scores_prove_nothing(curve: str):
    chosen = "gaussian" if curve == "gaussian" else "approximate"
    absent, _ = separated(1000, 0.0)

    assert multi_run_lower_bound(absent, absent, delta=DELTA, curve=chosen) == 0
    assert multi_run_lower_bound([1.0] * 100, [1.0] * 100, delta=DELTA, curve=chosen) == 0


def test_errorless_scores_reach_the_ceiling():
    absent, present = torch.zeros(2000), torch.ones(2000)
    rate = 1 - 0.025 ** (1 / 1000)  # Clopper-Pearson's upper bound after 1,000 runs without an error

    assert multi_run_lower_bound(absent, present, delta=DELTA) == multi_run_ceiling(2000, delta=DELTA)
    assert multi_run_ceiling(2000, delta=DELTA) == pytest.approx(slow_gaussian_bound(0, 1000, 0, 1000), rel=1e-9)
    assert multi_run_ceiling(2000, delta=DELTA, curve="approximate") == pytest.approx(
        math.log((1 - DELTA - rate) / rate), rel=1e-9
    )


def test_a_constant_offset_shared_by_all_runs_is_caught_as_deterministic():
    # noise reused: one draw in every run, so that the canary alone tells the runs apart
    offset = 12.345

    bound = multi_run_lower_bound([offset] * 2000, [offset + 1e-3] * 2000, delta=DELTA)

    assert bound == multi_run_ceiling(2000, delta=DELTA) > 30


@pytest.mark.medium
def test_bounds_at_95_percent_are_above_the_truth_in_at_most_one_repeat_of_twenty():
    above, repeats = 0, 400
    for seed in range(repeats):
        absent, present = separated(400, 1.0, seed)
        bound = multi_run_lower_bound(absent, present, delta=DELTA)
        above += bound > 0 and delta_of(1.0, bound) < DELTA

    assert above <= binom.ppf(0.999, repeats, 0.05)


def test_audit_runs_puts_bound_and_ceiling_beside_the_claim():
    absent, present = separated(2000, 5.0)

    found = audit_runs(absent, present, claimed_epsilon=2.0, delta=DELTA, unit="client")

    assert found == AuditResult(
        lower_bound=multi_run_lower_bound(absent, present, delta=DELTA),
        ceiling=multi_run_ceiling(2000, delta=DELTA),
        confidence=0.95,
        repeats=1,
        auditor="gaussian",
        claimed_epsilon=2.0,
        delta=DELTA,
        unit="client",
    )
    assert found.exceeded


@pytest.mark.parametrize(("above", "repeats"), [(1, 1), (2, 5), (5, 40), (10, 100)])
def test_a_claim_fails_where_more_bounds_exceed_it_than_chance_allows(above: int, repeats: int):
    results = [result(1.5)] * above + [result(0.5)] * (repeats - above)

    assert binom.sf(above - 1, repeats, 0.05) <= 0.05 + 1e-9
    assert exceeds(results)


@pytest.mark.parametrize(("above", "repeats"), [(0, 1), (0, 40), (1, 2), (4, 40), (9, 100)])
def test_a_claim_stands_where_chance_explains_the_bounds_above_it(above: int, repeats: int):
    results = [result(1.5)] * above + [result(1.0)] * (repeats - above)

    assert not exceeds(results)


def test_a_stricter_alpha_needs_more_bounds_above_the_claim():
    results = [result(1.5)] * 6 + [result(0.5)] * 34

    assert exceeds(results, alpha=0.05)
    assert not exceeds(results, alpha=0.01)


@pytest.mark.parametrize("other", [result(1.0, claimed_epsilon=2.0), result(1.0, confidence=0.9)])
def test_results_of_different_claims_are_not_counted_together(other: AuditResult):
    with pytest.raises(ValueError, match="one claim and auditor"):
        exceeds([result(1.0), other])


def test_summaries_are_not_counted_as_one_repeat():
    with pytest.raises(ValueError, match="one by one"):
        exceeds([result(2.0, repeats=40)])
    with pytest.raises(ValueError, match="one claim and auditor"):
        exceeds([])


@pytest.mark.parametrize(("bounds", "middle"), [([3.0, 1.0, 2.0], 2.0), ([4.0, 1.0, 2.0, 3.0], 2.0), ([0.5], 0.5)])
def test_a_summary_reports_the_median_bound_and_how_many_stand_behind_it(bounds: Sequence[float], middle: float):
    found = summary([result(bound) for bound in bounds])

    assert (found.lower_bound, found.repeats, found.ceiling) == (middle, len(bounds), 9.0)


def test_the_strongest_of_joint_bounds_is_the_largest_at_the_confidence_of_all():
    found = strongest([result(1.0, confidence=0.975), result(3.0, confidence=0.975)], confidence=0.95)

    assert (found.lower_bound, found.confidence, found.repeats) == (3.0, 0.95, 1)


def test_bounds_that_do_not_hold_jointly_are_not_joined():
    with pytest.raises(ValueError, match="do not hold jointly"):
        strongest([result(1.0), result(3.0)], confidence=0.95)
    with pytest.raises(ValueError, match="no bounds"):
        strongest([], confidence=0.95)


def test_audits_without_enough_runs_or_with_broken_scores_are_refused():
    with pytest.raises(ValueError, match="needs 4 runs of each kind; got 3 and 9"):
        multi_run_lower_bound([0.0] * 3, [1.0] * 9, delta=DELTA)
    with pytest.raises(ValueError, match="present must be finite"):
        multi_run_lower_bound([0.0] * 9, [math.nan] * 9, delta=DELTA)
    with pytest.raises(UsageError, match="delta must lie strictly"):
        multi_run_lower_bound(np.zeros(9), np.ones(9), delta=0.0)
    with pytest.raises(UsageError, match="confidence must lie strictly"):
        multi_run_ceiling(100, delta=DELTA, confidence=1.0)


def test_a_bound_above_its_ceiling_is_no_result():
    with pytest.raises(ValueError, match="between 0 and its ceiling"):
        result(10.0)
