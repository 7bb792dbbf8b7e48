"""RSC: self-challenging improves cross-domain generalization.

Huang, Wang, Xing & Huang, ECCV 2020, https://arxiv.org/abs/2007.02454. Its steps, numbered as DomainBed's code cites
them: eq. (1) is the gradient of the true class's logit in the features, eq. (2) the mask over the largest gradients,
eq. (3) the muted features, eq. (4) their prediction, section 3.3 the share of a batch that is muted, eq. (5) the loss.
Extends methods/fedavg.py.

Shares: what FedAvg shares.
Differs from the paper: `variant="pooled"` (the default) mutes the pooled features, as DomainBed and CCST's baseline
do; the head is linear, so the gradient of eq. (1) is the head's row of the true class and needs no backward pass. It
mutes features in the top third of each record's gradients, in the records whose confidence falls in the top third of
the batch. `variant="maps"` is the authors' code: positions or channels of the last stage's maps, chosen at random with
probability 1/2 per batch; without its doubling of the batch by mirror images (the plan mirrors), and with its growing
share of the batch held at 1 (that code, made for 20 epochs, fails in the 40th)."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, State
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.batches import Batch
from fdgsec.nn.training.training_loop import Objective
from fdgsec.runtime.errors import UsageError

CHANNELS_DROPPED = 3.2  # the authors' code drops a third of the positions, but 1 / 3.2 of the channels
SMALLEST_FALL = 1e-4  # the smallest loss of confidence that counts, in the authors' code


@dataclass(frozen=True)
class PooledChallenge:
    """Cross-entropy on pooled features with the most predictive ones muted (DomainBed's RSC)."""

    features_dropped: float
    batch_dropped: float
    couples_records: bool = True  # section 3.3 ranks the records of a batch

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """Return eq. (5), (B,)."""
        features = model.features(batch.images).float()
        with torch.no_grad():
            mask = self.mask(features, batch.labels, model)
        return functional.cross_entropy(model.head(features * mask).float(), batch.labels, reduction="none")

    def mask(self, features: Tensor, labels: Tensor, model: Classifier) -> Tensor:
        """The mask: 0 where a feature is muted and 1 elsewhere, (B, d), by eqs. (1), (2) and section 3.3."""
        gradient = model.head.weight[labels].float()
        threshold = torch.quantile(gradient, 1 - self.features_dropped, dim=1, keepdim=True)
        kept = gradient < threshold
        fall = confidence(model, features, labels) - confidence(model, features * kept, labels)
        spared = fall < torch.quantile(fall, 1 - self.batch_dropped)
        return (kept | spared.unsqueeze(1)).to(features.dtype)


@dataclass(frozen=True)
class MapsChallenge:
    """Cross-entropy on feature maps with the most predictive positions or channels muted (the authors' code)."""

    share: float
    dropped: float
    rng: torch.Generator
    couples_records: bool = True

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """Return eq. (5), (B,)."""
        maps = model.maps(batch.images).float()
        positions = bool(torch.rand((), generator=self.rng) < 0.5)
        mask = self.mask(maps.detach(), batch.labels, model, positions=positions)
        logits = model.head(model.neck(maps * mask))
        return functional.cross_entropy(logits.float(), batch.labels, reduction="none")

    @torch.enable_grad()
    def mask(self, maps: Tensor, labels: Tensor, model: Classifier, *, positions: bool) -> Tensor:
        """The mask: 0 where the maps are muted, (B, 1, h, w) for `positions`, else (B, C, 1, 1)."""
        wanted = maps.clone().requires_grad_(True)
        logits = model.head(model.neck(wanted)).float()
        (gradient,) = torch.autograd.grad(logits.gather(1, labels.unsqueeze(1)).sum(), wanted)
        channel = gradient.mean((2, 3))
        score = (maps * channel[..., None, None]).sum(1).flatten(1) if positions else channel
        count = math.ceil(score.shape[1] * (self.dropped if positions else 1 / CHANNELS_DROPPED))
        kept = (score <= _ranked(score, count)).to(maps.dtype)
        shaped = kept.reshape(len(maps), 1, *maps.shape[2:]) if positions else kept[..., None, None]
        with torch.no_grad():
            before = functional.softmax(logits, 1).gather(1, labels.unsqueeze(1)).squeeze(1)
            muted = model.head(model.neck(maps * shaped)).float()
            after = functional.softmax(muted, 1).gather(1, labels.unsqueeze(1)).squeeze(1)
        fall = (before - after - SMALLEST_FALL).clamp_min(0)
        challenged = fall > _ranked(fall.unsqueeze(0), round(len(fall) * self.share)).squeeze(0).clamp_min(0)
        return torch.where(challenged.view(-1, 1, 1, 1), shaped, torch.ones_like(shaped))


def confidence(model: Classifier, features: Tensor, labels: Tensor) -> Tensor:
    """Return the softmax probability of the true class, (B,), for pooled features (B, d)."""
    return functional.softmax(model.head(features).float(), 1).gather(1, labels.unsqueeze(1)).squeeze(1)


def _ranked(values: Tensor, rank: int) -> Tensor:
    """Each row's entry of rank `rank` (0: the largest), (rows, 1); minus infinity beyond the last."""
    if rank >= values.shape[1]:
        return values.new_full((len(values), 1), -torch.inf)
    return values.sort(dim=1, descending=True).values[:, rank : rank + 1]


@dataclass(frozen=True, kw_only=True)
class RSC(FedAvg):
    """RSC; `features_dropped` is the share of muted features (or positions), `batch_dropped` that of a batch's records.

    Only "pooled" uses `batch_dropped`; "maps" starts with 3/10 of the records and adds 2/10 every 10 epochs."""

    variant: Literal["pooled", "maps"] = "pooled"
    features_dropped: float = 1 / 3
    batch_dropped: float = 1 / 3

    def __post_init__(self) -> None:
        if not 0 < self.features_dropped < 1 or not 0 < self.batch_dropped < 1:
            raise UsageError(
                f"rsc needs features_dropped and batch_dropped in (0, 1); got {self.features_dropped} and "
                f"{self.batch_dropped}."
            )

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        """The self-challenging loss."""
        if self.variant == "pooled":
            return PooledChallenge(self.features_dropped, self.batch_dropped)
        share = min(0.3 + 0.2 * (clock.round * self.plan.epochs // 10), 1.0)
        return MapsChallenge(share, self.features_dropped, rng)
