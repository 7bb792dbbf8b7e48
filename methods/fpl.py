"""FPL: rethinking federated learning with domain shift, a prototype view.

Huang, Ye, Shi, Li & Du, CVPR 2023. Clients send the mean feature of each class; per class the server clusters them by
FINCH and sends the clusters' means to all clients (cluster prototypes), so that a domain of many clients counts
once. A client pulls its features toward the cluster prototypes of their class and away from the others (contrast,
temperature t), and toward their mean, the unbiased prototype (consistency). Extends methods/fedavg.py.

Shares, every round: up to C x d mean features per participant, besides the model; all cluster prototypes come back at
the start of the next round, so that round 0 has none and trains by cross-entropy alone.
Differs from the paper where the authors' code does: class means are running ones (features as training saw them in the
last local epoch: augmented, under changing weights), so that they need no separate pass; every client's mean has the
same weight in its cluster, whatever its number of images; the consistency term is a mean over the features."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fdgsec.federation.artifacts import Prototypes, Scores
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, ServerNeeds, State, Update
from fdgsec.federation.release_declarations import Release
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.styles.finch import finch
from fdgsec.nn.training.batches import Batch, TrainingSet
from fdgsec.nn.training.training_loop import Objective
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.secret_streams import SecretStream

SLOT = "prototypes"
"""The slot of prototypes, up and down, and the entry of their features in the server's state."""
CLASSES = "prototype_classes"


class ClassMeans(nn.Module):
    """Running sums of features by class over one pass through the data; a repeated record starts the next pass.

    A submodule of the network with buffers outside the state dict: never sent, never averaged."""

    sums: Tensor
    counts: Tensor

    def __init__(self, *, classes: int, width: int, records: int) -> None:
        super().__init__()
        self.register_buffer("sums", torch.zeros(classes, width), persistent=False)
        self.register_buffer("counts", torch.zeros(classes), persistent=False)
        self.seen = torch.zeros(records, dtype=torch.bool)  # on the CPU, as batches name their records

    @torch.no_grad()
    def add(self, features: Tensor, labels: Tensor, records: Tensor) -> None:
        """Add a batch: features (B, d), labels (B,), and which records they are (B,)."""
        if bool(self.seen[records].any()):
            for total in (self.sums, self.counts, self.seen):
                total.zero_()
        self.seen[records] = True
        self.sums.index_add_(0, labels, features.detach().float())
        self.counts.index_add_(0, labels, torch.ones_like(labels, dtype=torch.float32))

    def prototypes(self) -> Prototypes:
        """The mean feature of every class in the pass, on the CPU."""
        classes = self.counts.nonzero().flatten()
        means = self.sums[classes] / self.counts[classes].unsqueeze(1)
        return Prototypes(features=means.cpu(), classes=classes.cpu())


@dataclass(frozen=True)
class PrototypeLoss:
    """Cross-entropy, contrast with the cluster prototypes, and consistency with their means; also sums features.

    Records of a class without prototypes have only cross-entropy."""

    prototypes: Prototypes | None
    temperature: float
    couples_records: bool = False

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """Return the losses, (B,)."""
        features = model.features(batch.images)
        cast(ClassMeans, model.get_submodule("class_means")).add(features, batch.labels, batch.records)
        losses = functional.cross_entropy(model.head(features).float(), batch.labels, reduction="none")
        if self.prototypes is None:
            return losses
        centers = self.prototypes.features.to(losses)
        same = batch.labels.unsqueeze(1) == self.prototypes.classes.to(batch.labels.device)
        with torch.autocast(losses.device.type, enabled=False):  # a cosine in bfloat16 is too coarse to divide by .02
            pulled = contrast(features.float(), centers, same, temperature=self.temperature)
            held = consistency(features.float(), centers, same)
        return losses + torch.where(same.any(1), pulled + held, 0.0)


def contrast(features: Tensor, centers: Tensor, same: Tensor, *, temperature: float) -> Tensor:
    """Return -log(sum over centers of the own class of exp(cos / t), divided by the same sum over all centers), (B,).

    `features` (B, d), `centers` (P, d), `same` (B, P) bool; 0 where no center is of the own class."""
    cosine = functional.normalize(features, dim=1) @ functional.normalize(centers, dim=1).T / temperature
    own = torch.where(same | ~same.any(1, keepdim=True), cosine, -torch.inf)
    return cosine.logsumexp(1) - own.logsumexp(1)


def consistency(features: Tensor, centers: Tensor, same: Tensor) -> Tensor:
    """Return the mean squared difference from the mean of the own class's centers, (B,); from 0 if there are none."""
    belongs = same.to(features)
    unbiased = belongs @ centers / belongs.sum(1, keepdim=True).clamp_min(1)
    return (features - unbiased).square().mean(1)


def cluster_prototypes(received: Mapping[str, Prototypes]) -> Prototypes:
    """Cluster each class's prototypes by FINCH (cosine, last partition); return the clusters' means, class by class.

    A class of a single client keeps that client's prototype."""
    features = torch.cat([sent.features for sent in received.values()]).double()
    classes = torch.cat([sent.classes for sent in received.values()])
    found, labels = [], []
    for label in torch.unique(classes):
        rows = features[classes == label]
        partition = finch(rows)[-1]
        means = [rows[partition == cluster].mean(0) for cluster in torch.unique(partition)]
        found += means
        labels += [label] * len(means)
    return Prototypes(features=torch.stack(found).float(), classes=torch.stack(labels))


@dataclass(frozen=True, kw_only=True)
class FPL(FedAvg):
    """FPL; `temperature` is t (the authors' code has .02; FISC's text says .2)."""

    temperature: float = 0.02

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise UsageError(f"fpl needs a temperature above 0; got {self.temperature}.")

    @property
    def shares(self) -> Literal["never", "once", "every"]:
        """Every round: cluster prototypes come down before training."""
        return "every"

    @property
    def asks_for_shares(self) -> bool:
        """False: prototypes go up only with the update."""
        return False

    @property
    def releases(self) -> Sequence[Release]:
        """The model and class prototypes up, cluster prototypes down."""
        up = Release(stage="update", slot=SLOT, kind=Prototypes)
        return (*super().releases, up, Release(stage="combine", slot=SLOT, kind=Prototypes))

    @property
    def server_needs(self) -> ServerNeeds:
        """Individual prototypes, without names."""
        return ServerNeeds(uploads="unnamed", because="the prototypes of single clients are clustered")

    def check(self, clients: int) -> None:
        """Raise UsageError for a local method, whose objective would be ignored."""
        super().check(clients)
        if self.local is not None:
            raise UsageError("fpl trains its own objective; it takes no local method (drop --with).")

    def combine(
        self, shared: Mapping[str, Inbox], *, server: State, clock: Clock, rng: SecretStream
    ) -> tuple[Mapping[str, Inbox], State]:
        """Send the cluster prototypes of the previous round to every participant."""
        if SLOT not in server:
            return {}, server
        prototypes = Prototypes(features=server[SLOT], classes=server[CLASSES])
        return {name: {SLOT: prototypes} for name in shared}, server

    def start(self, client: Client, *, model: GlobalModel, state: State) -> Classifier:
        """The received model with a `ClassMeans` submodule."""
        network = super().start(client, model=model, state=state)
        means = ClassMeans(classes=network.classes, width=network.features_width, records=len(client.data))
        network.add_module("class_means", means.to(model.blueprint.device))
        return network

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        """Contrast and consistency with the received prototypes, if any."""
        received = inbox.get(SLOT)
        if received is not None and not isinstance(received, Prototypes):
            raise TypeError(f"fpl trains with Prototypes; {client.name} received a {received.kind}.")
        if received is not None:
            device = model.blueprint.device
            received = Prototypes(features=received.features.to(device), classes=received.classes.to(device))
        return PrototypeLoss(received, self.temperature)

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
        """The model, and the mean feature of each class over the last pass."""
        sent, state = super().results(client, network, data, inbox=inbox, state=state, clock=clock, rng=rng)
        means = cast(ClassMeans, network.get_submodule("class_means"))
        return {**sent, SLOT: means.prototypes()}, state

    def aggregate(
        self, updates: Mapping[str, Update], *, scores: Mapping[str, Scores], model: GlobalModel, server: State
    ) -> tuple[GlobalModel, State]:
        """Average the models; cluster the participants' prototypes for the next round."""
        made, server = super().aggregate(updates, scores=scores, model=model, server=server)
        received: dict[str, Prototypes] = {}
        for name, update in updates.items():
            sent = update.artifacts[SLOT]
            if not isinstance(sent, Prototypes):
                raise TypeError(f"fpl clusters Prototypes; {name} sent a {sent.kind}.")
            received[name] = sent
        clusters = cluster_prototypes(received)
        return made, {**server, SLOT: clusters.features, CLASSES: clusters.classes}
