"""A client's defense stack: defenses act before anything leaves, and what they cost reaches the ledger."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch

from fdgsec.federation.artifacts import ModelState, Scores
from fdgsec.federation.defense import Defense, Outgoing, Protected
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.method import NUMBERS, Client, Clock, Method
from fdgsec.federation.round_loop import RoundLoop
from fdgsec.federation.wire import Wire
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.training.training_loop import epochs
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.privacy.accounting import Use
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.secret_streams import SecretStream, simulated_key, simulated_stream
from tests.support.toy_federation import images, start

USE = Use(mechanism="gaussian", noise=2.0, sensitivity={"zero-out": 1.0})


@dataclass(frozen=True, kw_only=True)
class Shifting:
    """Adds 1 to every number of what goes up under `slot`."""

    slot: str = "model"
    uses: tuple[Use, ...] | None = None
    assumptions: Sequence[str] = ("tested alone",)

    @property
    def mechanism_on(self) -> frozenset[str]:
        return frozenset() if self.uses is None else frozenset({f"update/{self.slot}"})

    def check(self, method: Method) -> None:
        if self.slot == "nowhere":
            raise UsageError("shifting needs a slot.")

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        if outgoing.name != self.slot:
            return None
        artifact = outgoing.artifact
        if isinstance(artifact, Scores):
            return Protected(artifact=Scores(values=artifact.values + 1), uses=self.uses)
        shifted = {name: value + 1 for name, value in artifact.tensors().items()}
        return Protected(artifact=ModelState(state=shifted), uses=self.uses)


@dataclass(frozen=True, kw_only=True)
class Noisy(Shifting):
    """Adds noise."""

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        if outgoing.name != self.slot:
            return None
        drawn = {name: rng.normal(*value.shape).float() for name, value in outgoing.artifact.tensors().items()}
        return Protected(artifact=ModelState(state=drawn), uses=self.uses)


class SilentTrainer:
    """Trains nothing, and says that it cost one use."""

    uses = (USE,)

    def __call__(self, *given: object, **named: object) -> dict[str, float]:
        return {"steps": 0.0}


@dataclass(frozen=True, kw_only=True)
class NoProgress(Shifting):
    """Puts another training loop in place."""

    def trainer(self, client: Client, method: Method, clock: Clock, rng: SecretStream) -> SilentTrainer:
        return SilentTrainer()

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        if outgoing.name == NUMBERS:
            return Protected(artifact=outgoing.artifact, uses=())
        return Protected(artifact=outgoing.artifact, uses=outgoing.sender.trained)


def federated(defenses: Sequence[Defense], *, seed: int = 0, name: str = "run") -> tuple[RoundLoop, Wire]:
    method = FedAvg(plan=TrainingPlan(steps=1, batch_size=4, crop=None))
    clients = [Client(name=f"client:{number}", data=images(8, f"c{number}")) for number in range(2)]
    defense_stack = DefenseStack(defenses=defenses, key=simulated_key(seed), name=name)
    wire = Wire(secret=lambda message, number: simulated_stream(0), keep=lambda message: True)
    engine = LocalEngine(members=clients, method=method, seed=0, defense_stack=defense_stack)
    return RoundLoop(method=method, engine=engine, wire=wire, key=simulated_key(0), rounds=1), wire


def sent(defenses: Sequence[Defense], slot: str, *, seed: int = 0, name: str = "run") -> list[torch.Tensor]:
    """What the clients' updates say in `slot`, as one vector each."""
    driver, wire = federated(defenses, seed=seed, name=name)
    driver.run(start())
    kinds = {"model": "ModelState", NUMBERS: "Scores"}
    ups = [m for m in wire.transcript.messages() if m.stage == "update" and m.artifact.kind == kinds[slot]]
    return [torch.cat([value.flatten().double() for value in m.artifact.tensors().values()]) for m in ups]


def test_what_crosses_the_wire_is_what_the_defense_made():
    plain, shifted = sent([], "model"), sent([Shifting()], "model")

    for before, after in zip(plain, shifted, strict=True):
        torch.testing.assert_close(after, before + 1, atol=1e-6, rtol=0)


def test_defenses_act_in_their_order():
    replaced = Noisy()

    first, last = sent([Shifting(), replaced], "model"), sent([replaced, Shifting()], "model")

    noise = sent([replaced], "model")
    assert abs(float(first[0].mean())) < 0.1
    assert abs(float(last[0].mean()) - 1) < 0.1
    assert not torch.equal(noise[0], first[0])  # the second defense draws another noise than the first


def test_weights_and_metrics_pass_the_defenses_too():
    plain, shifted = sent([], NUMBERS), sent([Shifting(slot=NUMBERS)], NUMBERS)

    assert torch.equal(shifted[0], plain[0] + 1)


def test_noise_differs_between_clients_seeds_and_runs_of_one_seed():
    first, second = sent([Noisy()], "model")
    other_seed = sent([Noisy()], "model", seed=1)[0]
    other_run = sent([Noisy()], "model", name="one record more")[0]
    again = sent([Noisy()], "model")[0]

    assert not torch.equal(first, second)
    assert not torch.equal(first, other_seed)
    assert not torch.equal(first, other_run)
    assert torch.equal(first, again)


def test_a_run_with_an_unprotected_release_promises_nothing_and_names_it():
    driver, wire = federated([Shifting(uses=(USE,))])
    driver.run(start())

    run, part = wire.ledger.guarantees(delta=1e-5)

    assert run.epsilon is None
    assert run.uncovered == ("update/numbers",)
    assert part.part == "model only"
    assert part.epsilon is not None
    assert part.covers == ("update/model",)


def test_without_any_mechanism_there_is_one_line_and_it_says_none():
    driver, wire = federated([Shifting()])
    driver.run(start())

    (only,) = wire.ledger.guarantees(delta=1e-5)

    assert only.epsilon is None
    assert only.line() == "run: none, unprotected: update/model, update/numbers"


def test_clients_hold_different_records_so_that_two_cost_what_one_costs():
    driver, wire = federated([Shifting(uses=(USE,)), Shifting(slot=NUMBERS, uses=())])
    driver.run(start())
    alone = replace(wire.ledger, entries=[entry for entry in wire.ledger.entries if entry.client == "client:0"])

    both, one = wire.ledger.guarantees(delta=1e-5)[0], alone.guarantees(delta=1e-5)[0]

    assert both.part == "run"
    assert both.uncovered == ()
    assert both.epsilon == one.epsilon


def test_a_defense_may_train_in_a_clients_place_and_the_model_then_carries_the_cost():
    driver, wire = federated([NoProgress()])
    trained = driver.run(start())

    run = wire.ledger.guarantees(delta=1e-5)[0]

    assert trained is not None
    assert all(torch.equal(value, start().state.state[name]) for name, value in trained.state.state.items())
    assert run.epsilon is not None


def test_two_training_defenses_are_refused():
    with pytest.raises(UsageError, match="both mechanisms on what clients send"):
        DefenseStack(defenses=[NoProgress(), NoProgress()]).check(FedAvg())


def test_a_defense_may_refuse_a_method():
    with pytest.raises(UsageError, match="needs a slot"):
        DefenseStack(defenses=[Shifting(slot="nowhere")]).check(FedAvg())


def test_clients_train_by_the_plain_loop_unless_told_otherwise():
    assert Client(name="client:0", data=images(2, "c")).trainer is epochs
