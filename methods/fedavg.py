"""FedAvg: communication-efficient learning of deep networks from decentralized data.

McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629. Algorithm 1: clients train E local epochs from the
global model; the server averages.

Shares: the model, its weight (n_i), its mean loss and its number of steps. With `select="validation"` each client also
reports, after each aggregation, the number of its validation images that the model classifies correctly; from this the
server selects the round to keep (as in CCST, section 4.2).
Differs from the paper: the last short batch of one record is skipped (batch norm has no variance there)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from fdgsec.federation.artifacts import ModelState, Scores
from fdgsec.federation.method import Client, Clock, GlobalModel, Inbox, Method, ServerNeeds, State, Update
from fdgsec.federation.release_declarations import VALIDATION, Release
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.batches import TrainingSet
from fdgsec.nn.training.training_loop import CrossEntropy, Objective, predictions
from fdgsec.nn.training.training_plan import TrainingPlan, optimizer_memory, optimizer_of, remember
from fdgsec.runtime.secret_streams import SecretStream

KEPT = "kept/"
"""Prefix, in a client's state, of the model entries that stay with the client."""


def averaged(states: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> dict[str, Tensor]:
    """Average float entries with `weights` (which sum to 1), copy integer counters from the first state.

    Sums run in float64, so that the order of clients does not matter beyond rounding."""
    result: dict[str, Tensor] = {}
    for name, first in states[0].items():
        if first.is_floating_point():
            total = sum(weight * state[name].to(torch.float64) for weight, state in zip(weights, states, strict=True))
            result[name] = torch.as_tensor(total).to(first.dtype)
        else:
            result[name] = first.clone()
    return result


def detached(network: nn.Module) -> dict[str, Tensor]:
    """Copy a network's state to the CPU, free of its graph."""
    return {name: value.detach().cpu().clone() for name, value in network.state_dict().items()}


@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """FedAvg with its training plan; other methods override the steps that they change.

    `weights` is "size" (n_i / n, the paper's) or "uniform" (CCST's released code). `keep_optimizer` keeps a client's
    optimizer moments across rounds. `local` is a method whose local objective replaces cross-entropy, for example
    `--with mixstyle` on top of CCST."""

    plan: TrainingPlan = field(default_factory=TrainingPlan)
    weights: Literal["size", "uniform"] = "size"
    select: Literal["last", "validation"] = "last"
    keep_optimizer: bool = False
    local: "FedAvg | None" = None

    @property
    def reviews(self) -> Literal["none", "before", "after"]:
        """After aggregation, if the round is selected on validation images."""
        return "after" if self.select == "validation" else "none"

    @property
    def releases(self) -> Sequence[Release]:
        """The trained model; with `select="validation"` also the averaged model and counts of correct predictions."""
        return (*super().releases, *VALIDATION) if self.reviews == "after" else super().releases

    @property
    def server_needs(self) -> ServerNeeds:
        """The mean of the models; with `select="validation"` also every client's accuracy."""
        if self.select == "validation":
            return ServerNeeds(uploads="unnamed", because='select = "validation" averages the accuracies of clients')
        return ServerNeeds(uploads="sum", because="models are averaged")

    @property
    def trains_through_trainer(self) -> bool:
        """True for FedAvg itself; a subclass must declare it again."""
        return type(self) is FedAvg and (self.local is None or self.local.trains_through_trainer)

    @property
    def counts_alike(self) -> bool:
        """Whether the mean is over clients rather than images."""
        return self.weights == "uniform"

    @property
    def client_plan(self) -> TrainingPlan:
        """One plan for all clients."""
        return self.plan

    @property
    def keeps_moments(self) -> bool:
        """The option `keep_optimizer`."""
        return self.keep_optimizer

    def training_set(
        self, client: Client, *, inbox: Inbox, state: State, rng: torch.Generator
    ) -> tuple[TrainingSet, State]:
        """The client's own images."""
        return TrainingSet.of(client.data), state

    def remodel(self, network: Classifier, rng: torch.Generator) -> Classifier:
        """The plain classifier, or the local method's network."""
        return network if self.local is None else self.local.remodel(network, rng)

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        """Cross-entropy, or the local method's objective."""
        if self.local is None:
            return CrossEntropy()
        return self.local.objective(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)

    def start(self, client: Client, *, model: GlobalModel, state: State) -> Classifier:
        """The network that local training starts from: the received model with the entries that the client kept."""
        network = model.module()
        own = {name.removeprefix(KEPT): value for name, value in state.items() if name.startswith(KEPT)}
        if own:
            network.load_state_dict(own, strict=False)
        return network

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        """ClientUpdate of Algorithm 1: a fresh optimizer, E epochs of minibatch steps from the global model."""
        data, state = self.training_set(client, inbox=inbox, state=state, rng=rng)
        network = self.start(client, model=model, state=state)
        objective = self.objective(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
        optimizer = optimizer_of(network.parameters(), self.plan)
        if self.keep_optimizer:
            remember(optimizer, state)
        metrics = client.trainer(
            network, data, objective, self.plan, rng, round=clock.round, rounds=clock.rounds, optimizer=optimizer
        )
        if self.keep_optimizer:
            state = {**state, **optimizer_memory(optimizer)}
        artifacts, state = self.results(client, network, data, inbox=inbox, state=state, clock=clock, rng=rng)
        weight = 1.0 if self.weights == "uniform" else float(len(client.data))
        return Update(artifacts=artifacts, weight=weight, metrics=metrics), state

    def results(
        self,
        client: Client,
        network: Classifier,
        data: TrainingSet,
        *,
        inbox: Inbox,
        state: State,
        clock: Clock,
        rng: torch.Generator,
    ) -> tuple[Inbox, State]:
        """The artifacts after training: the model, under "model", without the entries that the client keeps."""
        entries = detached(network)
        kept = {KEPT + name: entries.pop(name) for name in sorted(self.kept_entries(network))}
        return {"model": ModelState(state=entries)}, {**state, **kept} if kept else state

    def exhibits(
        self, updates: Mapping[str, Update], *, model: GlobalModel, server: State, rng: SecretStream
    ) -> Mapping[str, Inbox]:
        """Send every client the new global model."""
        return {name: {"model": model.state} for name in updates}

    def review(self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, rng: torch.Generator) -> Scores:
        """The numbers of correctly classified and of all validation images, for the received model."""
        data = self.validation_set(client, state)
        if data is None or not len(data):
            return Scores(values=torch.zeros(2))
        received = model.with_state(inbox["model"].tensors()).module()
        correct = int((predictions(received, data.images) == data.labels).sum())
        return Scores(values=torch.tensor([float(correct), float(len(data))]))

    def validation_set(self, client: Client, state: State) -> TrainingSet | None:
        """The validation images: originals, split off before any augmentation."""
        return None if client.validation is None else TrainingSet.of(client.validation)

    def aggregate(
        self, updates: Mapping[str, Update], *, scores: Mapping[str, Scores], model: GlobalModel, server: State
    ) -> tuple[GlobalModel, State]:
        """w = sum_i (n_i / n) w_i over the participants; entries that no client sent are unchanged."""
        total = sum(update.weight for update in updates.values())
        weights = [update.weight / total for update in updates.values()]
        states = [update.artifacts["model"].tensors() for update in updates.values()]
        return model.with_state({**model.state.state, **averaged(states, weights)}), server

    def weigh(self, scores: Mapping[str, Scores], *, server: State, clock: Clock) -> State:
        """Store the mean source-validation accuracy of this round (mean over clients, as in CCST)."""
        counted = [score.values for score in scores.values() if float(score.values[1]) > 0]
        if not counted:
            return server
        accuracy = torch.stack([values[0] / values[1] for values in counted]).mean()
        return {**server, "validation_accuracy": accuracy}
