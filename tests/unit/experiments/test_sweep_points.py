"""points.json keeps what tables and figures are drawn from, and they come out the same; older files are read as they are."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fdgsec.defenses.style_noise import StyleNoise
from fdgsec.experiments.sweep import run_sweep as verb
from fdgsec.experiments.sweep.plots import figures
from fdgsec.experiments.sweep.points import SCHEMA, slim, slimmed, store, stored
from fdgsec.experiments.sweep.run_sweep import Point, SweepRequest, plan, sweep
from fdgsec.experiments.sweep.tables import markdown, spreadsheet, summary
from fdgsec.runtime.progress import NoProgress
from tests.support.swept import attack as measured
from tests.support.swept import guarantee, private, row, trained

HEAD = {
    "schema": 1, "target": "fisc", "dataset": "shapes", "defenses": ["style-noise"], "option": "scale", "protocol": "quick",
    "profile": "quick", "planned": 6, "finished": 6,
}  # fmt: skip
VALUES = (None, 0.01, 0.1, 1.0)


def control(*, passed: bool) -> dict[str, Any]:
    return {**row("auc", 0.5, chance=0.5), "expected": "permutation p = 0.3", "passed": passed}


def whole(value: float | None) -> dict[str, Any]:
    """A point as a report has it: hundreds of rows, of which one per attack is followed, and their controls."""
    rate = 1.0 if value is None else 0.5 / (1 + value)
    others = [row("top1", rate / 3, distance="whitened", population=str(number)) for number in range(150)]
    linkage = [
        *others, row("top1", rate, distance="plain"), row("between_client_sd", 0.02, verdict="descriptive"),
        row("between_client_sd", 0.04, verdict="descriptive", population="1"),
    ]  # fmt: skip
    if value is not None:
        linkage.append(row("top1", rate + 0.1, distance="likelihood ratio"))
    membership = [
        row("auc", 0.5 + rate / 2, chance=0.5), row("auc", 0.5 + rate / 3, chance=0.5, size="130"),
        row("one_candidate_auc", 0.55, verdict="descriptive", line="rehearsal"), row("tpr_at_1pct_fpr", rate / 4, chance=0.01),
        row("one_candidate_auc", 0.95, verdict="descriptive", line="auxiliary images alone"),
    ]  # fmt: skip
    controls = {"positive": [control(passed=True)] * 4, "negative": [control(passed=value != 0.1)]}
    skipped = measured("label-inference", [], status="skipped", reason="reads other things")
    return private(
        value, measured("linkage", linkage, controls=controls), measured("membership", membership, controls=controls), skipped,
    )  # fmt: skip


def points() -> dict[str, Mapping[str, Any]]:
    private_ones = {f"privacy/{value}": whole(value) for value in VALUES}
    return {**private_ones, "accuracy/none": trained(None, 0, 0.6), "accuracy/1": trained(1.0, 0, 0.5)}


def document(given: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {**HEAD, **summary(list(given.values()))}


@pytest.mark.medium
def test_tables_and_figures_of_what_is_kept_are_those_of_the_whole():
    before, after = document(points()), document(slimmed(points()))

    assert after == before
    assert (markdown(after), spreadsheet(after)) == (markdown(before), spreadsheet(before))
    assert figures(after) == figures(before)
    assert set(figures(before)) == {"noise", "pareto"}
    assert "Controls failed at 1 of 4 points." in markdown(after)
    assert after["privacy"][1]["expected"]["membership"] == 0.55


def test_what_was_left_out_is_counted_and_controls_that_failed_are_kept():
    linkage, membership, skipped = slimmed(points())["privacy/0.1"]["attacks"]

    assert (linkage["measured"], membership["measured"], skipped["measured"]) == (154, 5, 0)
    assert [kept["slice"]["distance"] for kept in linkage["measurements"]] == ["plain", "likelihood ratio"]
    assert [kept["name"] for kept in membership["measurements"]] == ["auc", "one_candidate_auc"]
    assert linkage["controls"]["passed"] == 4
    assert [(failed["side"], failed["name"]) for failed in linkage["controls"]["failed"]] == [("negative", "auc")]
    assert skipped["reason"] == "reads other things"


def test_linkage_is_kept_of_every_population():
    given = points()
    for point in given.values():
        for each in point["attacks"][:1]:
            each["measurements"].append(row("top1", 0.9, distance="plain", domain="sketch"))

    kept = slimmed(given)["privacy/0.1"]["attacks"][0]["measurements"]

    assert [one["slice"]["domain"] for one in kept] == ["photo", "photo", "sketch"]
    assert document(slimmed(given)) == document(given)


def test_a_file_shrinks_once_and_stays_readable(tmp_path: Path):
    path = tmp_path / "points.json"
    store(path, points())
    fat, before = path.stat().st_size, document(stored(path))

    slim(path)
    once = path.read_text()
    slim(path)

    assert path.read_text() == once
    assert len(once) < fat / 10
    assert document(stored(path)) == before
    assert json.loads(once)["schema"] == SCHEMA


@pytest.mark.parametrize("changed", ["unfinished", "two sweeps"])
def test_nothing_is_left_out_where_the_followed_rows_cannot_be_told(changed: str, tmp_path: Path):
    given = points()
    if changed == "unfinished":
        del given["privacy/None"]
    else:
        given["privacy/None of another target"] = whole(None)
    path = tmp_path / "points.json"
    store(path, given)
    text = path.read_text()

    slim(path)

    assert path.read_text() == text
    assert slimmed(given) == given


REQUEST = SweepRequest(
    target="ccst-overall", dataset="shapes", defenses=(StyleNoise(),), option="scale", values=(0.01, 0.1, 1.0),
    accuracy_at=(), given={"per_domain": 20, "image_size": 16},
)  # fmt: skip


def finished(_: Path | None, point: Point) -> dict[str, Any]:
    return {**whole(point.value), "settings": point.config.sha256, "guarantees": guarantee(None)}


@pytest.mark.medium
def test_a_sweep_writes_what_it_needs_and_slims_an_older_file_that_it_goes_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(verb, "compute", finished)
    planned = plan(REQUEST, data_root=None)
    older = {point.key: finished(None, point) for point in planned[:3]}
    foreign = {"privacy/none/7/of another sweep": whole(None)}
    store(tmp_path / "older" / "points.json", {**older, **foreign})

    fresh = sweep(REQUEST, data_root=None, out=tmp_path / "new", progress=NoProgress())
    resumed = sweep(REQUEST, data_root=None, out=tmp_path / "older", progress=NoProgress())
    again = sweep(REQUEST, data_root=None, out=tmp_path / "older", progress=NoProgress(), limit=0)

    kept, mixed = (stored(tmp_path / name / "points.json") for name in ("new", "older"))
    assert fresh == resumed == again
    assert sum(len(each["measurements"]) for each in kept[planned[2].key]["attacks"]) == 4
    assert {key: mixed[key] for key in kept} == kept
    assert (
        len(mixed["privacy/none/7/of another sweep"]["attacks"][0]["measurements"]) == 153
    )  # not this sweep's business
    assert (tmp_path / "new" / "noise.png").read_bytes() == (tmp_path / "older" / "noise.png").read_bytes()
