"""The networks that published weights are poured into, against transcriptions that share no code with them.

Each transcription reads tensors by their published keys and calls torch.nn.functional alone."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fdgsec.metrics.image_similarity import Backbone, LpipsDistance
from fdgsec.nn.styles.encoders import AdaInVgg
from fdgsec.runtime.random_streams import stream
from tests.support.published_files import seeded_state

State = Mapping[str, Tensor]


def images(seed: int, *sides: int, count: int = 2) -> Tensor:
    """Smooth pictures in [0, 1] with a little noise."""
    rng = stream(seed, "world", "golden pictures")
    coarse = F.interpolate(torch.rand(count, 3, 5, 5, generator=rng), size=sides, mode="bilinear")
    return (coarse + 0.05 * torch.randn(count, 3, *sides, generator=rng)).clamp(0, 1)


def assert_equal_to_rounding(found: Tensor, expected: Tensor) -> None:
    """Compare to 1e-5 of the largest value: fp32 sums of up to 4608 terms, in another order."""
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


def convolved(state: State, key: str, x: Tensor, *, stride: int = 1, padding: int = 0) -> Tensor:
    return F.conv2d(x, state[f"{key}.weight"], state[f"{key}.bias"], stride=stride, padding=padding)


def reflected(state: State, key: int, x: Tensor) -> Tensor:
    """One convolution of the AdaIN pair: a border of one mirrored pixel, then 3x3."""
    return convolved(state, str(key), F.pad(x, (1, 1, 1, 1), mode="reflect"))


def adain_vgg(state: State, x: Tensor) -> Tensor:
    """VGG-19 to relu4_1, behind the 1x1 convolution that holds the normalization; pools keep an odd last row."""
    x = convolved(state, "0", x)
    for stage in ((2, 5), (9, 12), (16, 19, 22, 25)):
        for key in stage:
            x = F.relu(reflected(state, key, x))
        x = F.max_pool2d(x, 2, 2, ceil_mode=True)
    return F.relu(reflected(state, 29, x))


def adain_decoder(state: State, x: Tensor) -> Tensor:
    """The mirror of the encoder: nearest-neighbor doubling for each pool, nothing after the last convolution."""
    for stage in ((1,), (5, 8, 11, 14), (18, 21)):
        for key in stage:
            x = F.relu(reflected(state, key, x))
        x = x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
    return reflected(state, 28, F.relu(reflected(state, 25, x)))


@cache
def adain() -> tuple[State, State, AdaInVgg]:
    encoder, decoder = seeded_state("adain_vgg"), seeded_state("adain_decoder")
    return encoder, decoder, AdaInVgg(encoder, decoder)


@pytest.mark.parametrize("sides", [(32, 48), (33, 47), (37, 34)])
@torch.inference_mode()
def test_the_vgg19_encoder_is_adains_to_relu4_1(sides: tuple[int, int]) -> None:
    state, _, encoder = adain()
    batch = images(0, *sides)

    assert_equal_to_rounding(encoder.encode(batch), adain_vgg(state, batch))


@torch.inference_mode()
def test_the_vgg19_decoder_is_adains_clamped_to_the_range_of_images() -> None:
    _, state, encoder = adain()
    features = torch.randn(2, 512, 5, 4, generator=stream(0, "world", "golden features")).relu()

    drawn = adain_decoder(state, features)

    assert drawn.shape == (2, 3, 40, 32)
    assert 0.05 < float(((drawn > 0) & (drawn < 1)).float().mean()) < 0.95  # some values are clamped, some are not
    assert_equal_to_rounding(encoder.decode(features), drawn.clamp(0, 1))


def alexnet(state: State, x: Tensor) -> list[Tensor]:
    """Every rectified convolution of AlexNet (Krizhevsky 2014)."""
    taps = [F.relu(convolved(state, "features.0", x, stride=4, padding=2))]
    taps.append(F.relu(convolved(state, "features.3", F.max_pool2d(taps[-1], 3, 2), padding=2)))
    taps.append(F.relu(convolved(state, "features.6", F.max_pool2d(taps[-1], 3, 2), padding=1)))
    taps.append(F.relu(convolved(state, "features.8", taps[-1], padding=1)))
    taps.append(F.relu(convolved(state, "features.10", taps[-1], padding=1)))
    return taps


def vgg16(state: State, x: Tensor) -> list[Tensor]:
    """The last rectified convolution before each pool of VGG-16: relu1_2, 2_2, 3_3, 4_3, 5_3."""
    taps: list[Tensor] = []
    for stage in ((0, 2), (5, 7), (10, 12, 14), (17, 19, 21), (24, 26, 28)):
        x = F.max_pool2d(x, 2, 2) if taps else x
        for number in stage:
            x = F.relu(convolved(state, f"features.{number}", x, padding=1))
        taps.append(x)
    return taps


def fire(state: State, number: int, x: Tensor) -> Tensor:
    squeezed = F.relu(convolved(state, f"features.{number}.squeeze", x))
    narrow = F.relu(convolved(state, f"features.{number}.expand1x1", squeezed))
    return torch.cat([narrow, F.relu(convolved(state, f"features.{number}.expand3x3", squeezed, padding=1))], 1)


def squeezenet(state: State, x: Tensor) -> list[Tensor]:
    """SqueezeNet 1.1 after conv1, after the fire modules before each pool, and after each of the last four."""
    taps = [F.relu(convolved(state, "features.0", x, stride=2))]
    for pair in ((3, 4), (6, 7)):
        x = F.max_pool2d(taps[-1], 3, 2, ceil_mode=True)
        taps.append(fire(state, pair[1], fire(state, pair[0], x)))
    taps.append(fire(state, 9, F.max_pool2d(taps[-1], 3, 2, ceil_mode=True)))
    for number in (10, 11, 12):
        taps.append(fire(state, number, taps[-1]))
    return taps


def lpips(
    taps: Callable[[State, Tensor], list[Tensor]], state: State, heads: Sequence[Tensor], *pair: Tensor
) -> Tensor:
    """LPIPS v0.1 (Zhang et al. 2018, eq. 1): images in [0, 1], one number a pair."""
    shift, scale = torch.tensor([-0.030, -0.088, -0.188]), torch.tensor([0.458, 0.448, 0.450])
    inputs = [(2 * x - 1 - shift.view(1, 3, 1, 1)) / scale.view(1, 3, 1, 1) for x in pair]
    total = torch.zeros(len(pair[0]))
    for head, first, second in zip(heads, taps(state, inputs[0]), taps(state, inputs[1]), strict=True):
        unit = [x / (x.square().sum(1, keepdim=True).sqrt() + 1e-10) for x in (first, second)]
        total += F.conv2d((unit[0] - unit[1]).square(), head).mean((1, 2, 3))
    return total


NETS: Mapping[Backbone, tuple[str, Callable[[State, Tensor], list[Tensor]], tuple[int, ...]]] = {
    "alex": ("alexnet", alexnet, (64, 192, 384, 256, 256)),
    "vgg": ("vgg16", vgg16, (64, 128, 256, 512, 512)),
    "squeeze": ("squeezenet1_1", squeezenet, (64, 128, 256, 384, 384, 512, 512)),
}


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("sides", [(64, 64), (67, 81)])
@torch.inference_mode()
@pytest.mark.medium
def test_lpips_is_its_definition_on_the_published_backbone(net: Backbone, sides: tuple[int, int]) -> None:
    name, taps, widths = NETS[net]
    state = seeded_state(name, without="classifier.")
    first, second = images(1, *sides), images(2, *sides)

    distance = LpipsDistance.from_backbone(net, state)

    heads = [distance._network.get_parameter(f"lin{layer}.model.1.weight") for layer in range(len(widths))]
    assert [tuple(head.shape) for head in heads] == [(1, width, 1, 1) for width in widths]
    torch.testing.assert_close(distance(first, second), lpips(taps, state, heads, first, second), rtol=1e-5, atol=0)


@torch.inference_mode()
def test_every_tap_of_lpips_counts() -> None:
    state = seeded_state("squeezenet1_1", without="classifier.")
    first, second = images(1, 64, 64), images(2, 64, 64)
    usual = LpipsDistance.from_backbone("squeeze", state)(first, second)

    for layer in ("features.0", *(f"features.{number}.expand3x3" for number in (4, 7, 9, 10, 11, 12))):
        changed = {**state, f"{layer}.weight": -state[f"{layer}.weight"]}
        other = LpipsDistance.from_backbone("squeeze", changed)(first, second)

        assert float(((other - usual).abs() / usual).max()) > 1e-4  # ten times the tolerance above
