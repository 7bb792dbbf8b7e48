"""DSU: uncertainty modeling for out-of-distribution generalization.

Li, Dai, Ge, Liu, Shan & Duan, ICLR 2022, https://arxiv.org/abs/2202.03958. While training, the channel means and stds
of an image's feature maps are replaced by draws around its own, as uncertain as these statistics vary over the batch:
beta = mu + eps Sigma_mu, gamma = sigma + eps Sigma_sigma, then AdaIN to them. Extends methods/fedavg.py.

Shares: what FedAvg shares.
Differs from the paper only where its code fixes details: variances are unbiased with eps = 1e-6 inside the root, the
noise is fresh per image and channel, no statistic is detached, and each of six places (after the first convolution, the
stem and the four stages) acts with `probability` on a whole batch, never at test time. A batch of one image is left
unchanged."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, State
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.styles.feature_styles import PLACES, StageStyleObjective, apply_style, check_places, instance_statistics
from fdgsec.nn.training.batches import to_device
from fdgsec.nn.training.training_loop import Objective
from fdgsec.runtime.errors import UsageError

EPS = 1e-6


def perturb_styles(maps: Tensor, rng: torch.Generator, *, factor: float = 1.0) -> Tensor:
    """Replace the styles of maps (N, C, H, W) by draws around them; `factor` scales the noise."""
    if len(maps) < 2:
        return maps
    mean, std = instance_statistics(maps, eps=EPS)
    return apply_style(
        maps, mean, std, new_mean=_draw_statistic(mean, rng, factor), new_std=_draw_statistic(std, rng, factor)
    )


def _draw_statistic(statistic: Tensor, rng: torch.Generator, factor: float) -> Tensor:
    """Draw from N(statistic, Sigma^2), Sigma^2 the statistic's variance over the batch."""
    spread = (statistic.var(0, keepdim=True) + EPS).sqrt()
    noise = to_device(torch.randn(statistic.shape, generator=rng).to(statistic.dtype), statistic.device)
    return statistic + factor * noise * spread


@dataclass(frozen=True, kw_only=True)
class DSU(FedAvg):
    """DSU with the authors' places, probability and factor."""

    places: tuple[str, ...] = PLACES
    probability: float = 0.5
    factor: float = 1.0

    def __post_init__(self) -> None:
        check_places(self.places, method="dsu")
        if not 0 <= self.probability <= 1 or self.factor < 0:
            raise UsageError(
                f"dsu needs probability in [0, 1] and factor >= 0; got {self.probability} and {self.factor}."
            )
        if self.local is not None:
            raise UsageError("dsu has its own local objective; leave the local method out.")

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        """Cross-entropy under uncertain styles."""
        return StageStyleObjective(self.places, self.probability, partial(perturb_styles, factor=self.factor), rng)
