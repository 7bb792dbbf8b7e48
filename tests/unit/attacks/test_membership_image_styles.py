"""Rows of single images: equal up to rounding is found, whatever the convention; crops find what whole images do not."""

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from fdgsec.attacks.membership.image_styles import ROUNDING, nearest_row_distance, random_crops
from fdgsec.data.domains import DomainDataset
from fdgsec.data.shapes import shapes
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.nn.styles.image_styles import statistics
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.positive_control_data import planted_moments


def records(count: int) -> Moments:
    rng = stream(0, "world", "records")
    mean = torch.randn(count, 8, generator=rng, dtype=torch.float64)
    return planted_moments(mean, 0.1 + torch.rand(count, 8, generator=rng, dtype=torch.float64))


def sent(found: Moments, *, unbiased: bool = True, eps: float = 1e-5) -> Tensor:
    return torch.cat(found.style(unbiased=unbiased, eps=eps), dim=1).float().double()


@pytest.mark.parametrize("unbiased", [True, False])
@pytest.mark.parametrize("eps", [1e-5, 1e-6])
def test_a_released_image_is_found_whatever_convention_its_std_follows(unbiased: bool, eps: float):
    found = records(30)

    near = nearest_row_distance(found, sent(found.rows(torch.tensor([4, 9])), unbiased=unbiased, eps=eps))

    assert (near <= ROUNDING).nonzero().flatten().tolist() == [4, 9]


def test_distances_are_relative_to_the_row():
    found = planted_moments(torch.tensor([[3.0, 0.0]]), torch.zeros(1, 2))
    row = torch.tensor([[4.0, 0.0, 0.0, 0.0]])

    near = nearest_row_distance(found, row)

    assert float(near[0]) == pytest.approx(0.25, abs=1e-4)  # the stds are sqrt(eps), .003 or .001, not 0


def test_differences_below_rounding_are_ties_and_no_evidence():
    found = records(6)
    rows = sent(found.rows(torch.tensor([2])))

    near = nearest_row_distance(found, rows * (1 + 1e-7))

    assert float(near[2]) == ROUNDING


def test_without_rows_every_image_is_infinitely_far():
    assert bool(nearest_row_distance(records(3), torch.zeros(0, 16)).isinf().all())


@pytest.fixture(scope="module")
def images() -> DomainDataset:
    return shapes(image_size=32, per_domain=60).of_domain(0)


def test_crops_keep_names_and_size_and_change_pixels(images: DomainDataset):
    made = random_crops(images, least=0.6, rng=stream(0, "world", "crop"))

    assert made.ids == images.ids
    assert made.pixels().shape == images.pixels().shape
    assert not torch.equal(made.pixels(), images.pixels())


@pytest.mark.medium
def test_more_crops_find_more_of_what_was_extracted_after_one(images: DomainDataset):
    members = torch.arange(60) < 30
    taken = random_crops(images.subset(members), least=0.4, rng=stream(0, "world", "crop"))
    rows = sent(statistics("pixels", taken))

    areas = {0: area(nearest_row_distance(statistics("pixels", images), rows), members)}
    near = torch.full((60,), torch.inf, dtype=torch.float64)
    for look in range(32):
        crops = random_crops(images, least=0.4, rng=stream(look, "attack", "crop"))
        near = torch.minimum(near, nearest_row_distance(statistics("pixels", crops), rows))
        areas[look + 1] = area(near, members)

    assert areas[32] > areas[1] + 0.05
    assert areas[32] > 0.75
    assert areas[32] >= areas[0]


def area(near: Tensor, members: Tensor) -> float:
    return float(roc_auc_score(members.numpy(), -near.numpy()))
