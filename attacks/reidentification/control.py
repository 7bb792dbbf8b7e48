"""Positive control of re-identification: two-color images, released as projected colors and as spectra."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.federation.artifacts import Amplitudes, Artifact, ImageStyles
from fdgsec.nn.styles.amplitude_spectra import amplitudes
from fdgsec.nn.styles.channel_statistics import Moments, moments
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.attack import Case, PositiveControl, QuestionKind, Truth
from fdgsec.threats.positive_control_data import upload


def planted_lookups(knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
    """Release the colors of 20 of 60 two-color images under a known projection, and their spectra."""
    gallery, released, public = 60, 20, 60
    images = _two_colors(gallery + public, rng)
    statistics = _ColorStatistics(projection=torch.randn(16, 3, generator=rng))
    candidates = images.subset(torch.randperm(gallery, generator=rng))
    mean, std = statistics(candidates.subset(torch.arange(released))).style(unbiased=True)
    seen = amplitudes(as_float(candidates.pixels(torch.arange(released))))
    artifacts: tuple[tuple[QuestionKind, Artifact], ...] = (
        ("released", ImageStyles(mean=mean.float(), std=std.float())),
        ("as_if_released", Amplitudes(values=seen, owner=torch.zeros(released, dtype=torch.int64))),
    )
    cases = [
        Case(
            question=question, views=(upload(artifact),), victim="client:0", slice={"domain": "planted"},
            candidates=candidates,
        )
        for question, artifact in artifacts
    ]  # fmt: skip
    planted = replace(
        knowledge, statistics=statistics, domain_names=("planted",),
        auxiliary=images.subset(torch.arange(gallery, gallery + public)),
    )  # fmt: skip
    truth = Truth(rows=torch.arange(released))
    return PositiveControl(cases=cases, truths=[truth] * 2, knowledge=planted, measurement="top1", at_least=0.9)


@dataclass(frozen=True, kw_only=True, eq=False)
class _ColorStatistics:
    """A synthetic encoder: channels are a fixed `projection` (C, 3) of the pixels' colors."""

    projection: Tensor

    def __call__(self, dataset: DomainDataset) -> Moments:
        """One row of moments per image of `dataset`."""
        return moments(torch.einsum("kc,nchw->nkhw", self.projection, as_float(dataset.pixels())))


def _two_colors(count: int, rng: torch.Generator) -> DomainDataset:
    """Make `count` images of 32 px, checkerboards of two random colors each, whose colors survive cropping and JPEG."""
    colors = torch.randint(0, 256, (count, 2, 3, 1, 1), generator=rng)
    line = torch.arange(32) // 8
    board = ((line.unsqueeze(0) + line.unsqueeze(1)) % 2).to(torch.int64)
    store = torch.where(board.bool(), colors[:, 0], colors[:, 1]).to(torch.uint8)
    nothing = torch.zeros(count, dtype=torch.int64)
    return DomainDataset(
        name="planted", store=store, rows=torch.arange(count), labels=nothing, domains=nothing,
        ids=tuple(f"planted/{number}" for number in range(count)), class_names=("any",), domain_names=("planted",),
    )  # fmt: skip
