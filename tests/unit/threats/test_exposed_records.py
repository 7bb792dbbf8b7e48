"""The most exposed images: chosen by half of the clients, measured by the other half."""

from dataclasses import replace
from itertools import combinations

import pytest
import torch
from torch import Tensor

from fdgsec.metrics.measurement import Measurement
from fdgsec.metrics.proportion_intervals import clopper_pearson
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.answers import Answer, Membership
from fdgsec.threats.attack import Case, Truth
from fdgsec.threats.judging.exposed_records import _places_and_credits
from fdgsec.threats.judging.judge import Judge
from tests.support.judged import case
from tests.support.one_domain import one_domain

POOL, MEMBERS, ASKED = 160, 60, 140
IMAGES = one_domain(torch.zeros(POOL, 3, 2, 2, dtype=torch.uint8))
MANY = one_domain(torch.zeros(1400, 3, 2, 2, dtype=torch.uint8))


def clients(count: int, seed: int, exposed: Tensor | None = None) -> tuple[list[Answer], list[Case], list[Truth]]:
    """Clients of 60 images among 140 of a pool; members that are `exposed` (160,) score that much higher."""
    answers: list[Answer] = []
    cases, truths = [], []
    shift = torch.zeros(POOL) if exposed is None else exposed
    for number in range(count):
        rng = stream(seed, "attack", number)
        shown = torch.randperm(POOL, generator=rng)[:ASKED]
        members = torch.arange(ASKED) < MEMBERS
        scores = torch.randn(ASKED, generator=rng) + members * shift[shown]
        answers.append(Membership(case=number, scores=scores))
        cases.append(case(candidates=IMAGES.subset(shown), victim=f"client:{number}"))
        truths.append(Truth(members=members))
    return answers, cases, truths


def rows(asked: tuple[list[Answer], list[Case], list[Truth]], *, repeats: int = 200) -> dict[str, Measurement]:
    found = Judge(bootstrap_repeats=repeats).measure(*asked, stream(0, "world", "judge"))
    return {row.name: row for row in found}


def test_a_few_exposed_images_are_found_that_the_average_hides() -> None:
    exposed = torch.zeros(POOL)
    exposed[:12] = 4.0

    found = rows(clients(40, 0, exposed))

    assert found["auc"].value is not None
    assert found["auc"].value < 0.56
    assert found["exposed_auc"].value is not None
    assert found["exposed_auc"].value > 0.85
    assert found["exposed_auc"].leaks
    assert found["exposed_tpr_at_1pct_fpr"].value is not None
    assert found["exposed_tpr_at_1pct_fpr"].value > 0.5
    assert found["exposed_auc"].n == 16


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exposed_auc", "exposed_tpr_at_1pct_fpr"])
def test_scores_without_information_expose_no_image(name: str) -> None:
    found = [rows(clients(16, seed), repeats=100)[name] for seed in range(120)]

    alarms = sum(row.p_value is not None and row.p_value <= 0.025 for row in found)

    assert clopper_pearson(alarms, len(found)).low <= 0.025
    assert abs(sum(float(row.value or 0) - float(row.chance or 0) for row in found) / len(found)) < 0.02


def varied(seed: int) -> tuple[list[Answer], list[Case], list[Truth]]:
    """50 clients of 130 of 1,400 images and 130 others; images differ in how much their scores vary."""
    rng = stream(seed, "attack", "varied")
    spread = torch.exp(0.5 * torch.randn(1400, generator=rng))
    answers: list[Answer] = []
    cases, members = [], torch.arange(260) < 130
    for number in range(50):
        shown = torch.randperm(1400, generator=rng)[:260]
        answers.append(Membership(case=number, scores=spread[shown] * torch.randn(260, generator=rng)))
        cases.append(case(candidates=MANY.subset(shown), victim=f"client:{number}"))
    return answers, cases, [Truth(members=members)] * 50


@pytest.mark.nightly
@pytest.mark.slow
def test_images_whose_scores_vary_more_than_others_are_not_exposed_by_that() -> None:
    found = [rows(varied(seed), repeats=100) for seed in range(300)]

    for name in ("exposed_auc", "exposed_tpr_at_1pct_fpr"):  # 45% of the TPR rows against a chance of .01
        alarms = sum((row[name].p_value or 0) <= 0.025 for row in found)
        assert clopper_pearson(alarms, len(found)).low <= 0.025


def test_the_rate_of_images_that_vary_more_is_compared_with_their_own_as_others() -> None:
    found = rows(varied(0))["exposed_tpr_at_1pct_fpr"]

    assert found.chance_kind == "measured"
    assert found.chance is not None
    assert found.chance > 0.015
    assert not found.leaks


@pytest.mark.parametrize("count", [20, 60, 99, 110])
def test_a_constant_score_has_a_rate_of_one_in_a_hundred_at_every_number_of_others(count: int) -> None:
    answers, cases, _ = clients(12, 0)
    known = [Truth(members=torch.arange(ASKED) >= count) for _ in cases]
    constant: list[Answer] = [Membership(case=number, scores=torch.zeros(ASKED)) for number in range(len(answers))]

    found = rows((constant, cases, known))["exposed_tpr_at_1pct_fpr"]

    assert found.value == pytest.approx(0.01)
    assert found.chance == pytest.approx(0.01)
    assert found.verdict.startswith("undecided")


def test_every_image_has_the_same_place_and_credit_as_a_member_and_as_another() -> None:
    scores = torch.tensor([3.0, 3.0, 1.0, 0.0, 5.0])
    seen = torch.zeros(2, 2, 5, dtype=torch.float64)
    for pair in combinations(range(5), 2):
        members = torch.zeros(5, dtype=torch.bool)
        members[list(pair)] = True
        found = torch.stack(_places_and_credits(scores, members))
        seen[0] += torch.where(members, found, 0.0) / 4  # each is a member in 4 of 10 draws
        seen[1] += torch.where(members, 0.0, found) / 6

    assert torch.allclose(seen[0], seen[1], atol=1e-12)
    assert seen[0, 1].mean() == pytest.approx(0.01)


def test_images_that_are_asked_about_once_give_no_row() -> None:
    answers, cases, truths = clients(1, 0)

    assert "exposed_auc" not in rows((answers, cases, truths))


def test_two_cases_of_one_client_are_not_two_clients() -> None:
    answers, cases, truths = clients(10, 0)
    twice = [replace(each, victim=f"client:{number // 2}") for number, each in enumerate(cases)]

    row = rows((answers, twice, truths))["exposed_auc"]

    assert row.value is None
    assert str(row.unavailable).startswith("5 clients are too few")


def test_few_clients_and_few_images_give_the_reason() -> None:
    few = rows(clients(4, 0))["exposed_auc"]
    answers, cases, truths = clients(10, 0)
    always = [replace(truth, members=torch.arange(ASKED) < MEMBERS) for truth in truths]
    same = [replace(each, candidates=IMAGES.subset(torch.arange(ASKED))) for each in cases]
    constant = rows((answers, same, always))["exposed_auc"]

    assert few.unavailable == "4 clients are too few to choose by half of them and measure by the other"
    assert str(constant.unavailable).startswith("0 images are members and non-members in both halves")


@pytest.mark.parametrize("count", [8, 9, 10, 12])
def test_few_clients_with_few_images_each_are_measured_or_give_a_reason(count: int) -> None:
    for seed in range(6):
        answers, cases, truths = clients(count, seed)
        members = torch.zeros(ASKED, dtype=torch.bool)
        members[:10] = True
        found = rows((answers, cases, [replace(truth, members=members) for truth in truths]), repeats=50)["exposed_auc"]

        assert (found.value is None) == bool(found.unavailable)
