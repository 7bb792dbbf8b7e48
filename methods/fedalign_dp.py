"""FedAlign with losses of single records: what of it can train under DP-SGD.

Gupta, Sutar, Singh & Sethi, CVPR Workshops 2025, https://arxiv.org/abs/2501.15486; extends methods/fedalign.py, whose
equations and algorithms these are. DP-SGD bounds what a record adds to a step, so that no other record of the batch may
enter a record's loss.

Shares: what FedAlign shares.
Differs from FedAlign in what met other records:
* eqs. (17) to (20): supervised contrast compares an anchor with all records and views of the batch. What of it is one
  record's own remains: the anchor's views are its positives, -cos(z, z(v)) / tau, averaged over views; there is no sum over
  other records in a denominator, and nothing pushes. It is 0 where views and image agree (1 - cos in place of -cos).
  Consistency (eq. 21) and Jensen-Shannon (eq. 23) are per record as they are.
* Algorithm 2's b_k: a batch of B shared its draws out among clusters, floor(B |P_k| / |P|) each, so that how many records
  there are decided what each could get. Every record draws by itself: a cluster in proportion to its size, in it a row by
  its weight. For each record that is the paper's law up to the rounding of b_k.
* section 3.4: the discriminator normalizes over the joined batch and, by gradient reversal, reaches the encoder; it is off,
  and there is no other choice. Detached (the authors' code) it changes nothing that is sent; reversed it would need layers
  without batch norm and a noisy step of its own.
* `ignore_pool`, mixing with the batch's own images (the code), and `sums`, by which a loss grows with the batch, are refused.
MixCluster's lambda, AugMix and eq. (3) look at one image at a time; AugMix's chains may be one draw for the batch, which
no record decides. The three views are forwarded one after the other, each a batch of the B records in their order, as
hooks that find per-record gradients expect. The pool is other clients' releases: what it cost is on their accounts. Under
`norm="group"` no layer couples records or works in place."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.federation.artifacts import StyleBank
from fdgsec.methods.fedalign import ClusteredPool, FedAlign
from fdgsec.runtime.errors import UsageError


@dataclass(frozen=True, kw_only=True, eq=False)
class SeparateDraws(ClusteredPool):
    """A clustered pool from which every record draws by itself."""

    def rows(self, count: int, rng: torch.Generator) -> Tensor:
        """Draw a row for each of `count` records: P(row) = |P_k| / |P| times its weight in its cluster."""
        shares = torch.bincount(self.labels).to(self.weights)[self.labels] / len(self.labels)
        return torch.multinomial(shares * self.weights, count, replacement=True, generator=rng)


@dataclass(frozen=True, kw_only=True)
class FedAlignDP(FedAlign):
    """FedAlign per record; `contrast` weighs what is left of eq. (17), the pull between a record's own views."""

    @property
    def trains_through_trainer(self) -> bool:
        """An image, its versions and received styles make a loss."""
        return type(self) is FedAlignDP and (self.local is None or self.local.trains_through_trainer)

    def __post_init__(self) -> None:
        refused = {
            "discriminator": self.discriminator != "off", "ignore_pool": self.ignore_pool, "sums": self.sums,
            "include_self": self.include_self,
        }  # fmt: skip
        for name, given in refused.items():
            if given:
                raise UsageError(
                    f"fedalign-dp has no {name} = {getattr(self, name)!r}: records of a batch would meet there; leave it out."
                )

    @property
    def couples_records(self) -> bool:
        """No term compares records."""
        return False

    def arranged(self, bank: StyleBank, rng: torch.Generator) -> ClusteredPool:
        """Algorithm 2, lines 2 to 8, with draws that do not depend on each other."""
        made = super().arranged(bank, rng)
        assert isinstance(made, ClusteredPool)
        return SeparateDraws(mean=made.mean, std=made.std, labels=made.labels, weights=made.weights)

    def contrasted(self, features: Sequence[Tensor], labels: Tensor) -> Tensor:
        """Give (1 - cos(z, z(v))) / tau, averaged over the views, (B,): eq. (17) with nothing but a record's own views."""
        original, *views = features
        pulls = [1 - functional.cosine_similarity(original, view, dim=1) for view in views]
        return torch.stack(pulls).mean(0) / self.temperature
