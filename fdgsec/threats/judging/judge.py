"""The judge: answers and the truth in, measurements with chance and interval out.

Answers are sorted into groups (`groups.grouped`): one type of answer about one population, the slice of the case merged
with that of the answer. Each type has a rule (`rules.RULES`), and each group a random stream named after it. A
statistic that cannot be computed gives an `unavailable` row with the reason, never a missing one."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from fdgsec.metrics.feature_extractors import Extractor
from fdgsec.metrics.image_similarity import PerceptualDistance
from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.random_streams import child
from fdgsec.threats.attack import Answers, Case, Truth
from fdgsec.threats.judging.galleries import Lineup
from fdgsec.threats.judging.groups import Group, grouped
from fdgsec.threats.judging.permutation_tests import NullRow
from fdgsec.threats.judging.rules import JudgingContext, Rule, rule_of


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Measures answers; `perceptual` are the image distances applied to reconstructions beside PSNR and SSIM.

    `extractors` are the feature networks applied to generated sets; one without weights says so in its rows."""

    perceptual: Sequence[PerceptualDistance] = ()
    extractors: Sequence[str | Extractor] = ("mini",)
    bootstrap_repeats: int = 2000
    lineup: Lineup = field(default_factory=Lineup)

    def measure(
        self, answers: Answers, cases: Sequence[Case], truths: Sequence[Truth], rng: torch.Generator
    ) -> list[Measurement]:
        """Judge every group of answers in the order of first appearance; groups that are judged jointly come last.

        Raises ValueError where an answer does not fit its case, and TypeError for a type of answer without a rule: both
        are faults of the attack, not findings."""
        context = JudgingContext(
            perceptual=self.perceptual, extractors=self.extractors, repeats=self.bootstrap_repeats, lineup=self.lineup
        )
        rows: list[Measurement] = []
        joint: dict[Rule, list[Group]] = {}
        for group in grouped(answers, cases, truths):
            rule = rule_of(group.kind)
            if rule.jointly:
                joint.setdefault(rule, []).append(group)
            else:
                rows += rule.measure([group], rng, context)
        for rule, groups in joint.items():
            rows += rule.measure(groups, rng, context)
        return rows

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
