"""Noise within a release: the same noise in two numbers is seen, unrelated and cut noise is no alarm."""

import torch
from torch import Tensor

from fdgsec.experiments.audit.noise_within import DRAWS, FEWEST, alike
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
