"""The most exposed images: chosen by half of the clients, measured by the other half."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fdgsec.metrics.measurement import Measurement
from fdgsec.metrics.proportion_intervals import clopper_pearson
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.answers import Answer, Membership
from fdgsec.threats.attack import Case, Truth
from fdgsec.threats.judging.judge import Judge
from tests.support.judged import case
from tests.support.one_domain import one_domain

POOL, MEMBERS, ASKED = 160, 60, 140
IMAGES = one_domain(torch.zeros(POOL, 3, 2, 2, dtype=torch.uint8))


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
    assert abs(sum(float(row.value or 0) for row in found) / len(found) - float(found[0].chance or 0)) < 0.02


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
