"""Intervals that exclude chance only where a second, exact test does: matchings, and errors against a guess."""

import pytest
import torch

from fdgsec.threats.answers import Ranking, Recovered
from fdgsec.threats.attack import Truth
from tests.support.judged import case, judged


@pytest.mark.parametrize(("clients", "p_value"), [(3, 1 / 6), (4, 1 / 24), (5, 1 / 120)])
def test_all_right_is_as_rare_as_one_order_of_so_few_clients(clients: int, p_value: float):
    right = 1 - torch.eye(clients)

    matched = judged(
        [Ranking(case=i, distances=right[i : i + 1], of="partner") for i in range(clients)],
        [case() for _ in range(clients)], [Truth(partner=i) for i in range(clients)],
    )["top1", "hungarian"]  # fmt: skip
    ranked = judged([Ranking(case=0, distances=right)], [case()], [Truth(rows=torch.arange(clients))])["top1",]

    for row in (matched, ranked):
        assert (row.value, row.chance) == (1.0, 1 / clients)
        assert row.p_value == pytest.approx(p_value)
        assert row.leaks == (clients == 5)


@pytest.mark.parametrize(("better", "leaks"), [(6, False), (12, True)])
def test_a_median_error_is_below_chance_only_where_most_records_are_better_off(better: int, leaks: bool):
    blind = torch.where(torch.arange(12) < better, 2.0, 0.05)  # the error without a release, per record
    error = 0.1 + 0.001 * torch.arange(12)

    row = judged(
        [Recovered(case=i, statistic=1 + error[i].reshape(1, 1), without=1 + blind[i].reshape(1)) for i in range(12)],
        [case() for _ in range(12)], [Truth(statistic=torch.ones(1, 1)) for _ in range(12)],
    )["relative_error",]  # fmt: skip

    assert row.value == pytest.approx(0.1055)
    assert row.leaks == leaks
    assert row.high is not None
    assert row.chance is not None
    assert (row.high < row.chance) == leaks
    assert (row.p_value is not None and row.p_value <= 0.025) == leaks
