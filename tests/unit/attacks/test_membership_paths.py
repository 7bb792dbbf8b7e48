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
from fdgsec.federation.released_statistics import PooledStyles, Reading, StyleDistributions
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.attack import Answer, Case, Knowledge, Plant, Prediction, TargetFacts, Truth, View
from fdgsec.threats.attack import Membership as MembershipAnswer
from fdgsec.threats.judging.judge import Judge
from fdgsec.threats.planted import PlantedStatistics, planted_moments

SERVER = frozenset({"encoder", "transform", "class names", "client sizes", "victim domains", "auxiliary", "unseen"})


def never(data: Sequence[DomainDataset], rng: torch.Generator, *, rounds: int = 0) -> View:
    raise AssertionError("the plant brings a method of its own")


def knowing(reading: Reading | None = None) -> Knowledge:
    return Knowledge(
        statistics=PlantedStatistics(moments=planted_moments(torch.zeros(1, 2), torch.ones(1, 2))), encoder="planted",
        class_names=("any",), domain_names=("planted",), auxiliary=None, unseen=None, own=None,
        reading=reading or PooledStyles(), simulate=never,
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


def untold(plant: Plant, seed: int) -> Plant:
    """The same releases with members and others told apart by lot: nothing that anybody could find."""
    rng = stream(seed, "world", "lots")
    truths = []
    for truth in plant.truths:
        assert truth.members is not None
        truths.append(Truth(members=truth.members[torch.randperm(len(truth.members), generator=rng)]))
    return replace(plant, truths=truths)


def test_every_kind_of_release_gives_its_planted_members_away():
    plant = Membership().plant(knowing(), stream(0, "attack", "plant"))

    answers = Membership().run(plant.cases, plant.knowledge, stream(0, "attack", "run"))

    found = areas(answers, plant.cases, plant.truths)
    assert {name: len(values) for name, values in found.items()} == {"mean": 6, "rows": 6, "clusters": 6}
    assert all(sum(values) / 6 >= plant.at_least >= 0.9 for values in found.values())
    assert found["rows"] == [1.0] * 6


@pytest.mark.parametrize(
    "reading",
    [StyleDistributions(), StyleDistributions(unbiased=False), StyleDistributions(released=True, eps=1e-6)],
)
def test_members_of_a_style_distribution_are_found_as_its_reading_says(reading: StyleDistributions):
    plant = Membership().plant(knowing(reading), stream(0, "attack", "plant"))

    answers = Membership().run(plant.cases, plant.knowledge, stream(0, "attack", "run"))

    assert isinstance(plant.cases[0].release(), StyleDistribution)
    found = areas(answers, plant.cases, plant.truths)
    assert sum(found["mean"]) / 6 >= 0.9
    assert "clusters" not in found


def test_a_distribution_read_as_the_wrong_mean_is_worse_than_read_right():
    right = StyleDistributions(released=True)
    plant = Membership().plant(knowing(right), stream(0, "attack", "plant"))
    misread = replace(plant.knowledge, reading=StyleDistributions(released=False))

    reads = {
        name: areas(Membership().run(plant.cases, knowledge, stream(0, "attack")), plant.cases, plant.truths)["mean"]
        for name, knowledge in (("right", plant.knowledge), ("wrong", misread))
    }

    assert sum(reads["right"]) > sum(reads["wrong"]) + 0.1


def test_nothing_is_found_once_releases_are_exchanged():
    mean: dict[str, list[float]] = {"mean": [], "rows": [], "clusters": []}
    for seed in range(6):
        plant = Membership().plant(knowing(), stream(seed, "attack", "plant"))
        attack = Membership(shadows=20, tried=40)
        null = attack.shuffled(plant.cases, plant.knowledge, stream(seed, "attack", "null"))
        assert not any(isinstance(answer, Prediction) for answer in null)
        for name, values in areas(null, plant.cases, plant.truths).items():
            mean[name] += values

    # One area of 10 against 10 has a standard deviation of .13 under the null (4 against 16: .17), the mean of 36 .03.
    for values in mean.values():
        assert len(values) == 36
        assert sum(values) / 36 == pytest.approx(0.5, abs=0.09)


@pytest.mark.slow
@pytest.mark.parametrize("control", ["nothing planted", "exchanged"])
def test_false_alarms_stay_within_binomial_bounds_of_five_percent(control: str):
    attack, judge = Membership(shadows=20, tried=20), Judge()
    alarms: dict[str, int] = {"mean": 0, "rows": 0, "clusters": 0}
    for seed in range(100):
        plant = planted_members(knowing(), stream(seed, "attack", "plant"))
        if control == "exchanged":
            guess = attack.shuffled(plant.cases, plant.knowledge, stream(seed, "attack", "null"))
        else:
            plant = untold(plant, seed)
            guess = attack.run(plant.cases, plant.knowledge, stream(seed, "attack", "run"))
        for row in judge.null(guess, plant.cases, plant.truths, stream(seed, "world", "judge")):
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
    plant = Membership().plant(knowing(), stream(0, "attack", "plant"))
    few = plant.knowledge.auxiliary
    assert few is not None
    poor = replace(plant.knowledge, auxiliary=few.subset(torch.arange(10)))
    cases = [case for case in plant.cases if case.slice["release"] == "clusters"]

    answers = Membership().run(cases, poor, stream(0, "attack", "run"))
    missing = Membership().missing(cases, poor)

    assert answers == []
    assert [row.name for row in missing] == ["auc", "tpr_at_1pct_fpr", "tpr_at_01pct_fpr"]
    assert all(row.value is None and "needs more public ones of planted" in str(row.unavailable) for row in missing)
    assert Membership().missing(plant.cases, plant.knowledge) == []


def test_who_cannot_run_the_target_cannot_test_what_is_no_mean():
    plant = Membership().plant(knowing(), stream(0, "attack", "plant"))
    cases = [case for case in plant.cases if case.slice["release"] == "clusters"]

    with pytest.raises(UsageError, match="cannot run the target"):
        Membership().run(cases, replace(plant.knowledge, simulate=None), stream(0, "attack", "run"))


def test_the_same_coins_simulate_the_same_shadows():
    plant = Membership().plant(knowing(), stream(0, "attack", "plant"))
    cases = [case for case in plant.cases if case.slice["release"] == "clusters"][:2]
    attack = Membership(shadows=10, tried=5)

    one, two = (attack.run(cases, plant.knowledge, stream(3, "attack", "run")) for _ in range(2))

    for first, second in zip(one, two, strict=True):
        assert isinstance(first, MembershipAnswer)
        assert isinstance(second, MembershipAnswer)
        assert torch.equal(first.scores, second.scores)


def test_of_a_clients_images_no_more_are_found_than_were_released():
    plant = Membership().plant(knowing(), stream(0, "attack", "plant"))
    rounds = [n for n, case in enumerate(plant.cases) if case.slice["release"] == "rows"]
    asked = [plant.cases[n] for n in rounds]
    held = [replace(case, request="resampled_clients") for case in asked]
    # the first mean of the plant tells which images are the client's; four of its ten were released as rows
    truths = [plant.truths[n] for n in rounds] + [plant.truths[n] for n in range(6)]

    answers = Membership().run([*asked, *held], plant.knowledge, stream(0, "attack", "run"))

    told = {a.name: a.value for a in answers if isinstance(a, Prediction)}
    scores = [a for a in answers if isinstance(a, MembershipAnswer) and a.slice["question"] == "client's image"]
    assert told == {"exposed_fraction": 0.4, "theory_auc": pytest.approx(0.7)}
    found = []
    for answer in scores:
        members = truths[answer.case].members
        assert members is not None
        found.append(float((answer.scores[members] > answer.scores[~members].max()).double().mean()))
    assert len(found) == 6
    assert all(share >= 0.4 - 1e-9 for share in found)
    assert sum(found) / 6 < 0.6
