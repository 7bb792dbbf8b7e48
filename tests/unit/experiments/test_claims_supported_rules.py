"""What must not support a claim: an attack that recovers what the claim says cannot be recovered."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fdgsec.experiments.claims.catalogue import ledger
from fdgsec.experiments.claims.columns import Sources
from fdgsec.experiments.claims.measured_runs import ClaimsRequest, MeasuredRuns
from fdgsec.experiments.claims.verdicts import Column, Criterion, Finding, finding, verdicts
from fdgsec.experiments.report.schema import NOT_ANSWERED, TOO_LARGE

Row = Mapping[str, Any]
AUC = Criterion(measurement="auc")
TOO_FEW: Row = {
    "name": "auc", "value": None, "low": None, "high": None, "chance": None, "n": 0, "higher_is": "leak",
    "p_value": None, "unavailable": "too few images of photo", "slice": {TOO_LARGE: "clients of 500"},
}  # fmt: skip
NOT_MEASURED: Row = {
    "name": "auc", "value": None, "low": None, "high": None, "chance": None, "n": 0, "higher_is": "leak",
    "p_value": None, "unavailable": "too few images of cartoon", "slice": {NOT_ANSWERED: "clients of 130"},
}  # fmt: skip


def auc(low: float, high: float, **where: str) -> Row:
    """A row of 200 records whose interval is (low, high)."""
    return {
        "name": "auc", "value": (low + high) / 2, "low": low, "high": high, "chance": 0.5, "n": 200,
        "higher_is": "leak", "p_value": 0.5, "slice": where,
    }  # fmt: skip


def verdict(rows: Sequence[Row], *, compared: float | Sequence[Row] | None = None) -> tuple[str, Finding]:
    """What five runs with the same rows say, and one of them."""
    found = finding(rows, [AUC], controlled=True, compared=compared)
    return verdicts({"claim": [Column(findings=[found] * 5)]})["claim"], found


@pytest.mark.parametrize("name", ["ccst-outsider-reconstruction", "ccst-client-reconstruction"])
def test_pictures_that_pick_their_image_nearly_always_do_not_support_that_none_is_recognized(name: str) -> None:
    """The mean image has the smaller squared error here, as it may for pictures of the right shapes."""
    claim = next(one for one in ledger() if one.id == name)
    rows = []
    for criterion in claim.rows():
        value, half, chance = (0.95, 0.05, 1 / 105) if criterion.measurement == "gallery_top1" else (3.0, 0.5, 0.0)
        if criterion.where.get("over") == "B0":
            value = -1.0
        rows.append({
            "name": criterion.measurement, "slice": {**criterion.where, "domain": "cartoon"}, "value": value,
            "low": value - half, "high": value + half, "chance": chance, "n": 105, "higher_is": "leak", "p_value": 1e-9,
        })  # fmt: skip

    found = finding(rows, claim.rows(), controlled=True)

    assert verdicts({name: [Column(findings=[found] * 5)]})[name] != "supported"


def test_an_attack_that_is_wrong_more_often_than_chance_does_not_support_that_nothing_leaks() -> None:
    """An AUC of .02 is one of .98 with the wrong sign."""
    said, found = verdict([auc(0.0, 0.05, domain="photo")])

    assert said == "undecided"
    assert "worse than the baseline" in found.reservation


def test_an_auc_a_little_below_chance_still_supports() -> None:
    assert verdict([auc(0.47, 0.495, domain="photo")])[0] == "supported"
    assert verdict([auc(0.43, 0.51, domain="photo")])[0] == "supported"


def test_an_attack_that_a_defense_turns_over_does_not_support_that_the_defense_helps() -> None:
    bare, turned = [auc(0.90, 0.96, domain="photo")], [auc(0.02, 0.08, domain="photo")]

    assert verdict([auc(0.49, 0.52, domain="photo")], compared=bare)[0] == "supported"
    assert verdict(turned, compared=bare)[0] == "undecided"


def test_a_question_that_was_not_answered_leaves_the_claim_open() -> None:
    said, found = verdict([auc(0.48, 0.52, domain="photo"), NOT_MEASURED])

    assert said == "undecided"
    assert found.reservation == "not answered: clients of 130"


def test_a_question_that_was_not_answered_does_not_hide_a_contradiction() -> None:
    leak = {**auc(0.90, 0.96, domain="photo"), "p_value": 1e-9}

    assert verdict([leak, NOT_MEASURED])[0] == "contradicted"


def test_clients_for_whom_there_are_too_few_images_leave_the_claim_open() -> None:
    said, found = verdict([auc(0.48, 0.52, domain="cartoon"), TOO_FEW])

    assert (said, found.reservation) == ("undecided", "not answered: clients of 500")


def test_what_a_partly_read_run_without_the_defense_shows_speaks_against_no_defense() -> None:
    """More may leak without the defense than was read, so that the gap may be larger."""
    behind = [{**auc(0.93, 0.95, domain="photo"), "p_value": 1e-9}]
    bare = auc(0.96, 0.98, domain="photo")

    assert verdict(behind, compared=[bare])[0] == "contradicted"
    assert verdict(behind, compared=[{**bare, "unread": "reads 1 of 2 releases that differ"}])[0] == "undecided"


def test_a_domain_without_any_row_leaves_the_claim_open() -> None:
    """Two quiet domains of three say nothing about the third."""
    rows = [auc(0.49, 0.52, domain=name) for name in ("photo", "cartoon")]
    found = finding(rows, [AUC], controlled=True, domains=["photo", "cartoon", "sketch"])
    known = finding(rows, [AUC], controlled=True, domains=["photo", "cartoon"])
    left_out = replace(AUC, without={"domain": "sketch"})

    assert (found.quiet, found.unanswered) == (False, ("no row about sketch",))
    assert known.quiet
    assert finding(rows, [left_out], controlled=True, domains=["photo", "cartoon", "sketch"]).quiet
    assert finding([auc(0.49, 0.52)], [AUC], controlled=True, domains=["sketch"]).quiet  # of all clients together


def test_a_run_is_about_the_domains_that_its_clients_have_images_of(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = next(one for one in ledger() if one.id == "ccst-content")
    assert claim.measured is not None
    report = {"dataset": {"domains": ["art_painting", "cartoon", "photo", "sketch"]}}
    monkeypatch.setattr(MeasuredRuns, "report", lambda *_args, **_settings: report)
    runs = MeasuredRuns(request=ClaimsRequest(dataset="pacs"), reports={})

    assert runs.source_domains(claim, claim.measured, encoder="mini", seed=0) == ["art_painting", "cartoon", "photo"]


@pytest.mark.parametrize("failing", ["positive", "negative", "through-the-target"])
def test_a_run_of_which_any_control_failed_does_not_count(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = next(one for one in ledger() if one.id == "feddag-generators")
    assert claim.measured is not None
    controls = {kind: [{"passed": kind != failing}] for kind in ("positive", "negative", "through-the-target")}
    report = {
        "attacks": [{"name": claim.measured.attack, "status": "done", "controls": controls, "measurements": []}],
        "dataset": {"domains": ["a", "b"]},
    }
    runs = MeasuredRuns(request=ClaimsRequest(dataset="shapes"), reports={})
    monkeypatch.setattr(MeasuredRuns, "report", lambda *_args, **_settings: report)

    assert not Sources(runs=runs, request=runs.request).rows(claim, claim.measured, encoder="", seed=0).controlled
