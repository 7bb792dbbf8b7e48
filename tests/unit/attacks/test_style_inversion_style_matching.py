from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fdgsec.attacks.style_inversion.style_matching import (
    MatchedImages,
    Matching,
    input_side,
    match,
    style_residual,
    total_variation,
)
from fdgsec.data.domains import as_float
from fdgsec.data.shapes import shapes
from fdgsec.metrics.image_similarity import psnr
from fdgsec.nn.styles.channel_statistics import style_of
from fdgsec.nn.styles.image_styles import encoder_named
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream

FAST = Matching(steps=40)


def child_rng(seed: int = 0) -> torch.Generator:
    return stream(seed, "attack", "test")


def style(name: str, images: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat(style_of(encoder_named(name).encode(images), unbiased=False), dim=1)


def flat(*colors: tuple[float, float, float], side: int = 16) -> Tensor:
    return torch.tensor(colors).view(-1, 3, 1, 1).expand(-1, -1, side, side).contiguous()


@pytest.mark.medium
def test_the_style_of_a_procedural_picture_is_met_by_pictures_that_differ_from_each_other_and_from_it():
    data = shapes(image_size=32, per_domain=42)
    everything = as_float(data.pixels())
    styles = style("mini", everything)
    spread = styles.std(0, correction=0)
    spread = spread + 0.1 * spread.mean()
    rows = torch.tensor([3, 50, 100])  # a photo, a painting and a cartoon
    others = torch.ones(len(styles), dtype=torch.bool)
    others[rows] = False
    near = (torch.cdist(styles[rows] / spread, styles[others] / spread).amin(1) / styles.shape[1] ** 0.5).tolist()

    found = match(
        encoder_named("mini"), styles[rows], spread, side=32, restarts=2, options=Matching(steps=150), rng=child_rng()
    )

    for row, true in enumerate(everything[rows]):
        first, second = found.images[row]
        assert float(found.residual[row].max()) < 0.05  # of what styles vary by
        assert float(found.residual[row].max()) < near[row] / 5
        assert float(psnr(first[None], second[None])) < 16
        assert float(psnr(first[None], true[None])) < 16


def test_one_color_is_recovered_since_its_statistics_leave_no_choice():
    true = flat((0.8, 0.3, 0.2), (0.1, 0.6, 0.5))

    found = match(
        encoder_named("pixels"), style("pixels", true), torch.ones(6), side=16, restarts=2,
        options=replace(FAST, steps=200), rng=child_rng(),
    )  # fmt: skip

    assert float((found.images - true[:, None]).abs().max()) < 0.05


def test_a_residual_is_the_root_mean_square_of_statistics_in_units_of_their_spread():
    images = torch.rand(2, 3, 16, 16, generator=child_rng())
    spread, targets = torch.arange(1.0, 7.0) / 10, torch.zeros(2, 6)
    center, scale = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    expected = []
    for image in images.double().numpy():
        seen = (image - center[:, None, None]) / scale[:, None, None]
        statistics = [*(c.mean() for c in seen), *((c.var() + 1e-5) ** 0.5 for c in seen)]
        expected.append(np.mean([(s / u) ** 2 for s, u in zip(statistics, spread.tolist(), strict=True)]) ** 0.5)

    found = style_residual(encoder_named("pixels"), images, targets, spread)

    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)


def test_total_variation_is_the_mean_length_of_the_color_gradient():
    image = torch.rand(1, 3, 4, 5, generator=child_rng())
    lengths = [
        ((image[0, c, i + 1, j] - image[0, c, i, j]) ** 2 + (image[0, c, i, j + 1] - image[0, c, i, j]) ** 2) ** 0.5
        for c in range(3)
        for i in range(3)
        for j in range(4)
    ]

    assert float(total_variation(image)) == pytest.approx(float(sum(lengths)) / 36, abs=1e-4)  # smoothed by 1e-3


@pytest.mark.parametrize("weight", ["variation", "extremes"])
def test_each_prior_lowers_what_it_weighs(weight: str):
    target = style("pixels", torch.rand(1, 3, 16, 16, generator=child_rng(1)).round())
    weights = {"variation": 0.0, "extremes": 0.0}
    prior = {"variation": total_variation, "extremes": lambda x: (2 * x - 1).pow(6).mean((1, 2, 3))}[weight]

    def left(value: float) -> float:
        options = replace(FAST, **{**weights, weight: value})
        found = match(
            encoder_named("pixels"), target, torch.ones(6), side=16, restarts=1, options=options, rng=child_rng()
        )
        return float(prior(found.images[:, 0]))

    assert left(3.0) < 0.8 * left(0.0)


def test_without_a_step_the_picture_is_the_start():
    start = torch.rand(2, 3, 16, 16, generator=child_rng()).clamp(0.05, 0.95)

    found = match(
        encoder_named("pixels"), torch.zeros(2, 6), torch.ones(6), side=16, restarts=2,
        options=Matching(steps=0, roughness=(0.0,)), rng=child_rng(), start=start,
    )  # fmt: skip

    assert torch.allclose(found.images, start[:, None].expand(-1, 2, -1, -1, -1), atol=1e-6)


def test_a_restart_is_the_same_however_many_there_are():
    targets = style("pixels", torch.rand(3, 3, 16, 16, generator=child_rng()))

    def drawn(restarts: int) -> MatchedImages:
        return match(
            encoder_named("pixels"), targets, torch.ones(6), side=17, restarts=restarts, options=FAST, rng=child_rng()
        )

    one, three = drawn(1), drawn(3)

    assert torch.allclose(one.images[:, 0], three.images[:, 0], atol=1e-4)  # kernels round by the size of the batch
    assert not torch.allclose(three.images[:, 0], three.images[:, 1], atol=0.1)


@pytest.mark.medium
def test_more_pictures_than_fit_in_one_batch_stay_in_their_rows():
    colors = torch.rand(40, 3, generator=child_rng()) * 0.6 + 0.2
    true = colors.view(40, 3, 1, 1).expand(-1, -1, 16, 16)

    found = match(
        encoder_named("pixels"), style("pixels", true), torch.ones(6), side=16, restarts=2,
        options=replace(FAST, steps=60), rng=child_rng(),
    )  # fmt: skip

    assert found.images.shape == (40, 2, 3, 16, 16)
    assert torch.allclose(found.images.mean((3, 4)), colors[:, None].expand(-1, 2, -1), atol=0.03)


def test_no_rows_give_no_pictures():
    found = match(
        encoder_named("pixels"), torch.zeros(0, 6), torch.ones(6), side=16, restarts=2, options=FAST, rng=child_rng()
    )

    assert found.images.shape == (0, 2, 3, 16, 16)
    assert found.residual.shape == (0, 2)


def test_the_best_picture_is_the_one_with_the_smallest_residual_and_the_average_is_of_all():
    images = torch.rand(2, 3, 3, 4, 4, generator=child_rng())
    found = MatchedImages(images=images, residual=torch.tensor([[0.3, 0.1, 0.2], [0.1, 0.2, 0.3]]))

    assert torch.equal(found.best(), torch.stack([images[0, 1], images[1, 0]]))
    assert torch.allclose(found.average()[1], (images[1, 0] + images[1, 1] + images[1, 2]) / 3)


def test_variances_between_and_within_pictures_agree_with_their_loops():
    images = torch.rand(1, 3, 3, 2, 2, generator=child_rng())
    found = MatchedImages(images=images, residual=torch.zeros(1, 3))
    pixels = images[0].reshape(3, 12).numpy()
    colors = images[0].reshape(9, 4).numpy()

    assert float(found.variance_between()) == pytest.approx(float(np.mean([np.var(p, ddof=1) for p in pixels.T])))
    assert float(found.variance_within()) == pytest.approx(float(np.mean([np.var(c, ddof=1) for c in colors])))


def test_pictures_that_differ_by_the_places_of_their_pixels_vary_as_much_between_as_within():
    picture = torch.rand(3, 64, generator=child_rng())
    translated = torch.stack([picture[:, torch.randperm(64, generator=child_rng(n))] for n in range(50)]).view(
        1, 50, 3, 8, 8
    )
    found = MatchedImages(images=translated, residual=torch.zeros(1, 50))

    ratio = float(found.variance_between() / found.variance_within())

    assert ratio == pytest.approx(1, abs=0.05)  # 1/63 of bias; 50 permutations of 192 numbers


@pytest.mark.parametrize(("name", "side"), [("mini", 128), ("mini", 64), ("mini", 32), ("pixels", 37)])
def test_the_side_of_what_an_encoder_saw_is_told_by_its_cells(name: str, side: int):
    cells = encoder_named(name).encode(torch.zeros(1, 3, side, side))[0, 0].numel()

    assert input_side(encoder_named(name), cells) == side


def test_cells_that_make_no_square_are_refused():
    with pytest.raises(UsageError, match="no square image has maps of 1000 cells under mini"):
        input_side(encoder_named("mini"), 1000)
