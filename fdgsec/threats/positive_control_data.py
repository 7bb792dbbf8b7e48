"""Data for positive controls: datasets whose per-image statistics are a given table, and views of what is sent.

A positive control needs records that carry information by construction. Their pixels are blank and their rows numbered;
the statistics that the attack computes are looked up by row."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import Artifact
from fdgsec.federation.wire import SERVER, Message
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.threats.adversary import View


@dataclass(frozen=True, kw_only=True, eq=False)
class PlantedStatistics:
    """Per-image statistics read from a table: row i of `moments` belongs to row i of the planted store."""

    moments: Moments

    def __call__(self, dataset: DomainDataset) -> Moments:
        """Give one row of moments per image of `dataset`."""
        return self.moments.rows(dataset.rows)


def planted_images(
    labels: Tensor, domains: Tensor, *, class_names: Sequence[str], domain_names: Sequence[str]
) -> DomainDataset:
    """Make one blank image per entry of `labels` and `domains` ((N,) int64)."""
    size = len(labels)
    return DomainDataset(
        name="planted",
        store=torch.zeros(size, 3, 1, 1, dtype=torch.uint8),
        rows=torch.arange(size),
        labels=labels,
        domains=domains,
        ids=tuple(f"planted/{number}" for number in range(size)),
        class_names=tuple(class_names),
        domain_names=tuple(domain_names),
    )


def lifted(mean: Tensor) -> Tensor:
    """Shift planted channel means so that none is negative, as no amplitude is; nothing else changes."""
    return mean - mean.min()


def planted_moments(mean: Tensor, variance: Tensor, *, pixels: int = 64) -> Moments:
    """Make moments of images of `pixels` pixels from channel means and biased variances (N, C)."""
    count = torch.full((mean.shape[0],), float(pixels), dtype=torch.float64)
    return Moments(count=count, mean=mean.to(torch.float64), m2=variance.to(torch.float64) * pixels)


def upload(artifact: Artifact, *, sender: str = "client:0") -> View:
    """The view of a server that got `artifact` from `sender` before round 0."""
    return View(messages=(Message(round=0, stage="share", sender=sender, receiver=SERVER, artifact=artifact),))


def planted_records(count: int, channels: int, rng: torch.Generator) -> tuple[Moments, DomainDataset]:
    """Make `count` blank images of one domain with independent Gaussian means and variances of `channels` channels."""
    mean = lifted(torch.randn(count, channels, generator=rng, dtype=torch.float64))
    variance = 9 + torch.randn(count, channels, generator=rng, dtype=torch.float64).clamp(-4, 4)
    nothing = torch.zeros(count, dtype=torch.int64)
    images = planted_images(nothing, nothing, class_names=("any",), domain_names=("planted",))
    return planted_moments(mean, variance), images
