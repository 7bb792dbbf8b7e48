"""Inter-client leakage: what an honest-but-curious client learns about the others, with no images but its own.

It receives a bank with the styles of all clients (CCST eqs. 9, 10), a pool without its own (FedAlign) or one
interpolation style (FISC). For rows of single images it predicts the class (logistic regression on its own images),
ranks a gallery of candidates, and estimates the mean color. It also restyles its own images with the received styles,
and these are compared with the others' real images. This is the comparison of FISC with CCST in FISC's figure 6c. It
concerns images that never leave the client, and measures how well a style fits a domain, not whose image it is.

A case that shows the client its own images is left out, because there is nothing to infer. The client cannot infer the
others' domain, because its labeled images are all its own. StableFDG's distributions come without their sender's name,
from layers that cannot be decoded into images."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from fdgsec.attacks.inter_client.control import planted_clients
from fdgsec.attacks.inter_client.curious_client import CuriousClient, decoding_encoder
from fdgsec.attacks.statistics.defense_noise import ACCOUNTED
from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child, derangement
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Answer
from fdgsec.threats.attack import Answers, Case, PositiveControl, Question, TargetFacts


@dataclass(frozen=True, kw_only=True)
class InterClient:
    """Read received styles with a model trained on the client's own images, and restyle up to `images` of these.

    `gallery` and `per_class` match the other attacks on rows, whose runs are shared."""

    name: ClassVar[str] = "inter-client"
    reads: ClassVar[frozenset[str]] = frozenset({"StyleBank", "InterpolationStyle"})
    needs: ClassVar[frozenset[str]] = frozenset({"encoder", "class names"})
    accounts_for: ClassVar[frozenset[str]] = ACCOUNTED
    gallery: int = 1000
    per_class: int = 60
    images: int = 200

    def plan(self, facts: TargetFacts) -> Sequence[Question]:
        """Ask for the run, and where rows of single images are shared, for as many as the data allow.

        Raises UsageError for an adversary that is not a client of the federation."""
        if "own data" not in facts.knows:
            raise UsageError("asks what a client learns of the others; this adversary is none (see --adversary client)")
        single = "ImageStyles" in facts.artifact_kinds
        more = [Question(kind="as_if_released", per_class=self.per_class)] if single else []
        return [Question(kind="released", gallery=self.gallery), *more]

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """For every other client, answer from its rows, and restyle the client's own images with its style."""
        client = CuriousClient.of(knowledge)
        answers: list[Answer] = []
        for number, case in enumerate(cases):
            rows = client.rows(case)
            if rows is not None:
                answers += client.read(number, case, rows, child(rng, "read", number))
            answers += client.restyle(number, case, child(rng, "restyle", number), images=self.images)
        return answers

    def negative_control(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Answer with the rows of every case permuted. Sets of restyled images are left out, because they have no
        order."""
        client = CuriousClient.of(knowledge)
        answers: list[Answer] = []
        for number, case in enumerate(cases):
            rows = client.rows(case)
            if rows is not None and len(rows) > 1:
                order = derangement(len(rows), child(rng, "ring", number))
                answers += client.read(number, case, rows[order], child(rng, "read", number))
        return answers

    def positive_control(self, knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
        """Two clients of colored noise images under pixel statistics (fdgsec.attacks.inter_client.control)."""
        return planted_clients(knowledge, rng)

    def missing(self, cases: Sequence[Case], knowledge: Knowledge) -> list[Measurement]:
        """One unavailable row where the encoder cannot decode the received styles."""
        if not cases or decoding_encoder(knowledge.encoder) is not None:
            return []
        reason = f"encoder {knowledge.encoder} gives statistics only and cannot restyle images; use mini or vgg19"
        return [
            Measurement(
                name="frechet_mini", value=None, low=None, high=None, chance=None, chance_kind="none", n=0,
                slice={"column": "stylized"}, unavailable=reason,
            )
        ]  # fmt: skip
