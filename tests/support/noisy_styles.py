"""Planted styles under a defense that adds Gaussian noise to them, for attacks that know of it."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import Artifact, ImageStyles, StyleStatistics, renumbered
from fdgsec.runtime.random_streams import child
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.positive_control_data import PlantedStatistics, planted_images, planted_moments


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Adds noise of standard deviation `scale` to every number of a style, and `bias` to every mean."""

    scale: float
    bias: float = 0.0

    def __call__(self, artifact: Artifact, images: DomainDataset, rng: torch.Generator) -> Artifact:
        return self.on(artifact, rng)

    def on(self, artifact: Artifact, rng: torch.Generator) -> Artifact:
        assert isinstance(artifact, StyleStatistics | ImageStyles)

        def noisy(name: str, value: Tensor) -> Tensor:
            drawn = value.double() + self.scale * torch.randn(value.shape, generator=child(rng, name)).double()
            return (drawn + self.bias if name == "mean" else drawn.clamp_min(1e-6)).to(value)

        return renumbered(artifact, noisy)


def world(count: int, *, channels: int, domains: int, rng: torch.Generator, spread: float = 1.0) -> Knowledge:
    """An adversary that holds `count` images whose channel means spread over two decades; stds hardly differ."""
    scales = torch.logspace(-1, 1, channels, dtype=torch.float64)
    mean = spread * scales * torch.randn(count, channels, generator=rng, dtype=torch.float64)
    variance = 4 + 0.4 * torch.rand(count, channels, generator=rng, dtype=torch.float64)
    where = torch.arange(count) % domains
    images = planted_images(
        torch.zeros(count, dtype=torch.int64), where, class_names=("any",),
        domain_names=tuple(f"planted {number}" for number in range(domains)),
    )  # fmt: skip
    return Knowledge(
        statistics=PlantedStatistics(moments=planted_moments(mean, variance)), encoder="none",
        class_names=images.class_names, domain_names=images.domain_names, auxiliary=images, unseen=None, own=None,
    )  # fmt: skip


def holding(knowledge: Knowledge, rows: Tensor) -> DomainDataset:
    """Images of a world by number."""
    assert knowledge.auxiliary is not None
    return knowledge.auxiliary.subset(rows)


def knowing(knowledge: Knowledge, rows: Tensor, noise: Noise | None) -> Knowledge:
    """The adversary that holds these images alone, and knows of `noise`."""
    return replace(knowledge, auxiliary=holding(knowledge, rows), defended=noise)
