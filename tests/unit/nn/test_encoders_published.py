"""The encoders whose weights others published: their module numbers, sizes and features."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import squeezenet1_0

from fdgsec.nn.networks import weights
from fdgsec.nn.networks.adain_codec import (
    VGG16_WIDTHS,
    SmallVggDecoder,
    squeezenet_encoder,
    vgg_decoder,
    vgg_encoder,
)
from fdgsec.nn.styles.encoders import AdaInVgg, AdaInVggInBfloat16, SqueezeStyle, load_encoder
from fdgsec.nn.styles.image_moments import image_moments
from fdgsec.runtime.errors import UsageError, WeightsUnavailableError
from fdgsec.runtime.random_streams import stream
from tests.support.weight_files import saved


def test_a_changed_weight_changes_the_fingerprint() -> None:
    decoder = random_state(vgg_decoder)
    changed = {name: tensor + (1e-3 if name == "28.bias" else 0) for name, tensor in decoder.items()}

    other = AdaInVgg(random_state(vgg_encoder), changed)

    assert other.fingerprint != random_vgg().fingerprint


ENCODER_CONVOLUTIONS = (0, 2, 5, 9, 12, 16, 19, 22, 25, 29)
DECODER_CONVOLUTIONS = (1, 5, 8, 11, 14, 18, 21, 25, 28)


def images(count: int, height: int = 64, width: int = 64) -> Tensor:
    return torch.rand(count, 3, height, width, generator=stream(0, "world", "encoder test"))


def random_state(build: Callable[[], nn.Module]) -> dict[str, Tensor]:
    with torch.device("meta"):
        wanted = build().state_dict()
    rng = stream(0, "world", "random weights")
    return {
        name: torch.randn(tensor.shape, generator=rng) * (2 / max(1, tensor[0].numel())) ** 0.5
        for name, tensor in wanted.items()
    }


@cache
def random_vgg() -> AdaInVgg:
    return AdaInVgg(random_state(vgg_encoder), random_state(vgg_decoder))


def test_vgg_has_the_published_module_numbers() -> None:
    encoder = [f"{number}.{kind}" for number in ENCODER_CONVOLUTIONS for kind in ("weight", "bias")]
    decoder = [f"{number}.{kind}" for number in DECODER_CONVOLUTIONS for kind in ("weight", "bias")]

    assert len(vgg_encoder()) == 31
    assert list(vgg_encoder().state_dict()) == encoder
    assert list(vgg_decoder().state_dict()) == decoder


def test_in_bfloat16_vgg_is_another_encoder_whose_styles_are_rounded_and_no_more() -> None:
    exact, rounded = random_vgg(), AdaInVggInBfloat16(random_state(vgg_encoder), random_state(vgg_decoder))
    batch = images(3)
    pixels = (batch * 255).to(torch.uint8)

    features = rounded.encode(batch)
    own, other = (image_moments(encoder, pixels).mean for encoder in (exact, rounded))

    assert features.dtype == torch.float32
    assert not torch.equal(features, exact.encode(batch))
    assert 1e-5 < float((other - own).norm() / own.norm()) < 1e-2
    assert (rounded.name, rounded.has_decoder) == ("vgg19-bfloat16", True)
    assert rounded.fingerprint != exact.fingerprint


@pytest.mark.medium
@pytest.mark.parametrize("name", ["vgg19", "vgg16-hed"])
def test_an_encoder_in_bfloat16_has_the_weights_of_the_exact_one(name: str, own_cache: object, tmp_path: Path) -> None:
    if name == "vgg19":
        weights.import_file("adain_vgg", saved(random_state(vgg_encoder), tmp_path / "encoder.pth"))
        weights.import_file("adain_decoder", saved(random_state(vgg_decoder), tmp_path / "decoder.pth"))
    else:
        weights.import_file("vgg16_hed", saved(random_state(lambda: vgg_encoder(VGG16_WIDTHS)), tmp_path / "hed.pth"))
    exact, rounded = load_encoder(name), load_encoder(f"{name}-bfloat16")

    torch.testing.assert_close(rounded.encode(images(2)), exact.encode(images(2)), rtol=0.1, atol=0.1)
    assert all(torch.equal(own, other) for own, other in zip(rounded.parameters(), exact.parameters(), strict=True))


@pytest.mark.parametrize(("height", "width"), [(32, 40), (33, 47)])
def test_vgg_features_are_an_eighth_of_the_sides_rounded_up(height: int, width: int) -> None:
    features = random_vgg().encode(images(2, height, width))

    assert features.shape == (2, 512, -(-height // 8), -(-width // 8))
    assert random_vgg().decode(features).shape == (2, 3, 8 * features.shape[2], 8 * features.shape[3])


def test_vgg_ignores_what_the_published_file_has_after_relu4_1() -> None:
    whole = random_state(vgg_encoder) | {"32.weight": torch.zeros(512, 512, 3, 3), "32.bias": torch.zeros(512)}

    assert AdaInVgg(whole, random_state(vgg_decoder)).fingerprint == random_vgg().fingerprint


def test_squeezenet_gives_the_normalized_fire5_features_of_torchvisions_network() -> None:
    state = random_state(squeezenet1_0)
    network = squeezenet1_0(weights=None)
    network.load_state_dict(state)
    caught: list[Tensor] = []
    network.features[7].register_forward_hook(lambda module, inputs, output: caught.append(output.detach().clone()))
    batch = images(2)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    network.eval()((batch - mean.view(3, 1, 1)) / std.view(3, 1, 1))

    encoder = SqueezeStyle(state)

    assert (encoder.channels, encoder.stride, encoder.has_decoder) == (256, 8, False)
    # the same sums in another memory layout
    torch.testing.assert_close(encoder.encode(batch), caught[0], rtol=1e-4, atol=1e-5)


def test_squeezenet_cannot_draw() -> None:
    encoder = SqueezeStyle({f"features.{name}": tensor for name, tensor in random_state(squeezenet_encoder).items()})

    with pytest.raises(UsageError, match="statistics only"):
        encoder.decode(torch.zeros(1, 256, 7, 7))


@pytest.mark.medium
def test_vgg16_hed_decodes_with_the_bundled_decoder_until_there_is_ones_own(own_cache: object, tmp_path: Path) -> None:
    weights.import_file("vgg16_hed", saved(random_state(lambda: vgg_encoder(VGG16_WIDTHS)), tmp_path / "encoder.pth"))
    bundled = load_encoder("vgg16-hed")
    assert bundled.decode(bundled.encode(images(2, 40, 48))).shape == (2, 3, 40, 48)
    with pytest.raises(WeightsUnavailableError, match="train_vgg_decoder"):
        weights.fetch("vgg16_hed_decoder")

    weights.import_file("vgg16_hed_decoder", saved(random_state(SmallVggDecoder), tmp_path / "decoder.pth"))
    own = load_encoder("vgg16-hed")

    assert torch.equal(own.encode(images(2)), bundled.encode(images(2)))
    assert not torch.allclose(own.decode(own.encode(images(2))), bundled.decode(bundled.encode(images(2))))
    assert own.fingerprint != bundled.fingerprint
