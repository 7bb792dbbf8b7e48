"""How precise a release is: numbers in significant digits and in bfloat16 are no more precise than they are."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fdgsec.attacks.statistics.release_precision import rounding_of
from fdgsec.federation.artifacts import StyleStatistics
from fdgsec.runtime.random_streams import stream


def significant(values: Tensor, digits: int) -> Tensor:
    return torch.tensor([float(f"{value:.{digits}g}") for value in values.tolist()])


WRITTEN: dict[str, Callable[[Tensor], Tensor]] = {
    "3 significant digits": lambda values: significant(values, 3),
    "4 significant digits": lambda values: significant(values, 4),
    "6 significant digits": lambda values: significant(values, 6),
    "bfloat16": lambda values: values.bfloat16().float(),
}


@pytest.mark.parametrize("written", WRITTEN)
def test_the_rounding_error_of_a_release_is_not_taken_for_less_than_it_is(written: str) -> None:
    rng = stream(0, "attack", "numbers of several magnitudes")
    exact = 10 ** (
        2 * torch.rand(512, generator=rng, dtype=torch.float64) - 0.5
    )  # .3 to 30, as means and stds of styles
    sent = WRITTEN[written](exact).float()
    mean, std = sent.chunk(2)
    bound = rounding_of(StyleStatistics(mean=mean.contiguous(), std=std.contiguous()))(sent)
    assert bool(((sent.double() - exact).abs() <= bound).all())
