import math
import time
import warnings
from collections.abc import Mapping

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.integrate import trapezoid
from scipy.stats import norm

from fdgsec.privacy.accounting import AdjacencyError, Relation, Use, calibrated_noise, delta, epsilon
from fdgsec.privacy.mechanisms import epsilon_of, multiplier_per_release, noise_multiplier
from fdgsec.runtime.errors import UsageError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Opacus's imports warn of what this test does not use
    from opacus.accountants import PRVAccountant, RDPAccountant

EITHER: Mapping[Relation, float] = {"zero-out": 1.0, "add-remove": 1.0}


def steps(noise: float, rate: float, count: int) -> Use:
    return Use(mechanism="gaussian", noise=noise, sensitivity=EITHER, sampling_rate=rate, count=count)


def laplace(scale: float, count: int = 1) -> Use:
    return Use(mechanism="laplace", noise=scale, sensitivity=EITHER, count=count)


def sampled_delta(noise: float, rate: float, epsilon: float) -> float:
    """Integrate the surplus of each of (1 - q) N(0) + q N(1) and N(0) over e^epsilon times the other."""
    x = np.linspace(-12 * noise, 1 + 12 * noise, 400_001)
    absent = norm.pdf(x, scale=noise)
    present = (1 - rate) * absent + rate * norm.pdf(x, loc=1, scale=noise)
    surplus = [
        np.clip(one - math.exp(epsilon) * other, 0, None) for one, other in ((present, absent), (absent, present))
    ]
    return max(float(trapezoid(one, x)) for one in surplus)


def twice_sampled_delta(noise: float, rate: float, epsilon: float) -> float:
    """Sum over a grid of two independent outputs what their joint loss leaves above epsilon (record present or not)."""
    x = np.linspace(-8 * noise, 1 + 8 * noise, 1501)
    width = x[1] - x[0]
    absent = norm.pdf(x, scale=noise)
    present = (1 - rate) * absent + rate * norm.pdf(x, loc=1, scale=noise)
    found = []
    for one, other in ((present, absent), (absent, present)):
        loss = np.log(one) - np.log(other)
        surplus = np.clip(1 - np.exp(epsilon - loss[:, None] - loss[None, :]), 0, None)
        found.append(float(one @ surplus @ one) * width**2)
    return max(found)


@pytest.mark.parametrize(("noise", "rate", "at"), [(1.0, 0.1, 0.5), (0.7, 0.3, 1.0), (2.0, 0.5, 0.4)])
def test_one_sampled_step_costs_what_integration_says_and_not_less(noise: float, rate: float, at: float):
    exact = sampled_delta(noise, rate, at)

    found = delta([steps(noise, rate, 1)], epsilon=at, relation="add-remove")

    assert exact * (1 - 1e-6) <= found <= exact * 1.01


def test_two_sampled_steps_cost_what_a_sum_over_both_outputs_says():
    exact = twice_sampled_delta(1.0, 0.2, 0.8)

    found = delta([steps(1.0, 0.2, 2)], epsilon=0.8, relation="zero-out")

    assert exact * (1 - 1e-4) <= found <= exact * 1.01


@pytest.mark.parametrize(("noise", "rate", "count"), [(1.0, 0.01, 1000), (0.8, 0.02, 500), (2.0, 0.2, 50)])
def test_opacus_agrees_within_two_percent_on_renyi_and_on_loss_distributions(noise: float, rate: float, count: int):
    renyi, distribution = RDPAccountant(), PRVAccountant()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus warns where the best order is an end of its list
        for accountant in (renyi, distribution):
            accountant.history = [(noise, rate, count)]
        theirs = [renyi.get_epsilon(1e-5), distribution.get_epsilon(1e-5)]
    ours = [
        epsilon([steps(noise, rate, count)], delta=1e-5, relation="add-remove", accountant=name)
        for name in ("rdp", "pld")
    ]

    assert ours == pytest.approx(theirs, rel=0.02)


def test_a_thousand_steps_at_one_percent_cost_what_both_libraries_said():
    # dp-accounting 0.6.0 on a grid of 1e-5 nats (1.82818) and its Renyi accountant (2.10137)
    assert epsilon([steps(1.0, 0.01, 1000)], delta=1e-5, relation="zero-out") == pytest.approx(1.82818, rel=1e-3)
    assert epsilon([steps(1.0, 0.01, 1000)], delta=1e-5, relation="zero-out", accountant="rdp") == pytest.approx(
        2.10137, rel=1e-4
    )


@pytest.mark.parametrize("uses", [[laplace(2.0, 3)], [steps(1.0, 1.0, 5)], [steps(3.0, 0.3, 40), laplace(5.0)]])
def test_renyi_accounting_is_the_looser_of_the_two(uses: list[Use]):
    tight = epsilon(uses, delta=1e-5, relation="zero-out")

    assert tight < epsilon(uses, delta=1e-5, relation="zero-out", accountant="rdp") < 1.5 * tight


def test_full_gaussian_releases_compose_as_the_loss_distribution_of_each_composed_r_times():
    each = multiplier_per_release(noise_multiplier(8.0, 1e-5), releases=50)
    one = privacy_loss_distribution.from_gaussian_mechanism(each, value_discretization_interval=1e-3)

    composed = float(one.self_compose(50).get_epsilon_for_delta(1e-5))

    assert composed == pytest.approx(8.0, rel=2e-3)
    assert epsilon([steps(each, 1.0, 50)], delta=1e-5, relation="zero-out") == pytest.approx(composed, rel=2e-3)


def test_unlike_gaussian_releases_add_up_in_squared_mu():
    uses = [steps(2.0, 1.0, 3), Use(mechanism="gaussian", noise=10.0, sensitivity={"zero-out": 4.0}, count=2)]

    assert epsilon(uses, delta=1e-6, relation="zero-out") == pytest.approx(
        epsilon_of(1 / math.sqrt(3 / 4 + 2 * 0.16), 1e-6), rel=1e-12
    )


def test_sampling_at_a_rate_of_almost_one_costs_what_no_sampling_costs():
    almost = epsilon([steps(5.0, 1 - 1e-9, 20)], delta=1e-5, relation="zero-out")

    assert almost == pytest.approx(epsilon([steps(5.0, 1.0, 20)], delta=1e-5, relation="zero-out"), rel=2e-3)


def test_one_laplace_release_costs_its_pure_epsilon_less_what_delta_forgives():
    # the loss is 1 / b with probability 1/2, so delta = (1 - e^(epsilon - 1 / b)) / 2 just under 1 / b
    assert epsilon([laplace(2.0)], delta=1e-5, relation="add-remove") == pytest.approx(
        0.5 + math.log1p(-2e-5), abs=1e-6
    )


@pytest.mark.medium
def test_laplace_and_sampled_steps_together_cost_more_than_each_and_less_than_their_sum():
    parts = [[laplace(3.0, 4)], [steps(1.0, 0.05, 50)], [steps(6.0, 1.0, 5)]]
    alone = [epsilon(part, delta=1e-5, relation="zero-out") for part in parts]
    third = [epsilon(part, delta=1e-5 / 3, relation="zero-out") for part in parts]

    together = epsilon([use for part in parts for use in part], delta=1e-5, relation="zero-out")

    assert max(alone) < together < sum(third)


def test_noise_free_releases_cost_infinitely_and_those_that_tell_nothing_cost_nothing():
    silent = Use(mechanism="gaussian", noise=0.0, sensitivity={"zero-out": 0.0})

    assert epsilon([steps(0.0, 1.0, 1)], delta=1e-5, relation="zero-out") == math.inf
    assert epsilon([steps(0.0, 0.1, 1), laplace(1.0)], delta=1e-5, relation="zero-out", accountant="rdp") == math.inf
    assert delta([laplace(0.0)], epsilon=3.0, relation="zero-out") == 1
    assert epsilon([silent, steps(1.0, 1.0, 0)], delta=1e-5, relation="zero-out") == 0
    assert epsilon([], delta=1e-5, relation="replace-one", accountant="rdp") == 0
    assert delta([], epsilon=0.0, relation="replace-one") == 0


def test_noise_too_small_for_floats_counts_as_none():
    far = Use(mechanism="laplace", noise=1e-300, sensitivity={"zero-out": 1e300})

    assert epsilon([steps(1e-200, 1.0, 1)], delta=1e-5, relation="zero-out") == math.inf
    assert epsilon([far], delta=1e-5, relation="zero-out") == math.inf


def test_each_relation_uses_its_own_distance():
    release = Use(mechanism="gaussian", noise=3.0, sensitivity={"replace-one": 2.0, "zero-out": 1.0})

    assert epsilon([release], delta=1e-5, relation="replace-one") == epsilon_of(1.5, 1e-5)
    assert epsilon([release], delta=1e-5, relation="zero-out") == epsilon_of(3.0, 1e-5)


def test_a_relation_that_a_release_does_not_know_is_refused_with_those_it_knows():
    uses = [steps(1.0, 0.1, 10), Use(mechanism="gaussian", noise=1.0, sensitivity={"zero-out": 1.0})]

    with pytest.raises(AdjacencyError, match=r"under add-remove \(known: zero-out\)"):
        epsilon(uses, delta=1e-5, relation="add-remove")
    assert epsilon(uses, delta=1e-5, relation="zero-out") > 0


def test_record_and_client_releases_do_not_compose():
    client = Use(mechanism="gaussian", noise=1.0, sensitivity=EITHER, unit="client")

    with pytest.raises(AdjacencyError, match="per client and per record"):
        delta([steps(1.0, 1.0, 1), client], epsilon=1.0, relation="zero-out")


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_poisson_sampling_is_refused_under_replace_one(mechanism: str):
    sampled = Use(
        mechanism="gaussian" if mechanism == "gaussian" else "laplace",
        noise=1.0,
        sensitivity={"replace-one": 2.0, "zero-out": 1.0},
        sampling_rate=0.1,
    )

    with pytest.raises(AdjacencyError, match="account under zero-out or add-remove"):
        epsilon([sampled], delta=1e-5, relation="replace-one")
    assert AdjacencyError.exit_code == 2


@pytest.mark.medium
def test_calibrated_noise_meets_its_epsilon_and_a_little_less_does_not():
    def run(noise: float) -> list[Use]:
        return [steps(noise, 0.05, 200), steps(6.0, 1.0, 1)]

    noise = calibrated_noise(run, epsilon=2.0, delta=1e-5, relation="zero-out")

    assert epsilon(run(noise), delta=1e-5, relation="zero-out") <= 2.0
    assert epsilon(run(noise * 0.998), delta=1e-5, relation="zero-out") > 2.0


@pytest.mark.parametrize("at", [0.5, 8.0])
def test_calibrating_one_release_gives_the_analytic_multiplier(at: float):
    noise = calibrated_noise(lambda x: [steps(x, 1.0, 1)], epsilon=at, delta=1e-5, relation="zero-out")

    assert noise_multiplier(at, 1e-5) * (1 - 1e-9) <= noise <= noise_multiplier(at, 1e-5) * (1 + 1e-4)


def test_a_budget_that_the_fixed_releases_alone_exceed_cannot_be_met():
    with pytest.raises(UsageError, match="no noise reaches epsilon 1: the releases that do not depend on it cost 8"):
        calibrated_noise(
            lambda x: [steps(x, 1.0, 1), steps(noise_multiplier(8.0, 1e-5), 1.0, 1)],
            epsilon=1.0,
            delta=1e-5,
            relation="zero-out",
        )
    with pytest.raises(UsageError, match="epsilon must be above 0"):
        calibrated_noise(lambda x: [steps(x, 1.0, 1)], epsilon=0.0, delta=1e-5, relation="zero-out")


def test_a_budget_that_nothing_spends_asks_for_next_to_no_noise():
    assert calibrated_noise(lambda x: [steps(x, 1.0, 0)], epsilon=1.0, delta=1e-5, relation="zero-out") < 1e-12


def test_an_infinite_budget_asks_for_no_noise():
    assert calibrated_noise(lambda x: [steps(x, 1.0, 1)], epsilon=math.inf, delta=1e-5, relation="zero-out") == 0


def test_ten_thousand_steps_take_under_two_seconds_and_the_second_client_none():
    begun = time.process_time()
    first = epsilon([steps(1.01, 0.01, 10_000)], delta=1e-5, relation="zero-out")
    once = time.process_time() - begun
    again = epsilon([steps(1.01, 0.01, 4_000), steps(1.01, 0.01, 6_000)], delta=1e-5, relation="zero-out")
    twice = time.process_time() - begun - once

    assert again == first
    assert once < 2
    assert twice < 0.01


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("noise", -1.0, "noise must not be negative"),
        ("noise", math.nan, "noise must not be negative"),
        ("sampling_rate", 0.0, "sampling_rate must lie in"),
        ("sampling_rate", 1.5, "sampling_rate must lie in"),
        ("count", -1, "count must not be negative"),
        ("unit", "image", "unit must be 'record' or 'client'"),
        ("mechanism", "uniform", "mechanism must be 'gaussian' or 'laplace'"),
        ("sensitivity", {"zero-out": math.inf}, "sensitivity under zero-out must be finite"),
        ("sensitivity", {"swap": 1.0}, "relation must be one of replace-one, add-remove, zero-out"),
    ],
)
def test_a_use_out_of_range_is_refused(field: str, value: object, message: str):
    good: dict[str, object] = {"mechanism": "gaussian", "noise": 1.0, "sensitivity": EITHER}

    with pytest.raises(UsageError, match=message):
        Use(**(good | {field: value}))  # type: ignore[arg-type]


def test_questions_without_an_answer_are_refused():
    sampled_laplace = Use(mechanism="laplace", noise=1.0, sensitivity=EITHER, sampling_rate=0.1)

    with pytest.raises(UsageError, match="delta must lie strictly between 0 and 1"):
        epsilon([], delta=0.0, relation="zero-out")
    with pytest.raises(UsageError, match="not resolved at delta 1e-15"):
        epsilon([laplace(1.0)], delta=1e-15, relation="zero-out")
    with pytest.raises(UsageError, match="cannot compose sampled Laplace noise"):
        epsilon([sampled_laplace], delta=1e-5, relation="zero-out", accountant="rdp")
    with pytest.raises(UsageError, match="epsilon must not be negative"):
        delta([], epsilon=-1.0, relation="zero-out")
