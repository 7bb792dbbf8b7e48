"""Encoders: `mini`, and what every encoder's features and moments are."""

from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.data.shapes import shapes
from fdgsec.nn.styles.channel_statistics import adain, style_of
from fdgsec.nn.styles.encoders import ENCODERS, StyleEncoder, load_encoder
from fdgsec.nn.styles.image_moments import block_of, image_moments
from fdgsec.runtime.errors import UsageError, WeightsUnavailableError
from fdgsec.runtime.random_streams import stream


@cache
def mini() -> StyleEncoder:
    return load_encoder("mini")


@cache
def little_shapes() -> DomainDataset:
    return shapes(image_size=64, per_domain=16, seed=0)


def test_an_unknown_encoder_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="unknown encoder 'vgg'; did you mean 'vgg19'"):
        load_encoder("vgg")


@pytest.mark.parametrize("name", ["vgg19", "squeezenet"])
def test_an_encoder_without_imported_weights_is_an_error_and_never_random(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path))

    with pytest.raises(WeightsUnavailableError, match="fdgsec weights import"):
        load_encoder(name)


def test_the_bundled_files_take_at_most_four_megabytes() -> None:
    folder = files("fdgsec.nn.networks").joinpath("assets")
    sizes = [len(folder.joinpath(f"mini_{part}.safetensors").read_bytes()) for part in ("encoder", "decoder")]

    assert sum(sizes) <= 4_000_000


def test_mini_is_what_the_interface_says() -> None:
    encoder = mini()

    assert ENCODERS[0] == encoder.name == "mini"
    assert (encoder.channels, encoder.stride, encoder.has_decoder) == (256, 4, True)
    assert not encoder.training
    assert not any(parameter.requires_grad for parameter in encoder.parameters())


def test_loading_mini_twice_gives_the_same_codec_and_draws_nothing_globally() -> None:
    before = torch.get_rng_state()
    again = load_encoder("mini")
    batch = images(3)

    assert torch.equal(torch.get_rng_state(), before)
    assert again.fingerprint == mini().fingerprint
    assert torch.equal(again.encode(batch), mini().encode(batch))


@pytest.mark.parametrize(("height", "width"), [(64, 64), (64, 96), (33, 18), (16, 17)])
def test_mini_features_are_a_quarter_of_the_sides_rounded_up(height: int, width: int) -> None:
    features = mini().encode(images(2, height, width))
    drawn = mini().decode(features)

    assert features.shape == (2, 256, -(-height // 4), -(-width // 4))
    assert drawn.shape == (2, 3, 4 * features.shape[2], 4 * features.shape[3])


def test_decoded_images_stay_in_range_whatever_the_features() -> None:
    drawn = mini().decode(100 * torch.randn(2, 256, 8, 8, generator=stream(0, "world", "wild")))

    assert float(drawn.min()) >= 0
    assert float(drawn.max()) <= 1


@torch.no_grad()
def test_no_image_sees_the_others_in_its_batch() -> None:
    batch = images(5)
    together = mini().encode(batch)
    alone = torch.cat([mini().encode(image[None]) for image in batch])

    # fp32 rounding of sums over at most 864 terms, relative to features of order 10
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-4)


def test_an_attacker_can_differentiate_through_mini() -> None:
    batch = images(1).requires_grad_(True)

    mini().decode(mini().encode(batch)).sum().backward()

    assert batch.grad is not None
    assert bool(batch.grad.isfinite().all())
    assert float(batch.grad.abs().sum()) > 0


@pytest.mark.parametrize("batch_size", [1, 20, 64])
def test_image_moments_do_not_depend_on_batch_size(batch_size: int) -> None:
    pixels = little_shapes().pixels()[::5]

    usual, other = image_moments(mini(), pixels), image_moments(mini(), pixels, batch_size=batch_size)

    torch.testing.assert_close(other.mean, usual.mean, rtol=1e-6, atol=0)
    torch.testing.assert_close(other.m2, usual.m2, rtol=1e-6, atol=0)


def test_image_moments_do_not_depend_on_order() -> None:
    pixels = little_shapes().pixels()[::5]
    order = torch.randperm(len(pixels), generator=stream(0, "world", "order"))

    usual, shuffled = image_moments(mini(), pixels).rows(order), image_moments(mini(), pixels[order])

    torch.testing.assert_close(shuffled.mean, usual.mean, rtol=1e-6, atol=0)
    torch.testing.assert_close(shuffled.m2, usual.m2, rtol=1e-6, atol=0)


def test_image_moments_are_those_of_the_features_of_each_image() -> None:
    pixels = little_shapes().pixels()[:3]

    found = image_moments(mini(), pixels)

    for row in range(3):
        features = mini().encode(as_float(pixels[row : row + 1]))[0].double().numpy()
        mean = np.array([channel.sum() / channel.size for channel in features])
        m2 = np.array([((channel - channel.sum() / channel.size) ** 2).sum() for channel in features])
        # the encoder's fp32 rounding differs between batches of 1 and 16; the moments themselves are float64
        np.testing.assert_allclose(found.mean[row].numpy(), mean, rtol=1e-5)
        np.testing.assert_allclose(found.m2[row].numpy(), m2, rtol=1e-4)
    assert found.count.tolist() == [256.0] * 3


def test_moments_can_be_targets_of_an_optimization() -> None:
    found = image_moments(mini(), little_shapes().pixels()[:2])
    answers = torch.zeros_like(found.mean, requires_grad=True)

    ((answers - found.mean) * found.m2).square().sum().backward()

    assert answers.grad is not None


def test_a_dataset_gives_the_moments_of_its_pixels_and_reports_progress() -> None:
    dataset, seen = little_shapes().subset(torch.arange(40, 0, -2)), list[int]()

    found = image_moments(mini(), dataset, progress=seen.append)

    assert torch.equal(found.mean, image_moments(mini(), dataset.pixels()).mean)
    assert seen == [16, 4]


@pytest.mark.parametrize(
    ("pixels", "batch_size", "message"),
    [
        (torch.zeros(2, 3, 64, 64), 16, "takes uint8 pixels; got torch.float32"),
        (torch.zeros(0, 3, 64, 64, dtype=torch.uint8), 16, "needs images"),
        (torch.zeros(2, 3, 64, 64, dtype=torch.uint8), 0, "batch size of at least 1; got 2 and 0"),
    ],
)
def test_image_moments_refuse_what_they_cannot_use(pixels: Tensor, batch_size: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        image_moments(mini(), pixels, batch_size=batch_size)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (torch.zeros(2, 3, 64, 64, dtype=torch.uint8), "encodes float images"),
        (torch.zeros(2, 1, 64, 64), r"got \(2, 1, 64, 64\)"),
        (torch.zeros(3, 64, 64), r"got \(3, 64, 64\)"),
        (torch.zeros(2, 3, 64, 15), "at least 16 pixels"),
    ],
)
def test_encode_refuses_what_is_no_batch_of_images(batch: Tensor, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mini().encode(batch)


def test_decode_refuses_features_of_another_encoder() -> None:
    with pytest.raises(UsageError, match=r"mini decodes \(N, 256, h, w\); got \(1, 512, 8, 8\)"):
        mini().decode(torch.zeros(1, 512, 8, 8))


@pytest.mark.medium
def test_the_median_style_norm_on_shapes_is_400() -> None:
    found = image_moments(mini(), shapes(image_size=64, per_domain=50, seed=0))
    norms = torch.cat(found.style(unbiased=True), 1).norm(dim=1)

    # calibrated on 200 images a domain; 2% leaves room for the smaller sample
    assert float(norms.median()) == pytest.approx(400, rel=0.02)


def test_every_channel_varies_over_shapes() -> None:
    means = image_moments(mini(), little_shapes()).mean

    assert bool((means.std(0) > 1e-3 * means.mean(0).abs().median()).all())


@torch.no_grad()
def test_mini_rebuilds_shapes() -> None:
    batch = as_float(little_shapes().pixels())

    error = (mini().decode(mini().encode(batch)) - batch).square().mean((1, 2, 3))

    assert float((-10 * error.log10()).mean()) > 22


@torch.no_grad()
@pytest.mark.medium
def test_a_swap_on_shapes_takes_the_style_and_keeps_the_content() -> None:
    pixels = as_float(little_shapes().pixels())
    content, style = mini().encode(pixels), mini().encode(pixels.roll(16, 0))  # 16 a domain: the next domain's image
    mean, std = style_of(style)
    own_mean, own_std = style_of(content)
    again = mini().encode(mini().decode(adain(content, mean, std)))
    new_mean, new_std = style_of(again)

    wanted = torch.cat([mean, std], 1)
    left = (torch.cat([new_mean, new_std], 1) - wanted).norm(dim=1) / wanted.norm(dim=1)
    untouched = (torch.cat([own_mean, own_std], 1) - wanted).norm(dim=1) / wanted.norm(dim=1)
    normal = (content - own_mean[..., None, None]) / own_std[..., None, None]
    new_normal = (again - new_mean[..., None, None]) / new_std[..., None, None]
    assert float(left.median()) < 0.15 < float(untouched.median())
    assert float((normal * new_normal).mean((1, 2, 3)).median()) > 0.8


@torch.no_grad()
def test_a_blank_image_has_finite_statistics_and_can_be_restyled() -> None:
    blank = mini().encode(torch.ones(1, 3, 64, 64))
    mean, std = style_of(mini().encode(images(1)))

    drawn = mini().decode(adain(blank, mean, std))

    assert bool(drawn.isfinite().all())


def images(count: int, height: int = 64, width: int = 64) -> Tensor:
    return torch.rand(count, 3, height, width, generator=stream(0, "world", "encoder test"))


def test_a_pass_has_more_images_on_a_gpu() -> None:
    assert [block_of(torch.device(kind)) for kind in ("cpu", "cuda", "meta")] == [16, 128, 16]
