import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fdgsec.nn.networks.style_generator import (
    FULL,
    SMALL,
    GeneratorShape,
    SkipExcitation,
    Stage,
    StyleGenerator,
    small_shape,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


TINY = GeneratorShape(size=16, cap=8, numerator=64, seed_channels=8)
STYLES = torch.randn(3, 10, generator=generator(7))


def slow_stage(stage: Stage, features: Tensor) -> Tensor:
    """Upsampling, blur and convolution by loops over pixels; norm and GLU by their definitions."""
    n, c, h, w = features.shape
    large = torch.zeros(n, c, 2 * h, 2 * w)
    for i, j in itertools.product(range(2 * h), range(2 * w)):
        large[:, :, i, j] = features[:, :, i // 2, j // 2]
    blurred = torch.zeros_like(large)
    for i, j, a, b in itertools.product(range(2 * h), range(2 * w), (-1, 0, 1), (-1, 0, 1)):
        row, column = min(max(i + a, 0), 2 * h - 1), min(max(j + b, 0), 2 * w - 1)
        blurred[:, :, i, j] += large[:, :, row, column] * (2 - abs(a)) * (2 - abs(b)) / 16
    weight = stage.convolution.weight.detach()
    padded = functional.pad(blurred, (1, 1, 1, 1))
    mixed = torch.zeros(n, weight.shape[0], 2 * h, 2 * w)
    for i, j in itertools.product(range(2 * h), range(2 * w)):
        mixed[:, :, i, j] = torch.einsum("ncab,ocab->no", padded[:, :, i : i + 3, j : j + 3], weight)
    grouped = mixed.reshape(n, mixed.shape[1] // 8, -1)
    normal = (grouped - grouped.mean(2, keepdim=True)) / (grouped.var(2, unbiased=False, keepdim=True) + 1e-5).sqrt()
    value, gate = normal.reshape(mixed.shape).chunk(2, 1)
    return value * torch.sigmoid(gate)


def test_a_stage_does_what_the_paper_says_step_by_step():
    stage = StyleGenerator(10, TINY, rng=generator()).stages[0]
    features = torch.randn(2, 8, 4, 4, generator=generator(1))

    assert isinstance(stage, Stage)
    drawn = stage(features, None)

    assert torch.allclose(drawn, slow_stage(stage, features), atol=1e-5)  # float32 sums in another order


def test_excitation_multiplies_every_channel_by_one_gate_from_the_small_map():
    excitation = SkipExcitation(4, 6)
    small, large = torch.randn(2, 4, 3, 3, generator=generator()), torch.randn(2, 6, 8, 8, generator=generator(1))

    gate = excitation(small, large) / large

    assert torch.allclose(gate, gate[:, :, :1, :1].expand_as(gate), atol=1e-5)
    assert bool(((gate > 0) & (gate < 1)).all())


@pytest.mark.medium
def test_published_widths_at_64_px_have_64_million_parameters():
    network = StyleGenerator(1024, FULL, rng=generator())
    drawing = 1024 * 2048 * 16 + 16 * (1024 * 1024 + 512 * 1024 + 512 * 512 + 256 * 256) + 128 * 27  # convolutions

    assert [FULL.channels(side) for side in FULL.sides] == [512, 512, 256, 128]
    assert drawing < sum(parameter.numel() for parameter in network.parameters()) < 1.003 * drawing  # norms and gates


def test_the_small_shape_costs_at_most_25_million_multiplications():
    network = StyleGenerator(512, SMALL, rng=generator())

    assert network(torch.zeros(1, 512)).shape == (1, 3, 64, 64)
    assert network.multiplications() <= 25e6


@pytest.mark.parametrize("size", [8, 16, 32, 128])
def test_any_power_of_two_can_be_drawn(size: int):
    images = StyleGenerator(10, small_shape(size), rng=generator())(STYLES)

    assert images.shape == (3, 3, size, size)
    assert bool(((images > 0) & (images < 1)).all())


@pytest.mark.parametrize("size", [4, 48, 65])
def test_other_sizes_are_refused(size: int):
    with pytest.raises(ValueError, match="power of two"):
        small_shape(size)


def test_equal_streams_give_equal_networks_and_the_global_stream_is_untouched():
    before = torch.random.get_rng_state()
    one, other = (StyleGenerator(10, TINY, rng=generator(3)).state_dict() for _ in range(2))

    assert all(torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(before, torch.random.get_rng_state())


def test_styles_are_standardized_by_what_was_fitted():
    network = StyleGenerator(10, TINY, rng=generator())
    plain = network(STYLES)
    network.fit_input(torch.cat([STYLES * 0 + 5 - 2, STYLES * 0 + 5 + 2]))

    assert torch.allclose(network(2 * STYLES + 5), plain, atol=1e-5)


def test_a_constant_coordinate_is_not_divided_by_zero():
    network = StyleGenerator(10, TINY, rng=generator())
    network.fit_input(torch.ones(4, 10))

    assert torch.equal(network.spread, torch.ones(10))


def test_noise_enters_only_with_a_stream_and_only_once_its_scalar_is_learned():
    network = StyleGenerator(10, TINY, rng=generator())
    silent = network(STYLES, generator(1))
    for stage in network.stages:
        assert isinstance(stage, Stage)
        assert stage.loudness is not None
        stage.loudness.data.fill_(1.0)

    assert torch.equal(silent, network(STYLES))
    assert not torch.allclose(network(STYLES, generator(1)), network(STYLES, generator(2)))
    assert torch.equal(network(STYLES), network(STYLES))


def test_one_row_is_drawn_as_it_is_in_a_batch_under_group_norm():
    network = StyleGenerator(10, TINY, rng=generator()).train()

    assert torch.allclose(network(STYLES)[1:2], network(STYLES[1:2]), atol=1e-6)


def test_at_64_px_the_seed_gates_the_last_map():
    network = StyleGenerator(10, small_shape(64), rng=generator())
    plain = network(STYLES)
    excitation = network.gates["64"]
    assert isinstance(excitation, SkipExcitation)
    nn.init.constant_(excitation.excite.weight, 0.0)
    assert excitation.excite.bias is not None
    nn.init.constant_(excitation.excite.bias, -20.0)

    assert list(network.gates) == ["64"]
    assert torch.allclose(network(STYLES), torch.full_like(plain, 0.5), atol=1e-3)  # nothing passes, so the logit is 0
