"""How precise a release is: numbers in significant digits and in bfloat16 are no more precise than they are."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fdgsec.attacks.statistics.release_precision import rounding_of, steps_of
from fdgsec.federation.artifacts import StyleStatistics
from fdgsec.runtime.random_streams import stream


def significant(values: Tensor, digits: int) -> Tensor:
    return torch.tensor([float(f"{value:.{digits}g}") for value in values.tolist()])


WRITTEN: dict[str, Callable[[Tensor], Tensor]] = {
    "3 significant digits": lambda values: significant(values, 3),
    "4 significant digits": lambda values: significant(values, 4),
    "6 significant digits": lambda values: significant(values, 6),
    "bfloat16": lambda values: values.bfloat16().float(),
    "sixths": lambda values: torch.round(values * 6) / 6,
    "8 bits": lambda values: torch.round(values * 255 / float(values.max())) * (float(values.max()) / 255),
    "8 bits above the least": lambda values: _eight_bits(values),
}


def _eight_bits(values: Tensor) -> Tensor:
    """Each half in 255 steps from its least to its largest number, as tensors of affine 8-bit codes."""
    return torch.cat([
        half.min() + torch.round((half - half.min()) / (half.max() - half.min()) * 255) * (half.max() - half.min()) / 255
        for half in values.chunk(2)
    ])  # fmt: skip


@pytest.mark.parametrize("written", WRITTEN)
def test_the_rounding_error_of_a_release_is_not_taken_for_less_than_it_is(written: str) -> None:
    rng = stream(0, "attack", "numbers of several magnitudes")
    exact = 10 ** (
        2 * torch.rand(512, generator=rng, dtype=torch.float64) - 0.5
    )  # .3 to 30, as means and stds of styles
    sent = WRITTEN[written](exact).float()
    mean, std = sent.chunk(2)
    error = rounding_of(StyleStatistics(mean=mean.contiguous(), std=std.contiguous()))
    bound = torch.cat([error(mean), error(std)])
    assert bool(((sent.double() - exact).abs() <= bound * (1 + 1e-6)).all())


@pytest.mark.parametrize("count", [3, 6, 40, 512, 5000])
def test_numbers_that_are_not_rounded_are_taken_for_no_steps(count: int):
    rng = stream(0, "attack", "numbers that are not rounded")
    drawn = (torch.rand(200, count, generator=rng, dtype=torch.float64) * 30 + 0.1).float()

    assert [found for values in drawn if (found := steps_of(values)) is not None] == []


@pytest.mark.parametrize(("step", "offset"), [(1 / 6, 0.0), (0.013, 0.0), (0.0371, -2.2), (2.5, 100.0)])
@pytest.mark.parametrize("count", [8, 60, 2000])
def test_steps_are_found(step: float, offset: float, count: int):
    rng = stream(0, "attack", "numbers in steps")
    values = (offset + step * torch.randint(0, 256, (count,), generator=rng)).float()

    found = steps_of(values)

    assert found is not None
    assert found.step / step == pytest.approx(round(found.step / step), abs=1e-4)
    assert found.holds(values)
