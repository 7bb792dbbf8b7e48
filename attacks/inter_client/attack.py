"""What one honest-but-curious client learns of the others from what it receives, with no images but its own.

It receives a bank with everybody's styles (CCST eqs. 9, 10), a pool without its own (FedAlign) or one interpolation style
(FISC). Rows of single images are asked for their class (logistic regression on its own images), looked up in a gallery
that it suspects, and turned into their mean color. And what it received restyles its own images: how near do these come
to the others' real ones? That is the comparison of FISC with CCST in FISC's figure 6c; it is about pictures that never
leave the client, and says how well a style fits a domain, not whose image anything is.

A case that shows the client its own images is left out: there is nothing to infer. Which domain others are of it cannot
learn, having labeled images of its own only; StableFDG's distributions come without their sender's name, from layers
that draw no images."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from fdgsec.attacks.inter_client.curious_client import SIDE, CuriousClient, drawing
from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import StyleBank
from fdgsec.federation.wire import SERVER, Message
from fdgsec.metrics.measurement import Measurement
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.nn.styles.image_styles import statistics
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child, derangement
from fdgsec.threats.adversary import View
from fdgsec.threats.attack import Answer, Answers, Case, Knowledge, PositiveControl, Question, TargetFacts, Truth


@dataclass(frozen=True, kw_only=True)
class InterClient:
    """Read received styles by one's own images, and restyle up to `images` of these.

    `gallery` and `per_class` are those of the other attacks on rows, whose runs are shared."""

    name: ClassVar[str] = "inter-client"
    reads: ClassVar[frozenset[str]] = frozenset({"StyleBank", "InterpolationStyle"})
    needs: ClassVar[frozenset[str]] = frozenset({"encoder", "class names"})
    gallery: int = 1000
    per_class: int = 60
    images: int = 200

    def plan(self, facts: TargetFacts) -> Sequence[Question]:
        """Ask for the run, and where rows of single images are shared, for as many as the data allow.

        Raises UsageError for an adversary that is no client of the federation."""
        if "own data" not in facts.knows:
            raise UsageError("asks what a client learns of the others; this adversary is none (see --adversary client)")
        single = "ImageStyles" in facts.artifact_kinds
        more = [Question(kind="as_if_released", per_class=self.per_class)] if single else []
        return [Question(kind="released", gallery=self.gallery), *more]

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Answer for every other client what its rows say, and what the own images look like in its style."""
        client = CuriousClient.of(knowledge)
        answers: list[Answer] = []
        for number, case in enumerate(cases):
            rows = client.rows(case)
            if rows is not None:
                answers += client.read(number, case, rows, child(rng, "read", number))
            answers += client.restyled(number, case, child(rng, "restyle", number), images=self.images)
        return answers

    def negative_control(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Read the rows of every case after they went round a random ring; a set of images has no order to lose."""
        client = CuriousClient.of(knowledge)
        answers: list[Answer] = []
        for number, case in enumerate(cases):
            rows = client.rows(case)
            if rows is not None and len(rows) > 1:
                order = derangement(len(rows), child(rng, "ring", number))
                answers += client.read(number, case, rows[order], child(rng, "read", number))
        return answers

    def positive_control(self, knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
        """Two clients whose images are noise about the color of their class, one of them darker; styles of pixels."""
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

    def missing(self, cases: Sequence[Case], knowledge: Knowledge) -> list[Measurement]:
        """One unavailable row where the encoder cannot draw what was received."""
        if not cases or drawing(knowledge.encoder) is not None:
            return []
        reason = f"encoder {knowledge.encoder} gives statistics only and cannot restyle images; use mini or vgg19"
        return [
            Measurement(
                name="frechet_mini", value=None, low=None, high=None, chance=None, chance_kind="none", n=0,
                slice={"column": "stylized"}, unavailable=reason,
            )
        ]  # fmt: skip


def _of_pixels(dataset: DomainDataset) -> Moments:
    return statistics("pixels", dataset)
