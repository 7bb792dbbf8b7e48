"""Noise that is called Gaussian has the shape of Gaussian noise, and other noise is told from it."""

import math

import pytest
import torch
from torch import Tensor

from fdgsec.experiments.audit.noise_shape import DRAWS_A_NUMBER, leaves_directions_out, not_gaussian
from fdgsec.experiments.audit.noise_within import DRAWS
from fdgsec.runtime.random_streams import stream


def drawn(numbers: int, *, seed: int, alike: float = 0.0) -> Tensor:
    """Gaussian draws (DRAWS, `numbers`) of several sizes, every two of which have the correlation `alike`."""
    rng = stream(seed, "world", "noise")
    own, common = (torch.randn(DRAWS, each, generator=rng, dtype=torch.float64) for each in (numbers, 1))
    sizes = 10 ** torch.linspace(-2, 2, numbers, dtype=torch.float64)
    return sizes * (math.sqrt(1 - alike) * own + math.sqrt(alike) * common)


def shape_is_wrong(draws: Tensor) -> bool:
    return not_gaussian(draws, torch.ones_like(draws, dtype=torch.bool))


@pytest.mark.parametrize("alike", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("numbers", [1, 4, 6, 40, 512])
def test_gaussian_noise_passes_however_its_numbers_are_related(numbers: int, alike: float):
    assert not any(shape_is_wrong(drawn(numbers, seed=seed, alike=alike)) for seed in range(300))


@pytest.mark.parametrize("seed", range(5))
def test_mixtures_bounded_noise_and_a_release_without_noise_do_not_pass(seed: int):
    sound, rng = drawn(256, seed=seed), stream(seed, "world", "mixture")
    coins = torch.rand(sound.shape, generator=rng) < 0.5
    bounded = 2 * torch.rand(sound.shape, generator=rng, dtype=torch.float64) - 1

    assert shape_is_wrong(torch.where(coins, 0.001, math.sqrt(2)) * sound)
    assert shape_is_wrong(bounded)
    assert shape_is_wrong(torch.where(torch.arange(DRAWS).unsqueeze(1) == seed, 1e-6, 1.0) * sound)


def test_numbers_that_were_cut_and_constants_are_left_out():
    sound = drawn(40, seed=0)
    cut = sound.clamp_min(0)
    cut[:, :20] = 3.0

    assert not not_gaussian(cut, cut > 0)
    assert not not_gaussian(sound[:, :0], torch.ones(DRAWS, 0, dtype=torch.bool))


@pytest.mark.parametrize("numbers", [32, 64, 200])
def test_independent_noise_leaves_no_direction_out(numbers: int):
    rng = stream(0, "world", "directions", numbers)
    for _ in range(40):
        draws = torch.randn(DRAWS_A_NUMBER * numbers, numbers, generator=rng, dtype=torch.float64)
        assert not leaves_directions_out(draws, torch.ones_like(draws, dtype=torch.bool))


@pytest.mark.parametrize("left", [0.0, 0.3])
def test_a_direction_that_has_less_noise_than_every_number_is_found(left: float):
    rng = stream(0, "world", "directions")
    draws = torch.randn(DRAWS_A_NUMBER * 200, 200, generator=rng, dtype=torch.float64)
    along = torch.randn(200, generator=rng, dtype=torch.float64)
    along /= along.norm()
    thin = draws - (1 - left) * torch.outer(draws @ along, along)

    assert leaves_directions_out(thin, torch.ones_like(draws, dtype=torch.bool))
    assert not leaves_directions_out(thin[:90], torch.ones(90, 200, dtype=torch.bool))  # too few draws to tell


def test_numbers_that_were_cut_count_for_no_direction():
    rng = stream(0, "world", "directions")
    draws = torch.randn(300, 100, generator=rng, dtype=torch.float64)
    draws[:, 1] = draws[:, 0]
    valid = torch.ones_like(draws, dtype=torch.bool)

    assert leaves_directions_out(draws, valid)
    valid[7, 1] = False
    assert not leaves_directions_out(draws, valid)
