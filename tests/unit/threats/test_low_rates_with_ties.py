"""TPR at a low FPR where scores are equal: one definition of value and interval, and no evidence from a constant."""

import pytest
import torch
from torch import Tensor

from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.answers import Membership
from fdgsec.threats.attack import Truth
from fdgsec.threats.judging.judge import Judge
from tests.support.judged import case

SIZES = [
    (1, 150, 1000), (1, 150, 1050), (1, 150, 1099), (1, 1000, 1099), (50, 40, 40), (50, 130, 130), (30, 40, 39),
    (2, 600, 549), (1, 150, 1950),
]  # fmt: skip


def low_rate(scores: Tensor, members: int) -> Measurement:
    """The row of clients (C, G) whose first `members` candidates are theirs."""
    truth = Truth(members=torch.arange(scores.shape[1]) < members)
    answers = [Membership(case=number, scores=own) for number, own in enumerate(scores)]
    asked = [case(victim=f"client:{number + 1}") for number in range(len(scores))]
    rows = Judge(bootstrap_repeats=100).measure(answers, asked, [truth] * len(scores), stream(0, "world", "judge"))
    return next(row for row in rows if row.name == "tpr_at_1pct_fpr")


@pytest.mark.parametrize(("clients", "members", "others"), SIZES)
def test_a_constant_score_is_undecided_at_every_number_of_records(clients: int, members: int, others: int) -> None:
    found = low_rate(torch.zeros(clients, members + others), members)

    assert found.value is not None
    assert found.value == pytest.approx(0.01, abs=1e-15)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high
    assert found.verdict.startswith("undecided")


@pytest.mark.parametrize(("clients", "members", "others"), SIZES)
def test_scores_of_two_values_show_neither_a_leak_nor_its_absence(clients: int, members: int, others: int) -> None:
    scores = torch.rand(clients, members + others, generator=stream(0, "attack", "ties")).round()

    assert low_rate(scores, members).verdict.startswith("undecided")


def test_a_tie_at_the_threshold_leaves_a_leak_above_it_shown() -> None:
    members = torch.arange(1250) < 150
    scores = torch.where(members, torch.arange(1250) % 2 == 0, torch.arange(1250) % 250 == 1).to(torch.float32)

    found = low_rate(scores.unsqueeze(0), 150)

    assert found.value == pytest.approx(0.5 + 0.5 * (11 - 4) / (1100 - 4))
    assert found.verdict == "leaks"
    assert found.high == 1.0


def test_a_separated_score_leaks_at_a_number_of_records_that_is_no_multiple_of_a_hundred() -> None:
    found = low_rate((torch.arange(1249) < 150).to(torch.float32).unsqueeze(0), 150)

    assert found.value == 1.0
    assert found.verdict == "leaks strongly"
