from dataclasses import dataclass, replace

import pytest
import torch

from fdgsec.attacks.differencing.attack import Differencing
from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import Artifact, ImageStyles, StyleDistribution, StyleStatistics
from fdgsec.federation.released_statistics import MeanStyles, PooledStyles, ReleasedStatistic, StyleDistributions
from fdgsec.nn.styles.channel_statistics import Moments, linear_statistic
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge, View
from fdgsec.threats.answers import Recovered
from fdgsec.threats.attack import Case, PositiveControl, TargetFacts, Truth
from fdgsec.threats.judging.controls import negative_controls, positive_control
from fdgsec.threats.judging.judge import Judge
from fdgsec.threats.positive_control_data import PlantedStatistics, planted_moments, upload


def nothing(dataset: DomainDataset) -> Moments:
    raise NotImplementedError


BLANK = Knowledge(
    statistics=nothing, encoder="none", class_names=(), domain_names=(), auxiliary=None, unseen=None, own=None
)
ATTACK = Differencing()
FACTS = TargetFacts(artifact_kinds=ATTACK.reads, clients=3, images_per_client=700, classes=7, profile="quick")


def planted(seed: int = 0) -> PositiveControl:
    return ATTACK.positive_control(BLANK, stream(seed, "attack"))


def test_twenty_records_are_asked_for_when_quick_and_fifty_otherwise():
    quick, full = ATTACK.plan(FACTS), ATTACK.plan(replace(FACTS, profile="full"))

    assert [(r.kind, r.count, r.records) for r in quick] == [("add_one_record", 20, 0), ("resampled_clients", 50, 40)]
    assert [(r.kind, r.count, r.records) for r in full] == [("add_one_record", 50, 0), ("resampled_clients", 50, 40)]
    assert Differencing(records=3).plan(FACTS)[0].count == 3


READINGS = [PooledStyles(), MeanStyles(), StyleDistributions(), StyleDistributions(released=True)]


@pytest.mark.parametrize(
    ("seed", "released_statistic"), [*((0, released_statistic) for released_statistic in READINGS), (1, READINGS[0])]
)
def test_the_added_image_is_named_every_time(seed: int, released_statistic: ReleasedStatistic):
    planted_control = ATTACK.positive_control(
        replace(BLANK, released_statistic=released_statistic), stream(seed, "attack")
    )
    answers = ATTACK.run(planted_control.cases, planted_control.knowledge, stream(seed, "attack"))

    (control,) = positive_control(planted_control, answers, Judge(bootstrap_repeats=100), stream(seed, "attack"))

    assert control.passed
    assert control.measurement.value == 1


def test_its_statistic_is_recovered_up_to_the_rounding_of_float32():
    planted_control = planted()
    answers = ATTACK.run(planted_control.cases, planted_control.knowledge, stream(0, "attack"))

    rows = Judge(bootstrap_repeats=100).measure(
        answers, planted_control.cases, planted_control.truths, stream(0, "attack")
    )

    (error,) = [row for row in rows if row.name == "relative_error"]
    assert error.value is not None
    assert error.chance is not None
    assert error.value < 1e-5  # 21 records x 6e-8
    assert error.chance > 0.1
    assert error.leaks


def test_the_estimate_is_n_plus_1_times_the_second_mean_less_n_times_the_first():
    planted_control = planted()

    answer = ATTACK.run(planted_control.cases, planted_control.knowledge, stream(0, "attack"))[0]

    assert isinstance(answer, Recovered)
    before, after = (linear_statistic(*planted_control.cases[0].released(run))[0] for run in (0, 1))
    assert torch.allclose(answer.statistic[0], 21 * after - 20 * before, rtol=0, atol=1e-12)


def test_the_blind_guess_is_the_mean_of_the_auxiliary_images():
    planted_control = planted()
    answer = ATTACK.run(planted_control.cases, planted_control.knowledge, stream(0, "attack"))[0]

    assert planted_control.knowledge.auxiliary is not None
    found = planted_control.knowledge.statistics(planted_control.knowledge.auxiliary)
    by_hand = torch.cat([found.mean, found.m2 / 64 + found.mean**2], dim=1).mean(0)
    assert isinstance(answer, Recovered)
    assert torch.allclose(answer.without, by_hand)


def test_without_the_victims_domain_only_the_blind_guess_changes():
    planted_control = planted()
    images = planted_control.knowledge.auxiliary
    assert images is not None
    halved = replace(images, domains=torch.arange(len(images)) % 2, domain_names=("planted", "other"))
    known = replace(planted_control.knowledge, auxiliary=halved)
    untold = [replace(case, domain=None) for case in planted_control.cases]

    told, blind = (ATTACK.run(cases, known, stream(0, "attack"))[0] for cases in (planted_control.cases, untold))

    assert isinstance(told, Recovered)
    assert isinstance(blind, Recovered)
    assert torch.equal(told.statistic, blind.statistic)
    assert torch.allclose(told.without, known.statistics(halved.of_domain("planted")).linear().mean(0))
    assert torch.allclose(blind.without, known.statistics(halved).linear().mean(0))


@dataclass(frozen=True, kw_only=True, eq=False)
class Cohort:
    """Clients of 10, 11, 12, ... images that were seen one by one, their truth, and what the adversary knows."""

    cases: list[Case]
    truths: list[Truth]
    knowledge: Knowledge


def cohort(seed: int = 0, *, clients: int = 8, distributions: bool = False) -> Cohort:
    planted_control = planted(seed)
    assert isinstance(planted_control.knowledge.statistics, PlantedStatistics)
    rng, channels = stream(seed, "attack", "cohort"), 24
    released_statistic = StyleDistributions() if distributions else PooledStyles()
    mean = 2 + torch.randn(200, channels, generator=rng, dtype=torch.float64)
    variance = 0.5 + torch.rand(200, channels, generator=rng, dtype=torch.float64)
    moments, sent, truths = planted_moments(mean, variance), list[Artifact](), []
    for number in range(clients):
        own = moments.rows(torch.arange(20 * number, 20 * number + 10 + number))
        sent.append(distribution(own) if distributions else pooled(own))
        truths.append(Truth(statistic=own.linear().mean(0, keepdim=True)))
    everything = View(
        messages=tuple(m for number, a in enumerate(sent) for m in upload(a, sender=f"client:{number}").messages)
    )
    cases = [
        Case(
            question="resampled_clients", views=(everything,), victim=f"client:{number}", records=10 + number, slice={}
        )
        for number in range(clients)
    ]
    return Cohort(
        cases=cases, truths=truths, knowledge=replace(planted_control.knowledge, released_statistic=released_statistic)
    )


def pooled(moments: Moments) -> StyleStatistics:
    mean, std = moments.pooled().style(unbiased=False)
    return StyleStatistics(mean=mean[0].float(), std=std[0].float())


def distribution(moments: Moments) -> StyleDistribution:
    """Eq. (3) of StableFDG, in words: the mean over images of mu and of sigma, and their variances."""
    mean, std = moments.style(unbiased=True)
    return StyleDistribution(
        mean=mean.mean(0).float(), std=std.mean(0).float(),
        mean_spread=mean.var(0, correction=0).float(), std_spread=std.var(0, correction=0).float(),
    )  # fmt: skip


@pytest.mark.parametrize("distributions", [False, True])
def test_a_clients_style_is_the_difference_of_two_averages_over_clients(distributions: bool):
    seen = cohort(distributions=distributions)

    answers = ATTACK.run(seen.cases, seen.knowledge, stream(0, "attack"))
    (row,) = Judge(bootstrap_repeats=50).measure(answers, seen.cases, seen.truths, stream(0, "attack"))

    assert (row.name, dict(row.slice), row.n) == ("relative_error", {"joins": "a client"}, 8)
    assert row.value is not None
    assert row.chance is not None
    assert row.value < 1e-5  # 108 images in all, 10 to 17 in the client: some ten times the rounding of float32
    assert row.chance > 0.01
    assert row.leaks


def test_both_averages_are_rounded_to_float32_and_differ_by_one_client():
    seen = cohort(clients=3)
    answer = ATTACK.run(seen.cases, seen.knowledge, stream(0, "attack"))[1]

    t = [linear_statistic(*case.released())[0] for case in seen.cases]
    after = ((10 * t[0] + 11 * t[1] + 12 * t[2]) / 33).float().double()
    before = ((10 * t[0] + 12 * t[2]) / 22).float().double()
    assert isinstance(answer, Recovered)
    assert torch.allclose(answer.statistic[0], (33 * after - 22 * before) / 11, rtol=0, atol=1e-12)


def test_a_client_that_is_alone_has_no_cohort_to_hide_in():
    seen = cohort(clients=1)

    assert ATTACK.run(seen.cases, seen.knowledge, stream(0, "attack")) == []


def test_exchanged_cohorts_are_not_significant():
    failures = 0
    for seed in range(20):
        seen = cohort(seed)
        answers = ATTACK.negative_control(seen.cases, seen.knowledge, stream(seed, "attack", "ring"))
        rows = Judge().null(answers, seen.cases, seen.truths, stream(seed, "attack", "null"), permutations=199)
        failures += sum(not control.passed for control in negative_controls(rows, comparisons=len(rows)))

    assert failures <= 4  # 20 rows, each fails with probability .05 at most


def test_an_image_that_joins_a_distribution_of_styles_is_recovered_from_four_vectors():
    planted_control = planted()
    assert isinstance(planted_control.knowledge.statistics, PlantedStatistics)
    table, inside = planted_control.knowledge.statistics.moments, torch.arange(20)
    cases = []
    for number, case in enumerate(planted_control.cases):
        assert case.candidates is not None
        row = case.candidates.rows[number].reshape(1)
        views = tuple(upload(distribution(table.rows(rows))) for rows in (inside, torch.cat([inside, row])))
        cases.append(replace(case, views=views))
    known = replace(planted_control.knowledge, released_statistic=StyleDistributions())

    answers = ATTACK.run(cases, known, stream(0, "attack"))
    rows = {
        r.name: r
        for r in Judge(bootstrap_repeats=50).measure(answers, cases, planted_control.truths, stream(0, "attack"))
    }

    assert rows["top1"].value == 1
    assert float(rows["relative_error"].value or 1) < 1e-4
    assert rows["relative_error"].leaks


def test_without_a_release_there_is_nothing_to_find():
    alarms = 0
    for seed in range(20):
        planted_control, rng = planted(seed % 4), stream(seed, "attack", "blank")
        blank = [
            StyleStatistics(mean=torch.randn(24, generator=rng), std=1 + torch.rand(24, generator=rng))
            for _ in range(2 * len(planted_control.cases))
        ]
        cases = [
            replace(case, views=(upload(blank[2 * i]), upload(blank[2 * i + 1])))
            for i, case in enumerate(planted_control.cases)
        ]
        answers = ATTACK.run(cases, planted_control.knowledge, rng)
        rows = Judge(bootstrap_repeats=50).measure(answers, cases, planted_control.truths, rng)
        alarms += sum(row.leaks for row in rows if row.name in ("top1", "relative_error"))

    assert alarms <= 4  # of 40; P(more | 5%) = 4.8%, and errors of random differences are far above chance


def test_exchanged_runs_are_not_significant():
    failures = 0
    for seed in range(20):
        planted_control = planted(seed)
        answers = ATTACK.negative_control(
            planted_control.cases, planted_control.knowledge, stream(seed, "attack", "ring")
        )
        rows = Judge().null(
            answers, planted_control.cases, planted_control.truths, stream(seed, "attack", "null"), permutations=199
        )
        failures += sum(not control.passed for control in negative_controls(rows, comparisons=len(rows)))

    assert failures <= 4  # 40 rows, each fails with probability .025 at most


def test_every_question_is_answered_from_another_ones_runs():
    planted_control = planted()
    own = ATTACK.run(planted_control.cases, planted_control.knowledge, stream(0, "attack"))
    other = ATTACK.negative_control(planted_control.cases, planted_control.knowledge, stream(0, "attack"))

    pairs = [
        (a.statistic, b.statistic)
        for a, b in zip(own, other, strict=True)
        if isinstance(a, Recovered) and isinstance(b, Recovered)
    ]

    assert len(pairs) == 6
    assert not any(torch.equal(a, b) for a, b in pairs)


def test_rows_of_single_images_are_refused():
    planted_control = planted()
    rows = upload(ImageStyles(mean=torch.zeros(2, 24), std=torch.ones(2, 24)))

    with pytest.raises(UsageError, match="sent 2 and 2"):
        ATTACK.run(
            [replace(planted_control.cases[0], views=(rows, rows))], planted_control.knowledge, stream(0, "attack")
        )


def test_an_unknown_client_size_is_refused():
    planted_control = planted()

    with pytest.raises(UsageError, match="number of images"):
        ATTACK.run([replace(planted_control.cases[0], records=None)], planted_control.knowledge, stream(0, "attack"))
