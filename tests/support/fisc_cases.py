"""Three clients of one domain each on shapes, a model to start from and a client's style, for tests of FISC."""

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.data.shapes import shapes
from fdgsec.federation.artifacts import InterpolationStyle, ModelState, StyleStatistics
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client, Clock
from fdgsec.methods.fisc import FISC
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import stream

STILL = TrainingPlan(batch_size=8, learning_rate=0.05, crop=None, flip=0.0)
NAMES = ("client:0", "client:1", "client:2")
CLOCK = Clock(round=0, rounds=1, participants=NAMES)


def rng(name: str = "t") -> torch.Generator:
    return stream(0, "world", name)


def small_shapes() -> DomainDataset:
    """Nine images per domain."""
    return shapes(image_size=32, per_domain=9)


def three_clients(data: DomainDataset) -> list[Client]:
    """Clients of 9, 8 and 7 images of one domain each."""
    return [Client(name=name, data=data.of_domain(i).subset(torch.arange(9 - i))) for i, name in enumerate(NAMES)]


def start(method: FISC) -> GlobalModel:
    blueprint = Blueprint(backbone="tiny", classes=7, remodel=method.remodel)
    return GlobalModel(blueprint=blueprint, state=ModelState(state=dict(blueprint.network(rng("start")).state_dict())))


def shared(method: FISC, client: Client) -> tuple[Tensor, Tensor]:
    """The mean and the std that the client sends."""
    sent, _ = method.share(client, model=None, state={}, clock=CLOCK, rng=rng())
    style = sent["style"]
    assert isinstance(style, StyleStatistics)
    return style.mean, style.std


def numbers(style: InterpolationStyle) -> Tensor:
    """Its 2C numbers in a row."""
    return torch.cat([style.mean, style.std])
