"""The threat model: adversaries, attacks and their questions, answers, and the judging of answers."""

from typing import TYPE_CHECKING

from fdgsec.runtime.lazy_imports import lazy_names

if TYPE_CHECKING:
    from fdgsec.threats.adversary import ADVERSARIES, KNOWLEDGE, Adversary, Knowledge, View
    from fdgsec.threats.answers import (
        Answer,
        Exposure,
        GeneratedSets,
        Harm,
        Harmed,
        InferredSize,
        Labels,
        Membership,
        Outcome,
        Palettes,
        Prediction,
        Presence,
        Proportions,
        Ranking,
        Reconstructions,
        Recovered,
    )
    from fdgsec.threats.attack import (
        Answers,
        Attack,
        Case,
        Incomplete,
        PositiveControl,
        Question,
        QuestionKind,
        ReadsModels,
        TargetFacts,
        Truth,
        VariantControl,
    )
    from fdgsec.threats.judging.controls import negative_controls, positive_control
    from fdgsec.threats.judging.judge import Judge
    from fdgsec.threats.judging.permutation_tests import NullRow
    from fdgsec.threats.judging.rules import Rule, each
    from fdgsec.threats.positive_control_data import PlantedStatistics, planted_images, planted_moments, upload
else:
    __getattr__ = lazy_names(__name__, __file__)

__all__ = [
    "ADVERSARIES", "KNOWLEDGE", "Adversary", "Answer", "Answers", "Attack", "Case", "Exposure", "GeneratedSets",
    "Harm", "Harmed", "Incomplete", "InferredSize", "Judge", "Knowledge", "Labels", "Membership", "NullRow",
    "Outcome", "Palettes", "PlantedStatistics", "PositiveControl", "Prediction", "Presence", "Proportions",
    "Question", "QuestionKind", "Ranking", "ReadsModels", "Reconstructions", "Recovered", "Rule", "TargetFacts",
    "Truth", "VariantControl", "View", "each", "negative_controls", "planted_images", "planted_moments",
    "positive_control", "upload",
]  # fmt: skip
