import math
from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fdgsec.privacy.accounting import Relation, Use, delta, epsilon
from fdgsec.privacy.epsilon_bounds import multi_run_ceiling, multi_run_lower_bound
from fdgsec.privacy.ledger import epsilon_text
from fdgsec.privacy.mechanisms import delta_of, epsilon_of, noise_multiplier
from fdgsec.privacy.one_run_bounds import ceiling, one_run_lower_bound, p_value

quick = settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])  # shared machines
few = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
epsilons = st.floats(-4, 4).map(lambda power: 10.0**power)
deltas = st.floats(-12, -0.1).map(lambda power: 10.0**power)
multipliers = st.floats(-2, 3).map(lambda power: 10.0**power)
scores = st.lists(st.integers(-40, 40).map(lambda tick: tick / 8), min_size=4, max_size=60)
EITHER: Mapping[Relation, float] = {"zero-out": 1.0, "add-remove": 1.0}


@st.composite
def releases(draw: st.DrawFn) -> Use:
    sampled = draw(st.booleans())
    return Use(
        mechanism="gaussian" if sampled or draw(st.booleans()) else "laplace",
        noise=draw(st.floats(0.8, 20)),
        sensitivity=EITHER,
        sampling_rate=draw(st.floats(0.01, 0.5)) if sampled else 1.0,
        count=draw(st.integers(1, 50)),
    )


@quick
@given(epsilons, deltas)
def test_a_calibrated_multiplier_meets_its_delta_and_a_little_less_does_not(epsilon: float, delta: float) -> None:
    multiplier = noise_multiplier(epsilon, delta)

    assert delta_of(multiplier, epsilon) <= delta
    assert delta_of(multiplier * (1 - 1e-7), epsilon) > delta


@quick
@given(multipliers, deltas, st.floats(1.001, 10))
def test_more_noise_never_costs_more(multiplier: float, delta: float, factor: float) -> None:
    assert epsilon_of(multiplier * factor, delta) <= epsilon_of(multiplier, delta)


@quick
@given(multipliers, st.floats(0, 50), st.floats(0, 5))
def test_delta_falls_with_epsilon_and_stays_a_probability(multiplier: float, epsilon: float, more: float) -> None:
    assert 0 <= delta_of(multiplier, epsilon + more) <= delta_of(multiplier, epsilon) * (1 + 1e-9) <= 1 + 1e-9


@pytest.mark.slow
@few
@given(st.lists(releases(), min_size=1, max_size=3), st.floats(-8, -2).map(lambda power: 10.0**power))
def test_renyi_accounting_never_undercuts_the_loss_distribution(uses: list[Use], delta: float) -> None:
    renyi = epsilon(uses, delta=delta, relation="zero-out", accountant="rdp")

    # 2e-3 is what the grid of the loss distribution may add to the exact value
    assert renyi >= epsilon(uses, delta=delta, relation="zero-out") * (1 - 2e-3) - 1e-4


@pytest.mark.slow
@few
@given(st.lists(releases(), min_size=1, max_size=2), releases())
def test_another_release_never_lowers_the_cost(uses: list[Use], one_more: Use) -> None:
    before = epsilon(uses, delta=1e-5, relation="add-remove")

    assert epsilon([*uses, one_more], delta=1e-5, relation="add-remove") >= before * (1 - 2e-3) - 1e-4


@pytest.mark.slow
@few
@given(st.lists(releases(), min_size=1, max_size=2))
def test_delta_at_the_epsilon_of_a_composition_is_that_delta(uses: list[Use]) -> None:
    at = epsilon(uses, delta=1e-4, relation="zero-out")

    if at > 0:
        assert math.isclose(delta(uses, epsilon=at, relation="zero-out"), 1e-4, rel_tol=0.1)


@st.composite
def guesses(draw: st.DrawFn) -> tuple[int, int, int]:
    m = draw(st.integers(1, 300))
    guessed = draw(st.integers(0, m))
    return m, guessed, draw(st.integers(0, guessed))


@quick
@given(guesses(), st.floats(0, 10), st.sampled_from([0.0, 1e-9, 1e-5, 1e-2]))
def test_one_run_pvalues_are_probabilities_and_fall_with_every_right_guess(
    audit: tuple[int, int, int], epsilon: float, delta: float
) -> None:
    m, guessed, correct = audit
    one = p_value(m, guessed, correct, epsilon=epsilon, delta=delta)

    assert 0 <= one <= 1
    if correct < guessed:
        assert p_value(m, guessed, correct + 1, epsilon=epsilon, delta=0.0) <= p_value(
            m, guessed, correct, epsilon=epsilon, delta=0.0
        )


@quick
@given(guesses(), st.sampled_from([0.0, 1e-9, 1e-5, 1e-2]))
def test_one_run_bounds_lie_between_zero_and_their_ceiling(audit: tuple[int, int, int], delta: float) -> None:
    m, guessed, correct = audit

    assert 0 <= one_run_lower_bound(m, guessed, correct, delta) <= ceiling(m, guessed, delta)


@quick
@given(scores, scores, st.booleans())
@pytest.mark.medium
def test_multi_run_bounds_lie_between_zero_and_their_ceiling(
    absent: list[float], present: list[float], gaussian: bool
) -> None:
    curve = "gaussian" if gaussian else "approximate"
    bound = multi_run_lower_bound(absent, present, delta=1e-5, curve=curve)

    assert 0 <= bound <= multi_run_ceiling(max(len(absent), len(present)), delta=1e-5, curve=curve) + 1e-9


@quick
@given(scores, scores, st.sampled_from([0.25, 8.0]))
@pytest.mark.medium
def test_the_scale_of_the_scores_changes_no_bound(absent: list[float], present: list[float], scale: float) -> None:
    scaled = [[scale * score for score in group] for group in (absent, present)]  # exact in binary

    assert multi_run_lower_bound(*scaled, delta=1e-5) == multi_run_lower_bound(absent, present, delta=1e-5)


@quick
@given(epsilons)
def test_an_epsilon_is_never_written_smaller_than_it_is(value: float):
    """To the nearest digit, 9.1720001 would be promised as 9.172."""
    assert value * (1 - 1e-11) <= float(epsilon_text(value)) <= value * 1.00101
