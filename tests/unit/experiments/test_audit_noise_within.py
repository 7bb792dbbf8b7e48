"""Noise within a release: the same noise in two numbers is seen, unrelated and cut noise is no alarm."""

import torch
from torch import Tensor

from fdgsec.experiments.audit.noise_within import DRAWS, FEWEST, alike, repeats
from fdgsec.runtime.random_streams import stream


def noise(numbers: int, seed: int = 0) -> Tensor:
    return torch.randn(DRAWS, numbers, generator=stream(seed, "attack", "noise within"), dtype=torch.float64)


def test_unrelated_numbers_are_not_alike():
    assert not any(alike(5 + noise(400, seed)) for seed in range(20))


def test_one_number_that_comes_again_is_seen_at_any_scale_sign_and_place():
    values = noise(400)
    values[:, 399] = 3 - 1e-3 * values[:, 7]

    assert alike(values)


def test_numbers_that_never_change_are_not_compared():
    assert not alike(torch.ones(DRAWS, 5, dtype=torch.float64))
    assert not alike(torch.zeros(DRAWS, 0, dtype=torch.float64))
    assert not alike(noise(1))


def test_draws_in_which_a_number_was_cut_are_left_out():
    """Two numbers that are cut in all draws but the same few are alike in these alone, which are too few."""
    values = noise(2).clamp_min(2.0)
    values[5] = torch.tensor([3.0, 3.5], dtype=torch.float64)

    assert not alike(values, values > 2)


def test_the_same_noise_is_seen_in_the_draws_that_were_not_cut():
    values = noise(1).repeat(1, 2) + torch.tensor([0.6, 0.9], dtype=torch.float64)
    cut = values.clamp_min(0)

    assert int((cut > 0).all(1).sum()) >= FEWEST
    assert alike(cut, cut > 0)


def test_numbers_that_are_rounded_to_few_values_are_alike_by_chance():
    """Of 200 numbers that leave 0 in one draw of 48, several do so in the same one; noise itself has no two orders."""
    rng = torch.Generator().manual_seed(0)
    noise = torch.randn(48, 200, generator=rng, dtype=torch.float64)

    assert not alike((noise / 4.5).round())
    assert not alike(noise)
    assert alike(torch.cat([noise, 3 * noise[:, :1].round(decimals=1)], 1))


def test_a_mean_and_its_second_moment_are_compared_as_they_are_sent():
    rng = torch.Generator().manual_seed(0)
    mean, std = 50 + torch.randn(48, 4, generator=rng, dtype=torch.float64), torch.rand(48, 4, generator=rng).double()
    read = torch.cat([mean, mean**2 + std**2], 1)

    assert not alike(read, sent=torch.cat([mean, std], 1))
    assert alike(read)
    assert alike(torch.cat([mean, 2 * mean], 1), sent=torch.cat([mean, 2 * mean], 1))
    assert alike(torch.cat([mean[:, :1], mean[:, :3], std], 1), sent=torch.cat([mean[:, :1], mean[:, :3], std], 1))


def test_a_short_buffer_of_noise_over_and_over_is_seen_and_so_is_its_opposite():
    few = noise(13, 1).flatten()

    assert repeats(few.repeat(3))
    assert repeats(torch.cat([few, -few]))
    assert repeats(torch.cat([few, few.float()]).float())


def test_unrelated_and_smoothed_noise_does_not_repeat():
    for seed in range(20):
        drawn = noise(400, seed).flatten()
        smoothed = drawn.unfold(0, 21, 1).mean(1)
        assert not repeats(drawn)
        assert not repeats(smoothed)
    assert not repeats(torch.zeros(5000))
    assert not repeats(torch.ones(20))
