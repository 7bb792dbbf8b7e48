"""Membership of distributions, of clustered styles and of rows: planted information is found, without it nothing is."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from sklearn.metrics import roc_auc_score

from fdgsec.attacks.membership.attack import Membership
from fdgsec.attacks.membership.control import planted_members
from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import StyleDistribution
from fdgsec.federation.released_statistics import PooledStyles, ReleasedStatistic, StyleDistributions
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge, View
from fdgsec.threats.answers import Answer, Prediction
from fdgsec.threats.answers import Membership as MembershipAnswer
from fdgsec.threats.attack import Case, PositiveControl, TargetFacts, Truth
from fdgsec.threats.judging.judge import Judge
from fdgsec.threats.positive_control_data import PlantedStatistics, planted_moments

SERVER = frozenset({"encoder", "transform", "class names", "client sizes", "victim domains", "auxiliary", "unseen"})


def never(data: Sequence[DomainDataset], rng: torch.Generator, *, rounds: int = 0) -> View:
    raise AssertionError("the plant brings a method of its own")


def knowing(released_statistic: ReleasedStatistic | None = None) -> Knowledge:
    return Knowledge(
        statistics=PlantedStatistics(moments=planted_moments(torch.zeros(1, 2), torch.ones(1, 2))), encoder="planted",
        class_names=("any",), domain_names=("planted",), auxiliary=None, unseen=None, own=None,
        released_statistic=released_statistic or PooledStyles(), simulate=never,
    )  # fmt: skip


def facts(*kinds: str, pooled: bool = True, knows: frozenset[str] = SERVER) -> TargetFacts:
    return TargetFacts(
        artifact_kinds=frozenset(kinds), clients=3, images_per_client=700, classes=7, profile="quick", knows=knows,
        pooled=pooled,
    )  # fmt: skip


def areas(answers: Sequence[Answer], cases: Sequence[Case], truths: Sequence[Truth]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for answer in answers:
        members = truths[answer.case].members
        if isinstance(answer, MembershipAnswer) and members is not None:
            area = float(roc_auc_score(members.numpy(), answer.scores.numpy()))
            found.setdefault(str(cases[answer.case].slice["release"]), []).append(area)
    return found


def untold(planted_control: PositiveControl, seed: int) -> PositiveControl:
    """The same releases with members and others told apart by lot: nothing that anybody could find."""
    rng = stream(seed, "world", "lots")
    truths = []
    for truth in planted_control.truths:
        assert truth.members is not None
        truths.append(Truth(members=truth.members[torch.randperm(len(truth.members), generator=rng)]))
    return replace(planted_control, truths=truths)


@pytest.mark.medium
def test_every_kind_of_release_gives_its_planted_members_away():
    planted_control = Membership().positive_control(knowing(), stream(0, "attack", "plant"))

    answers = Membership().run(planted_control.cases, planted_control.knowledge, stream(0, "attack", "run"))

    found = areas(answers, planted_control.cases, planted_control.truths)
    assert {name: len(values) for name, values in found.items()} == {"mean": 6, "rows": 6, "clusters": 6}
    assert all(sum(values) / 6 >= planted_control.at_least >= 0.9 for values in found.values())
    assert found["rows"] == [1.0] * 6


@pytest.mark.parametrize(
    "released_statistic",
    [StyleDistributions(), StyleDistributions(unbiased=False), StyleDistributions(released=True, eps=1e-6)],
)
@pytest.mark.medium
def test_members_of_a_style_distribution_are_found_as_its_reading_says(released_statistic: StyleDistributions):
    planted_control = Membership().positive_control(knowing(released_statistic), stream(0, "attack", "plant"))

    answers = Membership().run(planted_control.cases, planted_control.knowledge, stream(0, "attack", "run"))

    assert isinstance(planted_control.cases[0].release(), StyleDistribution)
    found = areas(answers, planted_control.cases, planted_control.truths)
    assert sum(found["mean"]) / 6 >= 0.9
    assert "clusters" not in found


@pytest.mark.medium
def test_a_distribution_read_as_the_wrong_mean_is_worse_than_read_right():
    right = StyleDistributions(released=True)
    planted_control = Membership().positive_control(knowing(right), stream(0, "attack", "plant"))
    misread = replace(planted_control.knowledge, released_statistic=StyleDistributions(released=False))

    reads = {
        name: areas(
            Membership().run(planted_control.cases, knowledge, stream(0, "attack")),
            planted_control.cases,
            planted_control.truths,
        )["mean"]
        for name, knowledge in (("right", planted_control.knowledge), ("wrong", misread))
    }

    assert sum(reads["right"]) > sum(reads["wrong"]) + 0.1


@pytest.mark.medium
def test_nothing_is_found_once_releases_are_exchanged():
    mean: dict[str, list[float]] = {"mean": [], "rows": [], "clusters": []}
    for seed in range(6):
        planted_control = Membership().positive_control(knowing(), stream(seed, "attack", "plant"))
        attack = Membership(shadows=20, tried=40)
        null = attack.negative_control(planted_control.cases, planted_control.knowledge, stream(seed, "attack", "null"))
        assert not any(isinstance(answer, Prediction) for answer in null)
        for name, values in areas(null, planted_control.cases, planted_control.truths).items():
            mean[name] += values

    # One area of 10 against 10 has a standard deviation of .13 under the null (4 against 16: .17), the mean of 36 .03.
    for values in mean.values():
        assert len(values) == 36
        assert sum(values) / 36 == pytest.approx(0.5, abs=0.09)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("control", ["nothing planted", "exchanged"])
def test_false_alarms_stay_within_binomial_bounds_of_five_percent(control: str):
    attack, judge = Membership(shadows=20, tried=20), Judge()
    alarms: dict[str, int] = {"mean": 0, "rows": 0, "clusters": 0}
    for seed in range(100):
        planted_control = planted_members(knowing(), stream(seed, "attack", "plant"))
        if control == "exchanged":
            guess = attack.negative_control(
                planted_control.cases, planted_control.knowledge, stream(seed, "attack", "null")
            )
        else:
            planted_control = untold(planted_control, seed)
            guess = attack.run(planted_control.cases, planted_control.knowledge, stream(seed, "attack", "run"))
        for row in judge.null(guess, planted_control.cases, planted_control.truths, stream(seed, "world", "judge")):
            alarms[str(row.slice["release"])] += row.p_value < 0.05

    assert all(count <= 12 for count in alarms.values()), alarms  # P(more than 12 of 100 at 5%) = .0015


def test_rows_are_asked_about_twice_and_clusters_in_one_exchange():
    attack = Membership(clients=9, simulated_clients=7, cropped_clients=0)

    rows = attack.plan(facts("ImageStyles", "StyleBank"))
    clusters = attack.plan(facts("StyleStatistics", "InterpolationStyle", pooled=False))
    spread = attack.plan(facts("StyleDistribution"))

    assert [(r.kind, r.count, r.records, r.rounds) for r in rows] == [
        ("rounds", 9, 130, 1), ("resampled_clients", 9, 130, 0)
    ]  # fmt: skip
    assert [(r.kind, r.count, r.records, r.rounds) for r in clusters] == [("rounds", 7, 40, 1), ("rounds", 7, 130, 1)]
    assert [(r.kind, r.records) for r in spread] == [("resampled_clients", size) for size in (40, 130, 500)]


def test_rows_need_no_auxiliary_images_but_pooled_styles_do():
    knows = SERVER - {"auxiliary", "client sizes", "victim domains"}

    assert Membership().plan(facts("ImageStyles", "StyleBank", knows=knows))
    with pytest.raises(UsageError, match="needs auxiliary, client sizes, victim domains"):
        Membership().plan(facts("StyleDistribution", knows=knows))


def test_too_few_public_images_for_a_shadow_client_are_reported_and_not_worked_around():
    planted_control = Membership().positive_control(knowing(), stream(0, "attack", "plant"))
    few = planted_control.knowledge.auxiliary
    assert few is not None
    poor = replace(planted_control.knowledge, auxiliary=few.subset(torch.arange(10)))
    cases = [case for case in planted_control.cases if case.slice["release"] == "clusters"]

    answers = Membership().run(cases, poor, stream(0, "attack", "run"))
    missing = Membership().missing(cases, poor)

    assert answers == []
    assert [row.name for row in missing] == ["auc", "tpr_at_1pct_fpr", "tpr_at_01pct_fpr"]
    assert all(row.value is None and "needs more public ones of planted" in str(row.unavailable) for row in missing)
    assert Membership().missing(planted_control.cases, planted_control.knowledge) == []


def test_who_cannot_run_the_target_cannot_test_what_is_no_mean():
    planted_control = Membership().positive_control(knowing(), stream(0, "attack", "plant"))
    cases = [case for case in planted_control.cases if case.slice["release"] == "clusters"]

    with pytest.raises(UsageError, match="cannot run the target"):
        Membership().run(cases, replace(planted_control.knowledge, simulate=None), stream(0, "attack", "run"))


def test_the_same_coins_simulate_the_same_shadows():
    planted_control = Membership().positive_control(knowing(), stream(0, "attack", "plant"))
    cases = [case for case in planted_control.cases if case.slice["release"] == "clusters"][:2]
    attack = Membership(shadows=10, tried=5)

    one, two = (attack.run(cases, planted_control.knowledge, stream(3, "attack", "run")) for _ in range(2))

    for first, second in zip(one, two, strict=True):
        assert isinstance(first, MembershipAnswer)
        assert isinstance(second, MembershipAnswer)
        assert torch.equal(first.scores, second.scores)


def test_of_a_clients_images_no_more_are_found_than_were_released():
    planted_control = Membership().positive_control(knowing(), stream(0, "attack", "plant"))
    rounds = [n for n, case in enumerate(planted_control.cases) if case.slice["release"] == "rows"]
    asked = [planted_control.cases[n] for n in rounds]
    held = [replace(case, question="resampled_clients") for case in asked]
    # the first mean of the plant tells which images are the client's; four of its ten were released as rows
    truths = [planted_control.truths[n] for n in rounds] + [planted_control.truths[n] for n in range(6)]

    answers = Membership().run([*asked, *held], planted_control.knowledge, stream(0, "attack", "run"))

    told = {a.name: a.value for a in answers if isinstance(a, Prediction)}
    scores = [a for a in answers if isinstance(a, MembershipAnswer) and a.slice["question"] == "client's image"]
    assert told == {"exposed_fraction": 0.4, "one_candidate_auc": pytest.approx(0.7)}
    found = []
    for answer in scores:
        members = truths[answer.case].members
        assert members is not None
        found.append(float((answer.scores[members] > answer.scores[~members].max()).double().mean()))
    assert len(found) == 6
    assert all(share >= 0.4 - 1e-9 for share in found)
    assert sum(found) / 6 < 0.6
