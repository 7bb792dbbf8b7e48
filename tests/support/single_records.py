"""The direct check that records of a batch do not meet in a loss, and federations without batch norm, for the -dp variants."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fdgsec.data.domains import as_float
from fdgsec.data.shapes import shapes
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.engines.state import MemoryStates
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, Method, State
from fdgsec.federation.round_loop import RoundLoop, RoundReport
from fdgsec.federation.wire import Transcript, Wire
from fdgsec.methods.fedavg import FedAvg, detached
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.batches import Batch, TrainingSet
from fdgsec.nn.training.training_loop import Objective
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.privacy.accounting import Use
from fdgsec.privacy.dp_sgd import PrivateTrainer
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import simulated_key, simulated_stream

PLAN = TrainingPlan(batch_size=14, learning_rate=0.05, momentum=0.9, crop=None, flip=0.0)
CLASSES = 7
NAMES = ("client:0", "client:1", "client:2")
CLOCK = Clock(round=0, rounds=1, participants=NAMES)
WATCHED = (0, 3, 7)
"""Which records of a batch of eight are looked at while the others change."""


def drawn(name: str, number: int = 0) -> torch.Generator:
    return stream(number, "world", name)


def three_clients(per_domain: int = 14) -> list[Client]:
    """A client for each of three domains of shapes; image i has class i mod 7."""
    data = shapes(image_size=32, per_domain=per_domain)
    return [Client(name=name, data=data.of_domain(number)) for number, name in enumerate(NAMES)]


def start(method: Method) -> GlobalModel:
    """A tiny classifier with group norm."""
    plan = Blueprint(backbone="tiny", classes=CLASSES, norm="group", remodel=method.remodel)
    return GlobalModel(blueprint=plan, state=ModelState(state=detached(plan.network(drawn("start")))))


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """Client 0 after the exchange of round 0: what it trains on, and how its objective is made anew."""

    model: GlobalModel
    data: TrainingSet
    objective: Callable[[], Objective]

    def network(self) -> Classifier:
        return self.model.module().train()

    def batch(self, count: int = 8) -> Batch:
        """The first images as they are."""
        records = torch.arange(count)
        partners = None if self.data.partners is None else as_float(self.data.partners[records]).contiguous()
        return Batch(
            images=as_float(self.data.images[records]),
            labels=self.data.labels[records],
            records=records,
            partners=partners,
        )


def prepared(method: FedAvg, clients: Sequence[Client], *, number: int = 0) -> Prepared:
    """Walk client 0 through the exchange; `number` names the draws of its objective."""
    model, inboxes = start(method), dict[str, Inbox]()
    if method.shares != "never":
        shared = {
            client.name: method.share(client, model=model, state={}, clock=CLOCK, rng=drawn("share"))[0]
            for client in clients
        }
        inboxes = dict(method.combine(shared, server={}, clock=CLOCK, rng=simulated_stream(0, "combine"))[0])
    client, inbox = clients[0], inboxes.get("client:0", {})
    data, state = method.training_set(client, inbox=inbox, state={}, rng=drawn("data"))

    def objective() -> Objective:
        return method.objective(client, model=model, inbox=inbox, state=state, clock=CLOCK, rng=drawn("fit", number))

    return Prepared(model=model, data=data, objective=objective)


def others_replaced(batch: Batch, kept: int) -> Batch:
    """The batch with noise, other labels and other record numbers in all rows but `kept`."""
    own = torch.arange(len(batch.labels)) == kept
    wide = own.view(-1, 1, 1, 1)
    noise = torch.rand(batch.images.shape, generator=drawn("noise", kept))
    return Batch(
        images=torch.where(wide, batch.images, noise),
        labels=torch.where(own, batch.labels, (batch.labels + 3) % CLASSES),
        records=torch.where(own, batch.records, batch.records.roll(2)),
        partners=None if batch.partners is None else torch.where(wide, batch.partners, 1 - noise),
    )


def leak(prepared: Prepared) -> tuple[float, float]:
    """How far the loss and the gradient of a record move, at most, when all others are replaced."""
    batch, network = prepared.batch(), prepared.network()
    moved, turned = 0.0, 0.0
    for record in WATCHED:
        loss, gradient = _of_record(prepared, batch, network, record)
        other, slope = _of_record(prepared, others_replaced(batch, record), network, record)
        moved = max(moved, abs(loss - other))
        turned = max(turned, float((gradient - slope).abs().max()))
    return moved, turned


def _of_record(prepared: Prepared, batch: Batch, network: Classifier, record: int) -> tuple[float, Tensor]:
    loss = prepared.objective()(batch, network)[record]
    slopes = torch.autograd.grad(loss, list(network.parameters()), allow_unused=True, materialize_grads=True)
    return float(loss.detach()), torch.cat([slope.flatten() for slope in slopes])


@dataclass(frozen=True, kw_only=True, eq=False)
class Federated:
    """The final model, what crossed the wire, the mean loss of each round."""

    model: Mapping[str, Tensor]
    transcript: Transcript
    losses: Sequence[float]
    states: Mapping[str, State]


def federated(method: Method, clients: Sequence[Client], *, rounds: int = 2, recode: bool = False) -> Federated:
    """Train from `start`; with `recode` every artifact goes through bytes."""
    losses: list[float] = []
    states = MemoryStates()

    def note(report: RoundReport, model: GlobalModel) -> None:
        told = [metrics["loss"] for metrics in report.metrics.values() if "loss" in metrics]
        losses.append(sum(told) / max(len(told), 1))

    wire = Wire(secret=lambda message, number: simulated_stream(0, message.sender, number), keep=lambda message: True)
    engine = LocalEngine(members=clients, method=method, seed=0, states=states, recode=recode)
    driver = RoundLoop(method=method, engine=engine, wire=wire, key=simulated_key(0), rounds=rounds, on_round=note)
    model = driver.run(start(method))
    assert model is not None
    return Federated(model=model.state.tensors(), transcript=wire.transcript, losses=losses, states=states.states)


def same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    """Whether two states are equal to the bit."""
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


def privately(method: FedAvg, clients: Sequence[Client]) -> tuple[dict[str, float], tuple[Use, ...]]:
    """Train client 0 for one step under DP-SGD without noise: its metrics, and what that cost."""
    made = prepared(method, clients)
    trainer = PrivateTrainer(
        noise_multiplier=0.0, max_grad_norm=1.0, secret=simulated_stream(0, "noise"), method="the method", probes=2
    )
    plan = replace(PLAN, batch_size=7, steps=1)
    return trainer(made.network(), made.data, made.objective(), plan, drawn("private")), trainer.uses
