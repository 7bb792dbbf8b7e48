"""How each type of answer is judged: its measurements, and the permutation test behind the negative control.

The table `RULES` holds the types of fdgsec.threats.answers. A type defined elsewhere declares its own rule as a class
attribute: `rule: ClassVar[Rule] = Rule(measure=each(...))`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable

import torch

from fdgsec.metrics.feature_extractors import Extractor
from fdgsec.metrics.image_similarity import PerceptualDistance
from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.random_streams import child
from fdgsec.threats.answers import (
    Answer,
    Exposure,
    GeneratedSets,
    Harmed,
    InferredSize,
    Labels,
    MemberList,
    Membership,
    Palettes,
    Prediction,
    Presence,
    Proportions,
    PublishedMedian,
    Ranking,
    Reconstructions,
    Recovered,
    SetMembership,
)
from fdgsec.threats.judging.estimates import RECOVERY_TEST, measure_predictions, measure_recovered
from fdgsec.threats.judging.galleries import Galleries, Lineup
from fdgsec.threats.judging.groups import Group
from fdgsec.threats.judging.harm import harm_test, measure_harm
from fdgsec.threats.judging.image_sets import measure_sets
from fdgsec.threats.judging.labels import LABEL_TEST, measure_labels
from fdgsec.threats.judging.member_lists import measure_lists
from fdgsec.threats.judging.membership import measure_membership, membership_test
from fdgsec.threats.judging.palettes import measure_palettes
from fdgsec.threats.judging.permutation_tests import NullTest
from fdgsec.threats.judging.properties import PRESENCE_TEST, PROPORTION_TEST, measure_presence, measure_proportions
from fdgsec.threats.judging.published_medians import measure_medians
from fdgsec.threats.judging.rankings import RANKING_TEST, measure_ranking
from fdgsec.threats.judging.reconstructions import RECONSTRUCTION_TEST, measure_reconstructions
from fdgsec.threats.judging.row_exposure import measure_exposure, measure_size
from fdgsec.threats.judging.set_membership import measure_set_membership, set_membership_test


@dataclass(frozen=True, kw_only=True, eq=False)
class JudgingContext:
    """What measurements need: image distances, feature extractors, bootstrap repeats, and prepared galleries."""

    perceptual: Sequence[PerceptualDistance]
    extractors: Sequence[str | Extractor]
    set_limits: Mapping[str, int]
    repeats: int
    lineup: Lineup
    galleries: Galleries = field(default_factory=Galleries)


Measure = Callable[[Sequence[Group], torch.Generator, JudgingContext], list[Measurement]]
"""Turns groups of answers of one type into measurements."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How answers of one type are judged.

    `measure` gets one group at a time, or all groups of the type together (`jointly`) where their numbers are
    comparable only if computed together. `null` tests whether answers depend on the truth; None where there is no such
    test."""

    measure: Measure
    null: NullTest | None = None
    jointly: bool = False


@runtime_checkable
class DeclaresRule(Protocol):
    """A type of answer that brings its own rule."""

    rule: ClassVar[Rule]


def each(measure: Callable[[Group, torch.Generator, JudgingContext], list[Measurement]]) -> Measure:
    """Measure every group on its own, with the random stream that is named after it."""
    return lambda groups, rng, context: [
        row for group in groups for row in measure(group, child(rng, group.name), context)
    ]


RULES: Mapping[type[Answer], Rule] = {
    Ranking: Rule(
        measure=each(lambda group, rng, _context: measure_ranking(group, rng)),
        null=RANKING_TEST,
    ),
    Membership: Rule(
        measure=each(lambda group, rng, context: measure_membership(group, rng, repeats=context.repeats)),
        null=membership_test,
    ),
    SetMembership: Rule(
        measure=each(lambda group, rng, context: measure_set_membership(group, rng, repeats=context.repeats)),
        null=set_membership_test,
    ),
    MemberList: Rule(measure=each(lambda group, _rng, _context: measure_lists(group))),
    Labels: Rule(measure=each(lambda group, _rng, _context: measure_labels(group)), null=LABEL_TEST),
    Proportions: Rule(
        measure=each(lambda group, rng, context: measure_proportions(group, rng, repeats=context.repeats)),
        null=PROPORTION_TEST,
    ),
    Presence: Rule(measure=each(lambda group, _rng, _context: measure_presence(group)), null=PRESENCE_TEST),
    Recovered: Rule(measure=each(lambda group, _rng, _context: measure_recovered(group)), null=RECOVERY_TEST),
    Reconstructions: Rule(
        measure=each(
            lambda group, rng, context: measure_reconstructions(
                group,
                context.perceptual,
                rng,
                repeats=context.repeats,
                lineup=context.lineup,
                galleries=context.galleries,
            )
        ),
        null=RECONSTRUCTION_TEST,
    ),
    GeneratedSets: Rule(
        measure=lambda groups, rng, context: measure_sets(groups, context.extractors, rng, limits=context.set_limits),
        jointly=True,
    ),
    Prediction: Rule(measure=each(lambda group, _rng, _context: measure_predictions(group))),
    PublishedMedian: Rule(measure=each(lambda group, _rng, _context: measure_medians(group))),
    Exposure: Rule(measure=each(lambda group, rng, context: measure_exposure(group, rng, repeats=context.repeats))),
    InferredSize: Rule(measure=each(lambda group, _rng, _context: measure_size(group))),
    Palettes: Rule(measure=each(lambda group, rng, context: measure_palettes(group, rng, repeats=context.repeats))),
    Harmed: Rule(
        measure=each(lambda group, rng, context: measure_harm(group, rng, repeats=context.repeats)),
        null=lambda group, _rng, permutations: harm_test(group, permutations),
    ),
}


def rule_of(kind: type[Answer]) -> Rule:
    """The rule of a type of answer: the one that it declares, else that of the table. Raises TypeError without one."""
    if isinstance(kind, DeclaresRule):
        return kind.rule
    for known in kind.__mro__:
        if known in RULES:
            return RULES[known]
    raise TypeError(
        f"no rule judges {kind.__name__}; answer with a type of fdgsec.threats.answers, or give the class a `rule`."
    )
