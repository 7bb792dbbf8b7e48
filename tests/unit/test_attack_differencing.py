from dataclasses import replace

import pytest
import torch

from fdgsec.artifacts import ImageStyles
from fdgsec.attacks.differencing import Differencing
from fdgsec.data.domains import DomainDataset
from fdgsec.errors import UsageError
from fdgsec.metrics.controls import negative_controls, positive_control
from fdgsec.metrics.judge import Judge
from fdgsec.planting import upload
from fdgsec.rng import stream
from fdgsec.styles import Moments, linear_statistic
from fdgsec.threats import Knowledge, Plant, Recovered, TargetFacts


def nothing(dataset: DomainDataset) -> Moments:
    raise NotImplementedError


BLANK = Knowledge(
    statistics=nothing, encoder="none", class_names=(), domain_names=(), auxiliary=None, unseen=None, own=None
)
ATTACK = Differencing()
FACTS = TargetFacts(artifact_kinds=ATTACK.reads, clients=3, images_per_client=700, classes=7, profile="quick")


def planted(seed: int = 0) -> Plant:
    return ATTACK.plant(BLANK, stream(seed, "attack"))


def test_twenty_records_are_asked_for_when_quick_and_fifty_otherwise():
    quick, full = ATTACK.plan(FACTS), ATTACK.plan(replace(FACTS, profile="full"))

    assert [(r.kind, r.count) for r in (*quick, *full)] == [("add_one_record", 20), ("add_one_record", 50)]
    assert Differencing(records=3).plan(FACTS)[0].count == 3


@pytest.mark.parametrize("seed", range(5))
def test_the_added_image_is_named_every_time(seed: int):
    plant = planted(seed)
    guess = ATTACK.run(plant.cases, plant.knowledge, stream(seed, "attack"))

    (control,) = positive_control(plant, guess, Judge(bootstrap_repeats=100), stream(seed, "attack"))

    assert control.passed
    assert control.measurement.value == 1


def test_its_statistic_is_recovered_up_to_the_rounding_of_float32():
    plant = planted()
    guess = ATTACK.run(plant.cases, plant.knowledge, stream(0, "attack"))

    rows = Judge(bootstrap_repeats=100).measure(guess, plant.cases, plant.truths, stream(0, "attack"))

    (error,) = [row for row in rows if row.name == "relative_error"]
    assert error.value is not None
    assert error.chance is not None
    assert error.value < 1e-5  # 21 records x 6e-8
    assert error.chance > 0.1
    assert error.verdict == "leaks"


def test_the_estimate_is_n_plus_1_times_the_second_mean_less_n_times_the_first():
    plant = planted()

    answer = ATTACK.run(plant.cases, plant.knowledge, stream(0, "attack"))[0]

    assert isinstance(answer, Recovered)
    before, after = (linear_statistic(*plant.cases[0].released(run))[0] for run in (0, 1))
    assert torch.allclose(answer.statistic[0], 21 * after - 20 * before, rtol=0, atol=1e-12)


def test_the_blind_guess_is_the_mean_of_the_auxiliary_images():
    plant = planted()
    answer = ATTACK.run(plant.cases, plant.knowledge, stream(0, "attack"))[0]

    assert plant.knowledge.auxiliary is not None
    found = plant.knowledge.statistics(plant.knowledge.auxiliary)
    by_hand = torch.cat([found.mean, found.m2 / 64 + found.mean**2], dim=1).mean(0)
    assert isinstance(answer, Recovered)
    assert torch.allclose(answer.without, by_hand)


def test_without_the_victims_domain_only_the_blind_guess_changes():
    plant = planted()
    images = plant.knowledge.auxiliary
    assert images is not None
    halved = replace(images, domains=torch.arange(len(images)) % 2, domain_names=("planted", "other"))
    known = replace(plant.knowledge, auxiliary=halved)
    untold = [replace(case, domain=None) for case in plant.cases]

    told, blind = (ATTACK.run(cases, known, stream(0, "attack"))[0] for cases in (plant.cases, untold))

    assert isinstance(told, Recovered)
    assert isinstance(blind, Recovered)
    assert torch.equal(told.statistic, blind.statistic)
    assert torch.allclose(told.without, known.statistics(halved.of_domain("planted")).linear().mean(0))
    assert torch.allclose(blind.without, known.statistics(halved).linear().mean(0))


def test_exchanged_runs_are_not_significant():
    failures = 0
    for seed in range(20):
        plant = planted(seed)
        guess = ATTACK.shuffled(plant.cases, plant.knowledge, stream(seed, "attack", "ring"))
        rows = Judge().null(guess, plant.cases, plant.truths, stream(seed, "attack", "null"), permutations=199)
        failures += sum(not control.passed for control in negative_controls(rows, comparisons=len(rows)))

    assert failures <= 4  # 40 rows, each fails with probability .025 at most


def test_every_question_is_answered_from_another_ones_runs():
    plant = planted()
    own = ATTACK.run(plant.cases, plant.knowledge, stream(0, "attack"))
    other = ATTACK.shuffled(plant.cases, plant.knowledge, stream(0, "attack"))

    pairs = [
        (a.statistic, b.statistic)
        for a, b in zip(own, other, strict=True)
        if isinstance(a, Recovered) and isinstance(b, Recovered)
    ]

    assert len(pairs) == 6
    assert not any(torch.equal(a, b) for a, b in pairs)


def test_rows_of_single_images_are_refused():
    plant = planted()
    rows = upload(ImageStyles(mean=torch.zeros(2, 24), std=torch.ones(2, 24)))

    with pytest.raises(UsageError, match="sent 2 and 2"):
        ATTACK.run([replace(plant.cases[0], views=(rows, rows))], plant.knowledge, stream(0, "attack"))


def test_an_unknown_client_size_is_refused():
    plant = planted()

    with pytest.raises(UsageError, match="number of images"):
        ATTACK.run([replace(plant.cases[0], records=None)], plant.knowledge, stream(0, "attack"))
