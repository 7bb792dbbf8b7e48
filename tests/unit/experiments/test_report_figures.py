"""Figures of a report."""

import io

import pytest
import torch
from PIL import Image

from fdgsec.experiments.report.figures import (
    chosen_places,
    half_width,
    in_few_colors,
    membership_figures,
    ranks_of,
    reconstruction_grids,
)
from fdgsec.threats.answers import Membership, Reconstructions
from fdgsec.threats.attack import Case, Truth


def case(domain: str) -> Case:
    return Case(question="released", views=(), victim="client:1", slice={"domain": domain, "n_per_client": 4})


def true_images(count: int) -> torch.Tensor:
    return torch.arange(count).mul(20).to(torch.uint8).view(-1, 1, 1, 1).expand(count, 3, 16, 16).contiguous()


def drawn(case: int, loss: str, images: torch.Tensor) -> Reconstructions:
    controls = {name: torch.zeros_like(images) for name in ("B0", "B2", "B3")}
    return Reconstructions(case=case, images=images, controls=controls, slice={"prior": "intra", "loss": loss})


def test_the_best_the_median_and_the_worst_are_shown():
    assert chosen_places(torch.tensor([3.0, 9.0, 1.0, 5.0])) == {"best": 1, "median": 3, "worst": 2}
    assert chosen_places(torch.tensor([2.0])) == {"best": 0, "median": 0, "worst": 0}


def test_the_rank_of_a_true_image_counts_those_that_are_nearer():
    true = torch.tensor([0.0, 0.5, 1.0]).view(3, 1, 1, 1)

    assert ranks_of(torch.tensor([0.1, 1.0, 0.0]).view(3, 1, 1, 1), true).tolist() == [1, 2, 3]


def test_a_grid_has_every_prior_once_and_says_how_many_pictures_are_nearest_to_their_own_image():
    images = true_images(5)
    exact = images.float() / 255
    answers = [drawn(0, "mse", exact.flip(0)), drawn(0, "lpips", exact), drawn(1, "lpips", exact)]

    (figure,) = reconstruction_grids(answers, [case("photo"), case("sketch")], [Truth(images=images)] * 2)

    assert figure.name == "grid-intra-"
    assert "Best, median and worst of each domain by the PSNR of mse" in figure.caption
    # the attack's first loss decides: mse turned photo's five around, of which the middle one stays
    assert "Of 10 reconstructions of mse, 6 are nearest to their own image" in figure.caption
    assert figure.png is not None
    assert Image.open(io.BytesIO(figure.png)).mode == "P"


def test_a_caption_says_where_pictures_are_public_images():
    images = true_images(3)
    (figure,) = reconstruction_grids(
        [drawn(0, loss, images.float() / 255) for loss in ("mse", "class-guided")], [case("photo")],
        [Truth(images=images)],
    )  # fmt: skip
    (other,) = reconstruction_grids([drawn(0, "mse", images.float() / 255)], [case("photo")], [Truth(images=images)])

    assert "Pictures of class-guided begin at public images" in figure.caption
    assert "public" not in other.caption


def test_a_picture_with_a_palette_is_smaller_and_as_large_in_pixels():
    noise = Image.fromarray(
        torch.randint(0, 255, (64, 64, 3), generator=torch.Generator().manual_seed(0)).to(torch.uint8).numpy()
    )
    buffer = io.BytesIO()
    noise.save(buffer, "PNG")

    small = in_few_colors(buffer.getvalue())

    assert len(small) < len(buffer.getvalue()) / 2
    assert Image.open(io.BytesIO(small)).size == (64, 64)


def test_bars_of_the_size_figure_are_students_intervals():
    assert half_width([0.7]) == 0.0
    # t(.975, 3) = 3.18245 times the standard error 0.1 / sqrt(3) / 2 * 2 = sd 0.115470 / sqrt(4)
    assert abs(half_width([0.6, 0.6, 0.8, 0.8]) - 3.18245 * 0.115470 / 2) < 1e-4


@pytest.mark.medium
def test_membership_has_a_curve_for_every_domain_and_its_values_in_the_data():
    scores = torch.tensor([2.0, 1.0, 0.5, -1.0])
    answers = [Membership(case=number, scores=scores) for number in range(3)]
    truths = [Truth(members=torch.tensor([True, True, False, False]))] * 3

    roc, sizes = membership_figures(answers, [case("photo"), case("photo"), case("sketch")], truths)

    assert {"photo n=4 tpr", "sketch n=4 tpr", "fpr"} == set(roc.data)
    assert sizes.data["photo auc"] == [1.0]
