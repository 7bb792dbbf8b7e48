"""A control of single variants: where one fails, that variant's rows about it are no evidence, and all others stand."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from fdgsec.metrics.measurement import Control, Goal, Measurement
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Answer, Labels, Prediction
from fdgsec.threats.attack import Answers, Case, PositiveControl, Question, TargetFacts, Truth, VariantControl
from fdgsec.threats.judging.controls import positive_control, variant_controls, without_evidence
from fdgsec.threats.judging.judge import Judge
from tests.unit.threats.test_controls import KNOWLEDGE

CASE = Case(question="as_if_released", views=(), victim="client:0", slice={"domain": "planted"})
CLASSES = torch.arange(40) % 4
ABOUT = {"class_from": "picture"}


@dataclass(frozen=True, kw_only=True)
class TwoDrawers:
    """Answers each class as it is by the variant "sharp", and always the first by "blurred"."""

    name: ClassVar[str] = "drawers"
    reads: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()

    def plan(self, facts: TargetFacts) -> Sequence[Question]:
        return []

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> list[Answer]:
        told = {"sharp": CLASSES, "blurred": 0 * CLASSES}
        pictures = [
            Labels(case=0, slice={**ABOUT, "loss": loss}, predicted=predicted, of="labels", classes=4)
            for loss, predicted in told.items()
        ]
        style = Labels(case=0, slice={"class_from": "style"}, predicted=CLASSES, of="labels", classes=4)
        return [*pictures, style, Prediction(case=0, slice={}, name="style_residual", value=1.0)]

    def negative_control(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        return []

    def positive_control(self, knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
        raise NotImplementedError


CONTROL = VariantControl(
    goal=Goal(measurement="balanced_accuracy", at_least=0.6, where=ABOUT), key="loss", variants=("sharp", "blurred"),
    measurements=frozenset({"balanced_accuracy", "accuracy"}), failed="it shows no class", attack=TwoDrawers(),
    knowledge=KNOWLEDGE, cases=[CASE], truths=[Truth(labels=CLASSES)],
)  # fmt: skip


def controls_of(control: VariantControl) -> dict[str, list[Control]]:
    answers = control.answers(stream(0, "attack"))
    return dict(variant_controls(control, answers, Judge(), stream(0, "world")))


def row(name: str = "balanced_accuracy", value: float = 0.25, **where: str) -> Measurement:
    return Measurement(
        name=name,
        value=value,
        low=value - 0.02,
        high=value + 0.02,
        chance=0.25,
        chance_kind="exact",
        n=400,
        slice=where,
    )


def unread(rows: Sequence[Measurement], control: VariantControl = CONTROL) -> list[str]:
    return [each.unread for each in without_evidence(rows, control, controls_of(control))]


def test_every_variant_is_held_to_the_goal_by_its_own_row():
    sharp, blurred = (controls_of(CONTROL)[variant] for variant in CONTROL.variants)

    assert [(one.measurement.value, one.passed) for one in sharp] == [(1.0, True)]
    assert [(one.measurement.value, one.passed) for one in blurred] == [(0.25, False)]


def test_only_answers_about_the_goal_are_judged():
    assert [answer.slice for answer in CONTROL.answers(stream(0, "attack"))] == [
        {**ABOUT, "loss": "sharp"}, {**ABOUT, "loss": "blurred"}
    ]  # fmt: skip


def test_rows_of_a_variant_that_failed_are_no_evidence_and_all_others_stand():
    said = unread([
        row(loss="blurred", class_from="picture"), row("accuracy", loss="blurred", class_from="picture"), row(loss="sharp", class_from="picture"),
        row(loss="blurred", class_from="exchanged picture"), row("psnr_gain", loss="blurred", class_from="picture"), row(class_from="picture"),
    ])  # fmt: skip

    assert said == ["it shows no class", "it shows no class", "", "", "", ""]


def test_a_quiet_row_of_a_failed_variant_shows_no_protection_and_a_leak_remains_one():
    quiet, loud = without_evidence(
        [row(loss="blurred", class_from="picture"), row(value=0.5, loss="blurred", class_from="picture")],
        CONTROL,
        controls_of(CONTROL),
    )

    assert quiet.verdict == "it shows no class: no evidence of protection"
    assert loud.verdict == "leaks"


def test_a_variant_without_an_answer_on_planted_cases_fails():
    third = replace(CONTROL, variants=("sharp", "absent"))
    (missing,) = controls_of(third)["absent"]

    assert not missing.passed
    assert missing.measurement.slice == {**ABOUT, "loss": "absent"}
    assert unread([row(loss="absent", class_from="picture"), row(loss="sharp", class_from="picture")], third) == [
        "it shows no class",
        "",
    ]


def test_without_planted_cases_no_variant_passes_and_the_reason_is_said():
    none = replace(CONTROL, cases=(), truths=(), lacking="too few images")

    assert [one.measurement.unavailable for each in controls_of(none).values() for one in each] == [
        "too few images"
    ] * 2
    assert unread([row(loss="sharp", class_from="picture")], none) == ["too few images"]


def test_a_row_that_is_unread_already_keeps_its_reason():
    first = replace(row(loss="blurred", class_from="picture"), unread="reads 1 of 2 releases that differ")

    assert unread([first]) == [first.unread]


def test_a_goal_no_higher_than_chance_is_reached_by_nobody():
    low = replace(CONTROL, goal=replace(CONTROL.goal, at_least=0.25))

    assert [one.passed for each in controls_of(low).values() for one in each] == [False, False]


@pytest.mark.parametrize(("without", "passed"), [({}, [True, False]), ({"loss": "blurred"}, [True])])
def test_a_positive_control_holds_no_rows_that_it_leaves_out(without: dict[str, str], passed: list[bool]):
    whole = PositiveControl(
        cases=CONTROL.cases, truths=CONTROL.truths, knowledge=KNOWLEDGE, measurement="balanced_accuracy", at_least=0.6,
        without=without,
    )  # fmt: skip
    answers = CONTROL.answers(stream(0, "attack"))

    assert [one.passed for one in positive_control(whole, answers, Judge(), stream(0, "world"))] == passed
