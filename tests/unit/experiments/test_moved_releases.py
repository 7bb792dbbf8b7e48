"""What is compared between clients of which one image decides, and what a cost allows."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.data.shapes import shapes
from fdgsec.experiments.audit.chains_of_clients import LONGEST, chains_of
from fdgsec.experiments.audit.neighbor_tests import allowed_distance
from fdgsec.experiments.audit.planted_statistics import PlantedStatisticSource
from fdgsec.federation.released_statistics import MeanStyles, ReleasedStatistic
from fdgsec.privacy.accounting import Use
from fdgsec.privacy.mechanisms import epsilon_of


@pytest.mark.parametrize("images", [1, 2, 17, LONGEST + 12])
def test_neighbors_along_a_chain_differ_in_one_image_at_most(images: int):
    data = shapes(image_size=16, per_domain=40).subset(torch.arange(images))

    chains = list(chains_of(data))

    assert len(chains) >= 3
    for chain in chains:
        assert all(one.ids == data.ids and len(one) == images for one in chain)
        for one, other in pairwise(chain):
            changed = (one.pixels() != other.pixels()).flatten(1).any(1)
            changed |= (one.labels != other.labels) | (one.domains != other.domains)
            assert int(changed.sum()) <= 1


def test_a_short_chain_holds_every_number_of_black_images():
    data = shapes(image_size=16, per_domain=40).subset(torch.arange(17))

    first = next(iter(chains_of(data)))

    assert [int((one.labels == 0).sum()) for one in first] == list(range(18))
    assert [int((one.pixels() == 0).flatten(1).all(1).sum()) for one in first] == list(range(18))


def test_statistics_are_planted_in_the_order_of_the_images():
    data = shapes(image_size=16, per_domain=40).subset(torch.tensor([7, 3, 9, 5]))
    planted = torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64)
    source = PlantedStatisticSource(statistic_source=lambda images, model: _Zeros(), client=data, statistics=planted)

    assert source(data, None).records(data).flatten().tolist() == [1.0, 2.0, 3.0, 0.0]
    assert source(data, None).records(data.subset(torch.tensor([2, 3, 0]))).flatten().tolist() == [3.0, 0.0, 1.0]
    assert source(data, None).records(shapes(image_size=16, per_domain=40)).any() == torch.tensor(False)


class _Zeros:
    """The statistic 0 of every image."""

    released_statistic: ReleasedStatistic = MeanStyles()

    def records(self, images: DomainDataset) -> Tensor:
        return torch.zeros(len(images), 1, dtype=torch.float64)


def test_the_images_of_the_mixed_chain_are_of_several_kinds_and_classes():
    data = shapes(image_size=16, per_domain=40).subset(torch.arange(17))

    *_, mixed = chains_of(data)

    ranks = [tuple(one.labels.bincount(minlength=len(data.class_names)).argsort(stable=True).tolist()) for one in mixed]
    assert len(set(ranks)) > 10
    assert len({one.pixels().flatten(1).unique(dim=0).shape[0] for one in mixed}) > 5


def test_a_cost_allows_the_distance_of_its_noise():
    one = Use(mechanism="gaussian", noise=2.0, sensitivity={"zero-out": 1.0})
    replaced = Use(mechanism="gaussian", noise=2.0, sensitivity={"zero-out": 1.0, "replace-one": 1.5}, count=4)

    assert allowed_distance((one,)) == pytest.approx(1.0)  # a record less, and one more
    assert allowed_distance((replaced,)) == pytest.approx(1.5)
    assert allowed_distance((one, replaced)) == pytest.approx(math.hypot(1.0, 1.5))
    assert allowed_distance(()) is None
    assert allowed_distance((Use(mechanism="gaussian", noise=0.0, sensitivity={"zero-out": 1.0}),)) is None


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_laplace_noise_allows_what_gaussian_noise_does_that_hides_no_more(epsilon: float):
    use = Use(mechanism="laplace", noise=1 / epsilon, sensitivity={"replace-one": 1.0})

    allowed = allowed_distance((use,))

    assert allowed is not None
    delta = 1e-6
    assert epsilon_of(1 / allowed, delta) >= epsilon
