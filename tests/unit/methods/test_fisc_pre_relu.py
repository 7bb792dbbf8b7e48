"""FISC on the features before the last ReLU, as the released code has it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fdgsec.data.domains import as_float
from fdgsec.data.shapes import shapes
from fdgsec.federation.artifacts import InterpolationStyle
from fdgsec.federation.method import Client
from fdgsec.methods.fisc import FISC
from fdgsec.nn.networks import weights
from fdgsec.nn.styles.encoders import AdaInVgg, AdaInVggBeforeReLU, load_encoder
from fdgsec.nn.styles.image_styles import forget_encoders
from fdgsec.runtime.errors import UsageError
from tests.support.fisc_cases import shared
from tests.support.published_files import seeded_state


@pytest.fixture
def vgg(own_cache: Path, tmp_path: Path) -> Iterator[AdaInVgg]:
    """The AdaIN pair with random weights, stored as if it had been imported."""
    for name in ("adain_vgg", "adain_decoder"):
        save_file(dict(seeded_state(name)), tmp_path / f"{name}.safetensors")
        weights.import_file(name, tmp_path / f"{name}.safetensors")
    forget_encoders()
    encoder = load_encoder("vgg19")
    assert isinstance(encoder, AdaInVgg)
    yield encoder
    forget_encoders()


@pytest.mark.medium
def test_styles_may_be_taken_before_the_last_relu_and_images_transferred_behind_it(
    vgg: AdaInVgg,
):
    client = Client(name="client:0", data=shapes(image_size=32, per_domain=3).of_domain(0))
    before = load_encoder("vgg19-pre-relu")
    images = as_float(client.data.pixels())
    method = FISC(encoder="vgg19-pre-relu")
    means, _ = shared(method, client)
    style = InterpolationStyle(mean=means, std=torch.ones(512))

    assert isinstance(before, AdaInVggBeforeReLU)
    assert torch.equal(before.encode(images).relu(), vgg.encode(images))
    assert before.fingerprint != vgg.fingerprint
    torch.testing.assert_close(means, before.encode(images).mean((0, 2, 3)), rtol=1e-4, atol=1e-5)  # three: one cluster
    assert float(means.min()) < 0
    with pytest.raises(UsageError, match="statistics only"):
        before.decode(before.encode(images))
    made = method.transfer(client.data.pixels(), style)
    assert torch.equal(made, FISC(encoder="vgg19").transfer(client.data.pixels(), style))
