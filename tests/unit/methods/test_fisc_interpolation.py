"""The invariants of the interpolation style of 100 sets of clients in two blobs, and what it tells about one of them."""

import statistics

import pytest
import torch
from torch import Tensor

from fdgsec.federation.artifacts import InterpolationStyle
from fdgsec.methods.fisc import (
    Partition,
    interpolation_style,
    verbatim_fraction,
)
from fdgsec.nn.styles.finch import finch
from tests.support.fisc_cases import numbers, rng
from tests.support.slow_finch import two_blobs

PARTITIONS: tuple[Partition, ...] = ("first", "last")


@pytest.mark.parametrize("partition", PARTITIONS)
def test_the_order_of_100_sets_of_clients_does_not_matter(partition: Partition):
    for number in range(100):
        means, stds, _ = two_blobs(number)
        order = torch.randperm(len(means), generator=rng("order"))

        style = interpolation_style(means.double(), stds.double(), partition=partition)
        again = interpolation_style(means[order].double(), stds[order].double(), partition=partition)

        torch.testing.assert_close(numbers(style), numbers(again), rtol=1e-14, atol=0)  # sums in another order


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("count", [1, 2, 3, 20, 33])
def test_identical_clients_get_their_common_style(partition: Partition, count: int):
    means, stds, _ = two_blobs(0)

    style = interpolation_style(means[:1].expand(count, -1), stds[:1].expand(count, -1), partition=partition)

    assert torch.equal(style.mean, means[0])
    assert torch.equal(style.std, stds[0])


def test_three_clients_are_one_cluster_and_get_their_mean():
    means, stds, _ = two_blobs(0)

    style = interpolation_style(means[:3], stds[:3])

    torch.testing.assert_close(numbers(style), torch.cat([means[:3], stds[:3]], 1).mean(0), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("partition", "typical"), [("first", 0.029), ("last", 0.00235)])
def test_a_copied_client_moves_the_style_in_100_of_100_sets_by_3_percent_first_partition_or_2_permille_last(
    partition: Partition, typical: float
):
    """The copy becomes its twin's first neighbor and other links break. Medians over the sets, measured here."""
    distances = []
    for number in range(100):
        means, stds, _ = two_blobs(number)
        before = numbers(interpolation_style(means, stds, partition=partition))

        after = numbers(
            interpolation_style(torch.cat([means, means[:1]]), torch.cat([stds, stds[:1]]), partition=partition)
        )

        distances.append(float((after - before).norm() / before.norm()))
    assert min(distances) > 1e-4
    assert statistics.median(distances) == pytest.approx(typical, rel=0.05)


@pytest.mark.parametrize(("partition", "sets", "share"), [("first", 43, 0.24), ("last", 5, 0.17)])
def test_a_copied_clients_numbers_stand_in_the_style_in_43_of_100_sets_first_partition_and_in_5_last(
    partition: Partition, sets: int, share: float
):
    """Where the two twins are a cluster of their own, its mean is the client's style. Measured here too."""
    shares = []
    for number in range(100):
        means, stds, _ = two_blobs(number)
        style = interpolation_style(torch.cat([means, means[:1]]), torch.cat([stds, stds[:1]]), partition=partition)

        shares.append(verbatim_fraction(style, means[:1], stds[:1]))

    exposed = [found for found in shares if found > 0.05]  # a number of 128 may coincide in float32
    assert len(exposed) == pytest.approx(sets, abs=2)
    assert statistics.median(exposed) == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_no_number_of_the_interpolation_style_of_100_sets_is_a_clients_own(partition: Partition):
    for number in range(100):
        means, stds, _ = two_blobs(number)
        means, stds = means.double(), stds.double() + 1e-9 * two_blobs(number + 100)[1][0]  # no float32 coincidences

        style = interpolation_style(means, stds, partition=partition)

        assert verbatim_fraction(style, means, stds) == 0.0


def test_every_number_of_a_median_over_clients_is_a_clients_own():
    means, stds, _ = two_blobs(3)
    median = InterpolationStyle(mean=means.median(0).values, std=stds.median(0).values)

    assert verbatim_fraction(median, means, stds) == 1.0
    assert verbatim_fraction(InterpolationStyle(mean=median.mean, std=median.std + 1), means, stds) == 0.5


@pytest.mark.parametrize("height", [1e3, 1e6, 1e30])
def test_one_client_far_out_in_one_coordinate_moves_the_style_no_farther_than_the_others_reach(height: float):
    tried = 0
    for number in range(100):
        means, stds, _ = two_blobs(number)
        outlier = means.clone()
        outlier[0, 5] = height
        clusters = int(finch(torch.cat([outlier, stds], 1))[0].max()) + 1

        style = interpolation_style(outlier, stds, partition="first")

        if clusters >= 3:
            tried += 1
            assert means[1:, 5].min() <= style.mean[5] <= means[1:, 5].max()
    assert tried >= 80


def test_the_first_partition_is_the_finest_and_the_last_the_coarsest():
    means, stds, _ = two_blobs(1)
    styles = torch.cat([means, stds], 1).double()
    partitions = finch(styles)
    assert len(partitions) >= 2

    both: tuple[tuple[Partition, Tensor], ...] = (("first", partitions[0]), ("last", partitions[-1]))
    for partition, labels in both:
        averages = torch.stack([styles[labels == j].mean(0) for j in labels.unique()])
        found = interpolation_style(means.double(), stds.double(), partition=partition, median="lower")
        torch.testing.assert_close(numbers(found), averages.median(0).values, rtol=1e-12, atol=0)


def test_of_two_cluster_means_the_median_is_the_smaller_or_their_mean():
    means, stds = torch.tensor([[1.0], [1.0], [5.0], [5.0]]), torch.tensor([[4.0], [4.0], [2.0], [2.0]])

    lower, middle = (
        interpolation_style(means, stds, median="lower"), interpolation_style(means, stds, median="mean_of_middle")
    )  # fmt: skip

    assert numbers(lower).tolist() == [1.0, 2.0]
    assert numbers(middle).tolist() == [3.0, 3.0]


def test_the_last_partition_has_the_papers_median_and_the_first_one_the_codes():
    means, stds = torch.tensor([[1.0], [1.0], [5.0], [5.0]]), torch.tensor([[4.0], [4.0], [2.0], [2.0]])

    paper, code = interpolation_style(means, stds), interpolation_style(means, stds, partition="first")

    assert numbers(paper).tolist() == [3.0, 3.0]
    assert numbers(code).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("means", "stds", "message"),
    [
        (torch.ones(3, 2), torch.ones(3, 3), r"must both be \(clients, C\); got \(3, 2\) and \(3, 3\)"),
        (torch.ones(100, 2, 1, 1), torch.ones(100, 2, 1, 1), r"got \(100, 2, 1, 1\)"),
        (torch.ones(0, 2), torch.ones(0, 2), r"got \(0, 2\)"),
        (torch.full((3, 2), torch.nan), torch.ones(3, 2), "3 of 3 are not"),
    ],
)
def test_what_are_no_client_styles_is_refused(means: Tensor, stds: Tensor, message: str):
    with pytest.raises(ValueError, match=message):
        interpolation_style(means, stds)


def test_unknown_partitions_and_medians_are_refused():
    with pytest.raises(ValueError, match="partition must be 'first' or 'last'; got 'best'"):
        interpolation_style(torch.ones(3, 2), torch.ones(3, 2), partition="best")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="median must be 'of_partition', 'lower' or 'mean_of_middle'; got 'upper'"):
        interpolation_style(torch.ones(3, 2), torch.ones(3, 2), median="upper")  # type: ignore[arg-type]


def test_a_fraction_of_another_number_of_channels_is_refused():
    style = InterpolationStyle(mean=torch.ones(2), std=torch.ones(2))

    with pytest.raises(ValueError, match=r"must both be \(clients, 2\); got \(4, 3\)"):
        verbatim_fraction(style, torch.ones(4, 3), torch.ones(4, 3))
