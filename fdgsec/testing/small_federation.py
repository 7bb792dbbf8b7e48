"""A small federation of four clients on shapes, with a record of every request and reply."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.data.partition import split_validation
from fdgsec.data.shapes import shapes
from fdgsec.federation.artifacts import Artifact, ModelState
from fdgsec.federation.client_step import UNDEFENDED
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.engines.state import MemoryStates
from fdgsec.federation.engines.unchanged_requests import ReceivedChangedError
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client, Engine, Inbox, Method, Reply, State, Step, StepRequest
from fdgsec.federation.round_loop import STAGES, RoundLoop, RoundReport
from fdgsec.federation.wire import Message, Transcript, Wire
from fdgsec.privacy.ledger import Ledger
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import simulated_key, simulated_stream
from fdgsec.testing.contracts import UNTOUCHED, BrokenPromiseError

ROUNDS = 2
CLIENTS = 4


@dataclass(frozen=True, kw_only=True)
class Passed:
    """One artifact that a client sent or received, with its round, stage and slot."""

    round: int
    stage: str
    slot: str
    client: str
    artifact: Artifact


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """The result of a run; `passed` holds what clients sent and received besides the global model."""

    model: Mapping[str, Tensor]
    transcript: Transcript
    states: Mapping[str, State]
    losses: Sequence[float]
    passed: Sequence[Passed] = ()
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def same_bytes(self) -> tuple[str, str]:
        """The hashes of all messages and of the final model."""
        return self.transcript.sha256, ModelState(state=self.model).sha256


@dataclass(frozen=True, kw_only=True)
class Witness:
    """An engine that records its clients' requests and replies."""

    engine: Engine
    passed: list[Passed] = field(default_factory=list)

    def clients(self) -> Sequence[str]:
        """The clients of the wrapped engine."""
        return self.engine.clients()

    def ask(self, step: Step, requests: Mapping[str, StepRequest]) -> tuple[Mapping[str, Reply], Mapping[str, str]]:
        """Ask the wrapped engine; record requests and replies."""
        replies, failures = self.engine.ask(step, requests)
        for name, request in requests.items():
            down = "exhibit" if step == "review" else "combine"
            self._note(request.clock.round, down, name, request.inbox)
            self._note(request.clock.round, STAGES[step], name, replies[name].artifacts if name in replies else {})
        return replies, failures

    def _note(self, number: int, stage: str, client: str, artifacts: Inbox) -> None:
        found = [
            Passed(round=number, stage=stage, slot=slot, client=client, artifact=artifact)
            for slot, artifact in artifacts.items()
        ]
        self.passed.extend(found)


def four_clients() -> list[Client]:
    """Two clients of each of two domains, twenty-one images each."""
    return small_clients(CLIENTS)


def small_clients(count: int) -> list[Client]:
    """Up to eight clients, two of each domain, of twenty-one images each, a fifth of them for validation."""
    data = _drawn()
    sources = [data.of_domain(number // 2) for number in range(count)]
    halves = [part.subset(torch.arange(number % 2, len(part), 2)) for number, part in enumerate(sources)]
    return [_client(number, part) for number, part in enumerate(halves)]


def large_client() -> Client:
    """A client of about a hundred images of two domains: some methods do with many images what they do not with few."""
    return _client(0, shapes(image_size=32, per_domain=64).subset(torch.arange(128)))


@cache
def _drawn() -> DomainDataset:
    return shapes(image_size=32, per_domain=42)


def _client(number: int, data: DomainDataset) -> Client:
    train, validation = split_validation(data, fraction=0.2, rng=stream(0, "world", "validation", number))
    return Client(name=f"client:{number}", data=train, validation=validation)


def start_of(method: Method, *, norm: str = "batch") -> GlobalModel:
    """The initial model of `method`."""
    plan = Blueprint(backbone="tiny", classes=7, norm="group" if norm == "group" else "batch", remodel=method.remodel)
    state = plan.network(stream(0, "world", "initialisation")).state_dict()
    return GlobalModel(blueprint=plan, state=ModelState(state={name: value.clone() for name, value in state.items()}))


def federated(
    method: Method,
    members: Sequence[Client],
    *,
    recode: bool,
    rounds: int = ROUNDS,
    participation: float = 1.0,
    defense_stack: DefenseStack = UNDEFENDED,
    start: GlobalModel | None = None,
) -> Outcome:
    """Train `method` from a fixed start; with `recode`, every artifact is encoded and decoded.

    Raises BrokenPromiseError where a step writes into what it was handed."""
    wire = Wire(
        secret=lambda upload, number: simulated_stream(0, "defense", upload.round, upload.stage, number),
        keep=_everything, policies=defense_stack.policies,
    )  # fmt: skip
    states = MemoryStates()
    engine = LocalEngine(
        members=members, method=method, seed=0, states=states, recode=recode, defense_stack=defense_stack
    )
    witness = Witness(engine=engine)
    losses: list[float] = []

    def note(report: RoundReport, _model: GlobalModel) -> None:
        losses.extend(metrics["loss"] for metrics in report.metrics.values() if "loss" in metrics)

    driver = RoundLoop(
        method=method,
        engine=witness,
        wire=wire,
        key=simulated_key(0),
        rounds=rounds,
        participation=participation,
        on_round=note,
    )
    method.check(len(members))
    try:
        final = driver.run(start_of(method) if start is None else start)
    except ReceivedChangedError as error:
        raise BrokenPromiseError(UNTOUCHED, str(error)) from error
    assert final is not None
    return Outcome(
        model=final.state.tensors(), transcript=wire.transcript, states=states.states, losses=losses,
        passed=witness.passed, ledger=wire.ledger,
    )  # fmt: skip


def _everything(_message: Message) -> bool:
    return True
