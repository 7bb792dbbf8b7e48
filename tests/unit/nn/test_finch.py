"""FINCH: exact, deterministic, and the same whatever the order of the rows."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fdgsec.nn.styles.finch import BLOCK_NUMBERS, Metric, cluster_means, finch, first_neighbors
from fdgsec.runtime.random_streams import stream
from tests.support.slow_finch import same_partition, slow_finch, two_blobs


def normal(count: int, width: int, name: str = "rows") -> Tensor:
    return torch.randn(count, width, generator=stream(0, "world", name), dtype=torch.float64)


def few_near_ones(count: int, width: int) -> Tensor:
    """Three rows in each of `count` places, 1e-5 from each other: their products differ by 1e-10."""
    return normal(count, width, "places").repeat_interleave(3, 0) + 1e-5 * normal(3 * count, width, "threes")


def sizes(partition: Tensor) -> list[int]:
    return torch.bincount(partition).tolist()


class LargestTensor(TorchDispatchMode):
    """Watches how many numbers the largest tensor of any operation holds."""

    numbers = 0

    def __torch_dispatch__(  # type: ignore[override]
        self,
        func: torch._ops.OpOverload[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple) else (made,):
            if isinstance(tensor, Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return made


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.medium
def test_partitions_of_100_two_blob_client_styles_are_those_of_a_slow_transcription(metric: Metric):
    wrong = []
    for number in range(100):
        means, stds, _ = two_blobs(number)
        styles = torch.cat([means, stds], dim=1)

        fast, slow = [labels.tolist() for labels in finch(styles, metric=metric)], slow_finch(styles, metric)

        if len(fast) != len(slow) or not all(map(same_partition, fast, slow)):
            wrong.append(number)
    assert wrong == []


def test_no_partition_of_100_two_blob_client_styles_mixes_the_blobs():
    for number in range(100):
        means, stds, domain = two_blobs(number)

        coarsest = finch(torch.cat([means, stds], dim=1))[-1].tolist()

        assert len(set(zip(coarsest, domain, strict=True))) == len(set(coarsest))


def test_partitions_grow_coarser_and_no_cluster_has_fewer_than_two_rows():
    partitions = finch(normal(300, 8))

    counts = [len(sizes(partition)) for partition in partitions]
    assert len(counts) >= 3
    assert counts == sorted(counts, reverse=True)
    assert all(fine >= 2 * coarse for fine, coarse in pairwise(counts))
    assert all(min(sizes(partition)) >= 2 for partition in partitions)
    for fine, coarse in pairwise(partitions):
        assert len(torch.stack([fine, coarse]).unique(dim=1).T) == len(sizes(fine))  # each cluster in one coarser one


def test_labels_are_int64_and_numbered_by_first_appearance():
    for partition in finch(normal(60, 5)):
        seen = list(dict.fromkeys(partition.tolist()))

        assert partition.dtype == torch.int64
        assert seen == list(range(len(seen)))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_up_to_three_rows_are_one_cluster(count: int):
    assert [partition.tolist() for partition in finch(normal(count, 4))] == [[0] * count]


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_equal_rows_are_one_cluster(metric: Metric):
    rows = normal(1, 33).expand(23, -1)

    assert [partition.tolist() for partition in finch(rows, metric=metric)] == [[0] * 23]


def test_equal_rows_share_a_cluster_wherever_they_stand():
    distinct = normal(20, 6)
    order = torch.randperm(80, generator=stream(0, "world", "order"))
    which = torch.arange(20).repeat(4)[order]

    finest = finch(distinct[which])[0]

    assert len(torch.stack([finest, which]).unique(dim=1).T) == 20


def test_a_copied_row_has_its_copy_as_first_neighbor_and_links_to_nobody_else():
    rows = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    copied = torch.cat([rows, rows[:1], rows[1:2]])

    assert finch(rows)[0].tolist() == [0, 0, 1, 1]
    assert finch(copied)[0].tolist() == [0, 1, 2, 2, 0, 1]


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_ties_are_resolved_alike_in_every_order_of_the_rows(metric: Metric):
    side = torch.arange(1.0, 7.0)
    lattice = torch.cartesian_prod(side, side, side)  # every inner point has six nearest ones at distance 1
    expected = [partition.tolist() for partition in finch(lattice, metric=metric)]

    for number in range(5):
        order = torch.randperm(len(lattice), generator=stream(number, "world", "order"))
        found = finch(lattice[order], metric=metric)

        assert len(found) == len(expected)
        for partition, labels in zip(found, expected, strict=True):
            back = torch.empty_like(partition)
            back[order] = partition
            assert same_partition(back.tolist(), labels)


def test_cosine_ignores_the_length_of_rows_and_distance_does_not():
    rows, longer = normal(40, 6), normal(40, 6) * torch.arange(1, 41).unsqueeze(1)

    assert torch.equal(finch(rows)[0], finch(longer)[0])
    assert not torch.equal(finch(rows, metric="euclidean")[0], finch(longer, metric="euclidean")[0])


def test_a_row_of_zeros_has_cosine_zero_with_every_row():
    rows = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 0.1], [-1.0, 0.0]], dtype=torch.float64)

    assert first_neighbors(rows).tolist() == [1, 2, 1, 0]  # the last one's cosine with the other two is negative


def test_equal_rows_count_as_often_as_they_occur_in_the_means_of_the_next_partition():
    left, right = [-4.21, -4.19, -3.71, -3.69], [3.99, 4.01, 4.49, 4.51]
    middle = [0.0] * 9 + [1.0]  # their mean is .1, nearer to the left; counted once each it would be .5
    rows = torch.tensor([*left, *middle, *right], dtype=torch.float64).unsqueeze(1)

    partitions = finch(rows, metric="euclidean")

    assert [partition.tolist() for partition in partitions] == [
        [0, 0, 1, 1, *[2] * 10, 3, 3, 4, 4],
        [0, 0, 0, 0, *[0] * 10, 1, 1, 1, 1],
    ]


def test_first_neighbors_far_from_the_origin_keep_their_digits():
    rows = torch.tensor([[0.0], [1e-4], [3e-4], [3.5e-4]], dtype=torch.float64)

    assert first_neighbors(rows + 1e6, metric="euclidean").tolist() == [1, 0, 3, 2]


def test_the_size_of_a_block_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    rows = normal(101, 7)
    whole = finch(rows)

    monkeypatch.setattr("fdgsec.nn.styles.finch.BLOCK_NUMBERS", 300)
    in_blocks = finch(rows)

    assert len(whole) == len(in_blocks)
    assert all(map(torch.equal, whole, in_blocks))


def test_of_equally_near_neighbors_in_every_block_the_first_is_taken(monkeypatch: pytest.MonkeyPatch):
    side = torch.arange(7, dtype=torch.float64)
    lattice = torch.cartesian_prod(side, side, side)  # about its mean 3, all differences are exact
    apart = torch.cdist(lattice, lattice, compute_mode="donot_use_mm_for_euclid_dist").fill_diagonal_(torch.inf)
    first = (apart == 1).to(torch.uint8).argmax(1)

    assert torch.equal(first_neighbors(lattice, metric="euclidean"), first)
    monkeypatch.setattr("fdgsec.nn.styles.finch.BLOCK_NUMBERS", 3_000)
    assert torch.equal(first_neighbors(lattice, metric="euclidean"), first)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_neighbors_that_float32_cannot_tell_apart_are_those_of_float64(metric: Metric):
    rows = 1 + 1e-9 * normal(300, 5, "near")  # distances of 1e-9, of which float32 keeps nothing
    rows = torch.cat([rows, normal(300, 5, "far"), few_near_ones(300, 5)])

    points = rows / rows.norm(dim=1, keepdim=True) if metric == "cosine" else rows - rows.mean(0)
    half = 0.0 if metric == "cosine" else points.square().sum(1) / 2
    likeness = points @ points.T - half
    likeness.fill_diagonal_(-torch.inf)

    assert torch.equal(first_neighbors(rows, metric=metric), likeness.argmax(1))


def test_no_tensor_holds_a_number_for_every_pair_of_rows():
    rows = normal(3_000, 4)

    with LargestTensor() as watched:
        finch(rows)

    assert 3_000 * 4 <= watched.numbers <= BLOCK_NUMBERS < 3_000 * 3_000


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (torch.zeros(0, 3), "n, d >= 1; got torch.float32 (0, 3)"),
        (torch.zeros(3), "got torch.float32 (3,)"),
        (torch.zeros(3, 3, dtype=torch.int64), "got torch.int64 (3, 3)"),
        (torch.tensor([[0.0, 1.0], [torch.inf, 0.0]]), "1 of 2 are not"),
    ],
)
def test_what_is_not_finite_float_rows_is_refused(rows: Tensor, message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        finch(rows)


def test_an_unknown_metric_is_refused():
    with pytest.raises(ValueError, match="'cosine' or 'euclidean'; got 'manhattan'"):
        finch(normal(3, 3), metric="manhattan")  # type: ignore[arg-type]


def test_cluster_means_count_copies():
    rows = torch.tensor([[0.0], [3.0], [5.0]])
    labels = torch.tensor([0, 0, 1])

    assert cluster_means(rows, labels).tolist() == [[1.5], [5.0]]
    assert cluster_means(rows, labels, copies=torch.tensor([1, 2, 7])).tolist() == [[2.0], [5.0]]
