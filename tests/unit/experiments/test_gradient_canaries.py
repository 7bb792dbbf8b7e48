"""The loss of gradient canaries: constant gradients, each in the weights of its own pixel."""

import pytest
import torch
from torch import Tensor

from fdgsec.experiments.audit.gradient_canaries import EVERYWHERE, IN_ONE_KIND, KINDS, PARTS, OwnWeights, lit_pixels
from fdgsec.experiments.audit.small_networks import layered
from fdgsec.nn.training.batches import Batch

SIDE, LIT = 2, 5
INPUTS = 3 * SIDE**2


def gradients(label: int, *, scale: float) -> list[Tensor]:
    """Of a canary whose fifth pixel is lit, in a network whose weights have this scale."""
    data, network, rng = lit_pixels(INPUTS, SIDE), layered(INPUTS), torch.Generator().manual_seed(0)
    for weights in network.parameters():
        weights.data = scale * torch.randn(weights.shape, generator=rng)
    batch = Batch(images=data.pixels()[LIT : LIT + 1] / 255, labels=torch.tensor([label]), records=torch.tensor([0]))
    loss = OwnWeights(3.0)(batch, network).sum()
    return list(torch.autograd.grad(loss, list(network.parameters())))


@pytest.mark.parametrize("scale", [0.0, 1.0, 100.0])
def test_a_gradient_is_as_long_in_one_weight_of_each_of_17_tensors_whatever_the_weights(scale: float):
    found = gradients(EVERYWHERE, scale=scale)

    assert len(found) == 17
    for gradient in found:
        expected = torch.zeros(gradient.numel())
        expected[LIT] = 3.0
        torch.testing.assert_close(gradient.flatten().abs(), expected, atol=0, rtol=1e-6)


def test_each_tensor_has_a_gradient_of_one_kind_alone():
    found = torch.stack(
        [torch.stack([gradient.norm() for gradient in gradients(label, scale=1.0)]) for label in IN_ONE_KIND]
    )

    assert len(PARTS) == IN_ONE_KIND.stop + 1  # and those of a large loss
    assert ((found > 0).sum(0) == 1).all()
    assert (found > 0).sum(1).tolist() == [1, 4, 4, 3, 1, 1, 1, 1, 1]
    assert len(found) == KINDS
