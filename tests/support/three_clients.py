"""Three clients of unequal size on shapes, and rounds among them, for methods that pool statistics of images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from fdgsec.data.shapes import shapes
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.engines.state import MemoryStates
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client, Clock, Method, State
from fdgsec.federation.round_loop import RoundLoop
from fdgsec.federation.wire import Transcript, Wire
from fdgsec.nn.networks.classifiers import build_classifier
from fdgsec.nn.training.batches import Batch
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import simulated_key, simulated_stream

PLAN = TrainingPlan(batch_size=8, learning_rate=0.05, crop=None, flip=0.0)
CLOCK = Clock(round=0, rounds=1, participants=("client:0",))
SIZES = (14, 10, 7)
"""Images per client; of a share of .3 each uploads 4, 3 and 2 rows."""
NAMES = ("client:0", "client:1", "client:2")


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """What a few rounds leave behind."""

    model: Mapping[str, Tensor]
    transcript: Transcript
    states: Mapping[str, State]

    @property
    def messages(self) -> list[tuple[int, str, str, str, str, int]]:
        """Round, stage, sender, receiver, kind and bytes of every message, in order."""
        return [(r.round, r.stage, r.sender, r.receiver, r.kind, r.bytes) for r in self.transcript.rows]


@cache
def clients() -> tuple[Client, ...]:
    """Three clients, each with the first images of a domain of its own."""
    data = shapes(image_size=32, per_domain=14)
    return tuple(
        Client(name=name, data=data.of_domain(number).subset(torch.arange(SIZES[number])))
        for number, name in enumerate(NAMES)
    )


def start() -> GlobalModel:
    """A tiny network for the seven shapes."""
    state = build_classifier("tiny", 7, rng=stream(0, "world", "start")).state_dict()
    return GlobalModel(blueprint=Blueprint(backbone="tiny", classes=7), state=ModelState(state=dict(state)))


def run(method: Method, *, recode: bool = False, rounds: int = 2, members: Sequence[Client] | None = None) -> Outcome:
    """Train `method` from a fixed start; with `recode` every message goes through bytes."""
    wire = Wire(secret=lambda message, number: simulated_stream(0, message.sender, number))
    states = MemoryStates()
    engine = LocalEngine(members=members or clients(), method=method, seed=0, states=states, recode=recode)
    final = RoundLoop(method=method, engine=engine, wire=wire, key=simulated_key(0), rounds=rounds).run(start())
    assert final is not None
    return Outcome(model=final.state.tensors(), transcript=wire.transcript, states=states.states)


def pooled_rounds(rounds: int) -> list[tuple[int, str, str, str, str, int]]:
    """The messages of rounds in which .3 of all images' statistics go up, and everybody else's come down."""
    model = sum(tensor.numel() * tensor.element_size() for tensor in start().state.tensors().values())
    of_a_round = [
        *[("model", "server", name, "ModelState", model) for name in NAMES],
        *[("share", name, "server", "ImageStyles", 24 * n) for name, n in zip(NAMES, (4, 3, 2), strict=True)],
        *[("combine", "server", name, "StyleBank", 32 * n) for name, n in zip(NAMES, (5, 6, 7), strict=True)],
    ]
    for name in NAMES:
        of_a_round += [("update", name, "server", "ModelState", model), ("update", name, "server", "Scores", 24)]
    return [(number, *row) for number in range(rounds) for row in of_a_round]


def noise(*shape: int, name: str = "noise") -> Tensor:
    """Gaussian numbers that depend on the name alone."""
    return torch.randn(shape, generator=stream(0, "world", name))


def pixels(count: int, side: int = 32) -> Tensor:
    """Images of noise, uint8 (count, 3, side, side)."""
    shape = (count, 3, side, side)
    return torch.randint(0, 256, shape, generator=stream(0, "world", "images")).to(torch.uint8)


def batch(count: int) -> Batch:
    """A batch of noise in three classes."""
    return Batch(images=pixels(count) / 255, labels=torch.arange(count) % 3, records=torch.arange(count))
