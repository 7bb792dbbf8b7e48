"""Forged vectors against slow transcriptions of their papers' formulas, and gammas against brute force."""

import math
from statistics import NormalDist

import pytest
import torch
from torch import Tensor

from fdgsec.attacks.poisoning.crafted_vectors import (
    Direction,
    inner_product,
    largest_min_max_gamma,
    largest_min_sum_gamma,
    largest_z,
    little_is_enough,
    min_max,
    min_sum,
    perturbation,
)
from fdgsec.runtime.random_streams import stream

DIRECTIONS: tuple[Direction, ...] = ("std", "unit", "sign")


def honest(clients: int = 6, width: int = 5, *, seed: int = 0) -> Tensor:
    rng = stream(seed, "attack", "vectors")
    scales = torch.linspace(0.2, 2.0, width, dtype=torch.float64)
    return 1 + torch.randn(clients, width, generator=rng, dtype=torch.float64) * scales


def widest_pair(rows: list[list[float]]) -> float:
    return max(math.dist(one, other) for one in rows for other in rows)


def widest_sum(rows: list[list[float]]) -> float:
    return max(sum(math.dist(one, other) ** 2 for other in rows) for one in rows)


@pytest.mark.parametrize(("clients", "malicious"), [(50, 12), (50, 24), (21, 5), (9, 2), (11, 2)])
def test_z_leaves_as_many_honest_clients_beyond_as_a_majority_needs(clients: int, malicious: int):
    supporters = math.floor(clients / 2 + 1) - malicious
    share = (clients - malicious - supporters) / (clients - malicious)

    found = largest_z(clients, malicious)

    assert NormalDist().cdf(found) == pytest.approx(share, abs=1e-12)


def test_z_is_zero_for_three_clients_and_unbounded_for_a_majority():
    assert largest_z(3, 1) == 0
    assert largest_z(5, 3) == math.inf
    with pytest.raises(ValueError, match="0 < malicious < clients; got 3 of 3"):
        largest_z(3, 3)


def test_a_little_and_the_inner_product_are_their_formulas_number_by_number():
    known = honest()

    little, against = little_is_enough(known, z=0.7), inner_product(known, epsilon=0.5)

    for column in range(known.shape[1]):
        values = known[:, column].tolist()
        mean = sum(values) / len(values)
        deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
        assert float(little[column]) == pytest.approx(mean - 0.7 * deviation, abs=1e-12)
        assert float(against[column]) == pytest.approx(-0.5 * mean, abs=1e-12)
    assert float(against @ known.mean(0)) < 0


def test_perturbations_are_the_negative_spread_unit_mean_and_signs():
    known = honest()
    mean = known.mean(0)

    torch.testing.assert_close(perturbation(known, "std"), -known.std(0))
    torch.testing.assert_close(perturbation(known, "sign"), -mean.sign())
    assert float(perturbation(known, "unit").norm()) == pytest.approx(1)
    assert float(perturbation(known, "unit") @ mean) == pytest.approx(-float(mean.norm()))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("seed", range(5))
def test_the_gamma_of_min_max_is_the_largest_of_a_fine_grid(direction: Direction, seed: int):
    known = honest(seed=seed)
    along = perturbation(known, direction)
    rows, mean = known.tolist(), known.mean(0)

    gamma = largest_min_max_gamma(known, along)

    def near(factor: float) -> bool:
        moved = (mean + factor * along).tolist()
        return max(math.dist(moved, row) for row in rows) <= widest_pair(rows) + 1e-12

    step = 1e-3
    grid = [number * step for number in range(int(2 * gamma / step) + 100)]
    brute = max(factor for factor in grid if near(factor))
    assert brute <= gamma < brute + step
    assert gamma > 0


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("seed", range(5))
def test_the_gamma_of_min_sum_is_the_largest_of_a_fine_grid(direction: Direction, seed: int):
    known = honest(seed=seed)
    along = perturbation(known, direction)
    rows, mean = known.tolist(), known.mean(0)

    gamma = largest_min_sum_gamma(known, along)

    def near(factor: float) -> bool:
        moved = (mean + factor * along).tolist()
        return sum(math.dist(moved, row) ** 2 for row in rows) <= widest_sum(rows) + 1e-12

    step = 1e-3
    grid = [number * step for number in range(int(2 * gamma / step) + 100)]
    brute = max(factor for factor in grid if near(factor))
    assert brute <= gamma < brute + step
    assert gamma > 0


def test_one_known_vector_leaves_nothing_to_move():
    known = honest(1)

    for made in (min_max(known), min_sum(known), little_is_enough(known, z=1.5), min_max(known, direction="unit")):
        torch.testing.assert_close(made, known[0])
