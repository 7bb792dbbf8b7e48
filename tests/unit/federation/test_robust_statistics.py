"""Robust centers against slow transcriptions, and how far hostile clients can move them."""

import math
import statistics

import pytest
import torch
from torch import Tensor

from fdgsec.federation.robust_statistics import (
    distance_z,
    krum,
    krum_scores,
    median,
    robust_z,
    spread,
    trimmed_mean,
    winsorized,
)
from fdgsec.runtime.random_streams import stream

HUGE = 1e12


def rows(clients: int, width: int, seed: int) -> Tensor:
    return torch.randn(clients, width, generator=stream(seed, "world", "rows"), dtype=torch.float64)


def slow_trimmed(column: list[float], trim: int) -> float:
    kept = sorted(column)[trim : len(column) - trim]
    return sum(kept) / len(kept)


def slow_krum(values: list[list[float]], hostile: int) -> list[float]:
    scores = []
    for i, one in enumerate(values):
        apart = [sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) for j, other in enumerate(values) if j != i]
        scores.append(sum(sorted(apart)[: len(values) - hostile - 2]))
    return scores


@pytest.mark.parametrize("clients", [1, 2, 3, 4, 7, 10])
def test_the_median_is_that_of_every_coordinate(clients: int):
    values = rows(clients, 20, seed=clients)

    expected = [statistics.median(column) for column in values.T.tolist()]

    torch.testing.assert_close(median(values), torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0)


@pytest.mark.parametrize(("clients", "trim"), [(3, 0), (3, 1), (5, 1), (5, 2), (10, 3)])
def test_the_trimmed_mean_leaves_out_both_ends_of_every_coordinate(clients: int, trim: int):
    values = rows(clients, 20, seed=trim)

    expected = [slow_trimmed(column, trim) for column in values.T.tolist()]

    torch.testing.assert_close(
        trimmed_mean(values, trim=trim), torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0
    )


@pytest.mark.parametrize(("clients", "hostile"), [(3, 0), (5, 1), (7, 2), (10, 3)])
def test_krum_sums_squared_distances_to_the_nearest_rows(clients: int, hostile: int):
    values = rows(clients, 6, seed=10 + hostile)

    expected = slow_krum(values.tolist(), hostile)

    assert krum_scores(values, hostile=hostile).tolist() == pytest.approx(expected, rel=1e-12)
    assert krum(values, hostile=hostile) == expected.index(min(expected))


@pytest.mark.parametrize("attacked", ["high", "low", "nan", "inside"])
@pytest.mark.parametrize(("clients", "hostile"), [(3, 1), (5, 2), (10, 3), (10, 4)])
def test_up_to_the_breakdown_point_centers_stay_between_honest_values(clients: int, hostile: int, attacked: str):
    values = rows(clients, 50, seed=clients)
    honest = values[hostile:]
    forged = {"high": HUGE, "low": -HUGE, "nan": math.nan, "inside": float(honest.max())}[attacked]
    values[:hostile] = forged

    centers = [median(values), trimmed_mean(values, trim=hostile)]

    for center in centers:
        assert bool((center >= honest.min(0).values).all())
        assert bool((center <= honest.max(0).values).all())


@pytest.mark.parametrize(("clients", "hostile"), [(4, 2), (10, 5), (3, 2)])
def test_beyond_the_breakdown_point_the_median_goes_where_the_hostile_send_it(clients: int, hostile: int):
    values = rows(clients, 5, seed=3)
    values[:hostile] = HUGE

    assert bool((median(values) > HUGE / 3).all())


def test_one_more_hostile_row_than_is_trimmed_moves_the_trimmed_mean_without_bound():
    values = rows(10, 5, seed=3)
    values[:3] = HUGE

    assert bool((trimmed_mean(values, trim=2) > HUGE / 10).all())


def test_the_breakdown_curve_of_the_mean_is_linear_and_that_of_the_median_flat_below_a_half():
    values = rows(11, 40, seed=4)
    center = values.mean(0)

    def moved(hostile: int) -> tuple[float, float]:
        attacked = values.clone()
        attacked[:hostile] = 1e6
        return float((attacked.mean(0) - center).abs().max()), float((median(attacked) - center).abs().max())

    curve = [moved(hostile) for hostile in range(7)]

    for hostile, (by_mean, by_median) in enumerate(curve):
        assert by_mean == pytest.approx(1e6 * hostile / 11, rel=1e-4, abs=1e-9)
        assert (by_median < 5) == (hostile <= 5)  # honest values are standard normal


@pytest.mark.parametrize("forged", [HUGE, -HUGE, math.nan])
def test_krum_never_picks_one_of_the_hostile_rows_that_stand_apart(forged: float):
    picked = set()
    for seed in range(50):
        values = rows(9, 10, seed=seed)
        values[:3] = forged
        picked.add(krum(values, hostile=3))

    assert picked <= set(range(3, 9))
    assert len(picked) > 1


def test_krum_can_be_won_by_a_majority_that_colludes():
    values = rows(9, 10, seed=0)
    values[:5] = HUGE

    assert krum(values, hostile=3) < 5


def test_a_robust_z_counts_deviations_of_a_gaussian_sample():
    values = 3 + 2 * rows(20_001, 1, seed=5)

    assert float(spread(values)) == pytest.approx(2, rel=0.03)  # the MAD's relative sd at this n is 0.8%
    assert float((robust_z(values) > 1.96).double().mean()) == pytest.approx(0.05, abs=0.005)


def test_a_robust_z_is_the_distance_from_the_median_over_the_mad():
    values = torch.tensor([[1.0], [2.0], [4.0], [100.0], [2.5]])

    z = robust_z(values).squeeze(1)

    assert z.tolist() == pytest.approx([abs(v - 2.5) / (1.4826 * 1.5) for v in (1, 2, 4, 100, 2.5)], rel=1e-6)


def test_equal_values_have_no_score_and_whoever_leaves_them_an_infinite_one():
    values = torch.tensor([[1.0], [1.0], [1.0], [1.5], [math.nan]])

    assert robust_z(values).squeeze(1).tolist() == [0, 0, 0, math.inf, math.inf]


def test_the_distance_score_finds_the_row_that_is_far_and_not_the_ones_that_are_near():
    values = rows(10, 100, seed=6)
    values[3] = median(values)
    values[7] += 10

    z = distance_z(values)

    assert int(z.argmax()) == 7
    assert float(z[7]) > 10
    assert float(z[3]) == 0


def test_winsorized_values_have_at_most_the_bound_and_the_rest_stays():
    values = rows(9, 30, seed=7)
    values[0], values[1] = HUGE, math.nan

    held = winsorized(values, bound=3.0)

    near = robust_z(values) <= 3
    assert bool(((held - median(values)).abs() <= 3 * spread(values) * (1 + 1e-12)).all())
    assert torch.equal(held[near], values[near])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: trimmed_mean(torch.ones(4, 2), trim=2), r"\[0, 2\); got 2"),
        (lambda: trimmed_mean(torch.ones(4, 2), trim=-1), "got -1"),
        (lambda: krum(torch.ones(4, 2), hostile=1), "are 4 for f = 1; got 4"),
        (lambda: median(torch.ones(4)), r"\(n, D\)"),
        (lambda: median(torch.ones(0, 4)), "n >= 1"),
        (lambda: median(torch.ones(2, 4, dtype=torch.int64)), "float"),
    ],
)
def test_what_cannot_be_centered_is_refused(call: object, said: str):
    assert callable(call)

    with pytest.raises(ValueError, match=said):
        call()
