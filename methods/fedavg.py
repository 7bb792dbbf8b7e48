"""FedAvg: communication-efficient learning of deep networks from decentralized data.

McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629. Algorithm 1: clients train E local epochs from the
global model; the server averages.

Shares: the model, its weight (n_i), its mean loss and its number of steps. With `select="validation"` each client also
reports, after each aggregation, the number of its validation images that the model classifies correctly; from this the
server selects the round to keep (as in CCST, section 4.2).
Differs from the paper: the last short batch of one record is skipped (batch norm has no variance there)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from fdgsec.federation.artifacts import ModelState, Scores
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Aggregation, Client, Clock, Inbox, Method, ServerNeeds, State, Update
from fdgsec.federation.participation import ClientFailedError
from fdgsec.federation.release_declarations import VALIDATION, Release
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.batches import TrainingSet
from fdgsec.nn.training.precision import precision_of
from fdgsec.nn.training.training_loop import CrossEntropy, Objective, predictions
from fdgsec.nn.training.training_plan import TrainingPlan, optimizer_memory, optimizer_of, remember
from fdgsec.runtime.errors import ArtifactError
from fdgsec.runtime.secret_streams import SecretStream

KEPT = "kept/"
"""Prefix, in a client's state, of the model entries that stay with the client."""
EXACT = 2.0**29
"""Integers below this times a float32 are exact in float64: 24 and 29 bits."""


def averaged(states: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> dict[str, Tensor]:
    """Average float entries with `weights` (which sum to 1), copy integer counters from the first state.

    Sums run in float64, so that the order of clients does not matter beyond rounding. Raises ArtifactError where a
    state has other entries than the first, or of another shape."""
    for number, state in enumerate(states[1:], 1):
        if said := _difference(state, _forms(states[0]), "the first model"):
            raise ArtifactError(f"model {number} of those to be averaged: {said}")
    result: dict[str, Tensor] = {}
    for name, first in states[0].items():
        if first.is_floating_point():
            total = sum(weight * state[name].to(torch.float64) for weight, state in zip(weights, states, strict=True))
            result[name] = torch.as_tensor(total).to(first.dtype)
        else:
            result[name] = first.clone()
    return result


def _forms(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Shape of every entry, in words. A policy or filter may have changed the number format, of counters as well."""
    return {name: f"numbers of shape {tuple(value.shape)}" for name, value in state.items()}


def _difference(state: Mapping[str, Tensor], expected: Mapping[str, str], origin: str) -> str:
    """How entries or their forms differ from those of `origin`, in words; empty where they do not."""
    found = _forms(state)
    for name, form in expected.items():
        if name not in found:
            return f"entry {name} is missing, which {origin} has"
        if found[name] != form:
            return f"entry {name} holds {found[name]}; that of {origin} holds {form}"
    extra = next((name for name in found if name not in expected), None)
    return "" if extra is None else f"entry {extra} is not expected: {origin} has none"


@dataclass(eq=False)
class WeightedMean:
    """The mean of models by weight, sum_i w_i x_i / sum_i w_i, whose memory does not depend on how many are added.

    Sums run in float64, in the order of the updates, and are divided once; integer counters are those of the first
    update. Of each update the artifacts in `slots` are averaged, into the entries of `model` with their names; entries
    that none sent stay."""

    model: GlobalModel
    server: State
    slots: Sequence[str] = ("model",)
    total: float = 0.0
    forms: dict[str, str] = field(default_factory=dict)
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)
    sums: dict[str, Tensor] = field(default_factory=dict)
    counters: dict[str, Tensor] = field(default_factory=dict)

    def add(self, update: Update) -> None:
        """Add one update. Raises ArtifactError, and adds nothing, where its form is not that of those before."""
        entries = self._entries(update)
        if not self.forms:
            self.forms.update(_forms(entries))
            self.dtypes.update({name: value.dtype for name, value in entries.items()})
            self.counters.update({name: value for name, value in entries.items() if not value.is_floating_point()})
        self.total += update.weight
        for name in self.forms:
            if name not in self.counters:
                self.sums[name] = _plus(self.sums.get(name), entries[name], update.weight)

    def _entries(self, update: Update) -> dict[str, Tensor]:
        """What of an update is averaged, held against the model and against the updates before."""
        if not (math.isfinite(update.weight) and update.weight >= 0):
            raise ArtifactError(f"its weight is {update.weight:g}; models are averaged by weights of 0 or more.")
        missing = next((slot for slot in self.slots if slot not in update.artifacts), None)
        if missing is not None:
            raise ArtifactError(f"artifact {missing} is missing; it has {', '.join(update.artifacts) or 'none'}.")
        entries = {name: value for slot in self.slots for name, value in update.artifacts[slot].tensors().items()}
        known = {name: value for name, value in self.model.state.state.items() if name in entries}
        said = _difference({name: entries[name] for name in known}, _forms(known), "the model that was sent out")
        said = said or (_difference(entries, self.forms, "every update before") if self.forms else "")
        left_out = [name for name in known if self.forms and name not in self.forms]
        others = {name: value for name, value in entries.items() if name not in left_out}
        if left_out and not _difference(others, self.forms, ""):
            said = f"it holds entry {left_out[0]} of the model, which the updates before left out; either may be wrong"
        if said:
            raise ArtifactError(f"{said}.")
        return entries

    def result(self) -> tuple[GlobalModel, State]:
        """Divide by the sum of the weights. Raises ArtifactError where all are 0."""
        if not self.total:
            raise ArtifactError("every update has the weight 0, so that models have no mean.")
        made = {name: value.clone() for name, value in self.counters.items()}
        made |= {name: (value / self.total).to(self.dtypes[name]) for name, value in self.sums.items()}
        return self.model.with_state({**self.model.state.state, **made}), self.server


def _plus(total: Tensor | None, value: Tensor, weight: float) -> Tensor:
    """Add weight x value to a float64 sum, in place; the product is rounded, then the sum."""
    if total is not None and value.dtype is torch.float32 and weight.is_integer() and weight < EXACT:
        return total.add_(value, alpha=weight)  # the product is exact, so that a fused step gives the same
    product = value.to(torch.float64, copy=True).mul_(weight)
    return product if total is None else total.add_(product)


def detached(network: nn.Module) -> dict[str, Tensor]:
    """Copy a network's state to the CPU, free of its graph, in the layout in which it is hashed and sent."""
    return {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in network.state_dict().items()
    }


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
        device = torch.device(model.blueprint.device)
        network = model.module(layout=precision_of(device, model.blueprint.backbone, wanted=self.plan.precision).layout)
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
        """w = sum_i n_i w_i / n over the participants; entries that no client sent are unchanged.

        Raises ClientFailedError for an update whose entries are not those of the others."""
        mean = self.aggregation(model=model, server=server)
        for name, update in updates.items():
            try:
                mean.add(update)
            except ArtifactError as error:
                raise ClientFailedError(f"{name} failed in fit: {error}") from error
        return mean.result()

    def aggregation(self, *, model: GlobalModel, server: State) -> Aggregation:
        """The same mean of models as they come."""
        return WeightedMean(model=model, server=server)

    def weigh(self, scores: Mapping[str, Scores], *, server: State, clock: Clock) -> State:
        """Store the mean source-validation accuracy of this round (mean over clients, as in CCST)."""
        counted = [score.values for score in scores.values() if float(score.values[1]) > 0]
        if not counted:
            return server
        accuracy = torch.stack([values[0] / values[1] for values in counted]).mean()
        return {**server, "validation_accuracy": accuracy}
