"""What is answered where no single image is behind a style: pictures as tests of membership, and as sets."""

from dataclasses import replace

import pytest
import torch
from scipy import stats

from fdgsec.attacks.style_inversion.attack import StyleInversion
from fdgsec.attacks.style_inversion.inverter import style_features
from fdgsec.attacks.style_inversion.training_images import encode_prior
from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import InterpolationStyle, StyleStatistics
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Answer, GeneratedSets, Membership
from fdgsec.threats.attack import Case, Truth
from fdgsec.threats.judging.judge import Judge
from fdgsec.threats.positive_control_data import upload
from tests.support.quadrants import child_rng, knowledge, quadrant_statistics, world

IMAGES = world(per_domain=160).of_domain("red")
AUXILIARY = IMAGES.subset(torch.arange(60))
SERVER: Knowledge = knowledge(AUXILIARY)
POOLED = StyleInversion(losses=("mse",), priors=("intra",), size=8)
CLIENTS, HELD, ASKED = 12, 2, 6


def clients(released: DomainDataset | None = None) -> tuple[list[Case], list[Truth]]:
    """Clients of two images each, asked about these and four others; `released` stands in for what they pool."""
    cases, truths = [], []
    for number in range(CLIENTS):
        start = 60 + number * ASKED
        images = IMAGES.subset(torch.arange(start, start + ASKED))
        held = images if released is None else released.subset(torch.arange(number * HELD, (number + 1) * HELD))
        mean, std = quadrant_statistics(held.subset(torch.arange(HELD))).pooled().style(unbiased=False)
        sent = StyleStatistics(mean=mean[0].float(), std=std[0].float())
        order = torch.randperm(ASKED, generator=child_rng(number))
        cases.append(
            Case(
                question="resampled_clients", views=(upload(sent),), victim="client:0", domain="red", records=HELD,
                slice={"domain": "red", "n_per_client": HELD}, candidates=images.subset(order),
            )
        )  # fmt: skip
        truths.append(Truth(members=order < HELD))
    return cases, truths


def area(answers: list[Answer], cases: list[Case], truths: list[Truth]) -> tuple[float, float]:
    guess = [answer for answer in answers if isinstance(answer, Membership)]
    rows = Judge(bootstrap_repeats=300).measure(guess, cases, truths, child_rng(2))
    (found,) = [row for row in rows if row.name == "auc"]
    assert found.value is not None
    assert found.low is not None
    return found.value, found.low


def test_a_picture_of_two_pooled_images_says_who_was_pooled():
    cases, truths = clients()

    value, low = area(list(POOLED.run(cases, SERVER, child_rng())), cases, truths)

    assert value > 0.8
    assert low > 0.5


def test_exchanged_pooled_styles_say_nothing():
    cases, truths = clients()

    (null,) = Judge().null(POOLED.negative_control(cases, SERVER, child_rng()), cases, truths, child_rng(2))

    assert null.name == "auc"
    assert null.p_value > 0.05


@pytest.mark.nightly
@pytest.mark.slow
def test_styles_of_other_images_raise_alarm_no_more_often_than_chance():
    alarms, repeats = 0, 20
    for number in range(repeats):
        others = world(per_domain=160, seed=100 + number).of_domain("red")
        cases, truths = clients(others)
        guess = [a for a in POOLED.run(cases, SERVER, child_rng(number)) if isinstance(a, Membership)]
        (null,) = Judge().null(guess, cases, truths, child_rng(number))
        alarms += null.p_value < 0.05

    assert alarms <= stats.binom.ppf(0.999, repeats, 0.05)


def test_pooled_rows_are_no_reconstructions_and_the_report_says_why():
    cases, _ = clients()

    answers = POOLED.run(cases, SERVER, child_rng())

    assert {type(answer) for answer in answers} == {Membership, GeneratedSets}
    (row,) = POOLED.missing(cases, SERVER)
    assert row.slice == {"rows": "pooled"}
    assert str(row.unavailable).startswith("no single image is behind a pooled style")


def test_pooled_pictures_are_a_set_of_as_many_as_there_are_clients():
    cases, _ = clients()
    answers = [answer for answer in POOLED.run(cases, SERVER, child_rng()) if isinstance(answer, GeneratedSets)]
    names = dict.fromkeys(answer.name for answer in answers)

    own, others = (torch.cat([a.images for a in answers if a.name == name]) for name in names)

    assert list(names) == ["styles, mse", "exchanged styles, mse"]
    assert len(own) == CLIENTS
    assert torch.equal(own.flatten(1).sort(0).values, others.flatten(1).sort(0).values)


def test_everybodys_style_is_scored_for_each_client_and_cannot_be_exchanged():
    cases, _ = clients()
    mean, std = quadrant_statistics(IMAGES).pooled().style(unbiased=False)
    view = upload(InterpolationStyle(mean=mean[0].float(), std=std[0].float()), sender="server")
    told = [replace(case, views=(view,)) for case in cases]

    answers = POOLED.run(told, SERVER, child_rng())

    assert [answer.case for answer in answers] == list(range(CLIENTS))
    assert all(isinstance(answer, Membership) for answer in answers)
    assert POOLED.negative_control(told, SERVER, child_rng()) == []


@pytest.mark.parametrize("averaged", [False, True])
def test_pooled_rows_are_moved_by_what_pooling_adds_to_the_priors_own_images(averaged: bool):
    prior = encode_prior("p", AUXILIARY, quadrant_statistics, size=8, crops=0, limit=0, rng=child_rng())
    found = quadrant_statistics(AUXILIARY)
    mean, std = found.style(unbiased=False)
    styles = (mean.mean(0, keepdim=True), std.mean(0, keepdim=True))
    together = style_features(*(styles if averaged else found.pooled().style(unbiased=False)))

    assert torch.allclose(prior.as_single(together, averaged=averaged), style_features(mean, std).mean(0, keepdim=True))
