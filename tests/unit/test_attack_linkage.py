from dataclasses import replace

import pytest
import torch

from fdgsec.artifacts import ImageStyles, StyleStatistics
from fdgsec.attacks.linkage import Linkage
from fdgsec.data.domains import DomainDataset
from fdgsec.metrics.controls import negative_controls, positive_control
from fdgsec.metrics.judge import Judge
from fdgsec.planting import upload
from fdgsec.rng import stream
from fdgsec.styles import Moments, linear_statistic
from fdgsec.threats import Knowledge, Plant, Ranking, TargetFacts


def nothing(dataset: DomainDataset) -> Moments:
    raise NotImplementedError


BLANK = Knowledge(
    statistics=nothing, encoder="none", class_names=(), domain_names=(), auxiliary=None, unseen=None, own=None
)
ATTACK = Linkage()


def planted(seed: int = 0) -> Plant:
    return ATTACK.plant(BLANK, stream(seed, "attack"))


def test_three_populations_of_thirty_clients_are_asked_for():
    facts = TargetFacts(artifact_kinds=ATTACK.reads, clients=3, images_per_client=700, classes=7, profile="quick")

    plan = ATTACK.plan(facts)

    assert [(r.kind, r.count, r.scheme) for r in plan] == [
        ("halves", 30, "iid"), ("halves", 30, "dirichlet"), ("halves", 30, "domain"),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_clients_with_a_style_of_their_own_are_linked(seed: int):
    plant = planted(seed)
    guess = ATTACK.run(plant.cases, plant.knowledge, stream(seed, "attack"))

    controls = positive_control(plant, guess, Judge(bootstrap_repeats=100), stream(seed, "attack"))

    assert [tuple(control.measurement.slice.values()) for control in controls] == [
        ("planted", "whitened"), ("planted", "whitened", "hungarian"),
        ("planted", "class directions"), ("planted", "class directions", "hungarian"),
    ]  # fmt: skip
    assert all(control.passed for control in controls)


def test_clients_without_one_are_linked_as_often_as_by_chance():
    plant = planted()
    rng = stream(7, "attack")
    total = 0.0
    for _ in range(20):
        cases = [
            replace(c, views=(upload(StyleStatistics(mean=torch.randn(24, generator=rng), std=torch.ones(24))),))
            for c in plant.cases
        ]
        guess = ATTACK.run(cases, plant.knowledge, rng)
        rows = Judge(bootstrap_repeats=50).measure(guess, cases, plant.truths, rng)
        total += float(rows[0].value or 0)

    assert 0.02 < total / 20 < 0.16  # 1/12 with standard deviation .018 over 240 clients


def test_exchanged_releases_are_not_significant():
    failures = 0
    for seed in range(30):
        plant = planted(seed)
        guess = ATTACK.shuffled(plant.cases, plant.knowledge, stream(seed, "attack", "ring"))
        rows = Judge().null(guess, plant.cases, plant.truths, stream(seed, "attack", "null"), permutations=199)
        failures += sum(not control.passed for control in negative_controls(rows, comparisons=len(rows)))

    assert failures <= 6  # 60 rows, each fails with probability .025


def test_only_the_first_halves_are_linked_and_each_to_all_second_halves():
    plant = planted()

    guess = ATTACK.run(plant.cases, plant.knowledge, stream(0, "attack"))

    assert [answer.case for answer in guess] == [*range(12), *range(12)]
    assert all(isinstance(a, Ranking) and a.distances.shape == (1, 12) and a.of == "partner" for a in guess)


def test_without_classes_or_domains_only_the_whitened_distance_is_left():
    plant = planted()
    auxiliary = plant.knowledge.auxiliary
    assert auxiliary is not None
    unlabelled = replace(auxiliary, labels=torch.zeros_like(auxiliary.labels))

    guess = ATTACK.run(plant.cases, replace(plant.knowledge, auxiliary=unlabelled), stream(0, "attack"))

    assert {answer.slice["distance"] for answer in guess} == {"whitened"}


def test_class_directions_are_a_projection_of_the_whitened_space():
    plant = planted()
    rng = stream(5, "attack")
    answers = {str(a.slice["distance"]): a for a in ATTACK.run(plant.cases, plant.knowledge, rng) if a.case == 0}
    narrow, wide = answers["class directions"], answers["whitened"]

    assert isinstance(narrow, Ranking)
    assert isinstance(wide, Ranking)
    assert bool((narrow.distances <= wide.distances + 1e-9).all())  # a projection shortens


def test_populations_are_linked_within_themselves():
    plant = planted()
    cases = [*plant.cases, *(replace(case, slice={**case.slice, "clients": "again"}) for case in plant.cases)]

    guess = ATTACK.run(cases, plant.knowledge, stream(0, "attack"))

    assert [answer.case for answer in guess] == [*range(12), *range(12), *range(24, 36), *range(24, 36)]
    assert all(isinstance(answer, Ranking) and answer.distances.shape == (1, 12) for answer in guess)


def test_rows_of_single_images_are_pooled_before_they_are_linked():
    plant = planted()
    mean, std = torch.rand(5, 24, generator=stream(1, "attack")), 1 + torch.rand(5, 24, generator=stream(2, "attack"))
    pooled = linear_statistic(mean.double(), std.double()).mean(0)
    centre, square = pooled[:24], pooled[24:]
    rows = ImageStyles(mean=mean, std=std)
    whole = StyleStatistics(mean=centre.float(), std=(square - centre**2 + 1e-5).sqrt().float())

    by_rows, by_whole = (
        ATTACK.run(
            [replace(plant.cases[0], views=(upload(a),)), *plant.cases[1:]], plant.knowledge, stream(0, "attack")
        )[0]
        for a in (rows, whole)
    )

    assert isinstance(by_rows, Ranking)
    assert isinstance(by_whole, Ranking)
    assert torch.allclose(by_rows.distances, by_whole.distances, rtol=1e-4)  # both releases are float32
