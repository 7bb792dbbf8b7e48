"""Membership in pooled styles: wins on planted members, knows nothing without the release, keeps domains apart."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from sklearn.metrics import roc_auc_score

from fdgsec.attacks.membership.attack import Membership
from fdgsec.experiments.report.presentation import figures_of
from fdgsec.federation.artifacts import ImageStyles, StyleStatistics
from fdgsec.nn.styles.channel_statistics import linear_statistic
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Answer, Prediction
from fdgsec.threats.answers import Membership as MembershipAnswer
from fdgsec.threats.attack import Case, PositiveControl, TargetFacts, Truth
from fdgsec.threats.positive_control_data import PlantedStatistics, planted_images, planted_moments, upload

FACTS = TargetFacts(
    artifact_kinds=frozenset({"StyleStatistics"}), clients=3, images_per_client=700, classes=7, profile="quick"
)
EMPTY = Knowledge(
    statistics=PlantedStatistics(moments=planted_moments(torch.zeros(1, 2), torch.ones(1, 2))), encoder="planted",
    class_names=("any",), domain_names=("ink", "oil"), auxiliary=None, unseen=None, own=None,
)  # fmt: skip


def areas(answers: Sequence[Answer], truths: Sequence[Truth]) -> list[float]:
    found = []
    for answer in answers:
        members = truths[answer.case].members
        if isinstance(answer, MembershipAnswer) and members is not None:
            found.append(float(roc_auc_score(members.numpy(), answer.scores.numpy())))
    return found


def scene(seed: int, *, clients: int = 8, records: int = 30, heavy: bool = False) -> PositiveControl:
    """Two domains far apart; per domain 60 auxiliary images, 100 of the federation, 40 held out; correlated channels."""
    rng = stream(seed, "world", "scene")
    per_domain, channels = 200, 20
    mixing = torch.randn(channels, channels, generator=rng, dtype=torch.float64)
    domains = torch.arange(2).repeat_interleave(per_domain)
    mean = torch.randn(2 * per_domain, channels, generator=rng, dtype=torch.float64) @ mixing
    if heavy:  # some images are far from all others, as in real feature maps
        mean *= 1 + 3 * torch.rand(2 * per_domain, 1, generator=rng, dtype=torch.float64) ** 4
    mean = 0.3 * mean + 50.0 * domains.unsqueeze(1)
    variance = 4 + torch.rand(2 * per_domain, channels, generator=rng, dtype=torch.float64)
    images = planted_images(torch.zeros_like(domains), domains, class_names=("any",), domain_names=("ink", "oil"))
    statistics = PlantedStatistics(moments=planted_moments(mean, variance))
    cases, truths = [], []
    for domain, name in enumerate(("ink", "oil")):
        start = domain * per_domain
        for _ in range(clients):
            inside = start + 60 + torch.randperm(100, generator=rng)[:records]
            outside = start + 160 + torch.randperm(40, generator=rng)[:records]
            release = statistics.moments.rows(inside).pooled().style(unbiased=False)
            artifact = StyleStatistics(mean=release[0][0].float(), std=release[1][0].float())
            both = torch.cat([inside, outside])
            order = torch.randperm(len(both), generator=rng)
            cases.append(
                Case(
                    question="resampled_clients", views=(upload(artifact),), victim="client:0", records=records,
                    domain=name, slice={"domain": name, "n_per_client": records}, candidates=images.subset(both[order]),
                )
            )  # fmt: skip
            truths.append(Truth(members=order < records))
    auxiliary = images.subset((torch.arange(2 * per_domain) % per_domain) < 60)
    return PositiveControl(
        cases=cases, truths=truths, knowledge=replace(EMPTY, statistics=statistics, auxiliary=auxiliary),
        measurement="auc", at_least=0.5,
    )  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_planted_members_are_found(seed: int):
    control = Membership().positive_control(EMPTY, stream(seed, "attack", "plant"))

    found = areas(Membership().run(control.cases, control.knowledge, stream(seed, "attack", "run")), control.truths)

    assert control.measurement == "auc"
    assert len(found) == 6
    assert sum(found) / len(found) >= control.at_least >= 0.9


def test_plan_asks_for_fifty_clients_of_each_size():
    requests = Membership().plan(FACTS)

    assert [(question.kind, question.count, question.records) for question in requests] == [
        ("resampled_clients", 50, 40), ("resampled_clients", 50, 130), ("resampled_clients", 50, 500)
    ]  # fmt: skip


@pytest.mark.parametrize("heavy", [False, True])
def test_members_are_found_in_both_domains_though_the_domains_lie_far_apart(heavy: bool):
    world = scene(1, heavy=heavy)

    found = areas(Membership().run(world.cases, world.knowledge, stream(0, "attack", "run")), world.truths)

    ink, oil = sum(found[:8]) / 8, sum(found[8:]) / 8
    assert ink > 0.6
    assert oil > 0.6
    assert abs(ink - oil) < 0.2


@pytest.mark.medium
def test_exchanged_releases_give_an_area_of_one_half():
    means = []
    for seed in range(12):
        world = scene(seed, clients=10, heavy=True)
        null = Membership().negative_control(world.cases, world.knowledge, stream(seed, "attack", "null"))
        assert not any(isinstance(answer, Prediction) for answer in null)
        found = areas(null, world.truths)
        means.append(sum(found) / len(found))

    # One area of 30 against 30 has a standard deviation of .075 under the null; 240 of them .0048.
    assert sum(means) / len(means) == pytest.approx(0.5, abs=0.016)


def test_each_domain_and_size_gets_its_predictions_once():
    world = scene(2)

    answers = Membership().run(world.cases, world.knowledge, stream(0, "attack", "run"))

    told = [
        (world.cases[answer.case].slice["domain"], answer.name, answer.slice.get("line", ""))
        for answer in answers
        if isinstance(answer, Prediction)
    ]
    assert sorted(told) == sorted(
        (domain, *row)
        for domain in ("ink", "oil")
        for row in (*(("one_candidate_auc", line) for line in ("auxiliary images alone", "rehearsal")), ("d_eff", ""))
    )


@pytest.mark.medium
def test_predicted_area_is_near_the_measured_one_on_gaussian_records():
    measured, told = [], []
    for seed in range(10):
        world = scene(100 + seed, clients=20)
        answers = Membership().run(world.cases, world.knowledge, stream(seed, "attack", "run"))
        measured += areas(answers, world.truths)
        told += [
            answer.value
            for answer in answers
            if isinstance(answer, Prediction) and answer.slice.get("line") == "rehearsal"
        ]

    # 40 held-out and 60 auxiliary images: a scene's areas move together by about .05, the mean of 20 by .011.
    assert sum(told) / len(told) == pytest.approx(sum(measured) / len(measured), abs=0.04)


def test_the_standardized_score_may_be_asked_for():
    world = scene(5)

    standard = Membership(statistic="standardized").run(world.cases, world.knowledge, stream(0, "attack", "run"))
    ratio = Membership().run(world.cases, world.knowledge, stream(0, "attack", "run"))

    first, second = areas(ratio, world.truths), areas(standard, world.truths)
    assert first != second
    assert sum(first) / len(first) == pytest.approx(sum(second) / len(second), abs=0.05)


def test_same_coins_give_the_same_answers():
    world = scene(6, clients=2)

    first, second = (Membership().run(world.cases, world.knowledge, stream(7, "attack", "run")) for _ in range(2))

    for one, other in zip(first, second, strict=True):
        if isinstance(one, MembershipAnswer):
            assert isinstance(other, MembershipAnswer)
            assert torch.equal(one.scores, other.scores)
        else:
            assert one == other


def test_release_that_was_seen_averages_its_members_exactly():
    world = scene(7, clients=1)
    mean, std = world.cases[0].released()
    members, candidates = world.truths[0].members, world.cases[0].candidates
    assert candidates is not None

    moments = world.knowledge.statistics(candidates.subset(torch.as_tensor(members)))

    expected = torch.cat([moments.mean, moments.m2 / moments.count.unsqueeze(1) + moments.mean.square()], dim=1).mean(0)
    assert torch.allclose(linear_statistic(mean, std)[0], expected, rtol=1e-5, atol=1e-5)  # float32 on the wire


def test_size_that_the_adversary_does_not_know_is_named_in_the_error():
    world = scene(8, clients=1)

    with pytest.raises(UsageError, match="number of images behind the style of client:0"):
        Membership().run([replace(world.cases[0], records=None)], world.knowledge, stream(0, "attack", "run"))


def test_domain_that_the_adversary_does_not_know_is_named_in_the_error():
    world = scene(8, clients=1)

    with pytest.raises(UsageError, match="domain of the images of client:0"):
        Membership().run([replace(world.cases[0], domain=None)], world.knowledge, stream(0, "attack", "run"))


def test_rows_of_single_images_are_refused():
    world = scene(9, clients=1)
    rows = upload(ImageStyles(mean=torch.zeros(2, 20), std=torch.ones(2, 20)))

    with pytest.raises(UsageError, match="sent 2 rows"):
        Membership().run([replace(world.cases[0], views=(rows,))], world.knowledge, stream(0, "attack", "run"))


def test_without_auxiliary_images_the_attack_says_so():
    world = scene(10, clients=1)

    with pytest.raises(UsageError, match="auxiliary"):
        Membership().run(world.cases, replace(world.knowledge, auxiliary=None), stream(0, "attack", "run"))


@pytest.mark.medium
def test_fewer_auxiliary_images_are_asked_for_by_number():
    world = scene(9, clients=10)

    answers = Membership(auxiliary=(0, 1, 30, 61)).run(world.cases, world.knowledge, stream(0, "attack", "run"))

    found: dict[object, list[float]] = {}
    for answer in answers:
        if isinstance(answer, MembershipAnswer):
            found.setdefault(answer.slice.get("auxiliary"), []).extend(areas([answer], world.truths))
    assert list(found) == [None, 0, 30]  # one image has no spread, and there are 60
    assert all(len(one) == 20 and sum(one) / 20 > 0.6 for one in found.values())


def test_numbers_of_auxiliary_images_that_there_are_not_are_reported():
    world = scene(9, clients=3)

    rows = Membership(auxiliary=(30, 61)).missing(world.cases, world.knowledge)

    assert {(row.name, row.slice["domain"], row.slice["auxiliary"]) for row in rows} == {
        (name, domain, 61) for name in ("auc", "tpr_at_1pct_fpr", "tpr_at_01pct_fpr") for domain in ("ink", "oil")
    }
    assert {row.unavailable for row in rows if row.slice["domain"] == "ink"} == {
        "the adversary has 60 images of ink, not 61"
    }


@pytest.mark.medium
def test_candidates_alone_say_nothing_of_a_defense():
    world = scene(10, clients=2)
    known = replace(world.knowledge, defended=lambda artifact, _images, _rng: artifact)

    answers = Membership(auxiliary=(0,)).run(world.cases, known, stream(0, "attack", "run"))

    assert not [answer for answer in answers if "auxiliary" in answer.slice]


@pytest.mark.medium
def test_figures_leave_tests_with_fewer_auxiliary_images_out():
    world = scene(11, clients=3)
    plain, both = (
        Membership(auxiliary=auxiliary).run(world.cases, world.knowledge, stream(0, "attack", "run"))
        for auxiliary in ((), (0, 30))
    )

    assert len(both) > len(plain)
    drawn = [[figure.data for figure in figures_of(found, world.cases, world.truths)] for found in (plain, both)]
    assert drawn[0] == drawn[1]
