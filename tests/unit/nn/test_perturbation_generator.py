import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.nn.networks.perturbation_generator import GeneratorName, PerturbationNetwork, perturbation_network
from fdgsec.runtime.random_streams import stream


def network(name: GeneratorName = "fcn16", seed: int = 0) -> PerturbationNetwork:
    return perturbation_network(name, rng=stream(seed, "world", "generator"))


def images(size: int = 8) -> Tensor:
    return torch.rand(2, 3, size, size, generator=stream(0, "world", "images"))


def slow_instance_norm(maps: Tensor) -> Tensor:
    """Each map of each image to mean 0 and biased variance 1."""
    normal = torch.empty_like(maps)
    for n, c in itertools.product(range(maps.shape[0]), range(maps.shape[1])):
        one = maps[n, c]
        normal[n, c] = (one - one.mean()) / (one.var(correction=0) + 1e-5).sqrt()
    return normal


def slow_convolution(maps: Tensor, weight: Tensor) -> Tensor:
    """A 3x3 convolution by a loop over positions, the border mirrored without repeating its pixels."""
    n, _, height, width = maps.shape
    rows, columns = (torch.tensor([1, *range(side), side - 2]) for side in (height, width))
    padded = maps[:, :, rows][:, :, :, columns]
    made = torch.zeros(n, weight.shape[0], height, width, dtype=maps.dtype)
    for i, j in itertools.product(range(height), range(width)):
        made[:, :, i, j] = torch.einsum("ncab,ocab->no", padded[:, :, i : i + 3, j : j + 3], weight)
    return made


def slow_forward(generator: PerturbationNetwork, pictures: Tensor) -> Tensor:
    """DDAIG's generator step by step, its global average spread out, joined and fused like any other map."""
    weights = {name: value.detach().double() for name, value in generator.state_dict().items()}
    maps = slow_instance_norm(slow_convolution(pictures.double(), weights["stem.weight"])).relu()
    for block in range(3):
        inner = slow_instance_norm(slow_convolution(maps, weights[f"blocks.{block}.first.weight"])).relu()
        maps = maps + slow_instance_norm(slow_convolution(inner, weights[f"blocks.{block}.second.weight"]))
    context = maps.mean((2, 3), keepdim=True).expand_as(maps)
    fused = slow_instance_norm(functional.conv2d(torch.cat([maps, context], 1), weights["fusion.weight"])).relu()
    return functional.conv2d(fused, weights["draw.weight"], weights["draw.bias"]).tanh()


@pytest.mark.parametrize(("name", "parameters"), [("fcn16", 14_819), ("fcn32", 58_307)])
def test_fcn16_and_fcn32_have_the_published_generators_sizes(name: GeneratorName, parameters: int):
    assert sum(value.numel() for value in network(name).state_dict().values()) == parameters


def test_the_network_is_ddaigs_with_its_global_context():
    generator = network()
    generator.draw.weight.data *= 20  # at N(0, 0.02) tanh is all but linear

    drawn = generator(images())

    expected = slow_forward(generator, images())
    assert float(expected.abs().max()) > 0.5
    assert torch.allclose(drawn.double(), expected, atol=1e-5)  # float32 through nine convolutions


def test_the_global_averages_half_of_the_fusion_has_no_effect():
    generator = network()
    expected = slow_forward(generator, images())

    generator.fusion.weight.data[:, 16:] *= -50

    assert torch.allclose(slow_forward(generator, images()), expected, atol=1e-7)  # float64, eps of the normalization


def test_perturbations_lie_between_minus_one_and_one_at_any_size():
    generator = network()
    generator.draw.weight.data *= 1e4

    drawn = generator(images(13)).detach()

    assert drawn.shape == (2, 3, 13, 13)
    assert float(drawn.abs().max()) == 1.0


def test_weights_come_from_the_given_stream_alone():
    before = torch.get_rng_state()

    first, again, other = network(seed=1).state_dict(), network(seed=1).state_dict(), network(seed=2).state_dict()

    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["stem.weight"], other["stem.weight"])


def test_convolutions_start_at_a_std_of_a_fiftieth_and_biases_at_zero():
    state = network("fcn32").state_dict()

    assert float(state["blocks.0.first.weight"].std()) == pytest.approx(0.02, rel=0.03)  # 9,216 draws
    assert float(state["draw.bias"].abs().max()) == 0.0
