"""Runs of which everything that crossed the wire is kept, for tests of what methods send and make of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.engines.state import MemoryStates
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client, Method, State
from fdgsec.federation.round_loop import RoundLoop, RoundReport
from fdgsec.federation.wire import Transcript, Wire
from fdgsec.methods.fedavg import FedAvg, detached
from fdgsec.nn.networks.classifiers import Norm
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import simulated_key, simulated_stream


@dataclass(frozen=True, kw_only=True, eq=False)
class Watched:
    """The final model and each round's, what crossed the wire, what clients remember, what each round reported."""

    model: Mapping[str, Tensor]
    models: Sequence[Mapping[str, Tensor]]
    transcript: Transcript
    states: Mapping[str, State]
    reports: Sequence[RoundReport]

    def rows(self, round: int = 0) -> list[tuple[str, str, str, str]]:
        """Stage, sender, receiver and kind of each message of a round."""
        rows = [row for row in self.transcript.rows if row.round == round]
        return [(row.stage, row.sender, row.receiver, row.kind) for row in rows]

    def hashes(self, round: int, stage: str, kind: str = "ModelState") -> list[str]:
        """The payloads' hashes, in order."""
        rows = self.transcript.rows
        return [row.sha256 for row in rows if (row.round, row.stage, row.kind) == (round, stage, kind)]

    def payloads(
        self, round: int, stage: str, kind: str = "ModelState", sender: str = ""
    ) -> list[Mapping[str, Tensor]]:
        """The payloads' tensors, in order; of one sender where it is named."""
        found = [m for m in self.transcript.messages() if (m.round, m.stage, m.artifact.kind) == (round, stage, kind)]
        return [message.artifact.tensors() for message in found if sender in ("", message.sender)]

    def weights(self, round: int, clients: int) -> list[float]:
        """The weights of eq. (6) that the server remembers."""
        return [float(self.reports[round].server[f"evaluation/weight/client:{i}"]) for i in range(clients)]


def start(name: str = "start", *, norm: Norm = "batch", method: Method | None = None) -> GlobalModel:
    """A tiny classifier of seven classes, drawn from the stream `name`."""
    plan = Blueprint(backbone="tiny", classes=7, norm=norm, remodel=(method or FedAvg()).remodel)
    return GlobalModel(blueprint=plan, state=ModelState(state=detached(plan.network(stream(0, "world", name)))))


def run(
    method: Method, clients: Sequence[Client], *, rounds: int = 2, recode: bool = False, participation: float = 1.0
) -> Watched:
    """Train from `start()` and keep every payload."""
    wire = Wire(secret=lambda message, number: simulated_stream(0), keep=lambda message: True)
    reports: list[RoundReport] = []
    models: list[Mapping[str, Tensor]] = []
    states = MemoryStates()

    def note(report: RoundReport, model: GlobalModel) -> None:
        reports.append(report)
        models.append(model.state.tensors())

    engine = LocalEngine(members=clients, method=method, seed=0, recode=recode, states=states)
    driver = RoundLoop(
        method=method,
        engine=engine,
        wire=wire,
        key=simulated_key(0),
        rounds=rounds,
        participation=participation,
        on_round=note,
    )
    final = driver.run(start(method=method))
    assert final is not None
    return Watched(
        model=final.state.tensors(), models=models, transcript=wire.transcript, states=states.states, reports=reports
    )


def equal(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    """Whether two states are the same to the bit."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def largest_gap(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    """The largest difference between two states, over the entries of `second`."""
    return max(float((first[name].double() - value.double()).abs().max()) for name, value in second.items())
