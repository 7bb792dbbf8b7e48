"""Tests of two neighbors on drawn numbers: what is sound passes, and each fault is found by the test for it."""

import math
from dataclasses import replace
from typing import cast

import pytest
import torch
from scipy.special import ndtri
from torch import Tensor

from fdgsec.experiments.audit.moved_releases import SURE
from fdgsec.experiments.audit.neighbor_tests import (
    TESTS,
    Drawn,
    along_a_direction,
    by_a_grid,
    by_length_of_noise,
    by_what_has_no_noise,
    by_what_is_sent,
    in_every_number,
)
from fdgsec.experiments.audit.neighboring_clients import Release
from fdgsec.experiments.audit.noise_tails import bounded
from fdgsec.privacy.accounting import Use

DRAWS = 64
GAUSSIAN = Use(mechanism="gaussian", noise=1.0, sensitivity={"replace-one": 1.0})
LAPLACE = Use(mechanism="laplace", noise=1.0, sensitivity={"replace-one": 4.0})


def drawn(values: Tensor, use: Use = GAUSSIAN) -> Drawn:
    allowed = 1.0 if use is GAUSSIAN else 2.0
    whole = torch.ones(values.shape[1], dtype=torch.bool)
    return Drawn(
        release=cast(Release, None), sent=values, values=values, whole=whole, form=(), uses=(use,), allowed=allowed
    )


def noise(count: int, rng: torch.Generator, *, shared: float = 0.0) -> Tensor:
    """Gaussian noise (DRAWS, count) whose numbers have a correlation of `shared`."""
    own = torch.randn(DRAWS, count, generator=rng, dtype=torch.float64)
    common = torch.randn(DRAWS, 1, generator=rng, dtype=torch.float64)
    return math.sqrt(1 - shared) * own + math.sqrt(shared) * common


@pytest.mark.parametrize("shared", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("count", [1, 6, 64, 512])
def test_neighbors_that_are_moved_by_what_is_allowed_pass(count: int, shared: float):
    rng = torch.Generator().manual_seed(count)
    moved = torch.zeros(count, dtype=torch.float64)
    moved[0] = 1.0
    for _ in range(20):
        one, other = drawn(noise(count, rng, shared=shared)), drawn(noise(count, rng, shared=shared) + moved)

        sound = [test for test in TESTS if test is not along_a_direction or not shared]  # what is shared hides nothing
        assert not any(test(one, other).too_far for test in sound)
        assert not bounded(one.values, one.sent)


@pytest.mark.parametrize("runs", [DRAWS, SURE])
@pytest.mark.parametrize("count", [1, 2, 6, 64])
def test_neighbors_with_the_same_noise_that_are_moved_by_what_is_allowed_pass(count: int, runs: int):
    """Noise in common cancels in the difference, which is exact then, and not in the deviation that it is divided by."""
    rng = torch.Generator().manual_seed(count)
    for _ in range(20 if runs == DRAWS else 5):
        same = torch.randn(runs, count, generator=rng, dtype=torch.float64)
        uniform = torch.rand(runs, count, generator=rng, dtype=torch.float64) - 0.5
        pointed = -uniform.sign() * torch.log1p(-2 * uniform.abs())
        moved = torch.full((count,), 1.0, dtype=torch.float64) / math.sqrt(count)

        assert not any(test(drawn(same), drawn(same + moved)).too_far for test in TESTS)
        assert not in_every_number(drawn(pointed, LAPLACE), drawn(pointed + 4 / count, LAPLACE)).too_far


def test_neighbors_with_the_same_noise_are_compared_without_it():
    rng = torch.Generator().manual_seed(0)
    same, moved = noise(512, rng), torch.zeros(512, dtype=torch.float64)
    moved[:9] = 1.0  # 3 standard deviations in all

    assert not along_a_direction(drawn(same), drawn(same + moved / 3)).too_far
    assert along_a_direction(drawn(same), drawn(same + moved)).too_far


def test_laplace_noise_is_compared_in_every_number():
    rng = torch.Generator().manual_seed(0)
    uniform = torch.rand(DRAWS, 512, generator=rng, dtype=torch.float64) - 0.5
    same = -uniform.sign() * torch.log1p(-2 * uniform.abs())
    moved = torch.full((512,), 4 / 512, dtype=torch.float64)

    assert not in_every_number(drawn(same, LAPLACE), drawn(same + moved, LAPLACE)).too_far
    assert in_every_number(drawn(same, LAPLACE), drawn(same + 3 * moved, LAPLACE)).too_far
    assert not along_a_direction(drawn(same, LAPLACE), drawn(same + 3 * moved, LAPLACE)).too_far


@pytest.mark.parametrize(("ratio", "found"), [(1.0, False), (1.01, False), (1.2, True)])
def test_noise_of_another_size_is_found(ratio: float, *, found: bool):
    """Of 512 numbers, each release shows a size that is a fifth larger by six standard deviations."""
    rng = torch.Generator().manual_seed(0)

    assert by_length_of_noise(drawn(noise(512, rng)), drawn(ratio * noise(512, rng))).too_far is found


def test_noise_in_steps_is_found_where_the_value_is_not_rounded_to_them():
    rng = torch.Generator().manual_seed(0)
    first, second = (torch.rand(32, generator=rng, dtype=torch.float64) for _ in range(2))
    steps = [(noise(32, rng) / 0.01).round() * 0.01 for _ in range(2)]
    rounded = [((value + noise(32, rng)) / 0.01).round() * 0.01 for value in (first, second)]

    assert by_a_grid(drawn(first + steps[0]), drawn(second + steps[1])).too_far
    assert not by_a_grid(drawn(rounded[0]), drawn(rounded[1])).too_far
    assert not by_a_grid(drawn(first + noise(32, rng)), drawn(second + noise(32, rng))).too_far


def test_numbers_without_noise_for_one_of_two_neighbors_are_found():
    rng = torch.Generator().manual_seed(0)
    one, other = noise(8, rng), noise(8, rng)
    one[:, 3] = 0.0

    assert by_what_has_no_noise(drawn(one), drawn(other)).too_far
    often = other.clone()
    often[::2, 3] = 0.0  # cut at a public bound in half of the draws: in the other client, always
    assert not by_what_has_no_noise(drawn(one), drawn(often)).too_far


@pytest.mark.parametrize(("most", "found"), [(3.0, True), (6.0, False)])
def test_cut_noise_has_no_tails(most: float, *, found: bool):
    rng = torch.Generator().manual_seed(0)
    values = torch.cat([noise(256, rng) for _ in range(8)]).clamp(-most, most)

    assert bounded(values, values) is found


@pytest.mark.parametrize("made", ["cut", "rounded"])
def test_what_was_made_of_noise_is_compared_by_how_often_it_tells(made: str):
    """Of numbers that are cut to a public bound or rounded to a coarse grid, none has noise to measure a distance in."""
    rng = torch.Generator().manual_seed(0)
    along = torch.full((256,), 1 / 16, dtype=torch.float64)  # of length 1

    def sent(times: float) -> Drawn:
        values = torch.randn(SURE, 256, generator=rng, dtype=torch.float64) + times * along
        shown = values.clamp(-1, 1) if made == "cut" else (values / 3).round() * 3
        none = torch.zeros(256, dtype=torch.bool)
        return replace(drawn(shown), whole=none)

    one = sent(0.0)
    assert not any(test(one, sent(1.0)).too_far for test in TESTS)
    assert by_what_is_sent(one, sent(4.0)).too_far
    assert not along_a_direction(one, sent(4.0)).too_far


def test_how_often_is_counted_against_a_release_that_is_one_of_two():
    """A bit that is flipped with probability 1 / (1 + e^4) hides as well as noise at 4.2 deviations, and no worse."""
    rng = torch.Generator().manual_seed(0)
    flips = torch.rand(SURE, 1, generator=rng, dtype=torch.float64) < 1 / (1 + math.e**4)
    allowed = -2 * float(ndtri(1 / (1 + math.e**4)))
    one, other = (replace(drawn((flips ^ bit).double()), allowed=allowed) for bit in (False, True))

    assert not by_what_is_sent(one, other).too_far
    assert by_what_is_sent(replace(one, allowed=2.0), replace(other, allowed=2.0)).too_far


def test_laplace_noise_beside_gaussian_noise_is_compared_in_its_numbers():
    rng = torch.Generator().manual_seed(0)
    uniform = torch.rand(DRAWS, 256, generator=rng, dtype=torch.float64) - 0.5
    same = torch.cat([-uniform.sign() * torch.log1p(-2 * uniform.abs()), noise(256, rng)], 1)
    moved = torch.cat([torch.full((256,), 4 / 256), torch.full((256,), 1 / 16)]).double()

    def mixed(values: Tensor) -> Drawn:
        return replace(drawn(values, LAPLACE), uses=(LAPLACE, GAUSSIAN))

    assert not in_every_number(mixed(same), mixed(same + moved)).too_far
    assert in_every_number(mixed(same), mixed(same + 3 * moved)).too_far


@pytest.mark.parametrize(("spread", "found"), [(0.0, True), (0.5, False)])
def test_the_length_of_noise_counts_where_single_releases_show_it(spread: float, *, found: bool):
    """Noise over a private number tells it; noise over a noisy number does not, though it is as much larger on average."""
    rng = torch.Generator().manual_seed(0)

    def of(number: int) -> Drawn:
        over = number * (spread * torch.randn(SURE, 1, generator=rng, dtype=torch.float64)).exp()
        return drawn(torch.randn(SURE, 512, generator=rng, dtype=torch.float64) / over)

    assert by_length_of_noise(of(15), of(16)).too_far == found
