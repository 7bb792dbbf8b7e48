"""A federation of four small clients on shapes, for tests that walk a method through the round loop."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.data.partition import split_validation
from fdgsec.data.shapes import shapes
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.client_step import UNDEFENDED
from fdgsec.federation.defense import DefenseStack
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.engines.state import MemoryStates
from fdgsec.federation.method import Blueprint, Client, GlobalModel, Method, State
from fdgsec.federation.round_loop import RoundLoop, RoundReport
from fdgsec.federation.wire import Message, Transcript, Wire
from fdgsec.methods.fedavg import detached
from fdgsec.runtime.random_streams import stream

ROUNDS = 2
CLIENTS = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """What two rounds leave behind."""

    model: Mapping[str, Tensor]
    transcript: Transcript
    states: Mapping[str, State]
    losses: Sequence[float]


def four_clients() -> list[Client]:
    """Two clients of each of two domains, twenty-one images each, a fifth of them for validation."""
    data = _drawn()
    sources = [data.of_domain(0), data.of_domain(1)]
    halves = [part.subset(torch.arange(start, len(part), 2)) for part in sources for start in (0, 1)]
    return [_client(number, part) for number, part in enumerate(halves)]


@cache
def _drawn() -> DomainDataset:
    return shapes(image_size=32, per_domain=42)


def _client(number: int, data: DomainDataset) -> Client:
    train, validation = split_validation(data, fraction=0.2, rng=stream(0, "world", "validation", number))
    return Client(name=f"client:{number}", data=train, validation=validation)


def federated(
    method: Method,
    members: Sequence[Client],
    *,
    recode: bool,
    participation: float = 1.0,
    defense_stack: DefenseStack = UNDEFENDED,
) -> Outcome:
    """Train `method` for two rounds from a fixed start; with `recode` every artifact goes through bytes."""
    plan = Blueprint(backbone="tiny", classes=7, remodel=method.remodel)
    start = GlobalModel(
        blueprint=plan, state=ModelState(state=detached(plan.network(stream(0, "world", "initialisation"))))
    )
    wire = Wire(
        secret=lambda upload, number: stream(0, "secret", "defense", upload.round, upload.stage, number),
        keep=_everything,
        policies=defense_stack.policies,
    )
    states = MemoryStates()
    engine = LocalEngine(
        members=members, method=method, seed=0, states=states, recode=recode, defense_stack=defense_stack
    )
    losses: list[float] = []

    def note(report: RoundReport, model: GlobalModel) -> None:
        losses.extend(metrics["loss"] for metrics in report.metrics.values())

    driver = RoundLoop(
        method=method, engine=engine, wire=wire, seed=0, rounds=ROUNDS, participation=participation, on_round=note
    )
    method.check(len(members))
    final = driver.run(start)
    assert final is not None
    return Outcome(model=final.state.tensors(), transcript=wire.transcript, states=states.states, losses=losses)


def _everything(message: Message) -> bool:
    return True
