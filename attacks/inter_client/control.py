"""Positive control of inter-client leakage: two clients of colored noise images under pixel statistics."""

from dataclasses import replace

import torch

from fdgsec.attacks.inter_client.curious_client import SIDE
from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import StyleBank
from fdgsec.federation.wire import SERVER, Message
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.nn.styles.image_styles import statistics
from fdgsec.threats.adversary import Knowledge, View
from fdgsec.threats.attack import Case, PositiveControl, Truth


def planted_clients(knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
    """Two clients whose images are noise around the color of their class, one of them darker, with pixel statistics."""
    own, others, classes = 80, 60, 4
    labels = torch.arange(own + others) % classes
    colors = torch.tensor([[0.4, 0.4, 0.8], [0.8, 0.4, 0.4], [0.4, 0.8, 0.4], [0.7, 0.7, 0.7]])
    shade = torch.where(torch.arange(own + others) < own, 0.0, -0.15)[:, None]
    center = colors[labels] + shade + 0.04 * torch.randn(own + others, 3, generator=rng)
    grain = 0.02 + 0.06 * torch.rand(own + others, 1, 1, 1, generator=rng)
    pixels = center[:, :, None, None] + grain * torch.randn(own + others, 3, SIDE, SIDE, generator=rng)
    images = DomainDataset(
        name="planted", store=(pixels.clamp(0, 1) * 255).round().to(torch.uint8),
        rows=torch.arange(own + others), labels=labels, domains=(shade[:, 0] < 0).long(),
        ids=tuple(f"planted/{number}" for number in range(own + others)), class_names=tuple("abcd"),
        domain_names=("own", "planted"),
    )  # fmt: skip
    mine, theirs = images.subset(torch.arange(own)), images.subset(own + torch.randperm(others, generator=rng))
    mean, std = _of_pixels(theirs).style(unbiased=True)
    bank = StyleBank(mean=mean.float(), std=std.float(), owner=torch.ones(others, dtype=torch.int64))
    message = Message(round=0, stage="broadcast", sender=SERVER, receiver="client:0", artifact=bank)
    order = torch.randperm(others, generator=rng)
    case = Case(
        question="as_if_released", views=(View(messages=(message,)),), victim="client:1",
        slice={"domain": "planted"}, candidates=theirs.subset(order),
    )  # fmt: skip
    truth = Truth(rows=order.argsort(), images=theirs.pixels(), labels=theirs.labels, domains=theirs.domains)
    planted = replace(
        knowledge, statistics=_of_pixels, encoder="pixels", own=mine, auxiliary=None, unseen=None,
        class_names=images.class_names, domain_names=images.domain_names,
    )  # fmt: skip
    return PositiveControl(
        cases=[case], truths=[truth], knowledge=planted, measurement="balanced_accuracy", at_least=0.9
    )


def _of_pixels(dataset: DomainDataset) -> Moments:
    return statistics("pixels", dataset)
