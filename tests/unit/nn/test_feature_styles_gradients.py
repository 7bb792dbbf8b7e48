"""The gradients of statistics of maps and of AdaIN, written in closed form, against torch's and finite differences."""

import pytest
import torch
from torch import Tensor

from fdgsec.nn.styles.feature_styles import apply_style, instance_statistics
from fdgsec.runtime.random_streams import stream


def exact(*shape: int, seed: str, low: float = 0.0) -> Tensor:
    """Float64 values that are to have a gradient."""
    drawn = torch.rand(*shape, generator=stream(0, "world", seed), dtype=torch.float64) + low
    return drawn.requires_grad_()


def test_statistics_pass_the_gradient_that_torchs_variance_passes():
    ours, theirs = exact(6, 3, 5, 5, seed="given"), exact(6, 3, 5, 5, seed="given")

    mean, std = instance_statistics(ours)
    (2 * mean + 3 * std).sum().backward()
    (2 * theirs.mean((2, 3)) + 3 * (theirs.var((2, 3)) + 1e-6).sqrt()).sum().backward()

    assert ours.grad is not None
    assert theirs.grad is not None
    assert torch.allclose(ours.grad, theirs.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("unbiased", [True, False])
def test_gradients_of_statistics_are_those_of_finite_differences(unbiased: bool):
    def styles(given: Tensor) -> tuple[Tensor, Tensor]:
        return instance_statistics(given, unbiased=unbiased)

    given = exact(2, 3, 4, 3, seed="given")

    assert torch.autograd.gradcheck(styles, (given,))
    assert torch.autograd.gradgradcheck(styles, (given,))


@pytest.mark.parametrize("rows", [2, 1])  # a style for each map, and one for all
def test_gradients_of_adain_are_those_of_finite_differences_in_all_that_it_reads(rows: int):
    def into_style(given: Tensor, mean: Tensor, std: Tensor, new_mean: Tensor, new_std: Tensor) -> Tensor:
        return apply_style(given, mean, std, new_mean=new_mean, new_std=new_std)

    given = (
        exact(2, 3, 4, 3, seed="given"), exact(2, 3, 1, 1, seed="mean"), exact(2, 3, 1, 1, seed="std", low=0.5),
        exact(rows, 3, 1, 1, seed="new mean"), exact(rows, 3, 1, 1, seed="new std"),
    )  # fmt: skip

    assert torch.autograd.gradcheck(into_style, given)
    assert torch.autograd.gradgradcheck(into_style, given)


def test_maps_that_take_their_own_style_pass_gradients_through_what_normalizes_them():
    def renewed(given: Tensor) -> Tensor:
        mean, std = instance_statistics(given)
        return apply_style(given, mean, std, new_mean=mean.detach() + 1, new_std=2 * std.detach())

    given = exact(2, 2, 3, 3, seed="given")
    plain = given.detach().clone().requires_grad_()
    deviations = plain - plain.mean((2, 3), keepdim=True)
    std = (deviations.square().sum((2, 3), keepdim=True) / 8 + 1e-6).sqrt()
    slow = deviations / std * (2 * std.detach()) + plain.mean((2, 3), keepdim=True).detach() + 1
    weights = torch.rand(2, 2, 3, 3, generator=stream(0, "world", "weights"), dtype=torch.float64)

    made = renewed(given)
    (made * weights).sum().backward()
    (slow * weights).sum().backward()

    assert torch.allclose(made, slow)
    assert given.grad is not None
    assert plain.grad is not None
    assert torch.allclose(given.grad, plain.grad)
