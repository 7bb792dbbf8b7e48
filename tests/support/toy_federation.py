"""A federation of small clients on two classes of brightness, and methods that share and review."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.federation.artifacts import InterpolationStyle, ModelState, Scores, StyleStatistics
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, Method, Reply, State, Step, StepRequest, Update
from fdgsec.federation.round_loop import RoundLoop, RoundReport
from fdgsec.federation.wire import Wire
from fdgsec.methods.fedavg import FedAvg, averaged
from fdgsec.nn.networks.classifiers import build_classifier
from fdgsec.nn.training.training_loop import predictions
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import SecretStream, simulated_key, simulated_stream

FULL_BATCH = TrainingPlan(batch_size=64, learning_rate=0.1, crop=None, flip=0.0)


@dataclass(frozen=True, kw_only=True)
class PixelStyles(FedAvg):
    """FedAvg whose clients also share the mean and std of their pixels; everybody gets the center of those."""

    when: Literal["once", "every"] = "once"

    @property
    def shares(self) -> Literal["never", "once", "every"]:
        return self.when

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        pixels = as_float(client.data.pixels()).transpose(0, 1).flatten(1)
        return {"style": StyleStatistics(mean=pixels.mean(1), std=pixels.std(1))}, state

    def combine(
        self, shared: Mapping[str, Inbox], *, server: State, clock: Clock, rng: SecretStream
    ) -> tuple[Mapping[str, Inbox], State]:
        styles = [inbox["style"].tensors() for inbox in shared.values()]
        center = {name: torch.stack([style[name] for style in styles]).mean(0) for name in ("mean", "std")}
        return {name: {"center": InterpolationStyle(**center)} for name in shared}, server


@dataclass(frozen=True, kw_only=True)
class PeerReviewed(FedAvg):
    """FedAvg where peers count what each other's models get right, and these counts are the weights."""

    @property
    def reviews(self) -> Literal["none", "before", "after"]:
        return "before"

    def exhibits(
        self, updates: Mapping[str, Update], *, model: GlobalModel, server: State, rng: SecretStream
    ) -> Mapping[str, Inbox]:
        return {
            reviewer: {peer: update.artifacts["model"] for peer, update in updates.items() if peer != reviewer}
            for reviewer in updates
        }

    def review(self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, rng: torch.Generator) -> Scores:
        def right(peer: str) -> float:
            network = model.with_state(inbox[peer].tensors()).module()
            return float((predictions(network, client.data.pixels()) == client.data.labels).sum())

        return Scores(values=torch.tensor([right(peer) for peer in sorted(inbox)]))

    def aggregate(
        self, updates: Mapping[str, Update], *, scores: Mapping[str, Scores], model: GlobalModel, server: State
    ) -> tuple[GlobalModel, State]:
        votes = dict.fromkeys(updates, 1.0)  # one for itself
        for reviewer, found in scores.items():
            for peer, count in zip(sorted(set(updates) - {reviewer}), found.values.tolist(), strict=True):
                votes[peer] += count
        weights = [votes[name] / sum(votes.values()) for name in updates]
        states = [update.artifacts["model"].tensors() for update in updates.values()]
        return model.with_state(averaged(states, weights)), {"votes": torch.tensor(list(votes.values()))}


@dataclass(frozen=True, kw_only=True)
class Unreliable:
    """An engine that never hears from one client in one step."""

    engine: LocalEngine
    lost: str
    step: Step

    def clients(self) -> Sequence[str]:
        return self.engine.clients()

    def ask(self, step: Step, requests: Mapping[str, StepRequest]) -> tuple[Mapping[str, Reply], Mapping[str, str]]:
        if step != self.step:
            return self.engine.ask(step, requests)
        reached = {name: request for name, request in requests.items() if name != self.lost}
        replies, failures = self.engine.ask(step, reached)
        return replies, {**failures, self.lost: "no answer within 5 seconds"}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A driver's run: the final model, the wire, and what each round reported."""

    model: GlobalModel | None
    wire: Wire
    reports: list[RoundReport] = field(default_factory=list)

    @property
    def messages(self) -> list[tuple[int, str, str, str, str]]:
        return [(r.round, r.stage, r.sender, r.receiver, r.kind) for r in self.wire.transcript.rows]

    def state(self) -> Mapping[str, Tensor]:
        assert self.model is not None
        return self.model.state.state


def images(count: int, name: str) -> DomainDataset:
    """Two classes that differ in brightness; `name` seeds the noise."""
    labels = torch.arange(count) % 2
    noise = torch.randint(0, 100, (count, 3, 32, 32), generator=stream(0, "world", name))
    return DomainDataset(
        name="toy",
        store=(noise + 120 * labels.view(-1, 1, 1, 1)).to(torch.uint8),
        rows=torch.arange(count),
        labels=labels,
        domains=torch.zeros(count, dtype=torch.int64),
        ids=tuple(f"only/{name}/{i}" for i in range(count)),
        class_names=("dark", "bright"),
        domain_names=("only",),
    )


def members(*sizes: int) -> list[Client]:
    return [
        Client(name=f"client:{i}", data=images(size, f"c{i}"), validation=images(4, f"v{i}"))
        for i, size in enumerate(sizes)
    ]


def start() -> GlobalModel:
    state = build_classifier("tiny", 2, rng=stream(0, "world", "start")).state_dict()
    return GlobalModel(blueprint=Blueprint(backbone="tiny", classes=2), state=ModelState(state=dict(state)))


def run(
    method: Method,
    clients: Sequence[Client],
    *,
    rounds: int = 1,
    participation: float = 1.0,
    seed: int = 0,
    recode: bool = False,
    lost: tuple[str, Step] | None = None,
) -> Outcome:
    engine = LocalEngine(members=clients, method=method, seed=seed, recode=recode)
    wire = Wire(secret=lambda message, number: simulated_stream(seed, message.sender, number))
    reports: list[RoundReport] = []
    driver = RoundLoop(
        method=method,
        engine=engine if lost is None else Unreliable(engine=engine, lost=lost[0], step=lost[1]),
        wire=wire,
        key=simulated_key(seed),
        rounds=rounds,
        participation=participation,
        on_round=lambda report, model: reports.append(report),
    )
    return Outcome(model=driver.run(start() if rounds else None), wire=wire, reports=reports)


def largest_gap(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    assert first.keys() == second.keys()
    return max(float((first[name].double() - second[name].double()).abs().max()) for name in first)
