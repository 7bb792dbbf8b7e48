import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics.functional.image import peak_signal_noise_ratio, structural_similarity_index_measure

from fdgsec.metrics.image_similarity import LpipsDistance, PerceptualEncoder, mse, psnr, ssim
from fdgsec.nn.styles.encoders import load_encoder
from fdgsec.runtime.random_streams import stream
from tests.support.pictures import alexnet_state, pictures


def noisy(images: Tensor, *, spread: float) -> Tensor:
    noise = torch.randn(images.shape, generator=stream(9, "attack", "noise"))
    return (images + spread * noise).clamp(0, 1)


class Pixels:
    """An encoder whose features are the pixels."""

    name = "pixels"

    def encode(self, images: Tensor) -> Tensor:
        return images


class Pyramid(Pixels):
    """The same at two scales."""

    name = "pyramid"

    def stages(self, images: Tensor) -> list[Tensor]:
        return [images, F.avg_pool2d(images, 2)]


def slow_ssim(first: Tensor, second: Tensor) -> float:
    """Transcribe the definition of Wang et al. 2004 window by window, edges reflected, channels averaged."""
    axis = torch.arange(11, dtype=torch.float64) - 5
    line = torch.exp(-axis.square() / (2 * 1.5**2))
    window = torch.outer(line, line) / line.sum() ** 2
    c1, c2 = 0.01**2, 0.03**2
    found = []
    for channel in range(3):
        padded = F.pad(torch.stack([first[channel], second[channel]]).double(), (5, 5, 5, 5), mode="reflect")
        x, y = padded[0], padded[1]
        for top in range(x.shape[0] - 10):
            for left in range(x.shape[1] - 10):
                p, q = x[top : top + 11, left : left + 11], y[top : top + 11, left : left + 11]
                mx, my = (window * p).sum(), (window * q).sum()
                vx, vy = (window * (p - mx) ** 2).sum(), (window * (q - my) ** 2).sum()
                cov = (window * (p - mx) * (q - my)).sum()
                found.append((2 * mx * my + c1) * (2 * cov + c2) / ((mx**2 + my**2 + c1) * (vx + vy + c2)))
    return float(torch.stack(found).mean())


def test_mse_and_psnr_are_per_image_and_agree_with_torchmetrics() -> None:
    first, second = pictures(seed=0), noisy(pictures(seed=0), spread=0.1)
    second[1] = first[1] * 0.5

    per_image = psnr(first, second)

    for i in range(3):
        assert float(mse(first, second)[i]) == pytest.approx(float(F.mse_loss(first[i], second[i])), rel=1e-5)
        expected = peak_signal_noise_ratio(second[i : i + 1], first[i : i + 1], data_range=1.0)
        assert float(per_image[i]) == pytest.approx(float(expected), rel=1e-5)


def test_the_psnr_of_identical_images_is_the_ceiling_not_infinity() -> None:
    images = pictures(seed=1)

    assert psnr(images, images).tolist() == pytest.approx([100.0] * 3)


def test_ssim_agrees_with_a_window_by_window_transcription_and_with_torchmetrics() -> None:
    first = pictures(seed=2, side=14)
    second = noisy(first, spread=0.08)

    values = ssim(first, second)

    assert values.shape == (3,)
    for i in range(3):
        assert float(values[i]) == pytest.approx(slow_ssim(first[i], second[i]), abs=2e-5)  # float32 convolutions
        alone = structural_similarity_index_measure(first[i : i + 1], second[i : i + 1], data_range=1.0)
        assert isinstance(alone, Tensor)
        assert float(values[i]) == pytest.approx(float(alone), abs=1e-6)


def test_ssim_of_identical_images_is_one_and_tiny_images_are_refused() -> None:
    images = pictures(seed=3)

    assert ssim(images, images).tolist() == pytest.approx([1.0] * 3, abs=1e-5)
    with pytest.raises(ValueError, match="11 px"):
        ssim(images[..., :10, :], images[..., :10, :])


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (torch.full((1, 3, 16, 16), math.nan), "second must be free of NaN; 768"),
        (torch.full((1, 3, 16, 16), 1.5), r"second must lie in \[0, 1\]; got 1.5"),
        (torch.full((1, 3, 16, 16), -math.inf), r"second must lie in \[0, 1\]; got -inf"),
        (torch.zeros(1, 1, 16, 16), r"second must be \(N, 3, H, W\)"),
        (torch.zeros(3, 16, 16), r"second must be \(N, 3, H, W\)"),
        (torch.zeros(0, 3, 16, 16), "N >= 1"),
        (torch.zeros(1, 3, 16, 16, dtype=torch.uint8), "divide bytes by 255"),
        (torch.zeros(2, 3, 16, 16), "equally shaped"),
    ],
)
def test_images_that_cannot_be_compared_are_refused_by_name(broken: Tensor, message: str) -> None:
    for metric in (mse, psnr, ssim, PerceptualEncoder(Pixels())):
        with pytest.raises(ValueError, match=message):
            metric(torch.zeros(1, 3, 16, 16), broken)


def test_the_perceptual_distance_agrees_with_its_definition_position_by_position() -> None:
    first, second = pictures(seed=5, side=8), pictures(seed=6, side=8)

    distance = PerceptualEncoder(Pixels())

    assert distance.name == "perceptual_pixels"
    for i, value in enumerate(distance(first, second).tolist()):
        cells = [
            float((p / p.norm() - q / q.norm()).square().sum())
            for p, q in zip(first[i].flatten(1).T, second[i].flatten(1).T, strict=True)
        ]
        assert value == pytest.approx(sum(cells) / 64, rel=1e-5)


def test_the_perceptual_distance_averages_the_stages_where_there_are_any() -> None:
    first, second = pictures(seed=5), pictures(seed=6)
    pixels = PerceptualEncoder(Pixels())
    halves = F.avg_pool2d(first, 2), F.avg_pool2d(second, 2)

    expected = (pixels(first, second) + pixels(*halves)) / 2

    torch.testing.assert_close(PerceptualEncoder(Pyramid())(first, second), expected)


@pytest.mark.medium
def test_every_measure_gives_finite_gradients_even_at_identical_and_black_images() -> None:
    target = pictures(seed=7, n=1, side=64)
    target[..., :8] = 0
    distances = [psnr, ssim, PerceptualEncoder(Pyramid()), LpipsDistance.from_backbone("alex", alexnet_state())]

    for distance in distances:
        for start in (target.clone(), pictures(seed=8, n=1, side=64)):
            answers = start.requires_grad_()
            (gradient,) = torch.autograd.grad(distance(answers, target).sum(), answers)
            assert bool(gradient.isfinite().all())
        assert float(gradient.abs().sum()) > 0


def test_an_embedding_gives_the_distance_of_every_pair():
    rng = stream(0, "world", "embed")
    first, second = torch.rand(3, 3, 16, 16, generator=rng), torch.rand(3, 3, 16, 16, generator=rng)
    distance = PerceptualEncoder(load_encoder("mini"))

    points = torch.cdist(distance.embed(first), distance.embed(second)).square()

    assert torch.allclose(points.diagonal(), distance(first, second), rtol=1e-3)
