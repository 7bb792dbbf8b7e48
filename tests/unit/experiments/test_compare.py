"""Runs side by side: what differs, what does not compare, and when intervals are apart."""

import json
from pathlib import Path
from typing import Any

import pytest

from fdgsec.cli import main
from fdgsec.experiments.compare.compare_runs import compare
from fdgsec.experiments.compare.web_page import sentence
from fdgsec.runtime.checked_files import write_sums
from fdgsec.runtime.errors import FdgsecError, UsageError

Document = dict[str, Any]


def row(
    name: str, value: float | None, low: float | None = None, high: float | None = None, *, n: int = 9,
    chance: float = 0.5, kind: str = "exact", **where: str,
) -> Document:  # fmt: skip
    gone = {} if value is not None else {"unavailable": "too few images"}
    return {
        "name": name, "slice": where, "value": value, "low": low, "high": high, "chance": chance,
        "chance_kind": kind, "n": n, **gone,
    }  # fmt: skip


def attack(name: str, *rows: Document, status: str = "done", reason: str = "", adversary: str = "server") -> Document:
    return {
        "name": name, "status": status, "reason": reason, "seconds": 1.0, "figures": [],
        "adversary": {"name": adversary, "taps": "own", "knows": ["encoder"]},
        "controls": {"positive": [], "negative": []}, "measurements": list(rows),
    }  # fmt: skip


def accuracy(value: float, low: float, high: float, domain: str = "sketch", **more: Any) -> Document:
    seen = {"photo": {"value": value + 0.1, "low": low, "high": high + 0.1, "n": 30}}
    return {"unseen_domain": domain, "value": value, "low": low, "high": high, "n": 84, "auc": {"value": 0.6, "n": 84},
            "per_domain": seen, "steps": {"per_client_and_round": 9.0, "total": 27.0}, **more}  # fmt: skip


def run(folder: Path, *attacks: Document, settings: Document | None = None, **given: Any) -> Path:
    dataset = {"name": "shapes", "manifest_sha256": "ab", "images": 336, "domains": ["photo", "sketch"], "roles": {}}
    style = {"round": 0, "stage": "share", "sender": "client:0", "receiver": "server", "kind": "StyleStatistics",
             "bytes": 8, "sha256": "0" * 64}  # fmt: skip
    report = {
        "schema": 1, "target": "ccst-overall", "method": "ccst", "preset": "", "dataset": dataset, "encoder": "mini",
        "backbone": None, "seed": 0, "profile": "quick", "reused": False, "defenses": [], "guarantees": [],
        "accuracy": None, "attacks": list(attacks), "artifacts": [style], "model_traffic": [], "seconds": 1.0,
        "transcript_sha256": "cd", "environment": {"code_sha256": "ef"}, **given,
    }  # fmt: skip
    folder.mkdir()
    (folder / "report.json").write_text(json.dumps(report))
    write_sums(folder)
    if settings is not None:
        (folder / "config.json").write_text(json.dumps(settings))
    return folder


def compared(tmp_path: Path, *rows: Document) -> Document:
    return compare([run(tmp_path / f"run{place}", attack("membership", each)) for place, each in enumerate(rows)])


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
    assert measured["differences"] == [None, pytest.approx(bounds[0] - 0.5)]
    assert measured["overlap"] == [None, overlap]


def test_rows_are_the_same_where_attack_name_and_slice_are_whatever_their_order(tmp_path: Path):
    first = row("auc", 0.5, domain="photo", size="40")
    second = {**row("auc", 0.75), "slice": {"size": "40", "domain": "photo"}}

    found = compared(tmp_path, first, second)

    assert [measured["differences"] for measured in found["measurements"]] == [[None, 0.25]]
    assert found["alone"] == [0, 0]


def test_rows_of_one_run_alone_are_counted_and_not_compared(tmp_path: Path):
    found = compared(tmp_path, row("auc", 0.5, domain="photo"), row("auc", 0.5, domain="cartoon"))

    assert (found["measurements"], found["alone"]) == ([], [1, 1])


def test_what_is_unavailable_has_no_difference(tmp_path: Path):
    found = compared(tmp_path, row("auc", None), row("auc", 0.5, 0.4, 0.6))

    (measured,) = found["measurements"]
    assert (measured["differences"], measured["overlap"]) == ([None, None], [None, None])


def test_three_runs_are_held_against_the_first_that_has_the_row(tmp_path: Path):
    found = compared(
        tmp_path, row("auc", 0.5, 0.4, 0.6, size="9"), row("auc", 0.5, 0.4, 0.6), row("auc", 0.75, 0.7, 0.8)
    )

    (measured,) = found["measurements"]
    assert [value and value["value"] for value in measured["values"]] == [None, 0.5, 0.75]
    assert (measured["differences"], measured["overlap"]) == ([None, None, 0.25], [None, None, False])


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (row("auc", 0.9, 0.8, 1.0, n=40), "n differs: 9, 40"),
        (row("auc", 0.9, 0.8, 1.0, chance=0.1), "baselines differ: 0.5, 0.1"),
        (row("auc", 0.9, 0.8, 1.0, kind="measured"), "baselines differ"),
        ({**row("auc", 0.9, 0.8, 1.0), "unit": "dB"}, "units differ: none, dB"),
        ({**row("auc", 0.9, 0.8, 1.0), "higher_is": "safe"}, "what higher values mean differs: leak, safe"),
        (row("auc", 0.9, 0.8, 1.0), ""),
    ],
    ids=["count", "baseline", "kind of baseline", "unit", "direction", "alike"],
)
def test_rows_of_another_count_or_baseline_are_not_held_against_each_other(tmp_path: Path, second: Document, said: str):
    (measured,) = compared(tmp_path, row("auc", 0.5, 0.4, 0.6), second)["measurements"]

    assert measured["unlike"].startswith(said)
    assert bool(measured["unlike"]) == bool(said)
    assert (measured["differences"][1] is None, measured["overlap"][1] is None) == (bool(said), bool(said))


def test_settings_that_differ_are_named_by_their_place(tmp_path: Path):
    first = run(tmp_path / "a", settings={"rounds": 1, "options": {"k": 2}, "seed": 0})
    second = run(tmp_path / "b", settings={"rounds": 1, "options": {"k": 3}, "seed": 0, "delta": 1e-5},
                 environment={"code_sha256": "99"})  # fmt: skip

    found = compare([first, second])

    assert found["settings"] == [
        {"name": "options.k", "values": [2, 3]},
        {"name": "code", "values": ["ef", "99"]},
        {"name": "delta", "values": ["absent", 1e-5]},
    ]
    assert found["unlike"] == []


def test_accuracies_are_compared_score_by_score(tmp_path: Path):
    first = run(tmp_path / "a", accuracy=accuracy(0.3, 0.2, 0.4))
    second = run(tmp_path / "b", accuracy=accuracy(0.5, 0.45, 0.6))

    scores = {found["score"]: found for found in compare([first, second])["accuracy"]}

    assert scores["accuracy on sketch (unseen)"]["differences"] == [None, pytest.approx(0.2)]
    assert scores["accuracy on sketch (unseen)"]["overlap"] == [None, False]
    assert scores["weighted auc on sketch (unseen)"]["overlap"] == [None, None]
    assert scores["accuracy on photo (seen)"]["overlap"] == [None, True]


def test_accuracies_after_unequal_steps_have_no_difference(tmp_path: Path):
    steps = {"per_client_and_round": 27.0, "total": 81.0}
    first = run(tmp_path / "a", accuracy=accuracy(0.3, 0.2, 0.4))
    second = run(tmp_path / "b", accuracy=accuracy(0.5, 0.45, 0.6, steps=steps))

    scores = compare([first, second])["accuracy"]

    assert {score["unlike"] for score in scores} == {"27 steps against 9"}
    assert all(score["differences"] == score["overlap"] == [None, None] for score in scores)


def test_attacks_that_ended_differently_say_how(tmp_path: Path):
    first = run(tmp_path / "a", attack("linkage"), attack("membership"))
    second = run(tmp_path / "b", attack("linkage", status="skipped", reason="too few"))

    assert compare([first, second])["attacks"] == [
        {"name": "linkage", "values": ["done", "too few"]},
        {"name": "membership", "values": ["done", "not asked for"]},
    ]


def test_a_run_whose_attacks_failed_is_counted_and_named(tmp_path: Path):
    good = attack("membership", row("auc", 0.9, 0.8, 1.0))
    broken = attack("membership", status="failed", reason="no memory")
    runs = [run(tmp_path / name, each, target=name) for name, each in
            (("fisc", good), ("fedalign", broken), ("ccst-single", good))]  # fmt: skip

    assert "flagged in 2 of 3 runs (fisc and ccst-single), failed in fedalign" in sentence(compare(runs))
    assert "no answer, attacks failed in 1 of 2 runs" in sentence(compare([runs[1], run(tmp_path / "d")]))


OTHER = {"name": "shapes", "manifest_sha256": "zz", "images": 84, "domains": ["photo", "sketch"], "roles": {}}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"dataset": {**OTHER, "name": "pacs"}}, "other datasets: shapes (ccst-overall (a)); pacs"),
        ({"dataset": OTHER}, "other images: 336 (manifest ab)"),
        ({"accuracy": accuracy(0.3, 0.2, 0.4, "photo")}, "other unseen domains: sketch"),
        ({"settings": {"target_domain": "cartoon"}}, "other unseen domains: sketch"),
        ({"encoder": "vgg19"}, "other encoders: mini"),
        ({"dataset": {**OTHER, "manifest_sha256": "ab", "images": 336, "roles": {"train": {"a": 3}}}}, "other roles"),
        ({"seed": 1}, "other seeds: 0"),
        ({"profile": "full"}, "other profiles: quick"),
        ({"settings": {"image_size": 64}}, "other image sizes: 32 px"),
        ({"settings": {"image_size": None}}, "other image sizes: 32 px"),
        ({"settings": {"image_size": 32, "style_size": 64}}, ""),
        ({"settings": {"partition": "single-domain", "clients": 9}}, "other partitions into clients: domain"),
        ({"settings": {"auxiliary": 5}}, "other auxiliary images: the usual share"),
        ({"settings": {"auxiliary": "all"}}, "other auxiliary images: the usual share"),
        ({"settings": {"splits": "official"}}, "other splits into training, validation and test: ccst"),
        ({"settings": {"splits": "own", "validation_share": 0.3}}, "other splits into training, validation and test"),
        ({"settings": {"attack_options": {"membership": {"references": 9}}}}, "other options of membership: defaults"),
        ({"settings": {"attack_options": {"linkage": {"references": 9}}}}, ""),
    ],
    ids=["dataset", "images", "measured domain", "set domain", "encoder", "roles", "seed", "profile", "size",
         "own size", "a size that one run does not state", "partition", "auxiliary images", "all auxiliary images", "splits",
         "share for validation", "options of the attack", "options of another attack"],
)  # fmt: skip
def test_what_makes_two_runs_unlike_is_said_first_and_nothing_is_put_beside_each_other(
    tmp_path: Path, given: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
):
    dataset = {"name": "shapes", "manifest_sha256": "ab", "images": 336, "domains": ["photo", "sketch"],
               "roles": {"train": {"a": 2}}}  # fmt: skip
    first = run(tmp_path / "a", attack("membership", row("auc", 0.5, 0.4, 0.6)), dataset=dataset,
                settings={"image_size": 32, "partition": "domain", "splits": "own"})  # fmt: skip
    second = run(tmp_path / "b", attack("membership", row("auc", 0.9, 0.8, 1.0)),
                 **{"dataset": dataset, "settings": {"image_size": 32}, **given})  # fmt: skip

    assert main(["compare", str(first), str(second), "--out", str(tmp_path / "out")]) == 0

    out, page = capsys.readouterr().out, (tmp_path / "out" / "comparison.html").read_text()
    if not said:
        assert "not comparable" not in out
        return
    assert out.startswith("not comparable: ")
    assert said in out
    assert "intervals apart" not in out
    assert page.index("Not all of these runs are comparable") < page.index('class="sentence"')
    assert "intervals apart" not in page
    assert json.loads((tmp_path / "out" / "comparison.json").read_text())["groups"] == [[0], [1]]


def test_other_adversaries_are_not_comparable(tmp_path: Path):
    first = run(tmp_path / "a", attack("membership", row("auc", 0.5)))
    second = run(tmp_path / "b", attack("membership", row("auc", 0.5), adversary="outsider"))

    found = compare([first, second])

    assert found["groups"] == [[0], [1]]
    assert any(reason.startswith("other adversaries: server") for reason in found["unlike"])


def test_runs_that_are_alike_stand_in_one_group_beside_one_that_is_not(tmp_path: Path):
    rows = [attack("membership", row("auc", 0.5, 0.4, 0.6))]
    runs = [run(tmp_path / name, *rows, encoder=encoder, target=name) for name, encoder in
            (("fisc", "mini"), ("fedalign", "pixels"), ("ccst-single", "mini"))]  # fmt: skip

    found = compare(runs)

    assert found["groups"] == [[0, 2], [1]]
    assert [measured["runs"] for measured in found["measurements"]] == [[0, 2]]


def test_like_runs_are_printed_without_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    first = run(tmp_path / "a", attack("membership", row("auc", 0.5, 0.4, 0.6), row("median_rank", 3.0)))
    second = run(tmp_path / "b", attack("membership", row("auc", 0.9, 0.8, 1.0), row("median_rank", 1.0)))
    command = ["compare", str(first), str(second), "--out", str(tmp_path / "out")]

    assert main(command) == 0
    short = capsys.readouterr().out
    assert main([*command, "--all"]) == 0
    whole = capsys.readouterr().out

    assert "not comparable" not in short
    assert "+0.4, intervals apart" in " ".join(short.split())
    assert "(1 more rows with --all)" in short
    assert ("median_rank" in short, "median rank" in whole) == (False, True)


def test_report_of_two_runs_is_their_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    runs = [str(run(tmp_path / name, attack("membership", row("auc", 0.9, 0.8, 1.0)), target=name))
            for name in ("fisc", "ccst-single")]  # fmt: skip
    where = ["--out", str(tmp_path / "out")]

    assert main(["compare", *runs, *where]) == 0
    compared_ones = capsys.readouterr().out
    assert main(["report", *runs, *where]) == 0

    assert capsys.readouterr().out == compared_ones
    assert "Whose data is it?" in compared_ones


def test_the_document_is_printed_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    first, second = run(tmp_path / "a"), run(tmp_path / "b")

    assert main(["compare", str(first), str(second), "--json", "--out", str(tmp_path / "out")]) == 0

    assert json.loads(capsys.readouterr().out) == compare([first, second])


@pytest.mark.parametrize("missing", ["name", "images"])
def test_a_report_without_its_dataset_is_refused(tmp_path: Path, missing: str):
    dataset = {"name": "shapes", "manifest_sha256": "ab", "images": 336}
    second = run(tmp_path / "b", dataset={key: said for key, said in dataset.items() if key != missing})

    with pytest.raises(UsageError, match=f"not a report of schema 1: KeyError 'dataset.{missing}'"):
        compare([run(tmp_path / "a"), second])


@pytest.mark.parametrize(("names", "said"), [(["a"], "two or more runs"), (["a", "b", "a"], "is given twice")])
def test_too_few_runs_and_one_given_twice_are_refused(tmp_path: Path, names: list[str], said: str):
    runs = {name: run(tmp_path / name) for name in ("a", "b")}

    with pytest.raises(UsageError, match=said):
        compare([runs[name] for name in names])


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path):
    found = compare([run(tmp_path / "a"), run(tmp_path / "b"), run(tmp_path / "c", method="fisc", target="fisc")])

    assert [each["label"] for each in found["runs"]] == ["ccst (a)", "ccst (b)", "fisc"]


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
        compare([first, tmp_path / "b"])
    assert main(["compare", str(first), str(tmp_path / "b"), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n"), (tmp_path / "out").exists()) == ("", 1, False)
