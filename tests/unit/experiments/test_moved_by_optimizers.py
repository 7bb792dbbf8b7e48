"""Private training behind the optimizers of a run."""

from dataclasses import replace

import pytest

from fdgsec.defenses.dp_sgd import DPSGD
from fdgsec.experiments.audit.moved_by_optimizers import optimizer_moves
from fdgsec.experiments.audit.neighboring_clients import Site
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.method import Clock
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.testing.contracts import BrokenPromiseError
from fdgsec.testing.defenses import check_defense
from fdgsec.testing.small_federation import CLIENTS, four_clients, start_of
from tests.support.misstated_costs import DPSGDWith, Made
from tests.support.misstated_optimizers import WithNoiseAfterTheStep, WithSignsOfGradients
from tests.support.misstated_trainings import StatingOneStep

pytestmark = pytest.mark.usefixtures("within_an_audit")

PLAIN = TrainingPlan(batch_size=8, learning_rate=0.01)
PLANS = {
    "momentum": replace(PLAIN, momentum=0.9),
    "weight decay": replace(PLAIN, momentum=0.5, weight_decay=0.1),
    "adam": replace(PLAIN, optimizer="adam", learning_rate=1e-3),
}


def said_of(defense: DPSGD, *plans: TrainingPlan, seed: int = 0) -> list[str]:
    method = FedAvg(plan=PLAIN)
    clocks = [Clock(round=0, rounds=1, participants=tuple(f"client:{number}" for number in range(CLIENTS)))]
    stack = DefenseStack(defenses=(defense,), name=f"run/{seed}")
    site = Site(
        method=method, client=four_clients()[0], model=start_of(method, norm="group"), defense_stack=stack,
        clocks=clocks, seed=seed,
    )  # fmt: skip
    return optimizer_moves(site, stack, plans)


@pytest.mark.parametrize("epsilon", [1.0, 4.0, 8.0])
@pytest.mark.parametrize("plan", ["momentum", "adam"])
@pytest.mark.medium
def test_noise_after_the_optimizer_hides_too_little(plan: str, epsilon: float):
    (words,) = said_of(DPSGDWith(epsilon=epsilon, made=WithNoiseAfterTheStep), PLANS[plan])

    assert words.startswith(f"one image moves a training by {PLANS[plan].optimizer}")


def test_with_plain_steps_it_is_no_other_noise():
    assert said_of(DPSGDWith(epsilon=4.0, made=WithNoiseAfterTheStep), PLAIN) == []


@pytest.mark.parametrize("made", [None, WithSignsOfGradients], ids=["dp-sgd", "signs"])
@pytest.mark.parametrize(
    "epsilon", [1.0, pytest.param(8.0, marks=pytest.mark.nightly), pytest.param(64.0, marks=pytest.mark.nightly)]
)
@pytest.mark.medium
def test_what_an_optimizer_makes_of_noisy_gradients_is_sound(made: Made | None, epsilon: float):
    defense = DPSGD(epsilon=epsilon) if made is None else DPSGDWith(epsilon=epsilon, made=made)

    assert [said_of(defense, *PLANS.values(), seed=seed) for seed in range(3)] == [[]] * 3


@pytest.mark.medium
def test_a_cost_of_fewer_steps_is_too_little():
    assert len(said_of(DPSGDWith(epsilon=4.0, made=StatingOneStep), PLANS["momentum"], PLANS["weight decay"])) == 2


@pytest.mark.slow
def test_the_contract_of_a_defense_refuses_noise_after_the_optimizer():
    with pytest.raises(BrokenPromiseError, match="moves a training by sgd with momentum"):
        check_defense(DPSGDWith(epsilon=1.0, made=WithNoiseAfterTheStep), method="fedavg")
