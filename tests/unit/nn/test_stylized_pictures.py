"""The number format in which training images are stylized: VGG's where the table says so, all others in float32."""

import pytest
import torch
from torch import Tensor

from fdgsec.nn.networks.adain_codec import vgg_decoder, vgg_encoder
from fdgsec.nn.styles.encoders import AdaInVgg, StyleEncoder, load_encoder
from fdgsec.nn.styles.image_styles import style_transfer
from fdgsec.nn.training import precision
from fdgsec.nn.training.precision import VARIABLE, WantedPrecision
from fdgsec.runtime.random_streams import stream
from tests.unit.nn.test_precision import XEON, ZEN


@pytest.fixture(autouse=True)
def nothing_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture(scope="module")
def vgg() -> AdaInVgg:
    """AdaIN's networks with weights that keep the scale of what passes through them."""
    rng = stream(0, "world", "weights")

    def drawn(state: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: torch.randn(value.shape, generator=rng) * (2 / value[0].numel()) ** 0.5
            if value.ndim == 4
            else torch.zeros_like(value)
            for name, value in state.items()
        }

    return AdaInVgg(drawn(dict(vgg_encoder().state_dict())), drawn(dict(vgg_decoder().state_dict())))


def drawn_by(encoder: StyleEncoder, wanted: WantedPrecision = "table") -> Tensor:
    """Unclamped pictures of two images in the style of two others."""
    rng = stream(0, "world", "images")
    content, others = torch.rand(2, 3, 32, 32, generator=rng), torch.rand(2, 3, 32, 32, generator=rng)
    with torch.inference_mode():
        features = encoder.encode(others)
        made = style_transfer(
            encoder, content, features.mean((2, 3)), features.std((2, 3)), clamp=False, precision=wanted
        )
    assert made.dtype == torch.float32
    return made


def on(monkeypatch: pytest.MonkeyPatch, known: dict[str, object]) -> None:
    monkeypatch.setattr(precision, "capabilities", lambda: known)


def test_vgg_draws_in_bfloat16_where_the_table_says_so_and_the_plan_does_not_object(
    vgg: AdaInVgg, monkeypatch: pytest.MonkeyPatch
):
    exact = drawn_by(vgg, "float32")
    on(monkeypatch, XEON)
    assert torch.equal(drawn_by(vgg), exact)

    on(monkeypatch, ZEN)
    assert torch.equal(drawn_by(vgg, "float32"), exact)
    rounded = drawn_by(vgg)
    assert not torch.equal(rounded, exact)
    assert float((rounded - exact).square().mean().sqrt()) < 0.03 * float(exact.std())

    monkeypatch.setenv(VARIABLE, "float32")
    assert torch.equal(drawn_by(vgg), exact)


@pytest.mark.parametrize("asked", ["", "bfloat16"])
def test_other_encoders_draw_in_float32_whatever_is_asked(asked: str, monkeypatch: pytest.MonkeyPatch):
    mini = load_encoder("mini")
    exact = drawn_by(mini, "float32")

    on(monkeypatch, ZEN)
    monkeypatch.setenv(VARIABLE, asked)
    assert torch.equal(drawn_by(mini), exact)
    assert torch.equal(drawn_by(mini, "bfloat16"), exact)
