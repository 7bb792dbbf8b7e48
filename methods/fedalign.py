"""FedAlign: federated domain generalization with cross-client feature alignment.

Gupta, Sutar, Singh & Sethi, CVPR Workshops 2025, https://arxiv.org/abs/2501.15486. Algorithm 1 is the round, eq. (3)
the two views, eqs. (5) and (6) their features and predictions, Algorithm 2 MixCluster on the pool of eqs. (9) and
(10), Algorithm 3 AugMix (fdgsec/nn/training/augmix.py), eqs. (11) to (14) the domain discriminator, (15) to (22) the
alignment of features, (23) that of predictions (fdgsec/nn/training/losses.py), (24) their sum. Extends
methods/fedccrl.py, which has the parts that both papers share: the pool, the views and supervised contrast.

Shares: exactly what FedCCRL shares, the color statistics of a share r of the images each round, to all other clients.
A client completes the pool with those that it sent itself (below eq. (10): "both its own statistics and those collected
from other clients"; `pool="others"` is the authors' code, which leaves them out). They do not come back to it, and are
without the noise of its defenses. The discriminator stays with its client.
Differs from the paper: pool and batch statistics as in FedCCRL (unbiased, 1e-6 inside the root); the pool is clustered
once per client and round, not per batch, because it does not change in between; remainders of the floors b_k go to the
largest clusters and the drawn rows are assigned in random order; contrast and consistency are means over records and
coordinates, for which the weights .1 are meant (`sums` takes eqs. (17) and (21) as printed); L_D has the labels of
eq. (13) and Algorithm 1, not those of eq. (11), and the minus that eq. (14) leaves out; the discriminator is off by
default, because in the authors' code, too, none of its gradient reaches the encoder.
d as Algorithm 2 prints it is a constant, 1 - 1/C, for every image: means of normalized channels are 0. Then
sigma(kd) = .99995 and lambda is Beta's alone; `difficulty="input"` takes the means before normalization."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional, init

from fdgsec.data.domains import as_float
from fdgsec.federation.artifacts import StyleBank
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import SHARED_ROWS, Client, Clock, Inbox, State, Update
from fdgsec.methods.fedccrl import CrossClientAlignment, FedCCRL, Pool, color_statistics, normalized
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.networks.dropout import Dropout
from fdgsec.nn.training.batches import Batch
from fdgsec.nn.training.losses import inconsistency
from fdgsec.nn.training.training_loop import Objective
from fdgsec.nn.training.training_plan import optimizer_memory, optimizer_of, remember
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child, integer_seed

HIDDEN = (1024, 512)
"""Widths of the discriminator's two hidden layers (the authors' code)."""
DROPOUT = 0.3
KEPT = "discriminator."
"""Prefix, in a client's state, of its discriminator's entries."""


def allocation(sizes: Tensor, count: int) -> Tensor:
    """Divide `count` draws among clusters of `sizes` (K,): b_k = floor(B |P_k| / |P|), the rest to the largest."""
    shares = count * sizes // sizes.sum()
    rest = count - int(shares.sum())
    shares[torch.sort(sizes, descending=True, stable=True).indices[:rest]] += 1
    return shares


def cluster_weights(rows: Tensor, labels: Tensor) -> Tensor:
    """The weight of each row (2C numbers) in its cluster: w = v / sum v, v its variance (Algorithm 2, 3 to 8).

    If all variances of a cluster are 0, its rows have equal weights."""
    variance = rows.var(1)
    totals = torch.zeros(int(labels.max()) + 1, dtype=rows.dtype).index_add_(0, labels, variance)[labels]
    sizes = torch.bincount(labels)[labels]
    return torch.where(totals > 0, variance / totals.clamp_min(torch.finfo(rows.dtype).tiny), 1 / sizes)


def difficulty_score(channels: Tensor) -> Tensor:
    """d = 1 - max softmax of each row's channel means (B, C), (B,) (Algorithms 2 and 3)."""
    return 1 - channels.softmax(1).max(1).values


@dataclass(frozen=True, kw_only=True, eq=False)
class ClusteredPool(Pool):
    """A pool with clusters: the cluster of each row, `labels` (R,), and its weight in the cluster, `weights` (R,)."""

    labels: Tensor
    weights: Tensor

    def rows(self, count: int, rng: torch.Generator) -> Tensor:
        """Algorithm 2's CLUSTERSAMPLE: a multinomial draw in each cluster, `count` in all, in random order."""
        drawn = []
        for cluster, share in enumerate(allocation(torch.bincount(self.labels), count).tolist()):
            if share:
                members = (self.labels == cluster).nonzero().flatten()
                drawn.append(members[torch.multinomial(self.weights[members], share, replacement=True, generator=rng)])
        return torch.cat(drawn)[torch.randperm(count, generator=rng)]


def discriminator_network(width: int, rng: torch.Generator) -> nn.Sequential:
    """Build D, from features (B, width) to logits (B, 1): linear, ReLU, batch norm, dropout, twice, and a linear layer.

    Parameters (Glorot normal, as the authors' code has them) and dropout draw from `rng`."""
    layers: list[nn.Module] = []
    for inputs, outputs in zip((width, HIDDEN[0]), HIDDEN, strict=True):
        linear = nn.utils.skip_init(nn.Linear, inputs, outputs)
        layers += [linear, nn.ReLU(), nn.BatchNorm1d(outputs), Dropout(DROPOUT, rng)]
    layers.append(nn.utils.skip_init(nn.Linear, HIDDEN[1], 1))
    for layer in layers:
        if isinstance(layer, nn.Linear):
            init.xavier_normal_(layer.weight, generator=rng)
            init.zeros_(layer.bias)
    return nn.Sequential(*layers)


@dataclass(frozen=True, kw_only=True, eq=False)
class Discriminator:
    """Section 3.4: D, which classifies originals (0) and views (1), with its own optimizer.

    `reversal` is the strength of gradient reversal; with 0 no gradient reaches the features."""

    network: nn.Sequential
    optimizer: torch.optim.Optimizer
    reversal: float

    def oppose(self, features: Sequence[Tensor]) -> Tensor:
        """Step D on L_D (eqs. 12 to 14); return for each record a term of value 0 with gradient -`reversal` dL_D/dZ.

        `features` are those of the originals and of their views, each (B, d). L_D reaches the encoder only by that
        term, as with a gradient reversal layer. The gradient is of D before its step, and L_D does not enter eq.
        (24)."""
        joined = torch.cat(list(features))  # eq. 12
        records = len(features[0])
        seen = joined.detach().requires_grad_()
        domains = torch.ones(len(seen), device=seen.device)  # eq. 13
        domains[:records] = 0
        logits = cast(Tensor, self.network(seen)).flatten().float()
        loss = functional.binary_cross_entropy_with_logits(logits, domains)  # eq. 14
        parameters = list(self.network.parameters())
        slope, *slopes = torch.autograd.grad(loss, [seen, *parameters])
        for parameter, gradient in zip(parameters, slopes, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        if not self.reversal:
            return seen.new_zeros(records)
        pull = (slope * (joined - joined.detach())).sum(1).view(len(features), records).sum(0)
        return -self.reversal * records * pull  # losses are averaged over the records

    def memory(self) -> dict[str, Tensor]:
        """The state that the client stores until its next round."""
        state = {name: value.detach().cpu().clone() for name, value in self.network.state_dict().items()}
        return {KEPT + name: value for name, value in (state | optimizer_memory(self.optimizer)).items()}


@dataclass(frozen=True, kw_only=True)
class FedAlign(FedCCRL):
    """FedAlign with its options; those of the pool, the views and contrast are inherited from FedCCRL.

    `pool` is "complete", with the client's own statistics of the round, or "others", as received. `consistency` weighs
    L_RC (the paper's lambda1, the code's lambda3; 0 disables it), `clusters` is K, `sharpness` the
    k of sigma(kd). `augmix_difficulty` scales AugMix's m by sigma(kd) of the image's channel means (Algorithm 3, 11 and
    12). `discriminator` is "off", "detached" (the authors' code: trained without effect on what is sent),
    or "reversed" (section 3.7): the encoder opposes it by gradient reversal of strength `reversal`."""

    classification: Literal["sum", "mean"] = "mean"
    pool: Literal["complete", "others"] = "complete"
    consistency: float = 0.1
    sums: bool = False
    clusters: int = 7
    sharpness: float = 15.0
    difficulty: Literal["normalized", "input"] = "normalized"
    augmix_difficulty: bool = False
    discriminator: Literal["off", "detached", "reversed"] = "off"
    discriminator_rate: float = 1e-3
    reversal: float = 0.1

    @property
    def couples_records(self) -> bool:
        """Contrast couples records; so do a pool with their statistics, and the reversed discriminator's batch norm."""
        own = self.pool == "complete" and self.mixing and not self.ignore_pool
        return super().couples_records or own or self.discriminator == "reversed"

    def check(self, clients: int) -> None:
        """Raise UsageError for options out of range."""
        super().check(clients)
        if self.clusters < 1 or self.discriminator_rate <= 0 or min(self.consistency, self.reversal) < 0:
            raise UsageError(
                "fedalign needs at least 1 cluster, discriminator_rate above 0, and consistency and reversal at least "
                f"0; got {self.clusters}, {self.discriminator_rate}, {self.consistency} and {self.reversal}."
            )

    def completed(self, bank: StyleBank, client: Client, state: State) -> StyleBank:
        """The complete statistics pool (below eq. 10): the received rows, and those of the images that the client chose
        for this round, which its state names."""
        rows = state.get(SHARED_ROWS)
        if self.pool == "others" or rows is None:
            return bank
        own = color_statistics(client.data, rows)
        owner = torch.full((len(rows),), client.number)
        return StyleBank(
            mean=torch.cat([bank.mean, own.mean]), std=torch.cat([bank.std, own.std]),
            owner=torch.cat([bank.owner, owner]),
        )  # fmt: skip

    def build_pool(self, bank: StyleBank, rng: torch.Generator) -> Pool:
        """Algorithm 2, line 2: k-means on the rows (mu, sigma), with K at most the number of distinct rows."""
        from sklearn.cluster import KMeans  # takes a second to import
        from sklearn.exceptions import ConvergenceWarning

        rows = torch.cat([bank.mean, bank.std], dim=1).to(torch.float64)
        clusters = min(self.clusters, len(torch.unique(rows, dim=0)))
        with warnings.catch_warnings():  # near-duplicate rows may leave a cluster empty
            warnings.simplefilter("ignore", ConvergenceWarning)
            found = KMeans(n_clusters=clusters, random_state=integer_seed(rng)).fit(rows.numpy())
        labels = torch.from_numpy(cast("npt.NDArray[np.int32]", found.labels_).astype(np.int64))
        return ClusteredPool(mean=bank.mean, std=bank.std, labels=labels, weights=cluster_weights(rows, labels))

    def ratio(self, inputs: Tensor, mean: Tensor, std: Tensor, rng: torch.Generator) -> Tensor:
        """Algorithm 2, 17 and 18: lambda = sigma(k d) Beta(alpha, alpha), (B,)."""
        channels = mean if self.difficulty == "input" else (inputs - mean) / std  # X~, line 11
        d = difficulty_score(channels.mean((2, 3)))
        return torch.sigmoid(self.sharpness * d) * super().ratio(inputs, mean, std, rng)

    def augmix_scale(self, pixels: Tensor) -> Tensor | None:
        """Algorithm 3, 11 and 12: sigma(k d), (B,), with `augmix_difficulty`."""
        if not self.augmix_difficulty:
            return None
        return torch.sigmoid(self.sharpness * difficulty_score(normalized(as_float(pixels)).mean((2, 3))))

    def losses(self, features: Sequence[Tensor], logits: Sequence[Tensor], labels: Tensor) -> Tensor:
        """Eq. (24) per record, (B,): FedCCRL's terms, and consistency with the views (eq. 21)."""
        total = super().losses(features, logits, labels)
        if self.consistency:
            original, *views = features
            apart = inconsistency(original, views, summed=self.sums)
            total = total + self.consistency * (len(labels) * apart if self.sums else apart)
        return total

    def contrastive_loss(self, features: Sequence[Tensor], labels: Tensor) -> Tensor:
        """Eq. (18) as a mean over the 2B anchors, or with `sums` as the sum of eq. (17)."""
        mean = super().contrastive_loss(features, labels)
        return 2 * len(labels) * mean if self.sums else mean

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        """FedCCRL's three views with eq. (24), and the training of the discriminator on their features, if any."""
        if self.discriminator == "off":
            return super().objective(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
        pool = self.received_pool(client, inbox, state, child(rng, "pool"))
        discriminator = self.load_discriminator(model, state, child(rng, "discriminator"))
        return OpposedAlignment(method=self, pool=pool, rng=child(rng, "views"), discriminator=discriminator)

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        """Algorithm 1, client side: FedAvg's steps; afterwards the discriminator is stored."""
        if self.discriminator == "off":
            return super().fit(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
        data, state = self.training_set(client, inbox=inbox, state=state, rng=rng)
        network = self.start(client, model=model, state=state)
        objective = self.objective(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
        assert isinstance(objective, OpposedAlignment)
        optimizer = optimizer_of(network.parameters(), self.plan)
        if self.keep_optimizer:
            remember(optimizer, state)
        metrics = client.trainer(
            network, data, objective, self.plan, rng, round=clock.round, rounds=clock.rounds, optimizer=optimizer
        )
        memory = optimizer_memory(optimizer) if self.keep_optimizer else {}
        state = {**state, **memory, **objective.discriminator.memory()}
        artifacts, state = self.results(client, network, data, inbox=inbox, state=state, clock=clock, rng=rng)
        weight = 1.0 if self.weights == "uniform" else float(len(client.data))
        return Update(artifacts=artifacts, weight=weight, metrics=metrics), state

    def load_discriminator(self, model: GlobalModel, state: State, rng: torch.Generator) -> Discriminator:
        """The client's stored discriminator with its optimizer moments; a new one in its first round."""
        width = model.state.state["head.weight"].shape[1]
        made = discriminator_network(width, rng).to(model.blueprint.device)
        optimizer = torch.optim.Adam(made.parameters(), lr=self.discriminator_rate)
        memory = {name.removeprefix(KEPT): value for name, value in state.items() if name.startswith(KEPT)}
        if memory:
            made.load_state_dict({name: memory[name] for name in made.state_dict()})
            remember(optimizer, memory)
        return Discriminator(
            network=made, optimizer=optimizer, reversal=self.reversal if self.discriminator == "reversed" else 0.0
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class OpposedAlignment(CrossClientAlignment):
    """The local objective with a discriminator trained on the same features."""

    discriminator: Discriminator

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """Return the losses, (B,)."""
        found = self.features(batch, model)
        terms = self.method.losses(found, [model.head(given).float() for given in found], batch.labels)
        return terms + self.discriminator.oppose(found)
