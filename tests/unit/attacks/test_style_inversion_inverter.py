"""How an inverter learns: painted variants, the cross-validated linear inverse, and the generator on its residual."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fdgsec.attacks.style_inversion.inverter import (
    LINEAR_SIDE,
    Schedule,
    TrainingSet,
    against,
    fit_generator,
    fit_linear,
)
from fdgsec.attacks.style_inversion.training_images import colorized, colorless, cropped, encode_prior, mirrored
from fdgsec.metrics.image_similarity import PerceptualEncoder, mse
from fdgsec.nn.networks.style_generator import small_shape
from fdgsec.nn.styles.encoders import Pixels
from tests.support.quadrants import (
    WORLD,
    child_rng,
    quadrant_statistics,
)


def test_only_line_drawings_are_painted_and_paint_brings_color():
    lines, red = WORLD.of_domain("lines"), WORLD.of_domain("red")
    paint = colorized(lines, rng=child_rng())

    assert colorless(lines)
    assert not colorless(red)
    assert not colorless(paint)
    assert len(set(paint.ids) | set(lines.ids)) == 2 * len(lines)
    assert encode_prior("p", lines, quadrant_statistics, size=16, crops=0, limit=50, rng=child_rng()).painted


def test_variants_keep_labels_and_shape_and_a_mirror_twice_is_the_image():
    red = WORLD.of_domain("red")

    assert torch.equal(mirrored(mirrored(red)).pixels(), red.pixels())
    assert torch.equal(mirrored(red).pixels(), red.pixels().flip(3))
    assert cropped(red, rng=child_rng()).pixels().shape == red.pixels().shape


def test_rows_shown_to_a_painted_prior_get_its_mean_and_spread():
    prior = encode_prior(
        "p", WORLD.of_domain("lines"), quadrant_statistics, size=16, crops=0, limit=50, rng=child_rng()
    )
    rows = 3 + 2 * torch.randn(9, 24, dtype=torch.float64)

    assert torch.allclose(prior.aligned(rows).mean(0), prior.linear.center)
    assert torch.allclose(prior.aligned(rows).std(0), prior.linear.spread)
    assert torch.equal(prior.aligned(rows[:7]), rows[:7])  # too few to be averaged
    assert torch.equal(replace(prior, painted=False).aligned(rows), rows)


def noise_set(count: int, copies: int) -> TrainingSet:
    rng = torch.Generator().manual_seed(3)
    features = torch.randn(count, 6, generator=rng, dtype=torch.float64).repeat(copies, 1)
    images = torch.rand(count, 3, 16, 16, generator=rng).repeat(copies, 1, 1, 1)
    return TrainingSet(features=features, images=images, groups=torch.arange(count).repeat(copies))


def test_cross_validated_predictions_learn_nothing_from_an_images_own_copies():
    training = noise_set(40, 3)
    _, unseen = fit_linear(training)
    mean = training.images.mean(0)

    # images are independent of styles, so honest predictions cannot beat the mean; leaked ones would come near zero
    assert float((unseen - training.images).square().mean()) > 0.99 * float((mean - training.images).square().mean())


def test_the_linear_inverse_recovers_a_linear_picture():
    training = noise_set(60, 1)
    weight = 0.05 * torch.randn(6, 3 * LINEAR_SIDE**2, generator=torch.Generator().manual_seed(1))
    images = (0.5 + training.features.float() @ weight).clamp(0, 1).reshape(-1, 3, LINEAR_SIDE, LINEAR_SIDE)
    linear, unseen = fit_linear(replace(training, images=images))

    # the smallest penalty, 1, shrinks weights by about 1 in 60; pixels vary by 0.12
    assert float((linear(training.features) - images).abs().mean()) < 0.005
    assert float((unseen - images).abs().mean()) < 0.01


def test_a_distance_to_embedded_training_images_is_the_distance_to_the_images():
    rng = torch.Generator().manual_seed(5)
    images, drawn = torch.rand(70, 3, 16, 16, generator=rng), torch.rand(4, 3, 16, 16, generator=rng)
    rows = torch.tensor([3, 69, 3, 40])
    loss = PerceptualEncoder(Pixels())

    found = against(images, loss)(drawn, rows)

    assert torch.allclose(found, loss(drawn, images[rows]), rtol=2e-3)  # the images' side has 11 binary digits
    assert torch.equal(against(images, mse)(drawn, rows), mse(drawn, images[rows]))


def test_training_ends_when_its_last_checks_gained_little_of_all_that_was_gained():
    plain, settling = Schedule(steps=9, patience=2), Schedule(steps=9, patience=2, settled=0.05)

    assert not plain.over([1.0, 1.0])  # fewer checks than the patience
    assert plain.over([1.0, 1.0, 1.0])
    assert not plain.over([1.0, 0.5, 0.49, 0.48])
    assert settling.over([1.0, 0.5, 0.49, 0.48])  # 0.02 of 0.52
    assert not settling.over([1.0, 0.9, 0.8, 0.7])


def test_a_generator_that_only_does_harm_is_discarded():
    training = noise_set(40, 1)
    linear, unseen = fit_linear(training)
    wild = Schedule(steps=4, rate=10.0, check=2)
    kept = fit_generator(training, linear, unseen, shape=small_shape(16), loss=mse, schedule=wild, rng=child_rng())

    assert torch.allclose(kept(training.features), linear(training.features).clamp(0.02, 0.98), atol=1e-6)


@pytest.mark.medium
def test_a_generator_learns_what_a_linear_map_cannot():
    rng = torch.Generator().manual_seed(2)
    features = torch.randn(200, 4, generator=rng, dtype=torch.float64)
    bright = (features[:, 0] * features[:, 1] > 0).float()  # exclusive or: invisible to a ridge
    images = (0.2 + 0.6 * bright)[:, None, None, None].expand(-1, 3, 8, 8).contiguous()
    training = TrainingSet(features=features, images=images, groups=torch.arange(200))
    linear, unseen = fit_linear(training)
    schedule = Schedule(steps=120, rate=5e-3, dropout=0.0, noise=0.0, check=40)
    inverter = fit_generator(
        training, linear, unseen, shape=small_shape(8), loss=mse, schedule=schedule, rng=child_rng()
    )

    def error(drawn: Tensor) -> float:
        return float((drawn.mean((1, 2, 3)) - images.mean((1, 2, 3))).square().mean())

    assert error(inverter(features)) < 0.5 * error(linear(features))
