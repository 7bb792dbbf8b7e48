"""Three clients on shapes and a tiny network, for tests of StableFDG."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.data.shapes import shapes
from fdgsec.federation.artifacts import ModelState, StyleDistribution
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.engines.state import MemoryStates
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, Method, State
from fdgsec.federation.round_loop import RoundLoop
from fdgsec.federation.wire import Wire
from fdgsec.methods.stablefdg import LocalLearning, StableFDG
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.batches import Batch
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import simulated_key, simulated_stream

CHANNELS = 32  # of tiny's first stage
PLAN = TrainingPlan(batch_size=14, learning_rate=0.05, momentum=0.9, crop=None)
CLOCK = Clock(round=0, rounds=1, participants=("client:0", "client:1"))


def drawn(name: str, number: int = 0) -> torch.Generator:
    return stream(number, "world", name)


def small_shapes() -> DomainDataset:
    """Fourteen images per domain: image i has class i mod 7."""
    return shapes(image_size=32, per_domain=14)


def three_clients() -> list[Client]:
    data = small_shapes()
    return [Client(name=f"client:{number}", data=data.of_domain(number)) for number in range(3)]


def start(method: Method) -> GlobalModel:
    blueprint = Blueprint(backbone="tiny", classes=7, remodel=method.remodel)
    state = blueprint.network(drawn("start")).state_dict()
    return GlobalModel(
        blueprint=blueprint, state=ModelState(state={key: value.clone() for key, value in state.items()})
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """A finished run."""

    model: GlobalModel
    wire: Wire
    states: Mapping[str, State]

    @property
    def rows(self) -> list[tuple[int, str, str, str, str, int]]:
        return [(r.round, r.stage, r.sender, r.receiver, r.kind, r.bytes) for r in self.wire.transcript.rows]


def run(method: Method, clients: Sequence[Client], *, rounds: int = 2, recode: bool = False) -> Outcome:
    states = MemoryStates()
    engine = LocalEngine(members=clients, method=method, seed=0, states=states, recode=recode)
    wire = Wire(secret=lambda message, number: simulated_stream(0, message.sender, number))
    model = RoundLoop(method=method, engine=engine, wire=wire, key=simulated_key(0), rounds=rounds).run(start(method))
    assert model is not None
    return Outcome(model=model, wire=wire, states=states.states)


def phi(value: float, *, spread: float = 0.0, channels: int = CHANNELS) -> StyleDistribution:
    """A style distribution whose centers and spreads are the same in every channel."""
    center, wide = torch.full((channels,), value), torch.full((channels,), spread)
    return StyleDistribution(mean=center, std=center, mean_spread=wide, std_spread=wide)


def maps(count: int = 8, *, channels: int = CHANNELS, side: int = 5) -> Tensor:
    """Maps whose styles differ, with stds between 1 and 2."""
    scale = 1 + torch.rand(count, channels, 1, 1, generator=drawn("scale"))
    return torch.randn(count, channels, side, side, generator=drawn("maps")) * scale + scale


def batch(client: Client, *rows: int) -> Batch:
    """The client's images at `rows`, as they are."""
    records = torch.tensor(rows)
    return Batch(images=as_float(client.data.pixels(records)), labels=client.data.labels[records], records=records)


def learning(
    method: StableFDG, client: Client, *, inbox: Inbox | None = None, round: int = 0
) -> tuple[LocalLearning, Classifier]:
    """The client's objective and a network in training mode."""
    model, clock = start(method), replace(CLOCK, round=round)
    made = method.objective(client, model=model, inbox=inbox or {}, state={}, clock=clock, rng=drawn("fit"))
    assert isinstance(made, LocalLearning)
    return made, model.module().train()
