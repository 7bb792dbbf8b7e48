"""Composition in closed form, the edges of what is accepted, and calibration that meets its budget from either side."""

import math
from collections.abc import Mapping, Sequence

import pytest

from fdgsec.privacy.accounting import Accountant, Relation, Use, calibrated_noise, delta, epsilon
from fdgsec.privacy.mechanisms import delta_of, epsilon_of, noise_multiplier
from fdgsec.runtime.errors import UsageError

ZERO: Mapping[Relation, float] = {"zero-out": 1.0}


def gaussian(noise: float, distance: float = 1.0, *, count: int = 1, rate: float = 1.0) -> Use:
    return Use(
        mechanism="gaussian", noise=noise, sensitivity={"zero-out": distance}, count=count, sampling_rate=rate
    )  # fmt: skip


def cost(*uses: Use, accountant: Accountant = "pld") -> float:
    return epsilon(uses, delta=1e-5, relation="zero-out", accountant=accountant)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize(
    "silent",
    [gaussian(1.0, count=0), gaussian(1.0, 0.0), gaussian(math.inf), gaussian(0.0, 0.0), gaussian(0.0, count=0)],
    ids=["never made", "no distance", "endless noise", "neither noise nor distance", "neither noise nor release"],
)
def test_a_release_that_tells_nothing_costs_nothing_beside_others(silent: Use, accountant: Accountant):
    assert cost(silent, accountant=accountant) == 0
    assert cost(gaussian(2.0), silent, accountant=accountant) == cost(gaussian(2.0), accountant=accountant) > 0


@pytest.mark.parametrize("bare", [gaussian(0.0), gaussian(0.0, rate=0.5), gaussian(0.0, 1e-9)])
def test_one_release_without_noise_makes_the_whole_cost_infinite(bare: Use):
    assert cost(gaussian(5.0), bare) == math.inf
    assert delta([gaussian(5.0), bare], epsilon=9.0, relation="zero-out") == 1


@pytest.mark.parametrize(("noise", "distance", "count"), [(3.0, 2.0, 1), (3.0, 0.5, 4), (0.7, 1.0, 9)])
def test_gaussian_releases_add_up_in_squared_mu_for_epsilon_and_delta(noise: float, distance: float, count: int):
    multiplier = 1 / math.sqrt(count * (distance / noise) ** 2 + 1 / 4)
    uses = [gaussian(noise, distance, count=count), gaussian(2.0)]

    assert cost(*uses) == pytest.approx(epsilon_of(multiplier, 1e-5), rel=1e-12)
    assert delta(uses, epsilon=0.4, relation="zero-out") == pytest.approx(delta_of(multiplier, 0.4), rel=1e-12)


def test_laplace_releases_merge_whatever_units_they_came_in():
    apart = [
        Use(mechanism="laplace", noise=noise, sensitivity={"zero-out": noise / 4}, count=count)
        for noise, count in ((1.0, 2), (10.0, 1))
    ]
    whole = Use(mechanism="laplace", noise=4.0, sensitivity=ZERO, count=3)

    assert cost(*apart) == cost(whole) < 0.75
    assert delta(apart, epsilon=0.1, relation="zero-out") == delta([whole], epsilon=0.1, relation="zero-out")


def test_delta_forgives_everything_at_an_infinite_epsilon_and_nothing_at_zero():
    assert delta([gaussian(1.0)], epsilon=math.inf, relation="zero-out") == 0
    assert delta([gaussian(1.0)], epsilon=0.0, relation="zero-out") == pytest.approx(math.erf(1 / math.sqrt(8)))


@pytest.mark.parametrize("value", [0.0, 1.0, 1.5, -0.1, math.nan])
def test_a_delta_outside_the_open_unit_interval_is_refused_even_without_a_release(value: float):
    for uses in ([], [gaussian(1.0)], [gaussian(1.0, rate=0.1)]):
        with pytest.raises(UsageError, match="delta must lie strictly between 0 and 1"):
            epsilon(uses, delta=value, relation="zero-out")


@pytest.mark.parametrize("value", [0.5, 0.99])
def test_a_large_delta_is_answered(value: float):
    assert epsilon([gaussian(0.5)], delta=value, relation="zero-out") == epsilon_of(0.5, value)


def test_an_unknown_accountant_or_relation_is_refused_even_without_a_release():
    with pytest.raises(UsageError, match="accountant must be 'pld' or 'rdp'; got 'prv'"):
        epsilon([], delta=1e-5, relation="zero-out", accountant="prv")  # type: ignore[arg-type]
    for ask in (lambda: epsilon([], delta=1e-5, relation="swap"), lambda: delta([], epsilon=1.0, relation="swap")):  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="relation must be one of replace-one, add-remove, zero-out; got 'swap'"):
            ask()


@pytest.mark.parametrize(
    "given", [{"noise": 0.0}, {"noise": 0.5}, {"sampling_rate": 1.0}, {"sampling_rate": 1e-9}, {"count": 0}, {"sensitivity": {}}]
)  # fmt: skip
def test_the_edges_of_a_use_are_accepted(given: dict[str, object]):
    Use(**{"mechanism": "gaussian", "noise": 1.0, "sensitivity": ZERO, **given})  # type: ignore[arg-type]


def test_a_use_is_of_one_unsampled_release_of_a_record_unless_it_says_otherwise():
    use = Use(mechanism="gaussian", noise=1.0, sensitivity=ZERO)

    assert (use.sampling_rate, use.count, use.unit) == (1.0, 1, "record")
    assert cost(use) == epsilon_of(1.0, 1e-5)


@pytest.mark.parametrize("distance", [-1.0, math.inf, math.nan])
def test_a_distance_that_bounds_nothing_is_refused(distance: float):
    with pytest.raises(UsageError, match="sensitivity under zero-out must be finite and not negative"):
        gaussian(1.0, distance)


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("asked", [0.05, 1.0, 300.0])
def test_calibration_finds_the_least_noise_at_every_scale(unit: float, asked: float):
    def uses_at(noise: float) -> Sequence[Use]:
        return [gaussian(noise, unit)]

    noise = calibrated_noise(uses_at, epsilon=asked, delta=1e-5, relation="zero-out")

    assert noise == pytest.approx(unit * noise_multiplier(asked, 1e-5), rel=1e-4)
    assert cost(*uses_at(noise)) <= asked


def test_calibration_with_fixed_releases_leaves_them_their_part_of_the_budget():
    fixed = gaussian(5.0)

    noise = calibrated_noise(lambda x: [gaussian(x), fixed], epsilon=1.0, delta=1e-5, relation="zero-out")

    whole = 1 / noise_multiplier(1.0, 1e-5) ** 2
    assert noise == pytest.approx(1 / math.sqrt(whole - 1 / 25), rel=1e-4)
    assert cost(gaussian(noise), fixed) <= 1.0


def test_calibration_asks_the_accountant_and_the_delta_that_it_is_given():
    def uses_at(noise: float) -> Sequence[Use]:
        return [gaussian(noise, count=3)]

    tight = calibrated_noise(uses_at, epsilon=1.0, delta=1e-5, relation="zero-out")
    loose = calibrated_noise(uses_at, epsilon=1.0, delta=1e-5, relation="zero-out", accountant="rdp")
    stricter = calibrated_noise(uses_at, epsilon=1.0, delta=1e-9, relation="zero-out")

    assert tight < loose < stricter
    assert epsilon(uses_at(loose), delta=1e-5, relation="zero-out", accountant="rdp") <= 1.0


def test_a_budget_is_refused_only_where_no_noise_would_meet_it():
    with pytest.raises(UsageError, match="no noise reaches epsilon 1"):
        calibrated_noise(lambda x: [gaussian(0.1)], epsilon=1.0, delta=1e-5, relation="zero-out")

    far = calibrated_noise(lambda x: [gaussian(x, 1e11)], epsilon=1.0, delta=1e-5, relation="zero-out")
    assert far == pytest.approx(1e11 * noise_multiplier(1.0, 1e-5), rel=1e-4)
