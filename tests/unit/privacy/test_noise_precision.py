"""Noise is drawn to its last bit: in float64, on a grid where a mechanism is calibrated, and never in float32.

A number in float32 has 24 bits; noise with fewer bits than what it hides tells which values it can have come from."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from fdgsec.defenses.dp_fedavg import noisy_together
from fdgsec.defenses.private_scores import PrivateScores
from fdgsec.defenses.private_styles import PrivateStyles
from fdgsec.federation.artifacts import Scores
from fdgsec.federation.defense import Outgoing, Sender
from fdgsec.federation.method import Clock
from fdgsec.methods.feddag_dp import FedDAGDP
from fdgsec.privacy import dp_sgd
from fdgsec.privacy.discrete_gaussian import GRID_BITS, _filled, discrete_gaussian, lattice, lattice_gaussian
from fdgsec.privacy.dp_sgd import noisy
from fdgsec.runtime.secret_streams import Integers, simulated_stream
from tests.support.private_styles_setting import cost, outgoing, protected
from tests.support.round_loop import four_clients
from tests.support.toy_federation import PixelStyles

HALF = 0.02
"""Four standard errors of a share of 10,000 fair bits."""


def assert_fair_last_bits(values: Tensor, unit: float) -> None:
    """All `values` are multiples of `unit`, and as many odd ones as even ones."""
    steps = values.double() / unit
    assert torch.equal(steps, steps.round())
    assert abs(float((steps.abs() % 2).mean()) - 0.5) < HALF


def test_uniform_numbers_have_53_random_bits():
    drawn = simulated_stream(0, "bits").uniform(10_000)

    assert_fair_last_bits(drawn, 2.0**-53)


def test_normal_numbers_are_none_of_float32():
    drawn = simulated_stream(0, "bits").normal(10_000)

    assert float((drawn.float().double() == drawn).double().mean()) < 1e-3  # 29 more bits, all of them 0


def test_exponential_numbers_are_none_of_float32():
    drawn = simulated_stream(0, "bits").exponential(10_000)

    assert float((drawn.float().double() == drawn).double().mean()) < 1e-3


def test_the_last_bit_of_a_calibrated_release_is_noise_however_large_the_noise_came_out():
    grid, _ = lattice(1.0, distance=1.0, coordinates=20_000)

    released = lattice_gaussian(torch.zeros(20_000).double(), 1.0, distance=1.0, rng=simulated_stream(0))

    large = released[released.abs() > 2**GRID_BITS * grid]  # beyond 24 bits float32 has even numbers alone
    assert len(large) > 5000
    assert_fair_last_bits(large, grid)


def test_rounding_may_move_two_neighbors_as_far_apart_as_they_are_and_no_farther():
    grid = 2.0**-GRID_BITS

    assert lattice(1.0, distance=3 * grid, coordinates=9) == (grid, 2 ** (GRID_BITS + 1) + 1)
    with pytest.raises(ValueError, match="the noise is too large"):
        lattice(1.0, distance=3 * grid * (1 - 1e-9), coordinates=9)


def test_a_step_of_dp_sgd_adds_its_noise_in_float64_and_rounds_once():
    total = torch.randn(10_000, generator=torch.Generator().manual_seed(0))

    (released,) = noisy([total], 1.5, simulated_stream(0, "step"))

    exact = total.double() + 1.5 * simulated_stream(0, "step").normal(10_000)
    assert released.dtype == torch.float32
    assert torch.equal(released, exact.float())


def test_tensors_of_a_step_get_the_noise_that_they_would_get_as_one(monkeypatch: pytest.MonkeyPatch):
    totals = [torch.zeros(*shape) for shape in ((3, 2), (1,), (0,), (7,), (2, 1, 2))]
    whole = simulated_stream(0, "step").normal(18).float()

    together = list(noisy(totals, 1.0, simulated_stream(0, "step")))
    monkeypatch.setattr(dp_sgd, "DRAWN", 7)
    portions = list(noisy(totals, 1.0, secret := simulated_stream(0, "step")))

    assert [each.shape for each in together] == [each.shape for each in portions] == [each.shape for each in totals]
    assert torch.equal(torch.cat([each.flatten() for each in together]), whole)
    drawn = simulated_stream(0, "step")
    parts = torch.cat([drawn.normal(7), drawn.normal(7), drawn.normal(4)]).float()
    assert torch.equal(torch.cat([each.flatten() for each in portions]), parts)
    assert secret.random_bytes(8) == drawn.random_bytes(8)


def test_tensors_of_a_step_keep_their_formats():
    kinds = (torch.float32, torch.bfloat16, torch.float64)
    totals = [torch.zeros(1000, dtype=kind) for kind in kinds]

    found = list(noisy(totals, 1.0, simulated_stream(0, "step")))

    whole = simulated_stream(0, "step").normal(3000)
    assert [each.dtype for each in found] == list(kinds)
    assert all(torch.equal(one, part.to(kind)) for one, part, kind in zip(found, whole.split(1000), kinds, strict=True))


def test_no_noise_leaves_sums_as_they_are():
    totals = [torch.full((2,), 0.1), torch.ones(3)]

    assert all(
        torch.equal(one, two) for one, two in zip(noisy(totals, 0.0, simulated_stream(0, "step")), totals, strict=True)
    )
    assert list(noisy([], 1.0, simulated_stream(0, "step"))) == []


def test_scores_are_released_on_the_grid():
    judge = four_clients()[0]
    sender = Sender(
        client=judge, method=FedDAGDP(), clock=Clock(round=0, rounds=1, participants=(judge.name,)), model=None, state={},
        statistic_source=None,
    )  # fmt: skip
    values = torch.full((10_000,), 1 / 3, dtype=torch.float64)
    message = Outgoing(round=0, stage="review", name="scores", artifact=Scores(values=values), sender=sender)

    found = PrivateScores(epsilon=2.0).on_message(message, simulated_stream(0, "scores"))

    assert found is not None
    assert found.uses is not None
    (use,) = found.uses
    grid, _ = lattice(use.noise, distance=use.sensitivity["zero-out"], coordinates=10_000)
    assert_fair_last_bits(found.artifact.tensors()["values"], grid)


def test_changes_of_a_model_are_released_on_one_grid():
    changes = {"a": torch.full((6000,), 1 / 3).double(), "b": torch.full((2, 3000), 1e-9).double()}

    released = noisy_together(changes, 0.3, distance=1.0, rng=simulated_stream(0, "changes"))

    grid, _ = lattice(0.3, distance=1.0, coordinates=12_000)
    assert [value.shape for value in released.values()] == [(6000,), (2, 3000)]
    assert_fair_last_bits(torch.cat([value.flatten() for value in released.values()]), grid)


def test_styles_are_released_on_the_grid():
    message = outgoing(PixelStyles())
    defense = PrivateStyles(epsilon=2.0, unit="client", center="zero", scale="raw", clip=1.0)

    found = [protected(defense, message, draw=draw) for draw in range(40)]

    (use,) = cost(found[0])
    grid, _ = lattice(use.noise, distance=min(use.sensitivity.values()), coordinates=6)
    steps = torch.cat([each.artifact.tensors()["mean"].double() for each in found]) / grid
    assert torch.equal(steps, steps.round())


def test_as_many_normal_numbers_are_drawn_as_were_asked_for():
    for shape in ((1,), (3,), (2, 3), (5, 1, 3), (0,)):
        drawn = simulated_stream(0, "counts").normal(*shape)
        assert drawn.shape == shape
        assert len(drawn.unique()) == drawn.numel()


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("accepted", [1, 2, 9])
def test_candidates_are_drawn_until_there_are_enough_and_no_longer(count: int, accepted: int):
    drawn: list[int] = []

    def few(wanted: int) -> Integers:
        drawn.append(wanted)
        return -np.arange(accepted * (len(drawn) - 1), accepted * len(drawn), dtype=np.int64)

    assert _filled(few, count).tolist() == [-number for number in range(count)]
    assert len(drawn) == math.ceil(count / accepted)
    assert discrete_gaussian(3, count, simulated_stream(0)).shape == (count,)
