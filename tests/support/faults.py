"""What can be wrong with a client's answer: a table of faults, and a method whose clients have one of them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fdgsec.federation.artifacts import Artifact, GeneratorState, ModelState
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Engine, Inbox, Method, Reply, State, Step, StepRequest, Update
from fdgsec.federation.round_loop import Failure, RoundLoop, RoundReport
from fdgsec.federation.wire import Wire
from fdgsec.methods.fedavg import FedAvg
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.secret_streams import simulated_key, simulated_stream
from tests.support.hostile import altered, first_is, forged
from tests.support.toy_federation import Outcome, start

Fault = Callable[[Update], Update]
COUNTER = "body.stage1.1.num_batches_tracked"


def model_with(entry: str, change: Callable[[Tensor], Tensor]) -> Fault:
    """Change one entry of the model, unchecked."""
    return lambda update: instead(update, altered(entry, change)(update.artifacts["model"]))


def model_of(change: Callable[[dict[str, Tensor]], Mapping[str, Tensor]]) -> Fault:
    """Change the model's dict of entries."""
    return lambda update: instead(update, forged(ModelState, state=change(update.artifacts["model"].tensors())))


def instead(update: Update, model: Artifact) -> Update:
    """The update with another artifact as its model."""
    return replace(update, artifacts={**update.artifacts, "model": model})


def weighing(weight: float) -> Fault:
    """The update with another weight."""
    return lambda update: replace(update, weight=weight)


def raising(error: Exception) -> Fault:
    """No update at all."""

    def fail(update: Update) -> Update:
        raise error

    return fail


def _without(name: str) -> Callable[[dict[str, Tensor]], Mapping[str, Tensor]]:
    return lambda state: {key: value for key, value in state.items() if key != name}


FAULTS: Mapping[str, tuple[Fault, str]] = {
    "NaN": (
        model_with("head.bias", first_is(math.nan)),
        "model.head.bias has 1 of 2 values that are not finite",
    ),
    "infinity": (
        model_with("head.weight", first_is(-math.inf)),
        r"model.head.weight has 1 of \d+ values that are not finite",
    ),
    "wrong shape": (
        model_with("head.bias", lambda bias: bias[:1]),
        r"model.head.bias is \(1,\) float32; it was sent out as \(2,\) float32",
    ),
    "a counter with an axis": (
        model_with(COUNTER, lambda count: count.reshape(1)),
        rf"model.{COUNTER} is \(1,\) int64; it was sent out as \(\) int64",
    ),
    "a counter of floats": (
        model_with(COUNTER, lambda count: count.double()),
        rf"model.{COUNTER} is \(\) float64; it was sent out as \(\) int64",
    ),
    "missing key": (model_of(_without("head.bias")), "model.head.bias is missing"),
    "extra key": (model_of(lambda state: {**state, "x": torch.ones(1)}), "model.x is not expected"),
    "wrong dtype": (
        model_with("head.bias", lambda bias: bias.double()),
        r"model.head.bias is \(2,\) float64; it was sent out as \(2,\) float32",
    ),
    "no model": (lambda update: replace(update, artifacts={}), "model is missing"),
    "another kind": (
        lambda update: instead(update, GeneratorState(state=update.artifacts["model"].tensors())),
        "model is a GeneratorState; a ModelState was expected",
    ),
    "weight -3": (weighing(-3.0), r"its weight is -3; it must be above 0 and at most 1e\+09"),
    "weight 0": (weighing(0.0), "its weight is 0; it must be above 0"),
    "weight 1e12": (weighing(1e12), r"its weight is 1e\+12; it must be above 0 and at most 1e\+09"),
    "weight NaN": (weighing(math.nan), "its weight is nan; it must be above 0"),
    "metric NaN": (
        lambda update: replace(update, metrics={**update.metrics, "loss": math.nan}),
        "its metric loss is nan; it must be finite",
    ),
    "another list of metrics": (
        lambda update: replace(update, metrics={"gain": 1.0}),
        "the list of metrics is gain; more clients sent loss, steps",
    ),
    "exception": (raising(ZeroDivisionError("division\nby zero")), "ZeroDivisionError: division by zero"),
    "usage error": (raising(UsageError("client:1 has no images.")), "UsageError: client:1 has no images."),
}  # fmt: skip
"""Faults of an update by name, and what is said of them."""


@dataclass(frozen=True, kw_only=True)
class Faulty(FedAvg):
    """FedAvg in which updates of `victims` in the rounds `at` have a fault."""

    fault: Fault
    victims: Sequence[str] = ("client:1",)
    at: Sequence[int] = (0,)

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        """Train as FedAvg does, and spoil the answer."""
        update, state = super().fit(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
        return (self.fault(update) if client.name in self.victims and clock.round in self.at else update), state


@dataclass(frozen=True, kw_only=True)
class Altering:
    """An engine that changes what one client answers in one step; a change that gives None says nothing to anybody."""

    engine: Engine
    step: Step
    change: Callable[[Reply], Reply | None]
    victims: Sequence[str] = ("client:1",)
    asked: list[tuple[Step, int, tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)

    def clients(self) -> Sequence[str]:
        """All."""
        return self.engine.clients()

    def ask(self, step: Step, requests: Mapping[str, StepRequest]) -> tuple[Mapping[str, Reply], Mapping[str, str]]:
        """Ask, write down who was asked and who the participants were said to be, and change."""
        for clock in {request.clock for request in requests.values()}:
            self.asked.append((step, clock.round, tuple(requests), clock.participants))
        replies, failures = self.engine.ask(step, requests)
        changed = {
            name: self.change(reply) if step == self.step and name in self.victims else reply
            for name, reply in replies.items()
        }
        return {name: reply for name, reply in changed.items() if reply is not None}, failures


def silent(reply: Reply) -> Reply | None:
    """No answer."""
    return None


@dataclass(frozen=True, kw_only=True)
class Run(Outcome):
    """A run, and who failed in it."""

    failures: list[Failure] = field(default_factory=list)


def driven(
    method: Method, engine: Engine, *, wire: Wire | None = None, rounds: int = 1, quorum: float = 0.5,
    participation: float = 1.0, checked: bool = False, model: GlobalModel | None = None,
) -> Run:  # fmt: skip
    """Drive the rounds; failures are those that `on_failure` heard of."""
    heard: list[Failure] = []
    reports: list[RoundReport] = []
    wire = wire or Wire(secret=lambda upload, number: simulated_stream(0, upload.sender, number))
    driver = RoundLoop(
        method=method, engine=engine, wire=wire, key=simulated_key(0), rounds=rounds, quorum=quorum, participation=participation,
        checked=checked, on_failure=heard.append, on_round=lambda report, made: reports.append(report),
    )  # fmt: skip
    final = driver.run((model or start()) if rounds else None)
    assert driver.failures == heard
    return Run(model=final, wire=wire, reports=reports, failures=heard)


def local(method: Method, clients: Sequence[Client], *, tolerant: bool = True) -> LocalEngine:
    """The engine of these clients."""
    return LocalEngine(members=clients, method=method, seed=0, tolerant=tolerant)
