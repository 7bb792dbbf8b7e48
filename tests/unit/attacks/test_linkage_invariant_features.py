"""Linkage by what stays of a client where no number of its vector does."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fdgsec.attacks.linkage.attack import Linkage
from fdgsec.attacks.linkage.invariant_features import (
    differences_of_columns,
    distances_to_others,
    invariant_features,
    nearest_numbers,
    size_of_deviation,
    without_strongest_directions,
)
from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.answers import Ranking
from fdgsec.threats.judging.judge import Judge
from tests.support.client_vectors import alone, pairs

Rows = npt.NDArray[np.float64]
NEW = (
    "differences of columns", "without the strongest directions", "nearest numbers", "sorted numbers",
    "distances to others", "size of deviation",
)  # fmt: skip


def linked(first: Rows, second: Rows) -> Mapping[str, Measurement]:
    """By distance: the share of first releases whose nearest second one is the same client's."""
    cases, truths = pairs(first, second)
    answers = Linkage(noise=(), noise_in_sds=()).run(cases, alone(), stream(0, "attack", "linkage"))
    rows = Judge().measure(answers, cases, truths, stream(0, "world", "judge"))
    return {
        str(row.slice["distance"]): row for row in rows if row.name == "top1" and "matching" not in row.slice
    }  # fmt: skip


def styles(draws: np.random.Generator, clients: int = 40, channels: int = 64) -> Rows:
    stds = np.exp(0.3 * draws.normal(size=(clients, channels))) + 2
    return np.hstack([draws.normal(size=(clients, channels)), stds])


def under_shared_noise(draws: np.random.Generator, shared: int) -> tuple[Rows, Rows]:
    """Noise of 20 standard deviations, one draw for the mean and the std of the first `shared` of 64 channels."""
    client, sessions = styles(draws), []
    for _ in range(2):
        of_mean, of_std = 20 * draws.normal(size=(2, 40, 64))
        of_std[:, :shared] = of_mean[:, :shared]
        sessions.append(client + np.hstack([of_mean, of_std + 120]))
    return sessions[0], sessions[1]


def in_own_orders(draws: np.random.Generator) -> tuple[Rows, Rows]:
    """Each client's channels are in a new order each time, with a thousandth of noise."""
    client, sessions = styles(draws), []
    for _ in range(2):
        order = draws.permuted(np.tile(np.arange(64), (40, 1)), axis=1)
        release = np.take_along_axis(client, np.hstack([order, order + 64]), axis=1)
        sessions.append(release * (1 + 0.001 * draws.normal(size=client.shape)))
    return sessions[0], sessions[1]


def rotated(draws: np.random.Generator) -> tuple[Rows, Rows]:
    """The second release is in other coordinates and another unit, the same for all clients."""
    client = styles(draws)
    other = 3 * client @ np.linalg.qr(draws.normal(size=(128, 128)))[0]
    other[:, 64:] -= other[:, 64:].min()
    return client, other


def in_a_few_directions(draws: np.random.Generator) -> tuple[Rows, Rows]:
    """Noise of 30 standard deviations in 20 directions, the same for all clients, and none in the other 108."""
    client, directions = styles(draws), draws.normal(size=(20, 128))
    first, second = (client + 30 * draws.normal(size=(40, 20)) @ directions for _ in range(2))
    least = min(first[:, 64:].min(), second[:, 64:].min())
    first[:, 64:] -= least
    second[:, 64:] -= least
    return first, second


def on_most_numbers(draws: np.random.Generator) -> tuple[Rows, Rows]:
    """Of each vector 60% of the numbers, others each time, are noise of 50 standard deviations."""
    client = styles(draws)
    first, second = (
        np.where(draws.random(client.shape) < 0.6, 50 * draws.normal(size=client.shape), client)
        + 0.02 * draws.normal(size=client.shape)
        for _ in range(2)
    )
    first[:, 64:] += 300
    second[:, 64:] += 300
    return first, second


def fresh_images(draws: np.random.Generator, images: tuple[int, int], noise: float, channels: int) -> tuple[Rows, Rows]:
    """Means and stds of fresh images of one distribution, as many as the client has, with noise of `noise` over that.

    Numbers of images are log-uniform between `images`."""
    counts = np.exp(draws.uniform(np.log(images[0]), np.log(images[1]), 40))[:, None]
    means, stds = draws.normal(size=channels), 3 + draws.random(channels)
    first, second = (
        np.hstack([
            means + draws.normal(size=(40, channels)) * np.hypot(stds / np.sqrt(counts), noise / counts),
            20 + stds + draws.normal(size=(40, channels)) * np.hypot(stds / np.sqrt(2 * counts), noise / counts),
        ])
        for _ in range(2)
    )  # fmt: skip
    first[:, channels:], second[:, channels:] = first[:, channels:].clip(0), second[:, channels:].clip(0)
    return first, second


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("sent", "distance", "least"),
    [("shared noise", "differences of columns", 0.97), ("shared noise on a few", "differences of columns", 0.7),
     ("a few directions", "without the strongest directions", 0.97), ("most numbers", "nearest numbers", 0.8),
     ("channels in own orders", "sorted numbers", 0.97), ("rotated", "distances to others", 0.97),
     ("20 to 400 images and noise", "size of deviation", 0.3), ("10 to 1000 images", "size of deviation", 0.3)],
)  # fmt: skip
@pytest.mark.medium
def test_clients_are_linked_where_no_number_comes_again(sent: str, distance: str, least: float, seed: int):
    """Three lines of numpy link all of 40 clients, and of fresh images 37%; no distance between numbers links six."""
    draws = np.random.default_rng(seed)
    first, second = {
        "shared noise": lambda: under_shared_noise(draws, 64),
        "shared noise on a few": lambda: under_shared_noise(draws, 6),
        "a few directions": lambda: in_a_few_directions(draws),
        "most numbers": lambda: on_most_numbers(draws),
        "channels in own orders": lambda: in_own_orders(draws),
        "rotated": lambda: rotated(draws),
        "20 to 400 images and noise": lambda: fresh_images(draws, (20, 400), 100.0, 256),
        "10 to 1000 images": lambda: fresh_images(draws, (10, 1000), 0.0, 512),
    }[sent]()

    rows = linked(first, second)

    row = rows[distance]
    assert row.value is not None
    assert row.value >= least
    assert row.verdict.startswith("leaks")
    assert max(other.value or 0 for name, other in rows.items() if name not in NEW) < 0.15


def test_each_column_less_its_partner_is_what_numpy_finds():
    draws = np.random.default_rng(2)
    one, other = draws.normal(size=(2, 30, 600))
    one[:, 599], other[:, 599] = -one[:, 0] + 0.3 * one[:, 1], -other[:, 0] + 0.3 * other[:, 1]
    first, second = ((part - part.mean(0)) / part.std(0, ddof=1) for part in (one, other))

    found, again = differences_of_columns(torch.from_numpy(first), torch.from_numpy(second))

    r = np.corrcoef(np.concatenate([first, second]).T) - 2 * np.eye(600)
    np.fill_diagonal(r, 0)
    partner = np.abs(r).argmax(1)
    assert (partner[0], partner[599]) == (599, 0)  # in two blocks of columns
    r = r[np.arange(600), partner]
    for part, released in ((found, first), (again, second)):
        expected = (released - np.sign(r) * released[:, partner]) / (1 - np.abs(r))
        np.testing.assert_allclose(part.numpy(), expected, rtol=1e-9, atol=1e-9)


def test_a_column_that_comes_twice_in_a_vector_has_no_difference():
    draws = np.random.default_rng(3)
    rows = torch.from_numpy(draws.normal(size=(10, 4)))
    rows = (rows - rows.mean(0)) / rows.std(0)
    twice = torch.cat([rows, -rows[:, :1]], dim=1)

    found, again = differences_of_columns(twice, twice)

    assert found.shape == again.shape == (10, 3)
    assert bool(found.isfinite().all())


def test_nearest_numbers_are_those_that_are_each_other_s():
    first = torch.tensor([[0.0], [1.0], [5.0], [7.0], [7.0], [20.0]])
    second = torch.tensor([[0.9], [5.2], [4.9], [7.0], [19.0], [21.0]])

    found = -nearest_numbers(first, second)

    assert found.nonzero().tolist() == [[1, 0], [2, 2]]  # 7 comes twice, and 20 lies between two


def test_noise_in_fixed_directions_is_taken_out_and_little_else():
    draws = np.random.default_rng(9)
    first, second = (torch.from_numpy(part) for part in in_a_few_directions(draws))

    one, other = without_strongest_directions(first, second)

    assert one.shape == other.shape == (40, 60)  # of 80 vectors there are as many directions
    assert float(torch.cdist(one, other).argmin(1).eq(torch.arange(40)).double().mean()) == 1


def test_the_order_of_many_vectors_does_not_decide_what_is_taken_out():
    draws = np.random.default_rng(1)
    client = draws.normal(size=(1100, 24))
    first, second = (
        torch.from_numpy(client + 3 * draws.normal(size=(1100, 2)) @ draws.normal(size=(2, 24))) for _ in range(2)
    )
    order = torch.from_numpy(draws.permutation(1100))

    one, other = without_strongest_directions(first, second)
    again, others = without_strongest_directions(first[order], second[order])

    torch.testing.assert_close(torch.cdist(one[order], other[order]), torch.cdist(again, others), rtol=0, atol=1e-6)


def test_a_turned_and_scaled_release_keeps_its_distances():
    draws = np.random.default_rng(4)
    rows = draws.standard_cauchy((600, 5))
    turned = torch.from_numpy(7 * rows @ np.linalg.qr(draws.normal(size=(5, 5)))[0] + 3)

    found, again = distances_to_others(torch.from_numpy(rows), turned)

    assert found.shape == (600, 256)
    torch.testing.assert_close(found, again, rtol=1e-6, atol=1e-8)  # rounded to nine decimals


def test_few_images_deviate_more_than_many():
    draws = np.random.default_rng(5)
    size = torch.tensor([1.0, 2.0, 4.0] * 7).unsqueeze(1)

    found = size_of_deviation(size * torch.from_numpy(draws.normal(size=(21, 4000)))).flatten()

    expected = size.flatten().log().double()
    torch.testing.assert_close(found - found[0], expected - expected[0], rtol=0, atol=0.1)  # 4,000 draws: 1.2%


def test_exchanged_clients_exchange_features_and_nothing_else():
    draws = np.random.default_rng(6)
    first, second = torch.from_numpy(draws.normal(size=(2, 20, 8)))
    order, other = (torch.from_numpy(draws.permutation(20)) for _ in range(2))

    found = invariant_features(first, second)
    exchanged = invariant_features(first[order], second[other])

    assert set(found) == set(NEW[3:])
    for name, (one, again) in found.items():
        torch.testing.assert_close(exchanged[name], (one[order], again[other]), rtol=0, atol=2e-9)


@pytest.mark.parametrize("first", [np.ones((3, 8)), np.eye(2, 8), np.tile(np.eye(3, 2), (2, 4))])
def test_vectors_without_a_difference_are_equally_far(first: Rows):
    """Constant vectors, two clients (each as far from the other as the other from it), and vectors that two share."""
    second = 2 * first[::-1].copy() + 1
    cases, _ = pairs(first, second)

    answers = Linkage(noise=(), noise_in_sds=()).run(cases, alone(), stream(0, "attack", "linkage"))

    for answer in answers:
        if not isinstance(answer, Ranking):
            continue
        assert bool(answer.distances.isfinite().all())
        if len(first) < 6 and answer.slice["distance"] in NEW[4:]:
            assert answer.distances.unique().numel() == 1


def test_some_of_many_clients_are_compared_by_their_place_among_all():
    draws = np.random.default_rng(8)
    client = styles(draws)
    cases, _ = pairs(client, client + 0.1 * draws.normal(size=client.shape))

    everybody, some = (
        Linkage(noise=(), noise_in_sds=(), asked=asked).run(cases, alone(), stream(0, "attack", "linkage"))
        for asked in (40, 5)
    )

    by_case = {
        (answer.case, answer.slice["distance"]): answer.distances for answer in everybody if isinstance(answer, Ranking)
    }
    compared = [answer for answer in some if isinstance(answer, Ranking) and answer.slice["distance"] in NEW]
    assert len(compared) == 5 * len(NEW)
    for answer in compared:
        assert torch.equal(answer.distances, by_case[answer.case, answer.slice["distance"]])


def independent(kind: str, draws: np.random.Generator) -> tuple[Rows, Rows]:
    """Two releases in which nobody is to be found."""
    size = (2, 4 if kind == "four clients" else 30, 64)
    if kind == "t":
        one, other = draws.standard_t(1.5, size)
    elif kind == "factors":
        one, other = draws.normal(0, 1, (*size[:2], 3)) @ draws.normal(0, 1, (3, 64)) + 0.1 * draws.normal(0, 1, size)
    elif kind == "unequal sizes":
        one, other = draws.normal(0, 1, size) * draws.lognormal(0, 1, (*size[:2], 1))
    else:
        one, other = draws.normal(0, 1, size)
    for release in (one, other):
        if kind == "constant columns":
            release[:, 5:] = 1.0
        release[:, 32:] -= release[:, 32:].min()  # stds
    return one, other


@pytest.mark.parametrize("kind", ["normal", "t", "factors", "unequal sizes", "constant columns", "four clients"])
@pytest.mark.nightly
@pytest.mark.slow
def test_vectors_of_nobody_are_flagged_no_more_often_than_stated(kind: str):
    draws, flagged = np.random.default_rng(0), dict.fromkeys(NEW, 0)
    for _ in range(60):
        rows = linked(*independent(kind, draws))
        for name in NEW:
            flagged[name] += rows[name].leaks

    assert max(flagged.values()) <= 6  # 2.5% of 60, and a tail of .4% of each of six
