import colorsys
import math
import os
import subprocess
import sys
import time

import pytest
import torch
from scipy.stats import chi2_contingency
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.data.shapes import shapes
from fdgsec.data.shapes_scene import SILHOUETTES, TEXTURES, hsv
from fdgsec.runtime.errors import UsageError


@pytest.fixture(scope="module")
def many() -> DomainDataset:
    return shapes(image_size=16, per_domain=700, seed=5)


@pytest.fixture(scope="module")
def sharp() -> DomainDataset:
    return shapes(image_size=64, per_domain=42)


def silhouette_mask(name: str, *, cells: int = 800) -> Tensor:
    centers = (torch.arange(cells) + 0.5) / cells * 5 - 2.5
    y, x = torch.meshgrid(centers, centers, indexing="ij")
    return SILHOUETTES[name](x, y) < 0


def object_color(dataset: DomainDataset) -> Tensor:
    """The mean color of a plain disc's inner part, found from its true position and scale: (N, 3)."""
    height, width = dataset.image_size
    y, x = torch.meshgrid((torch.arange(height) + 0.5) / height, (torch.arange(width) + 0.5) / width, indexing="ij")
    center, radius = dataset.attributes["position"], dataset.attributes["scale"]
    offset = torch.hypot(x - center[:, 0, None, None], y - center[:, 1, None, None])
    inner = (offset < 0.6 * radius[:, None, None]).float()[:, None]
    return (dataset.pixels().float() / 255 * inner).sum((2, 3)) / inner.sum((2, 3))


def independence_p_value(labels: Tensor, levels: Tensor) -> float:
    """The chi-square p-value of a 7 x 6 table of counts."""
    table = torch.zeros(7, 6).index_put_((labels, levels), torch.ones(len(labels)), accumulate=True)
    return float(chi2_contingency(table.numpy()).pvalue)


def class_correlations(labels: Tensor, columns: Tensor) -> Tensor:
    """The correlation of every column (N, k) with membership in every class: (k, 7)."""
    members = torch.nn.functional.one_hot(labels, 7).float()
    return torch.corrcoef(torch.cat([columns, members], 1).T)[:-7, -7:]


def test_four_domains_hold_the_seven_classes_in_turn() -> None:
    dataset = shapes(image_size=16, per_domain=9)

    assert dataset.name == "shapes"
    assert dataset.domain_names == ("photo", "painting", "cartoon", "sketch")
    assert dataset.class_names == ("disc", "square", "triangle", "star", "cross", "ring", "crescent")
    assert dataset.labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1] * 4
    assert dataset.domains.tolist() == [0] * 9 + [1] * 9 + [2] * 9 + [3] * 9
    assert dataset.ids[8] == "photo/square/shape_00001"
    assert len(set(dataset.ids)) == 36


def test_an_image_does_not_depend_on_how_many_are_drawn() -> None:
    few, more = shapes(image_size=33, per_domain=4, seed=3), shapes(image_size=33, per_domain=50, seed=3)
    place = {name: position for position, name in enumerate(more.ids)}

    same = torch.tensor([place[name] for name in few.ids])

    assert torch.equal(few.pixels(), more.pixels(same))
    for name, values in few.attributes.items():
        assert torch.equal(values, more.attributes[name][same])


@pytest.mark.medium
def test_a_second_process_draws_the_same_bytes() -> None:
    script = (
        "import torch; torch.set_num_threads(1)\n"
        "from fdgsec.data.shapes import shapes; print(shapes(image_size=24, per_domain=8, seed=9).content_sha256)"
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        here = shapes(image_size=24, per_domain=8, seed=9).content_sha256
    finally:
        torch.set_num_threads(threads)

    there = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ)

    assert there.stdout.strip() == here


def test_another_seed_draws_other_images_under_the_same_ids() -> None:
    first, second = shapes(image_size=16, per_domain=7, seed=0), shapes(image_size=16, per_domain=7, seed=1)

    assert first.ids == second.ids
    assert not (first.pixels() == second.pixels()).flatten(1).all(1).any()


def test_image_size_changes_only_the_resolution(sharp: DomainDataset) -> None:
    small = shapes(image_size=32, per_domain=42)

    halved = torch.nn.functional.avg_pool2d(sharp.pixels().float(), 2)
    error = (halved - small.pixels().float()).square().mean((1, 2, 3)).sqrt() / 255
    strangers = (halved.roll(7, 0) - small.pixels().float()).square().mean((1, 2, 3)).sqrt() / 255

    for name, values in sharp.attributes.items():
        assert torch.equal(values, small.attributes[name])
    assert error.max() < 0.15  # fine octaves, edges and sensor noise differ; another scene is further away
    assert (error < strangers).all()


def test_every_silhouette_covers_the_area_of_the_unit_disc() -> None:
    areas = {name: float(silhouette_mask(name).float().mean() * 25 / math.pi) for name in SILHOUETTES}

    assert all(abs(area - 1) < 0.01 for area in areas.values()), areas  # grid error is below 0.5%


def test_silhouettes_overlap_each_other_by_less_than_nine_tenths() -> None:
    masks = [silhouette_mask(name) for name in SILHOUETTES]

    overlaps = [float((a & b).sum() / (a | b).sum()) for k, a in enumerate(masks) for b in masks[k + 1 :]]

    assert len(overlaps) == 21
    assert max(overlaps) < 0.9


@pytest.mark.parametrize("name", ["disc", "square", "triangle", "star", "cross", "ring"])
def test_a_distance_is_how_far_the_nearest_outline_is(name: str) -> None:
    axis = torch.linspace(-2, 2, 401)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    field = SILHOUETTES[name](x, y)
    outline = torch.stack([x, y], -1)[field.abs() < 0.006]
    points = torch.tensor([[0.05, 0.1], [1.5, 0.3], [-0.4, 1.3], [0.9, -1.6], [-0.3, -0.2]])

    measured = torch.cdist(points, outline).min(1).values

    # the outline is found on a grid of step 0.01, so to within 0.006 + 0.01 / sqrt(2)
    assert torch.allclose(SILHOUETTES[name](points[:, 0], points[:, 1]).abs(), measured, atol=0.014)


@pytest.mark.parametrize("domain", ["photo", "painting", "cartoon", "sketch"])
@pytest.mark.medium
def test_texture_and_hue_are_independent_of_class(many: DomainDataset, domain: str) -> None:
    part = many.of_domain(domain)
    texture, hue = part.attributes["texture"], (part.attributes["hue"] * 6).long()

    # 8 tests on a fixed seed; the planted dependence below gives less than 1e-6
    assert independence_p_value(part.labels, texture) > 0.001
    assert independence_p_value(part.labels, hue) > 0.001


def test_a_texture_that_favors_one_class_would_be_noticed(many: DomainDataset) -> None:
    part = many.of_domain("photo")
    texture = part.attributes["texture"].clone()
    texture[((part.labels == 3) & (texture < 2)).nonzero().flatten()] = 5

    assert independence_p_value(part.labels, texture) < 1e-6


@pytest.mark.parametrize("domain", ["photo", "painting", "cartoon", "sketch"])
def test_no_attribute_correlates_with_any_class(many: DomainDataset, domain: str) -> None:
    part = many.of_domain(domain)
    columns = torch.cat([values.float().reshape(len(part), -1) for values in part.attributes.values()], 1)

    joint = class_correlations(part.labels, columns)

    assert joint.shape == (10, 7)
    assert joint.abs().max() < 4.3 / math.sqrt(700)  # 4.3 standard errors: 0.5% over the 280 correlations


def test_a_hue_that_shifts_with_one_class_would_be_noticed(many: DomainDataset) -> None:
    part = many.of_domain("photo")
    shifted = (part.attributes["hue"] + 0.2 * (part.labels == 3))[:, None]

    assert class_correlations(part.labels, shifted).abs().max() > 4.3 / math.sqrt(700)


def test_attributes_fill_their_documented_ranges(many: DomainDataset) -> None:
    hue, position, texture = (many.attributes[name] for name in ("hue", "position", "texture"))

    assert hue.shape == (2800,)
    assert position.shape == (2800, 2)
    assert texture.dtype == torch.int64
    assert 0 <= hue.min() < 0.01
    assert 0.99 < hue.max() < 1
    assert 0.37 < position.min() < 0.39
    assert 0.61 < position.max() < 0.63
    assert set(texture.tolist()) == set(range(len(TEXTURES)))


@pytest.mark.parametrize("domain", ["photo", "painting", "cartoon"])
def test_hue_shows_on_the_object(domain: str) -> None:
    part = shapes(image_size=32, per_domain=140).of_domain(domain)
    discs = part.subset((part.labels == 0) & (part.attributes["texture"] == 0))
    seen = torch.tensor([colorsys.rgb_to_hsv(*color)[0] for color in object_color(discs).tolist()])

    gap = (seen - discs.attributes["hue"] + 0.5) % 1 - 0.5

    assert len(discs) >= 2
    assert gap.abs().max() < 0.1  # chance is 0.25 on average; lights and pigments shift hue by up to 0.05


def test_a_sketch_is_gray_and_mostly_paper(sharp: DomainDataset) -> None:
    pixels = sharp.of_domain("sketch").pixels()

    assert torch.equal(pixels[:, 0], pixels[:, 1])
    assert torch.equal(pixels[:, 0], pixels[:, 2])
    assert (pixels > 200).float().mean() > 0.8
    assert (pixels.flatten(1).min(1).values < 90).all()


def test_the_object_is_where_its_position_says(sharp: DomainDataset) -> None:
    part = sharp.of_domain("cartoon")
    rings = part.subset(part.labels == 5)  # an outline all around, with its center at the position
    dark = (rings.pixels().float().amax(1) < 60).float()
    axis = (torch.arange(64) + 0.5) / 64

    x, y = (dark.sum(1) * axis).sum(1) / dark.sum((1, 2)), (dark.sum(2) * axis).sum(1) / dark.sum((1, 2))

    # texture and shade never get as dark as the outline; 0.03 is two pixels
    assert torch.allclose(torch.stack([x, y], 1), rings.attributes["position"], atol=0.03)


def test_sixteen_pixels_suffice_to_tell_the_domains_apart(many: DomainDataset) -> None:
    pixels = many.pixels().float() / 255
    features = torch.cat(
        [pixels.mean((2, 3)), pixels.std((2, 3)), (pixels.amax(1) - pixels.amin(1)).mean((1, 2))[:, None]], 1
    )
    features = features / features.std(0)
    even = torch.arange(len(many)) % 2 == 0
    centroids = torch.stack([features[even & (many.domains == k)].mean(0) for k in range(4)])

    guesses = torch.cdist(features[~even], centroids).argmin(1)

    assert (guesses == many.domains[~even]).float().mean() > 0.95


def test_progress_adds_up_to_the_size_of_the_dataset() -> None:
    finished: list[int] = []

    dataset = shapes(image_size=16, per_domain=23, progress=finished.append)

    assert sum(finished) == len(dataset) == 92
    assert min(finished) > 0


@pytest.mark.parametrize("size", [16, 17, 150])
def test_any_size_from_sixteen_pixels_is_drawn(size: int) -> None:
    dataset = shapes(image_size=size, per_domain=1)

    assert dataset.store.shape == (4, 3, size, size)
    assert dataset.pixels().float().std((1, 2, 3)).min() > 5


def test_too_small_an_image_is_refused() -> None:
    with pytest.raises(UsageError, match="image_size must be at least 16 pixels for shapes; got 15"):
        shapes(image_size=15)


def test_an_empty_domain_is_refused() -> None:
    with pytest.raises(UsageError, match="per_domain must be at least 1 image for shapes; got 0"):
        shapes(per_domain=0)


def test_hsv_agrees_with_the_standard_library() -> None:
    hue = torch.linspace(0, 0.99, 12)
    expected = torch.tensor([colorsys.hsv_to_rgb(float(h), 0.7, 0.9) for h in hue])

    assert torch.allclose(hsv(hue, 0.7, 0.9), expected, atol=1e-6)


@pytest.mark.slow
def test_one_core_draws_three_hundred_images_a_second() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        shapes(per_domain=21)
        start = time.process_time()
        shapes(per_domain=210)
        seconds = time.process_time() - start
    finally:
        torch.set_num_threads(threads)

    assert 840 / seconds > 300
