"""Private trainings that state another rate, number of steps or relation than they keep, or let one image decide."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from fdgsec.defenses.dp_sgd import DPSGD
from fdgsec.experiments.audit.counted_steps import Findings
from fdgsec.experiments.audit.free_numbers import FREE, told_for_free
from fdgsec.experiments.audit.moved_by_optimizers import optimizer_moves
from fdgsec.experiments.audit.moved_weights import training_moves
from fdgsec.experiments.audit.neighboring_clients import Site
from fdgsec.experiments.audit.sampled_records import sampling_faults
from fdgsec.experiments.audit.tensors_without_noise import trained_without_noise
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.method import Clock
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.networks.classifiers import Norm
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.privacy.accounting import Relation
from fdgsec.testing.contracts import BrokenPromiseError
from fdgsec.testing.defenses import check_defense
from fdgsec.testing.small_federation import CLIENTS, four_clients, start_of
from tests.support.first_faults import all_findings, faults_until
from tests.support.free_numbers import NumbersForFree
from tests.support.misstated_costs import DPSGDWith, Made, Patched
from tests.support.misstated_counts import (
    BETWEEN,
    COUNTS,
    RATED,
    DPSGDBetween,
    PayingByEpoch,
    TellingItsAccuracy,
    TellingItsClippedShare,
    WithAnAdaptiveClip,
    WithAveragesOfItsImages,
    WithCleanSecondMoments,
)

pytestmark = pytest.mark.usefixtures("within_an_audit")

PLAN = TrainingPlan(batch_size=8, learning_rate=0.01)
ADAM = replace(PLAN, optimizer="adam", learning_rate=1e-3)
SOUND = "sound"
EVERY_DAY = (SOUND, "no noise", "one step stated")


def site_of(defense: DPSGD, *, norm: Norm = "group", rounds: int = 2) -> Site:
    method = FedAvg(plan=PLAN)
    names = tuple(f"client:{number}" for number in range(CLIENTS))
    clocks = [Clock(round=number, rounds=rounds, participants=names) for number in range(rounds)]
    return Site(
        method=method, client=four_clients()[0], model=start_of(method, norm=norm),
        defense_stack=DefenseStack(defenses=(defense,)), clocks=clocks, seed=0,
    )  # fmt: skip


def moved(made: Made, *, multiplier: float = 1.0) -> Findings:
    site = site_of(DPSGDWith(noise_multiplier=multiplier, made=made))
    return all_findings(training_moves(site, site.defense_stack))


def first_moved(words: str, made: Made) -> list[str]:
    site = site_of(DPSGDWith(noise_multiplier=1.0, made=made))
    return faults_until(words, training_moves(site, site.defense_stack))


@pytest.mark.parametrize(
    "trainer", [pytest.param(one, marks=() if one in EVERY_DAY else pytest.mark.nightly) for one in RATED]
)
@pytest.mark.slow
def test_trainings_with_a_rate_of_their_own_are_tried_as_well(trainer: str):
    if trainer == SOUND:
        assert moved(RATED[trainer]) == Findings(faults=[], untested=[])
    else:
        assert first_moved("", RATED[trainer])


@pytest.mark.parametrize("trainer", COUNTS)
@pytest.mark.medium
def test_steps_are_counted_and_depend_on_no_other_image(trainer: str):
    made, words = COUNTS[trainer]

    said = first_moved(words, made)

    assert any(words in one for one in said), said


@pytest.mark.medium
def test_steps_of_sampled_records_are_counted():
    site = site_of(DPSGDWith(noise_multiplier=1.0, made=PayingByEpoch))

    said = sampling_faults(site, site.defense_stack).faults

    assert any("steps; its cost is of" in one for one in said), said


@pytest.mark.parametrize("stated", BETWEEN)
@pytest.mark.medium
def test_distances_are_of_the_relation_that_is_stated(stated: str):
    made, relations = BETWEEN[stated]
    site = site_of(DPSGDBetween(noise_multiplier=1.0, made=made, relations=relations))

    said = faults_until("", training_moves(site, site.defense_stack))

    assert bool(said) == (stated not in ("replace-one", "two relations")), said


@pytest.mark.medium
def test_what_cannot_be_tried_is_said():
    nowhere: Mapping[Relation, float] = {}
    site = site_of(DPSGDBetween(noise_multiplier=1.0, made=Patched, relations=nowhere))

    assert all_findings(training_moves(site, site.defense_stack)) == Findings(
        untested=["steps whose cost is not of Gaussian noise for a stated distance"]
    )


@pytest.mark.parametrize("multiplier", [0.7, 1.0, pytest.param(4.0, marks=pytest.mark.nightly)])
@pytest.mark.medium
def test_a_clip_that_follows_a_noisy_count_is_sound(multiplier: float):
    assert moved(WithAnAdaptiveClip, multiplier=multiplier).faults == []


@pytest.mark.medium
def test_samples_behind_a_clip_that_varies_are_not_read_and_that_is_said():
    site = site_of(DPSGDWith(noise_multiplier=0.4, made=WithAnAdaptiveClip))

    assert sampling_faults(site, site.defense_stack) == Findings(
        untested=["samples of steps without one rate and Gaussian noise of one size"]
    )


@pytest.mark.medium
def test_under_little_noise_samples_of_many_images_are_no_fault():
    found = moved(RATED[SOUND], multiplier=0.4)

    assert found == Findings(faults=[], untested=[])


@pytest.mark.parametrize("epsilon", [1.0, 4.0, 16.0])
@pytest.mark.medium
def test_lengths_without_noise_tell_of_an_image_by_the_size_of_weights(epsilon: float):
    site = site_of(DPSGDWith(epsilon=epsilon, made=WithCleanSecondMoments), rounds=1)

    assert len(optimizer_moves(site, site.defense_stack, [ADAM])) == 1


@pytest.mark.parametrize("made", [WithAveragesOfItsImages, Patched], ids=["averages of its images", "sound"])
@pytest.mark.medium
def test_averages_of_batch_norm_have_noise_or_are_refused(made: Made):
    site = site_of(DPSGDWith(noise_multiplier=1.0, made=made), norm="batch")

    tensor = trained_without_noise(site, site.defense_stack)

    assert (tensor is not None and "running_mean" in tensor) == (made is WithAveragesOfItsImages)


@pytest.mark.parametrize("made", [TellingItsAccuracy, TellingItsClippedShare], ids=["accuracy", "share of clipped"])
@pytest.mark.medium
def test_a_number_that_some_client_has_another_of_is_not_public(made: Made):
    site = site_of(NumbersForFree(noise_multiplier=1.0, made=made), rounds=1)

    assert told_for_free(site, site.defense_stack) == [FREE]


@pytest.mark.slow
def test_the_contract_of_a_defense_refuses_averages_of_images():
    with pytest.raises(BrokenPromiseError, match=r"it moves .*running_mean"):
        check_defense(DPSGDWith(noise_multiplier=1.0, made=WithAveragesOfItsImages), method="fedavg")
