"""A few vectors of one's own: what is found of each is said of these clients, not lost to the resampling of two."""

from dataclasses import replace

import pytest
import torch

from fdgsec.metrics.interval import averaged
from fdgsec.metrics.intervals import delong
from fdgsec.metrics.measurement import Measurement
from fdgsec.metrics.proportion_intervals import clopper_pearson
from fdgsec.threats.answers import MemberList, Membership
from fdgsec.threats.attack import Case, QuestionKind, Truth
from tests.support.judged import case, judged

GALLERY, MEMBERS = 300, 60


def truths(clients: int) -> list[Truth]:
    """Disjoint members: an image has one owner."""
    owner = torch.arange(GALLERY) // MEMBERS
    return [Truth(members=owner == number) for number in range(clients)]


def cases(clients: int, question: QuestionKind = "given") -> list[Case]:
    return [replace(case(), question=question, victim=f"client:{number}") for number in range(clients)]


def told(clients: int, *, wrong: int, question: QuestionKind = "given") -> dict[tuple[str, ...], Measurement]:
    """Every list has so many wrong images, and scores agree with it."""
    answers: list[MemberList | Membership] = []
    for number, truth in enumerate(truths(clients)):
        assert truth.members is not None
        inside, outside = truth.members.nonzero()[:, 0], (~truth.members).nonzero()[:, 0]
        believed = truth.members.clone()
        believed[inside[:wrong]], believed[outside[:wrong]] = False, True
        scores = believed.double() + torch.rand(GALLERY, generator=torch.Generator().manual_seed(number)) / 100
        answers += [MemberList(case=number, believed=believed), Membership(case=number, scores=scores)]
    return judged(answers, cases(clients, question), truths(clients))


@pytest.mark.parametrize("clients", [2, 3, 4])
def test_lists_of_a_few_vectors_that_are_nearly_right_are_a_leak(clients: int):
    rows = told(clients, wrong=6)

    assert rows["exact_list",].value == 0
    assert rows["precision",].value == pytest.approx(0.9)
    assert rows["precision",].leaks
    assert rows["auc",].leaks
    assert rows["precision",].low == pytest.approx(clopper_pearson(54, 60).low)  # no narrower than a client's alone


def test_the_clients_of_a_simulation_are_a_sample_and_resampled():
    alone, sampled = told(3, wrong=6)["precision",], told(3, wrong=6, question="resampled_clients")["precision",]

    assert alone.low is not None
    assert sampled.low is not None
    assert sampled.low < alone.low


def test_many_given_vectors_are_resampled():
    few, many = (
        judged(
            [MemberList(case=number, believed=torch.arange(20) < 10) for number in range(clients)], cases(clients),
            [Truth(members=torch.arange(20) % 2 == number % 2) for number in range(clients)],
        )["precision",]
        for clients in (19, 20)
    )  # fmt: skip

    assert few.low == pytest.approx(clopper_pearson(5, 10).low)
    assert many.low is not None
    assert few.low is not None
    assert many.low > few.low


@pytest.mark.medium
@pytest.mark.parametrize("alike", [True, False], ids=["one-ranking-for-all", "own-rankings"])
@pytest.mark.parametrize("clients", [2, 3])
def test_scores_that_know_nothing_are_called_a_leak_no_more_often_than_stated(clients: int, alike: bool):
    rng, repeats = torch.Generator().manual_seed(0), 2000
    lists = areas = 0
    for _ in range(repeats):
        scores = torch.rand(1 if alike else clients, GALLERY, generator=rng).expand(clients, -1)
        owner = torch.randperm(GALLERY, generator=rng) // MEMBERS
        each = [delong(scores[k][owner == k], scores[k][owner != k]) for k in range(clients)]
        areas += averaged(each, [1.0] * clients, "delong").low > 0.5
        hits = [int((owner[scores[k].topk(MEMBERS).indices] == k).sum()) for k in range(clients)]
        right = averaged([clopper_pearson(hit, MEMBERS) for hit in hits], [1.0] * clients, "clopper-pearson")
        lists += right.low > MEMBERS / GALLERY

    assert areas <= 0.025 * repeats + 3 * (0.025 * repeats) ** 0.5
    assert lists <= 0.025 * repeats + 3 * (0.025 * repeats) ** 0.5
