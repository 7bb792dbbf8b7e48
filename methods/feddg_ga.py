"""FedDG-GA: federated domain generalization with generalization adjustment.

Zhang, Xu, Yao, Zhang, Tian & Wang, CVPR 2023. A client's generalization gap is how much worse the aggregated model does
on its validation images than its own model did before aggregation; aggregation weights move toward clients with a
large gap, by steps that shrink linearly over the rounds, and stay on the simplex. Extends methods/fedavg.py; any local
objective fits.

Shares: the model, and after each aggregation one scalar per client: its gap. The new model is sent to the clients once
more, because they evaluate it before the next round starts.
Differs from the paper: as in the authors' code the step is divided by 3, its number of source clients, whatever the
number here; that code counts rounds from 0 in a formula made for 1, so that its steps are longer by d / (3 R). A client
without validation images answers 0; if every weight is clipped to 0, all become equal. `rule="pardon"` is the variant
that FISC compares with (its released code): the gap is the received model's loss on the training images minus the mean
loss of the client's last training, it is sent with the update and moves the weights before aggregation, and round 0 is
weighted by n_i."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.federation.artifacts import Scores
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, ServerNeeds, State, Update
from fdgsec.methods.fedavg import FedAvg, averaged
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.batches import TrainingSet
from fdgsec.nn.training.training_loop import logits
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.secret_streams import SecretStream

OWN = "own_metric"
"""Client-state entry: the metric of its own model before aggregation, on validation images."""
LAST_LOSS = "last_loss"
"""Client-state entry: the mean loss of its last training ("pardon")."""
DIVISOR = 3.0  # the authors' code; it has three source clients


def adjust_weights(weights: Tensor, gaps: Tensor, *, step: float) -> Tensor:
    """a_i + step gap_i / max|gap|, clipped to [0, 1] and divided by the sum: (N,) on the simplex, like `weights`.

    `gaps` (N,) are positive for bad generalization. If all gaps are 0, the weights are unchanged."""
    largest = gaps.abs().max()
    if float(largest) == 0:
        return weights
    moved = (weights + step * gaps / largest).clamp(0, 1)
    total = moved.sum()
    return moved / total if float(total) > 0 else torch.full_like(weights, 1 / len(weights))


@dataclass(frozen=True, kw_only=True)
class FedDGGA(FedAvg):
    """FedDG-GA; `step` is d, the first round's step before the division by 3, and `metric` the unit of gaps.

    `rule="pardon"` ignores `metric`: its gaps are losses; its step is d = 1. It uses update weights (`weights`) only in
    round 0."""

    own_weights: ClassVar[bool] = True
    rule: Literal["paper", "pardon"] = "paper"
    metric: Literal["accuracy", "loss"] = "accuracy"
    step: float = 0.2

    def __post_init__(self) -> None:
        if self.step < 0:
            raise UsageError(f"feddg-ga needs step >= 0; got {self.step}.")

    @property
    def shares(self) -> Literal["never", "once", "every"]:
        """Once: no artifact is sent, but the server learns the names of its clients before round 0."""
        return "once"

    @property
    def asks_for_shares(self) -> bool:
        """False: clients upload nothing before training."""
        return False

    @property
    def server_needs(self) -> ServerNeeds:
        """The owner of each model and gap; under "pardon" gaps are metrics of updates."""
        because = "every client has a weight of its own, which its gaps move"
        metrics = frozenset({"gap"}) if self.rule == "pardon" else frozenset[str]()
        return ServerNeeds(uploads="named", because=because, metrics=metrics)

    @property
    def reviews(self) -> Literal["none", "before", "after"]:
        """After aggregation, unless gaps are sent with the update ("pardon")."""
        return "after" if self.rule == "paper" else super().reviews

    def combine(
        self, shared: Mapping[str, Inbox], *, server: State, clock: Clock, rng: SecretStream
    ) -> tuple[Mapping[str, Inbox], State]:
        """Initialize a_i = 1 / N for every client; nothing is sent."""
        numbers = torch.tensor(sorted(_client_number(name) for name in shared))
        weights = torch.full((len(numbers),), 1 / len(numbers), dtype=torch.float64)
        progress = {"round": torch.tensor(0), "rounds": torch.tensor(clock.rounds)}
        return {}, {**server, "clients": numbers, "weights": weights, **progress}

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        """Train as FedAvg does; under "pardon" first evaluate the received model on the training images."""
        if self.rule == "paper":
            return super().fit(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
        received = self.evaluate(model.module(), TrainingSet.of(client.data), metric="loss")
        gap = float(received - state[LAST_LOSS]) if LAST_LOSS in state else float(received)
        update, state = super().fit(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
        state = {**state, LAST_LOSS: torch.tensor(update.metrics["loss"], dtype=torch.float64)}
        metrics = {**update.metrics, "gap": gap}
        return Update(artifacts=update.artifacts, weight=update.weight, metrics=metrics), state

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
        """Send the model; store its metric on validation images before aggregation."""
        sent, state = super().results(client, network, data, inbox=inbox, state=state, clock=clock, rng=rng)
        held = self.validation_set(client, state)
        if self.rule == "paper" and held is not None and len(held):
            state = {**state, OWN: self.evaluate(network, held, metric=self.metric)}
        return sent, state

    def evaluate(self, network: Classifier, data: TrainingSet, *, metric: Literal["accuracy", "loss"]) -> Tensor:
        """Accuracy or mean cross-entropy of `network` on `data`, a float64 scalar."""
        return _metric(logits(network, data.images), data.labels, metric)

    def review(self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, rng: torch.Generator) -> Scores:
        """The gap; with `select="validation"` preceded by FedAvg's two counts."""
        if self.rule == "pardon":
            return super().review(client, model=model, inbox=inbox, state=state, rng=rng)
        held = self.validation_set(client, state)
        counts, gap = torch.zeros(2), torch.zeros(1)
        if held is not None and len(held):
            received = model.with_state(inbox["model"].tensors()).module()
            given = logits(received, held.images)
            right = int((given.argmax(1) == held.labels).sum())
            counts = torch.tensor([float(right), float(len(held))])
            worse = 1.0 if self.metric == "loss" else -1.0
            gap = (worse * (_metric(given, held.labels, self.metric) - state[OWN])).float().reshape(1)
        return Scores(values=torch.cat([counts, gap]) if self.select == "validation" else gap)

    def aggregate(
        self, updates: Mapping[str, Update], *, scores: Mapping[str, Scores], model: GlobalModel, server: State
    ) -> tuple[GlobalModel, State]:
        """theta = sum_i a_i theta_i over the participants, with weights normalized to sum 1."""
        first = int(server["round"]) == 0
        server = {**server, "round": server["round"] + 1}
        if self.rule == "pardon":
            if first:
                return super().aggregate(updates, scores=scores, model=model, server=server)
            gaps = {name: update.metrics["gap"] for name, update in updates.items()}
            server = self.adjust(server, gaps, done=int(server["round"]) - 1)
        places = [self._place(server, name) for name in updates]
        chosen = server["weights"][places]
        total = chosen.sum()
        shares = chosen / total if float(total) > 0 else torch.full_like(chosen, 1 / len(chosen))
        states = [update.artifacts["model"].tensors() for update in updates.values()]
        return model.with_state(averaged(states, shares.tolist())), server

    def weigh(self, scores: Mapping[str, Scores], *, server: State, clock: Clock) -> State:
        """Adjust the weights by the gaps; the gap of a client that did not take part is 0."""
        if self.select == "validation":
            server = super().weigh(scores, server=server, clock=clock)
        if self.rule == "pardon":
            return server
        gaps = {name: float(score.values[-1]) for name, score in scores.items()}
        return self.adjust(server, gaps, done=clock.round)

    def adjust(self, server: State, gaps: Mapping[str, float], *, done: int) -> State:
        """Adjust the weights by the step d (1 - r / R) / 3 of round r = `done`."""
        every = torch.zeros_like(server["weights"])
        for name, gap in gaps.items():
            every[self._place(server, name)] = gap
        step = self.step / DIVISOR * (1 - done / max(int(server["rounds"]), 1))
        return {**server, "weights": adjust_weights(server["weights"], every, step=step)}

    def _place(self, server: State, name: str) -> int:
        return int((server["clients"] == _client_number(name)).nonzero()[0, 0])


def _client_number(name: str) -> int:
    return int(name.partition(":")[2])


def _metric(given: Tensor, labels: Tensor, metric: Literal["accuracy", "loss"]) -> Tensor:
    if metric == "loss":
        return functional.cross_entropy(given.double(), labels)
    return (given.argmax(1) == labels).double().mean()
