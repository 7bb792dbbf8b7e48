"""Dropout from a named random stream, where torch's layer draws from its global one."""

import torch
from torch import Tensor, nn


class Dropout(nn.Module):
    """Dropout that draws from `rng`; without one it is the identity, in training mode too.

    Training gives a network's layers their stream (`seed_dropout`); whoever only evaluates in training mode has none,
    and gets a function of its input."""

    def __init__(self, rate: float, rng: torch.Generator | None = None) -> None:
        super().__init__()
        self.rate = rate
        self.rng = rng

    def forward(self, features: Tensor) -> Tensor:
        """Zero a fraction `rate` of the features (B, d) and scale up the others; identity in evaluation mode."""
        if not self.training or self.rng is None:
            return features
        kept = torch.rand(features.shape, generator=self.rng) >= self.rate
        return features * kept.to(features) / (1 - self.rate)


def seed_dropout(network: nn.Module, rng: torch.Generator) -> None:
    """Let all dropout layers of `network` draw from `rng`."""
    for module in network.modules():
        if isinstance(module, Dropout):
            module.rng = rng
