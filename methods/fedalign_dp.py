"""FedAlign with per-record losses, for training under DP-SGD.

Gupta, Sutar, Singh & Sethi, CVPR Workshops 2025, https://arxiv.org/abs/2501.15486; extends methods/fedalign.py;
equation and algorithm numbers are the same. DP-SGD bounds the contribution of each record to a step, so a record's loss
must not depend on other records of the batch.

Shares: what FedAlign shares.
Differs from FedAlign in every term that couples records:
* eqs. (17) to (20): supervised contrast compares an anchor with all records and views of the batch. Only the
  attraction within a record remains: the anchor's views are its positives, -cos(z, z(v)) / tau, averaged over views.
  There is no sum over other records in a denominator, hence no repulsion. The term is 0 where views and image agree
  (1 - cos in place of -cos). Consistency (eq. 21) and Jensen-Shannon (eq. 23) are already per record.
* Algorithm 2's b_k: a batch of B divides its draws among clusters, floor(B |P_k| / |P|) each, so that each record's
  draw depends on B. Here every record draws independently: a cluster with probability proportional to its size, then
  a row by its weight. For each record this is the paper's distribution up to the rounding of b_k.
* section 3.4: the discriminator normalizes over the joined batch and, by gradient reversal, affects the encoder; it
  is always off. Detached (the authors' code) it changes nothing that is sent; reversed it would need layers without
  batch norm and a noisy step of its own.
* `pool="complete"`, which adds the client's own statistics to the pool, `ignore_pool`, mixing with the batch's own
  images (the code), and `sums`, by which a loss grows with the batch, are refused.
MixCluster's lambda, AugMix and eq. (3) use one image at a time; AugMix's chains may be one draw for the batch, which
does not depend on any record. The three views are forwarded one after the other, each a batch of the B records in
their order, as hooks for per-record gradients expect. The pool consists of other clients' releases, whose privacy
cost is charged to those clients. Under `norm="group"` no layer couples records or works in place."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.federation.artifacts import StyleBank
from fdgsec.methods.fedalign import ClusteredPool, FedAlign
from fdgsec.runtime.errors import UsageError


@dataclass(frozen=True, kw_only=True, eq=False)
class SeparateDraws(ClusteredPool):
    """A clustered pool from which every record draws independently."""

    def rows(self, count: int, rng: torch.Generator) -> Tensor:
        """Draw a row for each of `count` records: P(row) = |P_k| / |P| times its weight in its cluster."""
        shares = torch.bincount(self.labels).to(self.weights)[self.labels] / len(self.labels)
        return torch.multinomial(shares * self.weights, count, replacement=True, generator=rng)


@dataclass(frozen=True, kw_only=True)
class FedAlignDP(FedAlign):
    """FedAlign per record; `contrast` weighs the rest of eq. (17), the attraction between a record's own views."""

    pool: Literal["complete", "others"] = "others"

    @property
    def trains_through_trainer(self) -> bool:
        """True: a loss depends on one image, its views and received styles."""
        return type(self) is FedAlignDP and (self.local is None or self.local.trains_through_trainer)

    def __post_init__(self) -> None:
        refused = {
            "discriminator": self.discriminator != "off", "ignore_pool": self.ignore_pool, "sums": self.sums,
            "include_self": self.include_self, "pool": self.pool != "others",
        }  # fmt: skip
        for name, given in refused.items():
            if given:
                raise UsageError(
                    f"fedalign-dp has no {name} = {getattr(self, name)!r}: "
                    "it would couple a client's records; leave it out."
                )

    @property
    def couples_records(self) -> bool:
        """False: no term compares records."""
        return False

    def build_pool(self, bank: StyleBank, rng: torch.Generator) -> ClusteredPool:
        """Algorithm 2, lines 2 to 8, with independent draws."""
        made = super().build_pool(bank, rng)
        assert isinstance(made, ClusteredPool)
        return SeparateDraws(mean=made.mean, std=made.std, labels=made.labels, weights=made.weights)

    def contrastive_loss(self, features: Sequence[Tensor], labels: Tensor) -> Tensor:
        """(1 - cos(z, z(v))) / tau, averaged over the views, (B,): eq. (17) with a record's own views only."""
        original, *views = features
        pulls = [1 - functional.cosine_similarity(original, view, dim=1) for view in views]
        return torch.stack(pulls).mean(0) / self.temperature
