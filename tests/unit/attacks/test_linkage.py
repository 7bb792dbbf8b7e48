from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from fdgsec.attacks.linkage.attack import Linkage
from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import ImageStyles, StyleDistribution, StyleStatistics
from fdgsec.federation.released_statistics import MeanStyles, PooledStyles, ReleasedStatistic, StyleDistributions
from fdgsec.metrics.measurement import Measurement
from fdgsec.nn.styles.channel_statistics import Moments, linear_statistic
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Prediction, Ranking
from fdgsec.threats.attack import Case, PositiveControl, TargetFacts
from fdgsec.threats.judging.controls import negative_controls, positive_control
from fdgsec.threats.judging.judge import Judge
from fdgsec.threats.positive_control_data import PlantedStatistics, upload


def nothing(dataset: DomainDataset) -> Moments:
    raise NotImplementedError


BLANK = Knowledge(
    statistics=nothing, encoder="none", class_names=(), domain_names=(), auxiliary=None, unseen=None, own=None
)
ATTACK = Linkage()
FACTS = TargetFacts(artifact_kinds=ATTACK.reads, clients=3, images_per_client=700, classes=7, profile="quick")


def planted(seed: int = 0) -> PositiveControl:
    return ATTACK.positive_control(BLANK, stream(seed, "attack"))


def again(planted_control: PositiveControl) -> list[Case]:
    """The planted halves asked about as two sessions."""
    return [replace(case, question="sessions") for case in planted_control.cases]


def judged(
    cases: list[Case], planted_control: PositiveControl, attack: Linkage = ATTACK, seed: int = 0
) -> dict[str, Measurement]:
    """The hit rate of the nearest client by distance and noise."""
    guess = attack.run(cases, planted_control.knowledge, stream(seed, "attack"))
    rows = Judge(bootstrap_repeats=100).measure(guess, cases, planted_control.truths, stream(seed, "attack"))
    return {
        " ".join(str(row.slice[key]) for key in ("distance", "noise") if key in row.slice): row
        for row in rows if row.name == "top1" and "matching" not in row.slice
    }  # fmt: skip


def test_halves_and_sessions_of_thirty_clients_are_asked_for():
    plan = ATTACK.plan(FACTS)

    assert [(r.kind, r.count, r.scheme) for r in plan] == [
        ("halves", 30, "iid"), ("halves", 30, "dirichlet"), ("halves", 30, "domain"),
        ("sessions", 30, "iid"), ("sessions", 30, "domain"),
    ]  # fmt: skip


def test_a_client_that_is_not_told_whose_distributions_it_receives_is_told_so():
    facts = replace(FACTS, artifact_kinds=frozenset({"StyleDistribution"}), knows=frozenset({"encoder", "own data"}))

    with pytest.raises(UsageError, match="does not know whose"):
        ATTACK.plan(facts)


@pytest.mark.parametrize(
    ("seed", "released_statistic"),
    [*((seed, PooledStyles()) for seed in range(4)), (0, StyleDistributions()), (0, MeanStyles())],
)
def test_clients_with_a_style_of_their_own_are_linked(seed: int, released_statistic: ReleasedStatistic):
    planted_control = ATTACK.positive_control(
        replace(BLANK, released_statistic=released_statistic), stream(seed, "attack")
    )
    guess = ATTACK.run(planted_control.cases, planted_control.knowledge, stream(seed, "attack"))

    controls = positive_control(planted_control, guess, Judge(bootstrap_repeats=100), stream(seed, "attack"))

    assert [tuple(control.measurement.slice.values()) for control in controls] == [
        ("planted", "whitened"), ("planted", "whitened", "hungarian"),
        ("planted", "class directions"), ("planted", "class directions", "hungarian"),
    ]  # fmt: skip
    assert all(control.passed for control in controls)


@pytest.mark.medium
def test_clients_without_one_are_linked_as_often_as_by_chance():
    planted_control = planted()
    rng = stream(7, "attack")
    total = 0.0
    for _ in range(20):
        cases = [
            replace(c, views=(upload(StyleStatistics(mean=torch.randn(24, generator=rng), std=torch.ones(24))),))
            for c in planted_control.cases
        ]
        guess = ATTACK.run(cases, planted_control.knowledge, rng)
        rows = Judge(bootstrap_repeats=50).measure(guess, cases, planted_control.truths, rng)
        total += float(rows[0].value or 0)

    assert 0.02 < total / 20 < 0.16  # 1/12 with standard deviation .018 over 240 clients


@pytest.mark.medium
def test_exchanged_releases_are_not_significant():
    failures = 0
    for seed in range(30):
        planted_control = planted(seed)
        guess = ATTACK.negative_control(
            planted_control.cases, planted_control.knowledge, stream(seed, "attack", "ring")
        )
        rows = Judge().null(
            guess, planted_control.cases, planted_control.truths, stream(seed, "attack", "null"), permutations=199
        )
        failures += sum(not control.passed for control in negative_controls(rows, comparisons=len(rows)))

    assert failures <= 6  # 60 rows, each fails with probability .025


def test_only_the_first_halves_are_linked_and_each_to_all_second_halves():
    planted_control = planted()

    guess = ATTACK.run(planted_control.cases, planted_control.knowledge, stream(0, "attack"))

    assert [answer.case for answer in guess] == [*range(12), *range(12)]
    assert all(isinstance(a, Ranking) and a.distances.shape == (1, 12) and a.of == "partner" for a in guess)


def test_without_classes_or_domains_only_the_whitened_distance_is_left():
    planted_control = planted()
    auxiliary = planted_control.knowledge.auxiliary
    assert auxiliary is not None
    unlabeled = replace(auxiliary, labels=torch.zeros_like(auxiliary.labels))

    guess = ATTACK.run(
        planted_control.cases, replace(planted_control.knowledge, auxiliary=unlabeled), stream(0, "attack")
    )

    assert {answer.slice["distance"] for answer in guess} == {"whitened"}


def test_class_directions_are_a_projection_of_the_whitened_space():
    planted_control = planted()
    rng = stream(5, "attack")
    answers = {
        str(a.slice["distance"]): a
        for a in ATTACK.run(planted_control.cases, planted_control.knowledge, rng)
        if a.case == 0
    }
    narrow, wide = answers["class directions"], answers["whitened"]

    assert isinstance(narrow, Ranking)
    assert isinstance(wide, Ranking)
    assert bool((narrow.distances <= wide.distances + 1e-9).all())  # a projection shortens


def test_populations_are_linked_within_themselves():
    planted_control = planted()
    cases = [
        *planted_control.cases,
        *(replace(case, slice={**case.slice, "clients": "again"}) for case in planted_control.cases),
    ]

    guess = ATTACK.run(cases, planted_control.knowledge, stream(0, "attack"))

    assert [answer.case for answer in guess] == [*range(12), *range(12), *range(24, 36), *range(24, 36)]
    assert all(isinstance(answer, Ranking) and answer.distances.shape == (1, 12) for answer in guess)


def test_rows_of_single_images_are_pooled_before_they_are_linked():
    planted_control = planted()
    mean, std = torch.rand(5, 24, generator=stream(1, "attack")), 1 + torch.rand(5, 24, generator=stream(2, "attack"))
    pooled = linear_statistic(mean.double(), std.double()).mean(0)
    center, square = pooled[:24], pooled[24:]
    rows = ImageStyles(mean=mean, std=std)
    whole = StyleStatistics(mean=center.float(), std=(square - center**2 + 1e-5).sqrt().float())

    by_rows, by_whole = (
        ATTACK.run(
            [replace(planted_control.cases[0], views=(upload(a),)), *planted_control.cases[1:]],
            planted_control.knowledge,
            stream(0, "attack"),
        )[0]
        for a in (rows, whole)
    )

    assert isinstance(by_rows, Ranking)
    assert isinstance(by_whole, Ranking)
    assert torch.allclose(by_rows.distances, by_whole.distances, rtol=1e-4)  # both releases are float32


def test_distributions_of_image_styles_are_linked_as_means_of_four_channels_numbers():
    planted_control = planted()
    assert isinstance(planted_control.knowledge.statistics, PlantedStatistics)
    moments, size, auxiliary = planted_control.knowledge.statistics.moments, 15, 240
    cases = list(planted_control.cases)
    for number in range(12):
        partner = planted_control.truths[number].partner
        assert partner is not None
        for place, start in ((number, auxiliary + 30 * number), (12 + partner, auxiliary + 30 * number + size)):
            mean, std = (part.float() for part in moments.rows(torch.arange(start, start + size)).style(unbiased=True))
            artifact = StyleDistribution(
                mean=mean.mean(0), std=std.mean(0),
                mean_spread=mean.var(0, correction=0), std_spread=std.var(0, correction=0),
            )  # fmt: skip
            cases[place] = replace(cases[place], views=(upload(artifact),))

    seen = replace(
        planted_control, knowledge=replace(planted_control.knowledge, released_statistic=StyleDistributions())
    )

    rows = judged(cases, seen)
    assert float(rows["whitened"].value or 0) >= 0.9
    assert float(rows["class directions"].value or 0) >= 0.9


def sent_twice(planted_control: PositiveControl) -> list[Case]:
    """The cases of `again`, where every client's second release is its first one."""
    cases = again(planted_control)
    for number in range(12):
        partner = planted_control.truths[number].partner
        assert partner is not None
        cases[12 + partner] = replace(cases[12 + partner], views=cases[number].views)
    return cases


def test_the_same_release_twice_is_a_link_by_every_distance():
    planted_control = planted()

    rows = judged(sent_twice(planted_control), planted_control)

    assert {row.slice["data"] for row in rows.values()} == {"the same"}
    assert [rows[name].value for name in ("whitened", "class directions", "plain")] == [1, 1, 1]
    assert rows["plain 0.02"].value == rows["plain 0.05"].value == 1


def test_equal_releases_are_descriptive_and_noisy_or_changed_ones_are_not():
    planted_control = planted()
    same = sent_twice(planted_control)

    unchanged, changed = judged(same, planted_control), judged(again(planted_control), planted_control)

    assert {unchanged[name].verdict for name in ("whitened", "class directions", "plain")} == {"descriptive"}
    assert unchanged["plain 0.02"].leaks
    assert all(row.judged for row in changed.values())


@pytest.mark.medium
def test_linkage_falls_with_noise_until_nothing_is_left():
    planted_control = planted()
    attack = Linkage(noise=(), noise_in_sds=(0.1, 0.5, 1.0, 2.0, 4.0, 1000.0))

    runs = [judged(again(planted_control), planted_control, attack, seed) for seed in range(10)]

    means = [sum(float(run[f"plain {level:g} sd"].value or 0) for run in runs) / 10 for level in attack.noise_in_sds]
    assert means[0] > 0.9
    assert all(later <= sooner + 0.05 for sooner, later in pairwise(means))
    assert means[-1] < 0.17  # 1/12 with standard deviation .025 over 120 clients


def test_a_level_of_noise_is_also_told_in_units_of_the_spread_between_clients():
    planted_control = planted()
    attack = Linkage(noise=(), noise_in_sds=(2.0,))
    released = torch.stack([torch.cat(case.released()).flatten() for case in planted_control.cases[12:]])
    unit = float(released.std(0).quantile(0.5))

    one = attack.run(again(planted_control), planted_control.knowledge, stream(0, "attack"))
    other = Linkage(noise=(2 * unit,), noise_in_sds=()).run(
        again(planted_control), planted_control.knowledge, stream(0, "attack")
    )

    spread = [answer for answer in one if isinstance(answer, Prediction)]
    assert [(answer.name, answer.slice["distance"]) for answer in spread] == [("between_client_sd", "plain")]
    assert spread[0].value == pytest.approx(unit, rel=1e-6)
    assert {a.slice["noise"] for a in one if "noise" in a.slice} == {"2 sd"}
    assert {a.slice["noise"] for a in other if "noise" in a.slice} == {f"{2 * unit:g}"}


def test_halves_are_noised_only_where_asked():
    planted_control = planted()

    plain = ATTACK.run(planted_control.cases, planted_control.knowledge, stream(0, "attack"))
    noisy = Linkage(noised=("halves",), noise=(0.1,), noise_in_sds=()).run(
        planted_control.cases, planted_control.knowledge, stream(0, "attack")
    )

    assert not any("noise" in answer.slice for answer in plain)
    assert {answer.slice.get("noise") for answer in noisy if isinstance(answer, Ranking)} == {None, "0.1"}


def test_one_image_that_is_drawn_in_both_sessions_is_a_link():
    planted_control, rng = planted(), stream(3, "attack")
    cases = again(planted_control)
    for number in range(12):
        partner = planted_control.truths[number].partner
        assert partner is not None
        mean, std = torch.randn(9, 24, generator=rng), 1 + torch.rand(9, 24, generator=rng)
        for place, rows in ((number, slice(0, 5)), (12 + partner, slice(4, 9))):  # row 4 is in both
            cases[place] = replace(cases[place], views=(upload(ImageStyles(mean=mean[rows], std=std[rows])),))

    found = judged(cases, planted_control)

    assert found["nearest row"].value == 1
    assert float(found["class directions"].value or 0) < 0.7


def test_a_population_in_which_somebody_sent_no_row_says_so():
    planted_control = planted()
    nothing_sent = upload(ImageStyles(mean=torch.zeros(0, 24), std=torch.zeros(0, 24)))
    cases = [replace(planted_control.cases[0], views=(nothing_sent,)), *planted_control.cases[1:]]

    guess = ATTACK.run(cases, planted_control.knowledge, stream(0, "attack"))
    (row,) = ATTACK.missing(cases, planted_control.knowledge)

    assert guess == []
    assert ATTACK.missing(planted_control.cases, planted_control.knowledge) == []
    assert (row.name, row.slice) == ("top1", {"clients": "planted"})
    assert "no row" in str(row.unavailable)


@pytest.mark.nightly
@pytest.mark.slow
def test_random_releases_raise_a_false_alarm_in_at_most_ten_of_a_hundred_repeats():
    alarms: dict[str, int] = {}
    for seed in range(100):
        planted_control, rng = planted(seed % 5), stream(seed, "attack", "blank")
        cases = [
            replace(c, views=(upload(StyleStatistics(mean=torch.randn(24, generator=rng), std=torch.ones(24))),))
            for c in again(planted_control)
        ]
        for name, row in judged(cases, planted_control, seed=seed).items():
            alarms[name] = alarms.get(name, 0) + (row.leaks)

    assert len(alarms) == 9  # three distances, six levels of noise
    assert max(alarms.values()) <= 10  # of 100; P(more | 5%) = 1.1%
