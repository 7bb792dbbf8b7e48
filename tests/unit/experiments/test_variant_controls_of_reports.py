"""A report with a failed control of one variant: its rows alone are no evidence, on paper, in gates and in claims."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch

import fdgsec
from fdgsec.attacks.style_inversion.recognition import fit_classes
from fdgsec.cli.print_report import _controls
from fdgsec.experiments.attack.attack_setting import Outcome
from fdgsec.experiments.attack.kept_outcomes import _document, _outcome
from fdgsec.experiments.claims.verdicts import Criterion, finding
from fdgsec.experiments.gate.judge_gate import gate
from fdgsec.experiments.gate.thresholds import thresholds_of
from fdgsec.experiments.report.findings import finding_of
from fdgsec.experiments.report.html import render
from fdgsec.experiments.report.schema import AttackResult
from fdgsec.experiments.report.stored import report_of
from fdgsec.experiments.report.text import controls_of
from fdgsec.metrics.measurement import Control, Goal, Measurement
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Answer, Labels
from fdgsec.threats.attack import Answers, Case, PositiveControl, Question, TargetFacts, Truth, VariantControl
from tests.unit.experiments.test_report_page import attacked

ABOUT = {"class_from": "picture"}
CLASSES = torch.arange(40) % 4
PLANTED = Case(question="as_if_released", views=(), victim="client:0", slice={"domain": "planted"})
NO_CLASS = "its pictures show no class"


def told_by_styles(case: Case, knowledge: Knowledge) -> torch.Tensor:
    assert knowledge.auxiliary is not None
    public = torch.cat(knowledge.statistics(knowledge.auxiliary).style(unbiased=True), 1)
    return fit_classes(public, knowledge.auxiliary.labels).predict(torch.cat(case.released(), 1))


@dataclass(frozen=True, kw_only=True)
class Drawers:
    """Tells classes from styles, and by the variant "sharp"; by "blurred" it always says the first."""

    name: ClassVar[str] = "drawers"
    reads: ClassVar[frozenset[str]] = frozenset({"ImageStyles"})
    needs: ClassVar[frozenset[str]] = frozenset()
    planted: bool = True

    def plan(self, facts: TargetFacts) -> Sequence[Question]:
        return [Question(kind="as_if_released", per_class=5)]

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        answers = list[Answer]()
        for number, case in enumerate(cases):
            known = CLASSES if case is PLANTED else told_by_styles(case, knowledge)
            told = {"sharp": (ABOUT, known), "blurred": (ABOUT, 0 * known), "": ({"class_from": "style"}, known)}
            answers += [
                Labels(case=number, slice={**where, "loss": loss} if loss else where, predicted=classes, of="labels",
                       classes=7)
                for loss, (where, classes) in told.items()
            ]  # fmt: skip
        return answers

    def negative_control(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        return []

    def positive_control(self, knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
        return PositiveControl(
            cases=[PLANTED], truths=[Truth(labels=CLASSES)], knowledge=knowledge, measurement="balanced_accuracy",
            at_least=0.9, without=ABOUT,
        )  # fmt: skip

    def variant_control(self, knowledge: Knowledge, rng: torch.Generator) -> VariantControl | None:
        if not self.planted:
            return None
        return VariantControl(
            goal=Goal(measurement="balanced_accuracy", at_least=0.6, where=ABOUT), key="loss",
            variants=("sharp", "blurred", "not run"), measurements=frozenset({"balanced_accuracy", "accuracy"}),
            failed=NO_CLASS, attack=self, knowledge=knowledge, cases=[PLANTED], truths=[Truth(labels=CLASSES)],
        )  # fmt: skip


def test_a_run_holds_the_variants_that_it_measured_and_marks_the_rows_of_those_that_fail():
    (result,) = fdgsec.attack("ccst-single", attacks=[Drawers()], per_domain=80, image_size=32).attacks

    assert {(one.measurement.slice["loss"], one.passed) for one in result.variants} == {
        ("sharp", True), ("blurred", False)
    }  # fmt: skip
    assert all(one.passed for one in result.positive)
    unread = {(row.name, row.slice.get("loss")) for row in result.measurements if row.unread}
    assert unread == {("balanced_accuracy", "blurred"), ("accuracy", "blurred")}
    assert {row.unread for row in result.measurements} == {"", NO_CLASS}


def test_an_attack_that_holds_no_variant_to_anything_has_no_such_controls():
    (result,) = fdgsec.attack("ccst-single", attacks=[Drawers(planted=False)], per_domain=80, image_size=32).attacks

    assert not result.variants
    assert not [row for row in result.measurements if row.unread]


def row(loss: str, unread: str = "", name: str = "balanced_accuracy") -> Measurement:
    return Measurement(
        name=name, value=0.14, low=0.12, high=0.16, chance=1 / 7, chance_kind="exact", n=400, p_value=0.6,
        slice={"domain": "photo", "loss": loss, **ABOUT}, unread=unread,
    )  # fmt: skip


PASSED = Control(measurement=row("sharp"), expected=">= 0.1", passed=True)
FAILED = Control(measurement=row("blurred"), expected=">= 0.6", passed=False)
RESULT = AttackResult(
    name="inter-client", adversary={"name": "server", "taps": "own", "knows": []}, status="done", positive=[PASSED],
    variants=[PASSED, FAILED], measurements=[row("sharp"), row("blurred", NO_CLASS)],
)  # fmt: skip


def test_a_stored_report_has_the_controls_of_variants_apart_from_those_of_the_attack():
    report = attacked(attacks=[RESULT])
    document = json.loads(report.json())

    assert [one["passed"] for one in document["attacks"][0]["variant_controls"]] == [True, False]
    assert [one["passed"] for found in document["attacks"][0]["controls"].values() for one in found] == [True]
    assert report_of(document).attacks[0].variants == RESULT.variants


def test_a_report_from_before_there_were_such_controls_is_read():
    document = json.loads(attacked(attacks=[RESULT]).json())
    del document["attacks"][0]["variant_controls"]

    assert not report_of(document).attacks[0].variants


def test_an_attack_that_is_kept_keeps_the_controls_of_its_variants():
    assert _outcome(_document(Outcome(result=RESULT))).result.variants == RESULT.variants


def test_a_failed_variant_is_told_and_does_not_make_the_attack_unreliable():
    finding_here = finding_of(RESULT)

    assert finding_here is not None
    assert finding_here.faults == ()
    assert controls_of(RESULT).endswith("single variants' controls 1/2 passed")
    assert "FAILED" not in _controls([RESULT])
    assert "single variants' controls 1/2 passed" in _controls([RESULT])
    assert "of single variants 1 of 2 passed" in render(attacked(attacks=[RESULT]))


def test_a_gate_believes_the_rows_of_a_variant_that_passed_and_no_others(tmp_path: Path):
    (tmp_path / "report.json").write_text(attacked(attacks=[RESULT]).json())
    limits = [f"inter-client.balanced_accuracy[loss={loss}]=.5" for loss in ("sharp", "blurred")]

    found = gate(tmp_path, thresholds_of(limits, []))

    assert [check.outcome for check in found.checks] == ["passed", "error"]
    assert NO_CLASS in found.checks[1].said


@pytest.mark.parametrize(("loss", "supports"), [("sharp", True), ("blurred", False)])
def test_a_variant_that_failed_supports_no_claim_and_others_do(loss: str, supports: bool):
    rows = [measured.document() for measured in RESULT.measurements]
    criterion = Criterion(measurement="balanced_accuracy", where={**ABOUT, "loss": loss})

    found = finding(rows, [criterion], controlled=True)

    assert found.quiet == supports
    assert found.reservation == ("" if supports else NO_CLASS)


@pytest.mark.parametrize(("loss", "supports"), [("sharp", True), ("blurred", False)])
def test_nor_does_it_by_being_no_better_than_another_rows_picture(loss: str, supports: bool):
    rows = [measured.document() for measured in RESULT.measurements]
    exchanged = replace(row(""), slice={"domain": "photo", "class_from": "exchanged picture"}).document()
    criterion = Criterion(
        measurement="balanced_accuracy", where={**ABOUT, "loss": loss},
        over={"class_from": "exchanged picture", "loss": ""},
    )  # fmt: skip

    assert finding([*rows, exchanged], [criterion], controlled=True).quiet == supports
