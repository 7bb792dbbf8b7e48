"""The discrete Gaussian on a grid: its law, its grid, and the cost that it never exceeds."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from scipy import stats

from fdgsec.privacy import discrete_gaussian as sampler
from fdgsec.privacy.discrete_gaussian import GRID_BITS, LARGEST_SCALE, discrete_gaussian, lattice, lattice_gaussian
from fdgsec.runtime.secret_streams import SecretStream, Words, simulated_stream


@pytest.mark.parametrize("scale", [1, 2, 3, 10])
def test_integers_have_the_law_of_definition_1(scale: int):
    drawn = discrete_gaussian(scale, 100_000, simulated_stream(0, scale))

    support = np.arange(-8 * scale, 8 * scale + 1)
    shares = np.exp(-(support**2) / (2 * scale**2))
    expected = shares * len(drawn) / shares.sum()
    often = expected > 5
    counts = np.array([(drawn == value).sum() for value in support[often]])
    rest, expected_rest = len(drawn) - counts.sum(), len(drawn) - expected[often].sum()
    assert stats.chisquare([*counts, rest], [*expected[often], expected_rest]).pvalue > 1e-3


@pytest.mark.parametrize("scale", [2**GRID_BITS, LARGEST_SCALE])
def test_a_large_scale_is_a_gaussian(scale: int):
    drawn = discrete_gaussian(scale, 200_000, simulated_stream(0, scale))

    assert drawn.dtype == np.int64
    assert stats.kstest(drawn / scale, "norm").pvalue > 1e-3
    assert abs(float((drawn % 2).mean()) - 0.5) < 0.01  # the last bit is noise, too


class Scripted(SecretStream):
    """Draws the given words, one after the other, and then those of a stream."""

    def __init__(self, *words: int) -> None:
        super().__init__(bytes(32))
        self.script = list(words)

    def words(self, count: int) -> Words:
        given, self.script = self.script[:count], self.script[count:]
        return np.array([*given, *super().words(count - len(given)).tolist()], dtype=np.uint64)


@pytest.mark.parametrize("scale", [1, 3, 2**GRID_BITS, LARGEST_SCALE])
def test_float64_decides_as_decimals_do(scale: int, monkeypatch: pytest.MonkeyPatch):
    drawn = discrete_gaussian(scale, 2000, simulated_stream(0, scale))

    monkeypatch.setattr(sampler, "MARGIN", 100.0)  # nothing is left to float64

    assert np.array_equal(drawn, discrete_gaussian(scale, 2000, simulated_stream(0, scale)))


def test_the_tails_of_a_large_scale_are_those_of_a_gaussian():
    """Whoever drops sizes for speed, or for a word of less bits, has shorter ones."""
    scale, count = 2**GRID_BITS, 4_000_000

    drawn = np.abs(discrete_gaussian(scale, count, simulated_stream(0, "tails"))) / scale

    for deviations in (3.0, 4.0, 4.5, 5.0):
        beyond = int((drawn > deviations).sum())
        assert stats.binomtest(beyond, count, 2 * stats.norm.sf(deviations)).pvalue > 1e-4
    assert -math.log(sampler.LEAST_WORD / 2**64) > 41  # scales, at which nothing is accepted


def test_numbers_tell_nothing_of_each_other_or_of_their_places():
    count = 100_000
    drawn = discrete_gaussian(2**GRID_BITS, count, simulated_stream(0, "places")) / 2**GRID_BITS

    apart = [1, 2, 3, sampler.AT_ONCE // 2, sampler.AT_ONCE]
    for one in (drawn, np.abs(drawn) - np.abs(drawn).mean(), np.sign(drawn)):
        sizes = one / one.std()
        assert all(abs(float((sizes[lag:] * sizes[:-lag]).sum())) < 5 * math.sqrt(count - lag) for lag in apart)
    assert abs(float((drawn * (np.arange(count) / count - 0.5)).sum())) < 5 * math.sqrt(count / 12)
    assert abs(float((np.sign(drawn) * (np.abs(drawn) - np.abs(drawn).mean())).sum())) < 5 * math.sqrt(count)


EDGES = [
    (scale, size)
    for scale in (1, 3, 2**GRID_BITS, LARGEST_SCALE)
    for size in (1, 2, 10**6, scale, 30 * scale, 40 * scale)
    if size <= 40 * scale
]


@pytest.mark.parametrize(("scale", "size"), EDGES)
def test_a_word_on_the_edge_of_a_size_is_settled_by_further_bits(scale: int, size: int):
    """U is above exp(-size / scale) where the size is less: the first 64 bits of that number leave it open."""
    with localcontext(prec=80):
        edge = (-Decimal(size) / scale).exp() * 2**128
    word, further = divmod(int(edge), 2**64)

    def drawn(first: int, *more: int) -> tuple[int, int]:
        rng = Scripted(*more)
        (found,) = sampler._laplace_sizes(np.array([first], dtype=np.uint64), scale, rng).tolist()
        return found, len(more) - len(rng.script)

    assert drawn(word, further + 1, 7) == (size - 1, 1)
    assert drawn(word, further - 1, 7) == (size, 1)
    assert drawn(word, further, 2**64 - 1, 7)[1] == 2
    for beside in (word - 1, word + 1):
        assert (drawn(beside, 7)[1] == 0) == (word > 2 * scale)  # else each word is of several sizes


@pytest.mark.parametrize("apart", [1, 2, 10**7])
def test_a_coin_on_the_edge_of_its_chance_is_settled_by_further_bits(apart: int):
    scale = 2**GRID_BITS
    with localcontext(prec=80):
        edge = (-(Decimal(apart) ** 2) / (2 * scale**2)).exp() * 2**127
    word, further = divmod(int(edge), 2**64)

    def drawn(first: int, *more: int) -> tuple[bool, int]:
        rng = Scripted(*more)
        (found,) = sampler._coins(np.array([first], dtype=np.uint64), np.array([apart]), scale, rng).tolist()
        return found, len(more) - len(rng.script)

    assert drawn(word, further + 1, 7) == (False, 1)
    assert drawn(word, further - 1, 7) == (True, 1)
    assert drawn(word - 1, 7) == (True, 0)
    assert drawn(word + 1, 7) == (False, 0)


def test_sizes_have_shares_of_the_discrete_laplace_law_to_the_last_word():
    """At scale 1 the words of size y are those from 2^64 exp(-y - 1) to 2^64 exp(-y)."""
    for size in range(40):
        with localcontext(prec=60):
            edges = [int((-Decimal(size + more)).exp() * 2**64) for more in (1, 0)]
        inside = np.array([edges[0] + 1, edges[1] - 1], dtype=np.uint64)

        assert sampler._laplace_sizes(inside, 1, Scripted()).tolist() == [size, size]


def test_batches_change_no_law(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sampler, "AT_ONCE", 100)

    drawn = discrete_gaussian(2**GRID_BITS, 20_000, simulated_stream(3))

    assert len(drawn) == 20_000
    assert stats.kstest(drawn / 2**GRID_BITS, "norm").pvalue > 1e-3


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
