"""The judge: answers and the truth in, measurements with chance and interval out.

Answers are sorted into groups (`groups.grouped`): one type of answer about one population, the slice of the case merged
with that of the answer. Each type has a rule (`rules.RULES`), and each group a random stream named after it. A
statistic that cannot be computed gives an `unavailable` row with the reason, never a missing one.

Pictures are also judged as sets, by every extractor, also where an attack gives reconstructions alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from fdgsec.metrics.feature_extractors import Extractor
from fdgsec.metrics.image_similarity import PerceptualDistance, perceptual_named
from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.errors import WeightsUnavailableError
from fdgsec.runtime.random_streams import child
from fdgsec.threats.answers import GeneratedSets, Reconstructions
from fdgsec.threats.attack import Answers, Case, Truth
from fdgsec.threats.judging.galleries import Lineup
from fdgsec.threats.judging.groups import Group, grouped, unavailable
from fdgsec.threats.judging.permutation_tests import NullRow
from fdgsec.threats.judging.rules import JudgingContext, Rule, rule_of


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Measures answers; `perceptual` are the image distances applied to reconstructions beside PSNR and SSIM.

    `extractors` are the feature networks applied to sets of pictures; of those in `set_limits` a set is judged by so
    many pictures at most, drawn at random. A distance or network without weights says so in its rows. Without
    `reconstructions_as_sets`, only the sets that an attack answers with are judged."""

    perceptual: Sequence[str | PerceptualDistance] = ()
    extractors: Sequence[str | Extractor] = ("mini",)
    set_limits: Mapping[str, int] = field(default_factory=dict)
    reconstructions_as_sets: bool = True
    bootstrap_repeats: int = 2000
    lineup: Lineup = field(default_factory=Lineup)

    def measure(
        self, answers: Answers, cases: Sequence[Case], truths: Sequence[Truth], rng: torch.Generator
    ) -> list[Measurement]:
        """Judge every group of answers in the order of first appearance; groups that are judged jointly come last.

        Raises ValueError where an answer does not fit its case, and TypeError for a type of answer without a rule: both
        are faults of the attack, not findings."""
        pictures = any(isinstance(answer, Reconstructions) for answer in answers)
        distances, rows = self._distances() if pictures else ([], [])
        context = JudgingContext(
            perceptual=distances, extractors=self.extractors, set_limits=self.set_limits,
            repeats=self.bootstrap_repeats, lineup=self.lineup,
        )  # fmt: skip
        joint: dict[Rule, list[Group]] = {}
        for group in grouped([*answers, *self._sets(answers)], cases, truths):
            rule = rule_of(group.kind)
            if rule.jointly:
                joint.setdefault(rule, []).append(group)
            else:
                rows += rule.measure([group], rng, context)
        for rule, groups in joint.items():
            rows += rule.measure(groups, rng, context)
        return rows

    def _distances(self) -> tuple[list[PerceptualDistance], list[Measurement]]:
        """The perceptual distances whose weights are stored, and a row for each that lacks them."""
        known: list[PerceptualDistance] = []
        rows: list[Measurement] = []
        for distance in self.perceptual:
            try:
                known.append(perceptual_named(distance) if isinstance(distance, str) else distance)
            except WeightsUnavailableError as error:
                rows += unavailable([str(distance), f"{distance}_gain"], {}, str(error))
        return known, rows

    def _sets(self, answers: Answers) -> Answers:
        """Reconstructions as sets of pictures, unless the attack answers with sets of its own."""
        if not self.reconstructions_as_sets or any(isinstance(answer, GeneratedSets) for answer in answers):
            return []
        return [
            GeneratedSets(case=answer.case, slice=answer.slice, images=answer.images, name="reconstructions")
            for answer in answers
            if isinstance(answer, Reconstructions) and len(answer.images)
        ]

    def null(
        self,
        answers: Answers,
        cases: Sequence[Case],
        truths: Sequence[Truth],
        rng: torch.Generator,
        *,
        permutations: int = 999,
    ) -> list[NullRow]:
        """Test for each group whether the answers depend on the truth at all: for answers that must not.

        Types of answer without a test, and groups without a truth, give no row."""
        rows = []
        for group in grouped(answers, cases, truths):
            test = rule_of(group.kind).null
            row = None if test is None else test(group, child(rng, group.name), permutations)
            rows += [] if row is None else [row]
        return rows
