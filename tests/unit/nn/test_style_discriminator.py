import pytest
import torch
from torch.nn import functional

from fdgsec.nn.networks.style_discriminator import (
    Halving,
    SpectralConvolution,
    StyleDiscriminator,
    StylePredictor,
    draw_weights,
)
from fdgsec.nn.networks.style_generator import GeneratorShape


def coins(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def shape(size: int) -> GeneratorShape:
    return GeneratorShape(size=size, cap=8, numerator=128, seed_channels=8)


def pictures(count: int, size: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, 3, size, size, generator=coins(seed))


def test_a_spectral_convolution_comes_to_have_norm_one():
    layer = SpectralConvolution(3, 5, 3)
    draw_weights(layer, coins())
    with torch.no_grad():
        for _ in range(200):
            layer(pictures(1, 8))

    matrix = layer.weight.detach().flatten(1)
    largest = float(torch.linalg.svdvals(matrix)[0])
    one = torch.zeros(1, 3, 3, 3)
    one[0, 1, 2, 0] = 1  # a single pixel reads one column of the matrix
    found = layer(one).detach().flatten()
    assert torch.allclose(found, layer.weight.detach()[:, 1, 2, 0] / largest, atol=1e-5)


def test_a_spectral_convolution_learns_its_direction_in_training_alone():
    layer = SpectralConvolution(3, 5, 3)
    draw_weights(layer, coins())
    before = layer.direction.clone()

    layer.eval()(pictures(1, 8))
    still = layer.direction.clone()
    layer.train()(pictures(1, 8))

    assert torch.equal(before, still)
    assert not torch.equal(before, layer.direction)


def test_halving_averages_two_convolutions_and_a_pooled_one():
    block = Halving(2, 3)
    draw_weights(block, coins())
    block.eval()
    maps = torch.randn(1, 2, 6, 6, generator=coins(1))

    found = block(maps)

    inner = functional.leaky_relu(block.second(functional.leaky_relu(block.first(maps), 0.2)), 0.2)
    pooled = maps.reshape(1, 2, 3, 2, 3, 2).mean((3, 5))
    outer = functional.leaky_relu(block.direct(pooled), 0.2)
    assert found.shape == (1, 3, 3, 3)
    assert torch.allclose(found, (inner + outer) / 2, atol=1e-6)


@pytest.mark.parametrize(("size", "patches"), [(8, 1), (16, 25), (32, 25), (64, 25)])
def test_logits_come_per_patch_and_pictures_are_redrawn_at_half_their_side(size: int, patches: int):
    judge = StyleDiscriminator(4, shape(size), rng=coins())

    maps = judge.trunk(pictures(2, size))

    assert judge(maps, torch.zeros(2, 4)).shape == (2, patches)
    redrawn = judge.redrawn(maps)
    assert redrawn.shape == (2, 3, size // 2, size // 2)
    assert float(redrawn.detach().min()) > 0
    assert float(redrawn.detach().max()) < 1


def test_a_style_adds_its_inner_product_with_the_mean_map():
    judge = StyleDiscriminator(4, shape(16), rng=coins()).eval()
    maps, styles = judge.trunk(pictures(3, 16)), torch.randn(3, 4, generator=coins(1))
    assert judge.style is not None

    added = judge(maps, styles) - judge(maps, torch.zeros(3, 4))

    weight = judge.style.weight.detach()
    by_hand = [float(weight @ s @ m.flatten(1).mean(1)) for s, m in zip(styles, maps.detach(), strict=True)]
    assert torch.allclose(added, torch.tensor(by_hand)[:, None].expand_as(added), atol=1e-5)


def test_without_styles_there_is_nothing_to_project():
    judge = StyleDiscriminator(0, shape(16), rng=coins())

    assert judge.style is None
    assert judge(judge.trunk(pictures(2, 16)), None).shape == (2, 25)


def test_no_picture_sees_another():
    judge = StyleDiscriminator(4, shape(16), rng=coins())
    shown = pictures(3, 16).requires_grad_()

    judge(judge.trunk(shown), torch.ones(3, 4))[1].sum().backward()

    assert shown.grad is not None
    assert [bool(part.abs().max() > 0) for part in shown.grad] == [False, True, False]


def test_weights_come_from_the_given_stream_alone():
    state = torch.random.get_rng_state()
    networks = [StyleDiscriminator(4, shape(16), rng=coins(7)) for _ in range(2)]
    predictors = [StylePredictor(4, rng=coins(7)) for _ in range(2)]

    assert torch.equal(torch.random.get_rng_state(), state)
    for one, other in (networks, predictors):
        assert all(
            torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True)
        )
        assert all(bool(torch.isfinite(value).all()) for value in one.state_dict().values())


def test_a_predictor_reads_any_size_and_whole_pictures():
    predictor = StylePredictor(4, rng=coins())
    told = predictor(pictures(2, 16))

    assert told.shape == predictor(pictures(2, 32)).shape == (2, 4)
    assert not torch.equal(told[0], told[1])
