"""FedAlign's Algorithm 2: clusters of the pool, draws from them, and the difficulty score."""

import pytest
import torch

from fdgsec.data.domains import as_float
from fdgsec.federation.artifacts import StyleBank
from fdgsec.methods.fedalign import ClusteredPool, FedAlign, allocation, cluster_weights, difficulty_score
from fdgsec.methods.fedccrl import normalized
from fdgsec.nn.styles.feature_styles import instance_statistics
from fdgsec.runtime.random_streams import stream
from tests.support.three_clients import batch, noise


def pool(rows: int, *, clusters: int = 7) -> ClusteredPool:
    means, stds = noise(rows, 3, name="mean"), noise(rows, 3, name="std").abs()
    bank = StyleBank(mean=means, std=stds, owner=torch.ones(rows).long())
    made = FedAlign(clusters=clusters).build_pool(bank, stream(0, "world", "clusters"))
    assert isinstance(made, ClusteredPool)
    return made


@pytest.mark.parametrize("channels", [2, 3, 8])
def test_the_difficulty_as_printed_is_the_same_constant_for_every_image(channels: int):
    maps = 5 * noise(6, channels, 7, 7) + noise(6, channels, 1, 1, name="shift")
    mean, std = instance_statistics(maps)

    scores = difficulty_score(((maps - mean) / std).mean((2, 3)))

    assert scores.tolist() == pytest.approx([1 - 1 / channels] * 6, abs=1e-5)


def test_as_printed_lambda_is_almost_betas_and_the_images_difficulty_changes_it():
    inputs = normalized(as_float((255 * batch(6).images).to(torch.uint8)) ** 3)
    statistics = instance_statistics(inputs)

    beta, printed, by_image = (
        method.ratio(inputs, *statistics, rng=stream(0, "world", "t"))
        for method in (
            FedAlign(sharpness=1e6), FedAlign(sharpness=15.0), FedAlign(difficulty="input", sharpness=1.0),
        )
    )  # fmt: skip

    assert torch.allclose(printed, 0.99995 * beta, rtol=1e-5)
    assert bool((by_image < 0.75 * beta).all())


@pytest.mark.parametrize(("rows", "count"), [(1, 8), (3, 8), (7, 32), (40, 1), (40, 5), (40, 32), (200, 33)])
def test_as_many_rows_are_drawn_as_asked_for_and_from_each_cluster_its_share(rows: int, count: int):
    clustered = pool(rows)
    sizes = torch.bincount(clustered.labels)

    drawn = clustered.rows(count, stream(0, "world", "t"))

    assert drawn.shape == (count,)
    assert torch.equal(torch.bincount(clustered.labels[drawn], minlength=len(sizes)), allocation(sizes, count))
    assert int(allocation(sizes, count).sum()) == count


def test_a_row_is_drawn_in_proportion_to_its_weight_in_its_cluster():
    labels = torch.tensor([0, 0, 0, 1])
    clustered = ClusteredPool(
        mean=torch.zeros(4, 3), std=torch.ones(4, 3), labels=labels, weights=torch.tensor([0.6, 0.4, 0.0, 1.0])
    )

    drawn = torch.bincount(clustered.rows(8000, stream(0, "world", "t")), minlength=4)

    assert drawn.tolist() == pytest.approx([3600, 2400, 0, 2000], abs=4 * (6000 * 0.24) ** 0.5)
    assert int(drawn[3]) == 2000


def test_drawn_rows_come_in_random_order():
    clustered = pool(40)

    first, second = (clustered.labels[clustered.rows(32, stream(0, "world", name))] for name in ("a", "b"))

    assert not torch.equal(first, second)
    assert not torch.equal(first, first.sort().values)


@pytest.mark.parametrize(("rows", "asked", "expected"), [(40, 7, 7), (4, 7, 4), (1, 7, 1), (40, 1, 1)])
def test_there_are_at_most_as_many_clusters_as_rows(rows: int, asked: int, expected: int):
    labels = pool(rows, clusters=asked).labels

    assert sorted(torch.unique(labels).tolist()) == list(range(expected))


@pytest.mark.parametrize("far", [2.0, 1e9])  # beside 1e9 k-means cannot tell 0 from 0.001, and has a cluster too few
def test_rows_that_coincide_or_nearly_do_are_clustered_without_complaint(far: float):
    means = torch.tensor([[0.0] * 3, [0.0] * 3, [0.001] * 3, [far] * 3, [far] * 3])
    near = StyleBank(mean=means, std=torch.ones(5, 3), owner=torch.ones(5).long())

    clustered = FedAlign().build_pool(near, stream(0, "world", "t"))

    assert clustered.rows(50, stream(0, "world", "t")).shape == (50,)


def test_clusters_are_those_of_the_rows_means_and_stds():
    centers = torch.tensor([[-3.0, -3, -3, 0.1, 0.1, 0.1], [3, 3, 3, 0.1, 0.1, 0.1], [3, 3, 3, 4, 4, 4]])
    owner = torch.arange(30) % 3
    rows = centers[owner] + 0.05 * noise(30, 6).abs()
    made = FedAlign(clusters=3).build_pool(
        StyleBank(mean=rows[:, :3], std=rows[:, 3:], owner=owner), stream(0, "world", "t")
    )

    assert isinstance(made, ClusteredPool)
    assert len({(int(a), int(b)) for a, b in zip(made.labels, owner, strict=True)}) == 3


def test_rows_without_any_spread_weigh_the_same_in_their_cluster():
    rows = torch.tensor([[1.0] * 6, [1.0] * 6, [0.0, 1.0, 0.0, 1.0, 0.0, 1.0]], dtype=torch.float64)

    assert cluster_weights(rows, torch.tensor([0, 0, 1])).tolist() == [0.5, 0.5, 1.0]
