"""Medians of ranks among unequal numbers, beside enumerations of all that chance could draw."""

from collections.abc import Sequence
from itertools import permutations, product

import numpy as np
import pytest
import torch
from torch import Tensor

from fdgsec.metrics.rank_medians import low_ranks_pvalue, median_of_uniform_ranks
from fdgsec.metrics.roc import ranks
from fdgsec.runtime.random_streams import stream


@pytest.mark.parametrize("galleries", [[7], [8], [2, 2, 3, 3, 3], [20] * 20 + [3] * 21, [1, 5], [2, 4, 4], [6, 1, 1]])
def test_the_median_by_chance_is_that_of_all_ranks_of_all_rows(galleries: list[int]):
    often = int(np.lcm.reduce(galleries))
    every = [rank for size in galleries for rank in range(1, size + 1) for _ in range(often // size)]

    assert median_of_uniform_ranks(galleries) == np.median(every)


@pytest.mark.parametrize("galleries", [[], [3, 0]])
def test_ranks_without_a_candidate_have_no_median(galleries: list[int]):
    with pytest.raises(ValueError, match="1 candidate or more"):
        median_of_uniform_ranks(galleries)


def drawn(distances: Tensor, truths: Sequence[Sequence[int]], limit: float) -> list[int]:
    return [int((ranks(distances, torch.tensor(truth)) < limit).sum()) for truth in truths]


@pytest.mark.parametrize("levels", [0, 3])
def test_matched_rows_draw_permutations_and_others_one_candidate_each(levels: int):
    rng = stream(4, "attack")
    matched, one, other = (torch.rand(4, size, generator=rng) for size in (4, 3, 6))
    if levels:
        matched, one, other = ((levels * part).floor() for part in (matched, one, other))
    blocks = [(matched, torch.tensor([2, 0, 1, 3])), (one[:2], torch.tensor([2, 0])), (other[:1], torch.tensor([4]))]
    limit = 2.5

    parts = [
        drawn(matched, list(permutations(range(4))), limit), drawn(one[:2], list(product(range(3), repeat=2)), limit),
        drawn(other[:1], [[place] for place in range(6)], limit),
    ]  # fmt: skip
    found = sum(int((ranks(*block) < limit).sum()) for block in blocks)
    expected = np.mean([sum(counts) >= found for counts in product(*parts)])

    assert 0 < found < 7
    assert low_ranks_pvalue(blocks, limit) == pytest.approx(expected, rel=1e-12)


def test_two_clients_who_are_both_right_or_both_wrong_are_one_draw():
    right = (torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([0, 1]))

    assert low_ranks_pvalue([right] * 4, 1.5) == pytest.approx(2**-4)


def test_ranks_that_most_candidates_share_are_not_rare():
    """Nine of ten are equally near, so that nine in ten have rank 5, where the mean of all ranks is 5.5."""
    distances = torch.zeros(20, 10)
    distances[:, 9] = 1.0

    assert low_ranks_pvalue([(distances, torch.zeros(20, dtype=torch.int64))], 5.5) == pytest.approx(0.9**20)
