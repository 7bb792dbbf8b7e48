"""The networks of weights that come in Python packages, against transcriptions that share no code with them.

HED (Xie & Tu 2015): VGG-16 on blue, green, red minus their means. EfficientNet-Lite0: EfficientNet-B0 (Tan & Le 2019,
table 1) without squeeze-and-excitation. Each transcription reads tensors by their published keys and calls
torch.nn.functional alone."""

from collections.abc import Mapping

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from fdgsec.nn.networks.adain_codec import SmallVggDecoder
from fdgsec.nn.networks.classifiers import build_classifier
from fdgsec.nn.networks.efficientnet_lite import EfficientNetLite0
from fdgsec.nn.networks.published_weights import CATALOG
from fdgsec.nn.styles.encoders import Vgg16Hed
from fdgsec.runtime.random_streams import stream
from tests.unit.nn.test_weight_packages import keras_tensors

State = Mapping[str, Tensor]


def pictures(height: int, width: int) -> Tensor:
    coarse = torch.rand(2, 3, 5, 5, generator=stream(0, "world", "packaged networks"))
    return F.interpolate(coarse, size=(height, width), mode="bilinear")


def hed(state: State, images: Tensor) -> Tensor:
    """conv1_1 to relu4_1 of RGB images in [0, 1], with reflected borders and pools that keep an odd last row."""
    x = 255 * images[:, [2, 1, 0]] - torch.tensor([104.00699, 116.66877, 122.67892]).view(3, 1, 1)
    for block, count in ((1, 2), (2, 2), (3, 3), (4, 1)):
        if block > 1:
            x = F.max_pool2d(x, 2, 2, ceil_mode=True)
        for index in range(count):
            path = f"block{block}/layers/conv2d{f'_{index}' if index else ''}/vars"
            kernel = torch.einsum("hwio->oihw", state[f"{path}/0"])
            x = F.relu(F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), kernel, state[f"{path}/1"]))
    return x


def test_vgg16_hed_computes_relu4_1_of_the_published_tensors():
    published = keras_tensors()
    images = pictures(34, 47)
    converted = CATALOG["vgg16_hed"].converted(published)

    encoder = {key: converted[key] for key in CATALOG["vgg16_hed"].shapes()}
    features = Vgg16Hed(encoder, SmallVggDecoder().state_dict()).encode(images)

    expected = hed(published, images)
    assert features.shape == (2, 512, 5, 6)
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


# repetitions, kernel, stride, expansion, output channels
LITE0 = ((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112), (4, 5, 2, 6, 192),
         (1, 3, 1, 6, 320))  # fmt: skip


def same(x: Tensor, kernel: Tensor, *, stride: int = 1, groups: int = 1) -> Tensor:
    """TensorFlow's "same" padding: an odd pixel goes to the end."""
    size = kernel.shape[-1]
    down, across = (max((-(-side // stride) - 1) * stride + size - side, 0) for side in x.shape[2:])
    padded = F.pad(x, (across // 2, across - across // 2, down // 2, down - down // 2))
    return F.conv2d(padded, kernel, stride=stride, groups=groups)


def norm(state: State, key: str, x: Tensor) -> Tensor:
    mean, variance, weight, bias = (
        state[f"{key}.{part}"].view(-1, 1, 1) for part in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / (variance + 1e-3).sqrt() * weight + bias


def lite0(state: State, x: Tensor) -> Tensor:
    x = norm(state, "_bn0", same(x, state["_conv_stem.weight"], stride=2)).clamp(0, 6)
    number = 0
    for repeats, _, stride, expansion, _ in LITE0:
        for index in range(repeats):
            key, before = f"_blocks.{number}.", x
            if expansion > 1:
                x = norm(state, key + "_bn0", same(x, state[key + "_expand_conv.weight"])).clamp(0, 6)
            depthwise = state[key + "_depthwise_conv.weight"]
            x = same(x, depthwise, stride=1 if index else stride, groups=len(depthwise))
            x = norm(state, key + "_bn1", x).clamp(0, 6)
            x = norm(state, key + "_bn2", same(x, state[key + "_project_conv.weight"]))
            x = x + before if index else x
            number += 1
    x = norm(state, "_bn1", same(x, state["_conv_head.weight"])).clamp(0, 6)
    return x.mean((2, 3)) @ state["_fc.weight"].T + state["_fc.bias"]


def lite0_tensors() -> dict[str, Tensor]:
    """Random tensors under the published keys."""
    rng, state = stream(0, "world", "lite0"), dict[str, Tensor]()

    def kernel(key: str, outputs: int, inputs: int, size: int) -> None:
        state[key + ".weight"] = torch.randn(outputs, inputs, size, size, generator=rng) * (2 / inputs) ** 0.5 / size

    def batch_norm(key: str, width: int) -> None:
        for part, least, spread in (("weight", 0.5, 1), ("bias", -0.2, 0.4), ("running_mean", -0.2, 0.4),
                                    ("running_var", 0.5, 1)):  # fmt: skip
            state[f"{key}.{part}"] = least + spread * torch.rand(width, generator=rng)
        state[f"{key}.num_batches_tracked"] = torch.tensor(7)

    kernel("_conv_stem", 32, 3, 3)
    batch_norm("_bn0", 32)
    number, inputs = 0, 32
    for repeats, size, _, expansion, outputs in LITE0:
        for _ in range(repeats):
            key, width = f"_blocks.{number}.", inputs * expansion
            if expansion > 1:
                kernel(key + "_expand_conv", width, inputs, 1)
                batch_norm(key + "_bn0", width)
            kernel(key + "_depthwise_conv", width, 1, size)
            batch_norm(key + "_bn1", width)
            kernel(key + "_project_conv", outputs, width, 1)
            batch_norm(key + "_bn2", outputs)
            number, inputs = number + 1, outputs
    kernel("_conv_head", 1280, 320, 1)
    batch_norm("_bn1", 1280)
    return state | {"_fc.weight": torch.randn(1000, 1280, generator=rng) / 36, "_fc.bias": torch.zeros(1000)}


def test_lite0_computes_the_logits_of_the_published_tensors():
    published, entry = lite0_tensors(), CATALOG["efficientnet_lite0"]
    state = entry.converted(published)
    network = EfficientNetLite0()
    images = 2 * pictures(57, 64) - 1

    assert {key: tuple(tensor.shape) for key, tensor in state.items()} == entry.shapes()
    network.load_state_dict(state)
    with torch.no_grad():
        logits = network.eval()(images)

    expected = lite0(published, images)
    assert sum(tensor.numel() for key, tensor in published.items() if "running" not in key) - 49 == 4_652_008
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("side", [57, 64])
def test_lite0_folded_for_inference_has_the_same_features(side: int):
    network = EfficientNetLite0()
    network.load_state_dict(CATALOG["efficientnet_lite0"].converted(lite0_tensors()))
    images = 2 * pictures(side, 64) - 1

    folded = network.folded()

    with torch.no_grad():
        expected, found = network.eval().features(images), folded.features(images)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in folded.modules())
    assert sum(isinstance(module, torch.nn.BatchNorm2d) for module in network.modules()) == 49


def test_a_pretrained_lite0_classifier_has_the_features_of_the_published_tensors(tmp_path):
    published = lite0_tensors()
    path = tmp_path / "lite0.safetensors"
    save_file(dict(CATALOG["efficientnet_lite0"].converted(published)), path)
    images = pictures(64, 96)

    for norm in ("batch", "frozen"):
        model = build_classifier(
            "efficientnet_lite0", 7, norm=norm, pretrained=True, weights_path=path, rng=stream(0, "world", "head")
        ).eval()
        with torch.no_grad():
            features = model.features(images)
        logits = features @ published["_fc.weight"].T + published["_fc.bias"]
        expected = lite0(published, (255 * images - 127) / 128)
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
