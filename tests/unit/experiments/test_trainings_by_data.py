"""Private trainings that let data decide for free are found, and sound ones that look like it are not."""

from collections.abc import Sequence

import pytest
import torch

from fdgsec.defenses.dp_sgd import DPSGD
from fdgsec.experiments.audit.counted_steps import Findings
from fdgsec.experiments.audit.moved_weights import training_moves
from fdgsec.experiments.audit.neighboring_clients import Site
from fdgsec.experiments.audit.sampled_records import sampling_faults
from fdgsec.experiments.audit.step_distances import apart
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.method import Clock
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.testing.small_federation import CLIENTS, four_clients, start_of
from tests.support.first_faults import all_findings, faults_until
from tests.support.misstated_by_data import (
    BY_DATA,
    SOUND,
    DPSGDKnowingItsClient,
    OverdrawingAndDecaying,
    PayingForNothing,
)
from tests.support.misstated_costs import DPSGDWith

pytestmark = pytest.mark.usefixtures("within_an_audit")

UNREAD = "samples of steps that do not follow their noisy sum linearly"
UNEVEN = "samples of steps without one rate and Gaussian noise of one size"


def site_of(defense: DPSGD, *, client: int = 0) -> Site:
    method = FedAvg(plan=TrainingPlan(batch_size=8, learning_rate=0.01))
    names = tuple(f"client:{number}" for number in range(CLIENTS))
    clocks = [Clock(round=number, rounds=2, participants=names) for number in range(2)]
    return Site(
        method=method, client=four_clients()[client], model=start_of(method, norm="group"),
        defense_stack=DefenseStack(defenses=(defense,)), clocks=clocks, seed=client,
    )  # fmt: skip


@pytest.mark.parametrize("trainer", BY_DATA)
@pytest.mark.medium
def test_what_data_decide_is_paid_for(trainer: str):
    made, words = BY_DATA[trainer]
    kind = DPSGDKnowingItsClient if "client" in trainer or "validation" in trainer else DPSGDWith
    site = site_of(kind(noise_multiplier=1.0, made=made))

    said = faults_until(words, training_moves(site, site.defense_stack))

    assert any(words in one for one in said), said


@pytest.mark.parametrize(
    "multiplier", [pytest.param(0.5, marks=pytest.mark.nightly), 1.0, pytest.param(4.0, marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("trainer", SOUND)
@pytest.mark.slow
def test_sound_trainings_move_no_further(trainer: str, multiplier: float):
    site = site_of(DPSGDWith(noise_multiplier=multiplier, made=SOUND[trainer]), client=1)

    found = all_findings(training_moves(site, site.defense_stack))

    assert (found.faults, found.untested) == ([], [])


@pytest.mark.parametrize(
    ("trainer", "untested"),
    [("weight decay", []), ("noisy means clipped", [UNREAD, UNEVEN]), ("signs of noisy means", [UNREAD]),
     ("the head alone", []), ("a larger weight decay", [])],
)  # fmt: skip
@pytest.mark.medium
def test_samples_of_sound_trainings_are_poisson_or_not_read(trainer: str, untested: Sequence[str]):
    """A clip of noisy means makes sizes of noise differ, too: it depends on the draw which of both is said."""
    site = site_of(DPSGDWith(noise_multiplier=1.0, made=SOUND[trainer]))

    found = sampling_faults(site, site.defense_stack)

    assert not found.faults
    assert len(found.untested) == min(len(untested), 1)
    assert set(found.untested) <= set(untested)


@pytest.mark.parametrize("multiplier", [0.1, 0.2])
@pytest.mark.medium
def test_sound_trainings_of_very_little_noise_are_no_fault(multiplier: float):
    site = site_of(DPSGD(noise_multiplier=multiplier))

    assert all_findings(training_moves(site, site.defense_stack)).faults == []


@pytest.mark.medium
def test_a_weight_decay_hides_no_rate_that_is_larger_than_stated():
    site = site_of(DPSGDWith(noise_multiplier=1.0, made=OverdrawingAndDecaying))

    assert any("more often" in one for one in sampling_faults(site, site.defense_stack).faults)


def test_a_training_in_which_nothing_moves_is_not_tested():
    site = site_of(DPSGDWith(noise_multiplier=1.0, made=PayingForNothing))

    assert all_findings(training_moves(site, site.defense_stack)) == Findings(untested=["steps in which nothing moves"])


def test_steps_in_which_nothing_moves_tell_nothing():
    still = torch.zeros(8, 3, 5, dtype=torch.float64)

    assert not apart(still, still, 1.0).too_far
