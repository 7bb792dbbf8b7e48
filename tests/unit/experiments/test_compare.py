"""Two runs side by side: what differs, what does not compare, and when intervals are apart."""

import json
from pathlib import Path
from typing import Any

import pytest

from fdgsec.cli import main
from fdgsec.experiments.compare import compare
from fdgsec.runtime.errors import FdgsecError

Document = dict[str, Any]


def row(name: str, value: float | None, low: float | None = None, high: float | None = None, **where: str) -> Document:
    return {
        "name": name,
        "slice": where,
        "value": value,
        "low": low,
        "high": high,
        "chance": 0.5,
        "n": 9,
        "verdict": "leaks",
    }


def attack(name: str, *rows: Document, status: str = "done", reason: str = "") -> Document:
    return {
        "name": name,
        "status": status,
        "reason": reason,
        "adversary": {"name": "server"},
        "measurements": list(rows),
    }


def accuracy(value: float, low: float, high: float, domain: str = "sketch") -> Document:
    seen = {"photo": {"value": value + 0.1, "low": low, "high": high + 0.1, "n": 30}}
    return {"unseen_domain": domain, "value": value, "low": low, "high": high, "n": 84, "auc": {"value": 0.6, "n": 84},
            "per_domain": seen}  # fmt: skip


def run(folder: Path, *attacks: Document, settings: Document | None = None, **given: Any) -> Path:
    dataset = {"name": "shapes", "manifest_sha256": "ab", "images": 336, "domains": ["photo", "sketch"], "roles": {}}
    report = {
        "schema": 1, "target": "ccst-overall", "method": "ccst", "preset": "", "dataset": dataset, "encoder": "mini",
        "backbone": None, "seed": 0, "profile": "quick", "accuracy": None, "attacks": list(attacks),
        "transcript_sha256": "cd", "environment": {"code_sha256": "ef"}, **given,
    }  # fmt: skip
    folder.mkdir()
    (folder / "report.json").write_text(json.dumps(report))
    if settings is not None:
        (folder / "config.json").write_text(json.dumps(settings))
    return folder


def compared(tmp_path: Path, first: Document, second: Document) -> Document:
    return compare(run(tmp_path / "a", attack("membership", first)), run(tmp_path / "b", attack("membership", second)))


@pytest.mark.parametrize(
    ("bounds", "overlap"),
    [((0.7, 0.9), False), ((0.6, 0.9), True), ((0.1, 0.2), False), ((0.45, 0.55), True), ((0.7, None), None)],
    ids=["above", "touching", "below", "inside", "without a bound"],
)
def test_intervals_overlap_where_they_share_a_number(
    tmp_path: Path, bounds: tuple[float, float | None], overlap: bool | None
):
    found = compared(tmp_path, row("auc", 0.5, 0.4, 0.6), row("auc", bounds[0], *bounds))

    (measured,) = found["measurements"]
    assert measured["difference"] == pytest.approx(bounds[0] - 0.5)
    assert measured["overlap"] is overlap


def test_rows_are_the_same_where_attack_name_and_slice_are_whatever_their_order(tmp_path: Path):
    first = row("auc", 0.5, domain="photo", size="40")
    second = {**row("auc", 0.75), "slice": {"size": "40", "domain": "photo"}}

    found = compared(tmp_path, first, second)

    assert [measured["difference"] for measured in found["measurements"]] == [0.25]
    assert found["only_first"] == found["only_second"] == []


def test_rows_of_one_run_alone_are_listed_and_not_compared(tmp_path: Path):
    found = compared(tmp_path, row("auc", 0.5, domain="photo"), row("auc", 0.5, domain="cartoon"))

    assert found["measurements"] == []
    assert [lone["slice"] for lone in (*found["only_first"], *found["only_second"])] == [
        {"domain": "photo"}, {"domain": "cartoon"},
    ]  # fmt: skip


def test_what_is_unavailable_has_no_difference(tmp_path: Path):
    found = compared(tmp_path, row("auc", None), row("auc", 0.5, 0.4, 0.6))

    (measured,) = found["measurements"]
    assert (measured["difference"], measured["overlap"]) == (None, None)


def test_settings_that_differ_are_named_by_their_place(tmp_path: Path):
    first = run(tmp_path / "a", settings={"rounds": 1, "options": {"k": 2}, "seed": 0})
    second = run(tmp_path / "b", settings={"rounds": 1, "options": {"k": 3}, "seed": 0, "delta": 1e-5},
                 environment={"code_sha256": "99"})  # fmt: skip

    found = compare(first, second)

    assert found["settings"] == [
        {"name": "options.k", "first": 2, "second": 3},
        {"name": "code", "first": "ef", "second": "99"},
        {"name": "delta", "first": "absent", "second": 1e-5},
    ]
    assert found["unlike"] == []


def test_accuracies_are_compared_score_by_score(tmp_path: Path):
    first = run(tmp_path / "a", accuracy=accuracy(0.3, 0.2, 0.4))
    second = run(tmp_path / "b", accuracy=accuracy(0.5, 0.45, 0.6))

    scores = {found["score"]: found for found in compare(first, second)["accuracy"]}

    assert scores["accuracy on sketch (unseen)"]["difference"] == pytest.approx(0.2)
    assert scores["accuracy on sketch (unseen)"]["overlap"] is False
    assert scores["weighted auc on sketch (unseen)"]["overlap"] is None
    assert scores["accuracy on photo (seen)"]["overlap"] is True


def test_attacks_that_ended_differently_say_how(tmp_path: Path):
    first = run(tmp_path / "a", attack("linkage"), attack("membership"))
    second = run(tmp_path / "b", attack("linkage", status="skipped", reason="too few"))

    assert compare(first, second)["attacks"] == [
        {"name": "linkage", "first": "done", "second": "skipped: too few"},
        {"name": "membership", "first": "done", "second": "not asked for"},
    ]


OTHER = {"name": "shapes", "manifest_sha256": "zz", "images": 84, "domains": ["photo", "sketch"], "roles": {}}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"dataset": {**OTHER, "name": "pacs"}}, "of other datasets: shapes and pacs"),
        ({"dataset": OTHER}, "other images of shapes: 336 and 84"),
        ({"accuracy": accuracy(0.3, 0.2, 0.4, "photo")}, "unseen domains differ: sketch and photo"),
        ({"settings": {"target_domain": "cartoon"}}, "unseen domains differ: sketch and cartoon"),
        ({"encoder": "vgg19"}, "other encoders: mini and vgg19"),
        ({"dataset": {**OTHER, "manifest_sha256": "ab", "roles": {"train": {}}}}, "other roles"),
    ],
    ids=["dataset", "images", "measured domain", "set domain", "encoder", "roles"],
)
def test_what_makes_two_runs_unlike_is_said_first(
    tmp_path: Path, given: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
):
    first = run(tmp_path / "a", attack("membership", row("auc", 0.5, 0.4, 0.6)))
    second = run(tmp_path / "b", attack("membership", row("auc", 0.9, 0.8, 1.0)), **given)

    assert main(["compare", str(first), str(second)]) == 0

    out = capsys.readouterr().out
    assert out.startswith("not alike: ")
    assert said in out
    assert "apart" in out


def test_like_runs_are_printed_without_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    first = run(tmp_path / "a", attack("membership", row("auc", 0.5, 0.4, 0.6), row("median_rank", 3.0)))
    second = run(tmp_path / "b", attack("membership", row("auc", 0.9, 0.8, 1.0), row("median_rank", 1.0)))

    assert main(["compare", str(first), str(second)]) == 0
    short = capsys.readouterr().out
    assert main(["compare", str(first), str(second), "--all"]) == 0
    whole = capsys.readouterr().out

    assert "not alike" not in short
    assert "+0.4" in short
    assert "(1 more rows with --all)" in short
    assert ("median_rank" in short, "median_rank" in whole) == (False, True)


def test_the_document_is_printed_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    first, second = run(tmp_path / "a"), run(tmp_path / "b")

    assert main(["compare", str(first), str(second), "--json"]) == 0

    assert json.loads(capsys.readouterr().out) == compare(first, second)


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "holds no report.json"), ("{", "cannot be read"), ("[]", "is no JSON object"), ("{}", "not a report of schema 1"),
     ('{"schema": 2}', "not a report of schema 1")],
)  # fmt: skip
def test_what_is_no_report_is_refused_in_one_line(
    tmp_path: Path, content: str | None, said: str, capsys: pytest.CaptureFixture[str]
):
    first = run(tmp_path / "a")
    (tmp_path / "b").mkdir()
    if content is not None:
        (tmp_path / "b" / "report.json").write_text(content)

    with pytest.raises(FdgsecError, match=said):
        compare(first, tmp_path / "b")
    assert main(["compare", str(first), str(tmp_path / "b")]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
