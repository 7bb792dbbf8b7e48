"""FedIIR: out-of-distribution generalization of federated learning via implicit invariant relationships.

Guo, Guo, Cao, Wu & Chang, ICML 2023. Clients whose losses have the same classifier gradient share the same
relation between features and labels. Each client's classifier gradient is therefore kept near an average over clients,
which the server smooths over the rounds (gbar = e gbar + (1 - e) mean, from 0, without bias correction), and clients
minimize cross-entropy + gamma ||grad_head - gbar||^2. Extends methods/fedavg.py.

Shares, every round, before training: the gradient of the mean cross-entropy in the head (C x d + C numbers) under the
received model, from each participant, and with `mean="batches"` how many batches it is over; the smoothed gradient goes
to every participant.
Differs from the paper: the head is one linear layer (the authors' code puts three on PACS), hence its gradient is
(softmax - onehot)^T f / B in closed form, and the penalty needs no second pass backwards; it is measured in evaluation
mode on images as they are (the code: training mode, augmented)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.data.domains import as_float
from fdgsec.federation.artifacts import HeadGradient, Scores
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, ServerNeeds, State
from fdgsec.federation.release_declarations import Release
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.batches import Batch
from fdgsec.nn.training.precision import FLOAT
from fdgsec.nn.training.training_loop import Objective
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.secret_streams import SecretStream

SLOT = "gradient"
"""The slot of head gradients, up and down."""
BATCHES = "batches"


def head_gradient(features: Tensor, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of the batch's mean cross-entropy with respect to a linear head: weight (C, d) and bias (C,).

    It is (softmax - onehot)^T f / B and its column sums over f = 1, differentiable in `features` and `logits`."""
    error = functional.softmax(logits, 1) - functional.one_hot(labels, logits.shape[1]).to(logits)
    return error.T @ features / len(labels), error.mean(0)


@dataclass(frozen=True)
class InvariantLoss:
    """Cross-entropy plus gamma ||grad_head - gbar||^2; the penalty is the batch's, added to each record's loss."""

    target: HeadGradient
    gamma: float
    couples_records: bool = True

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """Return the losses, (B,)."""
        features = model.features(batch.images)
        logits = model.head(features).float()
        losses = functional.cross_entropy(logits, batch.labels, reduction="none")
        with torch.autocast(logits.device.type, enabled=False):
            weight, bias = head_gradient(features.float(), logits, batch.labels)
            away = (weight - self.target.weight.to(weight)).square().sum()
            away = away + (bias - self.target.bias.to(bias)).square().sum()
        return losses + self.gamma * away


@torch.inference_mode()
def mean_head_gradient(network: Classifier, client: Client, *, batch_size: int) -> tuple[HeadGradient, int]:
    """The mean of the batches' head gradients over a client's images, in evaluation mode, and the number of batches.

    In float32, whatever the network trains in, because it is released. The last batch has the same weight as the
    others, even if it is shorter."""
    device = next(network.parameters()).device
    network.to(memory_format=FLOAT.layout).eval()
    weight = torch.zeros(network.classes, network.features_width, dtype=torch.float64, device=device)
    bias = torch.zeros(network.classes, dtype=torch.float64, device=device)
    parts = torch.arange(len(client.data)).split(batch_size)
    for rows in parts:
        images = as_float(client.data.pixels(rows).to(device)).contiguous(memory_format=FLOAT.layout)
        features = network.features(images)
        found = head_gradient(features, network.head(features), client.data.labels[rows].to(device))
        weight += found[0]
        bias += found[1]
    count = len(parts)
    return HeadGradient(weight=(weight / count).float().cpu(), bias=(bias / count).float().cpu()), count


@dataclass(frozen=True, kw_only=True)
class FedIIR(FedAvg):
    """FedIIR; `penalty` is gamma (1e-3 for PACS) and `smoothing` e.

    `mean="batches"` averages over all batches of all participants (the authors' code), "clients" over participants."""

    penalty: float = 1e-3
    smoothing: float = 0.95
    mean: Literal["batches", "clients"] = "batches"

    def __post_init__(self) -> None:
        if self.penalty < 0 or not 0 <= self.smoothing < 1:
            raise UsageError(
                f"fediir needs penalty >= 0 and smoothing in [0, 1); got {self.penalty} and {self.smoothing}."
            )

    @property
    def shares(self) -> Literal["never", "once", "every"]:
        """Head gradients, every round."""
        return "every"

    @property
    def releases(self) -> Sequence[Release]:
        """Besides the model: the head's gradient up, with its number of batches as weight, and the mean down."""
        counts = () if self.mean == "clients" else (Release(stage="share", slot=BATCHES, kind=Scores),)
        gradients = (
            Release(stage="share", slot=SLOT, kind=HeadGradient),
            Release(stage="combine", slot=SLOT, kind=HeadGradient),
        )
        return (*super().releases, *gradients, *counts)

    @property
    def needs_training(self) -> bool:
        """True: gradients are those of a model in training."""
        return True

    @property
    def server_needs(self) -> ServerNeeds:
        """Every client's gradient together with its number of batches."""
        return ServerNeeds(uploads="unnamed", because="gradients are weighed by their clients' batches")

    def check(self, clients: int) -> None:
        """Raise UsageError for a local method, whose objective would be ignored."""
        super().check(clients)
        if self.local is not None:
            raise UsageError("fediir trains its own objective; it takes no local method (drop --with).")

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        """Send the head's gradient under the received model. Raises UsageError without a model or without images."""
        if model is None:
            raise UsageError("fediir shares a gradient under the current model; give --rounds 1 or more.")
        if not len(client.data):
            raise UsageError(f"{client.name} has no images; fediir needs at least one. Use fewer clients or more data.")
        gradient, batches = mean_head_gradient(model.module(), client, batch_size=self.plan.batch_size)
        if self.mean == "clients":
            return {SLOT: gradient}, state
        return {SLOT: gradient, BATCHES: Scores(values=torch.tensor([float(batches)]))}, state

    def combine(
        self, shared: Mapping[str, Inbox], *, server: State, clock: Clock, rng: SecretStream
    ) -> tuple[Mapping[str, Inbox], State]:
        """gbar = e gbar + (1 - e) mean, sent to every participant."""
        counts = [
            float(inbox[BATCHES].tensors()["values"][0]) if BATCHES in inbox else 1.0 for inbox in shared.values()
        ]
        smoothed: dict[str, Tensor] = {}
        for name in ("weight", "bias"):
            sent = [inbox[SLOT].tensors()[name].double() for inbox in shared.values()]
            weighed = [count / sum(counts) * value for count, value in zip(counts, sent, strict=True)]
            mean = torch.stack(weighed).sum(0)
            before = server.get(f"gradient.{name}", torch.zeros_like(mean))
            smoothed[name] = self.smoothing * before + (1 - self.smoothing) * mean
        target = HeadGradient(weight=smoothed["weight"].float(), bias=smoothed["bias"].float())
        memory = {f"gradient.{name}": value for name, value in smoothed.items()}
        return {name: {SLOT: target} for name in shared}, {**server, **memory}

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        """Cross-entropy with a penalty on the distance of the head's gradient to the received one."""
        target = inbox.get(SLOT)
        if not isinstance(target, HeadGradient):
            came = "nothing" if target is None else target.kind
            raise TypeError(f"fediir trains with a HeadGradient; {client.name} received {came}.")
        device = model.blueprint.device
        target = HeadGradient(weight=target.weight.to(device), bias=target.bias.to(device))
        return InvariantLoss(target, self.penalty)
