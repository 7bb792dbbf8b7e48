"""The discrete Gaussian on a grid: its law, its grid, and the cost that it never exceeds."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from fdgsec.privacy.discrete_gaussian import GRID_BITS, LARGEST_SCALE, discrete_gaussian, lattice, lattice_gaussian
from fdgsec.runtime.secret_streams import simulated_stream


@pytest.mark.parametrize("scale", [1, 2, 3, 10])
def test_integers_have_the_law_of_definition_1(scale: int):
    drawn = discrete_gaussian(scale, 100_000, simulated_stream(0, scale))

    support = np.arange(-8 * scale, 8 * scale + 1)
    expected = np.exp(-(support**2) / (2 * scale**2))
    expected *= len(drawn) / expected.sum()
    often = expected > 5
    counts = np.array([(drawn == value).sum() for value in support[often]])
    assert stats.chisquare(counts, expected[often] * counts.sum() / expected[often].sum()).pvalue > 1e-3


@pytest.mark.parametrize("scale", [2**GRID_BITS, LARGEST_SCALE])
def test_a_large_scale_is_a_gaussian(scale: int):
    drawn = discrete_gaussian(scale, 200_000, simulated_stream(0, scale))

    assert drawn.dtype == np.int64
    assert stats.kstest(drawn / scale, "norm").pvalue > 1e-3
    assert abs(float((drawn % 2).mean()) - 0.5) < 0.01  # the last bit is noise, too


@pytest.mark.parametrize("scale", [0, LARGEST_SCALE + 1])
def test_a_scale_out_of_range_is_refused(scale: int):
    with pytest.raises(ValueError, match="scale must lie between"):
        discrete_gaussian(scale, 1, simulated_stream(0))


@pytest.mark.parametrize("sd", [1e-9, 0.3, 1.0, 12345.6])
@pytest.mark.parametrize("multiplier", [0.3, 1.0, 30.0])
@pytest.mark.parametrize("coordinates", [1, 1024, 10**6])
def test_the_noise_over_the_rounded_distance_is_never_below_what_was_stated(
    sd: float, multiplier: float, coordinates: int
):
    distance = sd / multiplier

    grid, scale = lattice(sd, distance=distance, coordinates=coordinates)

    assert math.log2(grid) == int(math.log2(grid))
    assert 2**GRID_BITS <= sd / grid < 2 ** (GRID_BITS + 1)
    assert scale * grid / (distance + grid * math.sqrt(coordinates)) >= sd / distance
    assert scale * grid <= sd * (1.01 + multiplier * math.sqrt(coordinates) / 2**GRID_BITS)


def test_what_is_released_lies_on_the_grid_whatever_was_released():
    """The last bits of a release tell nothing of the value: they are always those of a multiple of the grid."""
    grid, _ = lattice(1.0, distance=1.0, coordinates=1000)
    rng = simulated_stream(0)
    for value in (0.0, 1 / 3, math.pi):
        released = lattice_gaussian(torch.full((1000,), value, dtype=torch.float64), 1.0, distance=1.0, rng=rng)
        assert bool(((released / grid) == (released / grid).round()).all())


def test_rounding_to_the_grid_moves_a_vector_by_no_more_than_is_accounted_for():
    values = torch.rand(500, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    grid, _ = lattice(1.0, distance=1.0, coordinates=500)

    moved = torch.linalg.vector_norm((values / grid).round() * grid - values)

    assert float(moved) <= grid * math.sqrt(500) / 2


def test_the_noise_has_the_deviation_and_the_mean():
    released = lattice_gaussian(torch.full((200_000,), 5.0).double(), 0.7, distance=1.0, rng=simulated_stream(1))

    assert float(released.mean()) == pytest.approx(5.0, abs=0.01)
    assert float(released.std()) == pytest.approx(0.7, rel=0.01)


def test_without_noise_values_stay():
    values = torch.tensor([1 / 3, 2.0], dtype=torch.float64)

    assert lattice_gaussian(values, 0.0, distance=1.0, rng=simulated_stream(0)) is values


@pytest.mark.parametrize("sd", [-1.0, math.inf, math.nan])
def test_a_deviation_out_of_range_is_refused(sd: float):
    with pytest.raises(ValueError, match="finite standard deviation"):
        lattice_gaussian(torch.ones(2).double(), sd, distance=1.0, rng=simulated_stream(0))


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_values_that_are_not_finite_are_refused(value: float):
    with pytest.raises(ValueError, match="finite values"):
        lattice_gaussian(torch.tensor([value]).double(), 1.0, distance=1.0, rng=simulated_stream(0))


@pytest.mark.parametrize("distance", [0.0, 1e-12])
def test_a_distance_that_the_grid_swallows_is_refused(distance: float):
    with pytest.raises(ValueError, match="the noise is too large"):
        lattice_gaussian(torch.ones(2).double(), 1.0, distance=distance, rng=simulated_stream(0))
