"""Labels whose rows come from few clients: a client is one trial where it alone has a class."""

import pytest
import torch
from torch import Tensor

from fdgsec.metrics.measurement import Measurement
from fdgsec.metrics.proportion_intervals import balanced_accuracy_interval, matching_rate
from fdgsec.threats.answers import Labels
from fdgsec.threats.attack import QuestionKind, Truth
from tests.support.judged import case, judged


def found(domains: list[int], said: Tensor, question: QuestionKind = "released") -> dict[str, Measurement]:
    """Rows of clients of one domain each, whose rows (clients, R) are said to be of others."""
    answers = [
        Labels(case=number, predicted=own, of="domains", classes=max(domains) + 1) for number, own in enumerate(said)
    ]
    asked = [case(question=question, victim=f"client:{number}") for number in range(len(domains))]
    truths = [Truth(domains=torch.full((said.shape[1],), domain)) for domain in domains]
    return {name: row for (name,), row in judged(answers, asked, truths).items()}


@pytest.mark.parametrize("name", ["balanced_accuracy", "accuracy"])
def test_three_clients_of_a_domain_each_show_nothing_however_many_rows_they_have(name: str) -> None:
    row = found([0, 1, 2], torch.arange(3).unsqueeze(1).expand(3, 40))[name]

    assert row.value == 1.0
    assert row.verdict.startswith("undecided")


@pytest.mark.parametrize("name", ["balanced_accuracy", "accuracy"])
def test_rows_of_images_that_were_drawn_one_by_one_are_independent(name: str) -> None:
    row = found([0, 1, 2], torch.arange(3).unsqueeze(1).expand(3, 40), "as_if_released")[name]

    assert row.verdict == "leaks strongly"


def test_clients_of_a_domain_each_are_judged_as_a_matching() -> None:
    said = torch.arange(6).unsqueeze(1).repeat(1, 10)
    said[5, :5] = 0

    row = found(list(range(6)), said)["balanced_accuracy"]

    assert row.value == pytest.approx(5.5 / 6)
    assert (row.low, row.high) == pytest.approx((matching_rate(5.5, 6).low, matching_rate(5.5, 6).high))


def test_twelve_clients_of_three_domains_leak_where_nearly_all_their_rows_are_right() -> None:
    domains = [number % 3 for number in range(12)]
    said = torch.tensor(domains).unsqueeze(1).repeat(1, 20)
    said[0, :10] = 1

    assert found(domains, said)["balanced_accuracy"].verdict == "leaks strongly"


def test_a_class_of_one_client_is_one_trial_of_balanced_accuracy() -> None:
    true = torch.tensor([0, 1, 2]).repeat_interleave(40)
    owners = torch.tensor([0, 1, 2]).repeat_interleave(40)
    said = true.clone()
    said[:4] = 1

    right = balanced_accuracy_interval(true, true, classes=3, clusters=owners)
    nearly = balanced_accuracy_interval(true, said, classes=3, clusters=owners)

    assert right.low == pytest.approx(0.025 ** (1 / 3))  # the bound of three trials
    assert nearly.low < 1 / 3


def test_classes_that_all_clients_share_are_bounded_by_the_spread_of_clients() -> None:
    true = torch.arange(3).repeat(80)
    owners = torch.arange(12).repeat_interleave(20)
    said = torch.where(owners < 6, true, (true + 1) % 3)

    dependent = balanced_accuracy_interval(true, said, classes=3, clusters=owners)
    independent = balanced_accuracy_interval(true, said, classes=3)

    assert dependent.high - dependent.low > 3 * (independent.high - independent.low)
