"""Numbers beside an update that have no cost of their own."""

import pytest

from fdgsec.defenses.dp_fedavg import DPFedAvg
from fdgsec.defenses.dp_sgd import DPSGD
from fdgsec.defenses.private_styles import PrivateStyles
from fdgsec.experiments.audit.free_numbers import FREE, told_for_free
from fdgsec.experiments.audit.neighboring_clients import Site
from fdgsec.federation.defense import Defense
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.method import Clock
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.testing.contracts import BrokenPromiseError
from fdgsec.testing.defenses import check_defense
from fdgsec.testing.small_federation import CLIENTS, four_clients, start_of
from tests.support.free_numbers import NumbersForFree, TellingItsLoss, TellingOfItsModel, UpdatesWithTheirNumbers

pytestmark = pytest.mark.usefixtures("within_an_audit")

LOSS = NumbersForFree(noise_multiplier=1.0, made=TellingItsLoss)


def told(defense: Defense) -> list[str]:
    method = FedAvg(plan=TrainingPlan(batch_size=8, learning_rate=0.01))
    clocks = [Clock(round=0, rounds=1, participants=tuple(f"client:{number}" for number in range(CLIENTS)))]
    stack = DefenseStack(defenses=(defense,))
    site = Site(
        method=method, client=four_clients()[0], model=start_of(method), defense_stack=stack, clocks=clocks, seed=0
    )
    return told_for_free(site, stack)


@pytest.mark.parametrize(
    "liar",
    [LOSS, UpdatesWithTheirNumbers(epsilon=4.0), UpdatesWithTheirNumbers(epsilon=4.0, alone=True)],
    ids=["the loss of a private training", "losses and sizes", "sizes"],
)
@pytest.mark.medium
def test_numbers_that_tell_of_the_images_have_a_cost(liar: Defense):
    assert told(liar) == [FREE]


@pytest.mark.parametrize(
    "sound",
    [
        DPSGD(epsilon=4.0), DPSGD(epsilon=1.0), NumbersForFree(noise_multiplier=0.5, made=TellingOfItsModel),
        DPFedAvg(epsilon=4.0), PrivateStyles(epsilon=4.0),
    ],
    ids=["dp-sgd", "dp-sgd, much noise", "made of the model", "dp-fedavg", "private-styles"],
)  # fmt: skip
@pytest.mark.medium
def test_numbers_that_are_public_or_made_of_the_model_have_none(sound: Defense):
    assert told(sound) == []


@pytest.mark.slow
def test_the_contract_of_a_defense_refuses_a_loss_at_no_cost():
    with pytest.raises(BrokenPromiseError, match=f"every new release has its cost: {FREE}"):
        check_defense(LOSS, method="fedavg")
