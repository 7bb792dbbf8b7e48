"""A gate passes what keeps its limit and was measured reliably, and nothing else."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as xml

import pytest

from fdgsec.cli import main
from fdgsec.experiments.gate.judge_gate import gate
from fdgsec.experiments.gate.thresholds import Threshold, thresholds_of
from fdgsec.experiments.report.schema import AttackResult
from fdgsec.metrics.measurement import Control, Measurement
from fdgsec.runtime.checked_files import write_sums
from fdgsec.runtime.errors import UsageError
from tests.unit.experiments.test_report_page import attacked, row, trained

ADVERSARY = {"name": "server"}
GOOD = Control(measurement=row("auc", 0.9, 0.8, 1.0, 0.5), expected="at least .8", passed=True)
BAD = replace(GOOD, passed=False)
LOW = row("auc", 0.5, 0.46, 0.54, 0.5, domain="photo")
HIGH = row("auc", 0.7, 0.65, 0.75, 0.5, domain="sketch")


def membership(*rows: Measurement, **changes: Any) -> AttackResult:
    given = AttackResult(name="membership", adversary=ADVERSARY, status="done", positive=[GOOD], measurements=rows)
    return replace(given, **changes)


def run(folder: Path, *results: AttackResult, **changes: Any) -> Path:
    folder.mkdir()
    (folder / "report.json").write_text(attacked(attacks=list(results), **changes).json())
    write_sums(folder)
    return folder


def outcomes(run: Path, most: Sequence[str] = (), least: Sequence[str] = (), **options: Any) -> list[str]:
    return [check.outcome for check in gate(run, thresholds_of(most, least), **options).checks]


def test_all_rows_of_a_measurement_are_held_against_the_limit_and_brackets_choose_some(tmp_path: Path):
    found = run(tmp_path / "run", membership(LOW, HIGH))

    assert outcomes(found, ["membership.auc=.55"]) == ["passed", "failed"]
    assert outcomes(found, ["membership.auc[domain=photo]=.55"]) == ["passed"]
    assert outcomes(found, ["membership.auc=.75"]) == ["passed", "passed"]


def test_the_end_of_the_interval_is_held_against_the_limit_unless_the_value_is_asked_for(tmp_path: Path):
    found = run(tmp_path / "run", membership(LOW))

    assert outcomes(found, ["membership.auc=.52"]) == ["failed"]
    assert outcomes(found, ["membership.auc=.52"], judged_by="value") == ["passed"]


def test_a_row_without_an_interval_is_judged_by_its_value_alone(tmp_path: Path):
    bare = Measurement(name="auc", value=0.5, low=None, high=None, chance=None, chance_kind="none", n=9)
    found = run(tmp_path / "run", membership(bare))

    assert outcomes(found, ["membership.auc=.6"]) == ["error"]
    assert outcomes(found, ["membership.auc=.6"], judged_by="value") == ["passed"]


def test_a_measurement_of_which_more_is_safe_has_a_least_value(tmp_path: Path):
    error = replace(row("relative_error", 0.8, 0.7, 0.9, 1.0), higher_is="safe")
    found = run(tmp_path / "run", membership(error))

    assert outcomes(found, least=["membership.relative_error=.6"]) == ["passed"]
    assert outcomes(found, least=["membership.relative_error=.75"]) == ["failed"]


GONE = Measurement(
    name="auc", value=None, low=None, high=None, chance=None, chance_kind="none", n=0, unavailable="too few images"
)
OPEN = replace(GONE, name="exposed_fraction", slice={"not answered": "rounds of 500 images each"})


@pytest.mark.parametrize(
    ("results", "limit", "said"),
    [
        ([membership(LOW, positive=[BAD])], "membership.auc=1", "1 of 1 positive controls failed"),
        ([membership(LOW, negative=[GOOD, BAD])], "membership.auc=1", "1 of 2 negative controls failed"),
        ([membership(LOW, target=BAD)], "membership.auc=1", "1 of 1 through-the-target controls failed"),
        ([membership(LOW, positive=[])], "membership.auc=1", "no positive control"),
        ([membership(replace(LOW, not_adapted_to="row-clip"))], "membership.auc=1", "not adapted to row-clip"),
        ([membership(replace(LOW, unread="reads no sums"))], "membership.auc=1", "reads no sums"),
        ([membership(row("auc", 0.02, 0.0, 0.05, 0.5))], "membership.auc=.55", "worse than chance"),
        ([membership(LOW, OPEN)], "membership.auc=.55", "rounds of 500 images each was not answered: too few images"),
        ([membership(GONE)], "membership.auc=1", "unavailable: too few images"),
        ([membership(LOW)], "linkage.top1=1", "linkage was not run"),
        ([membership(LOW)], "membership.top1=1", "has no row top1; it measured auc"),
        ([membership(LOW)], "membership.auc[domain=phto]=1", "its rows have domain: photo"),
        ([membership(status="failed", reason="no memory")], "membership.auc=1", "failed: no memory"),
        ([membership(status="skipped", reason="not applicable: sends no styles")], "membership.auc=1", "not applicable"),
        ([membership(LOW)], "guarantee.epsilon=8", "no guarantee"),
    ],
)  # fmt: skip
def test_what_is_missing_failed_inapplicable_or_unreliable_does_not_pass(
    results: list[AttackResult], limit: str, said: str, tmp_path: Path
):
    found = gate(run(tmp_path / "run", *results), thresholds_of([limit], []))

    assert [check.outcome for check in found.checks] == ["error"]
    assert said in found.checks[0].said
    assert not found.passed


def test_inapplicable_attacks_may_be_skipped_but_not_all_and_not_those_that_had_too_few_images(tmp_path: Path):
    away = membership(status="skipped", reason="not applicable: sends no styles")
    few = replace(away, name="linkage", reason="not run: too few images")
    found = run(tmp_path / "run", away, few, replace(membership(LOW), name="differencing"))

    both = gate(found, thresholds_of(["membership.auc=1", "differencing.auc=1"], []), allow_inapplicable=True)
    assert ([check.outcome for check in both.checks], both.passed) == (["skipped", "passed"], True)
    assert not gate(found, thresholds_of(["membership.auc=1"], []), allow_inapplicable=True).passed
    assert outcomes(found, ["linkage.top1=1"], allow_inapplicable=True) == ["error"]


def test_accuracies_and_guarantees_have_limits_too(tmp_path: Path):
    run_wide = {"part": "run", "epsilon": 4.0, "delta": 1e-5, "unit": "record"}
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "report.json").write_text(
        replace(trained(), guarantees=[run_wide], dataset={"name": "pacs", "images": 9, "domains": ["photo"]}).json()
    )

    least = ["accuracy.unseen=.5", "accuracy.photo=.55"]
    assert outcomes(folder, ["guarantee.epsilon=4"], least) == ["passed", "passed", "failed"]
    assert outcomes(folder, ["guarantee.epsilon=3.9"]) == ["failed"]


def test_a_number_that_was_edited_is_no_number_to_judge(tmp_path: Path):
    found = run(tmp_path / "run", membership(HIGH))
    path = found / "report.json"
    document = json.loads(path.read_text())
    (row,) = document["attacks"][0]["measurements"]
    row |= {"value": 0.5, "low": 0.45, "high": 0.54}
    path.write_text(json.dumps(document))
    (found / "SHA256SUMS").unlink()

    with pytest.raises(UsageError, match="contradicts itself"):
        outcomes(found, ["membership.auc=.55"])


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(-1.0, 1e-5), (-0.001, 1e-5), (True, 1e-5), ("one", 1e-5), (1.0, -1), (1.0, 1.5), (1.0, False), (1.0, "small")],
)
def test_what_no_guarantee_can_be_does_not_pass(epsilon: object, delta: object, tmp_path: Path):
    stated = {"part": "run", "epsilon": epsilon, "delta": delta, "unit": "record", "relation": "zero-out"}
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "report.json").write_text(replace(trained(), guarantees=[stated]).json())

    assert outcomes(folder, ["guarantee.epsilon=8"]) == ["error"]


def test_an_attack_that_would_not_read_the_release_is_not_taken_for_one_that_does_not_apply(tmp_path: Path):
    reason = "not run: the release 'style' is not the pooled style of its images"
    found = run(tmp_path / "run", membership(status="skipped", reason=reason), replace(membership(LOW), name="linkage"))

    assert outcomes(found, ["membership.auc=.6", "linkage.auc=1"], allow_inapplicable=True) == ["error", "passed"]


@pytest.mark.parametrize(
    ("delta", "brackets", "outcome"),
    [
        (1e-5, "", "passed"), (0.99, "", "error"), (0.99, "[delta=.99]", "passed"), (1e-5, "[delta=1e-6]", "error"),
        (1e-5, "[unit=client]", "error"), (1e-5, "[unit=record]", "passed"),
        (1e-5, "[relation=replace-one]", "error"), (1e-5, "[unit=record,relation=zero-out]", "passed"),
    ],
)  # fmt: skip
def test_an_epsilon_counts_at_a_small_delta_and_for_what_is_asked_for(
    delta: float, brackets: str, outcome: str, tmp_path: Path
):
    stated = {"part": "run", "epsilon": 0.0, "delta": delta, "unit": "record", "relation": "zero-out"}
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "report.json").write_text(replace(trained(), guarantees=[stated]).json())

    assert outcomes(folder, [f"guarantee.epsilon{brackets}=8"]) == [outcome]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--max", "guarantee.epsilon[units=client]=8"], "did you mean 'unit'?"),
        (["--max", "guarantee.epsilon[unit=clients]=8"], "did you mean 'client'?"),
        (["--max", "guarantee.epsilon[delta=2]=8"], "delta is a number from 0 to 1"),
        (["--min", "accuracy.unseen[domain=photo]=.5"], "an accuracy has no slices"),
        ([], "a gate needs limits"),
        (["--max", "membrship.auc=.5"], "did you mean 'membership'?"),
        (["--max", "membership.acu=.5"], "did you mean 'auc'?"),
        (["--max", "membership.auc[domian=photo]=.5"], "did you mean 'domain'?"),
        (["--max", "membership.auc"], "expected ATTACK.MEASUREMENT=LIMIT"),
        (["--max", "membership.auc=much"], "'much' is no number"),
        (["--max", "membership.auc=nan"], "must be finite"),
        (["--max", "membership.auc=inf"], "must be finite"),
        (["--max", "membership.auc=7"], "membership.auc is from 0 to 1"),
        (["--max", "membership.auc=-.1"], "membership.auc is from 0 to 1"),
        (["--min", "accuracy.unseen=60"], "accuracy.unseen is from 0 to 1"),
        (["--max", "guarantee.epsilon=-1"], "guarantee.epsilon is at least 0"),
        (["--max", "linkage.median_rank=0"], "linkage.median_rank is at least 1"),
        (["--max", "membership.auc[photo]=.5"], "expected [KEY=VALUE,...]"),
        (["--max", "auc=.5"], "expected ATTACK.MEASUREMENT=LIMIT"),
        (["--max", "membership.auc=.5", "--max", "membership.auc=.6"], "is given twice"),
        (["--min", "membership.auc=.5"], "a higher auc is a leak; use --max"),
        (["--max", "accuracy.unseen=.5"], "a higher accuracy is better; use --min"),
        (["--min", "accuracy.sketsh=.5"], "unknown accuracy 'sketsh'"),
        (["--max", "guarantee.delta=.5"], "unknown measurement of a guarantee"),
        (["--max", "membership.auc=.5", "--by", "median"], "median"),
    ],
)
def test_bad_limits_are_refused_in_one_line_with_the_nearest_name(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    found = run(tmp_path / "run", membership(LOW))
    junit = tmp_path / "gate.xml"

    assert main(["gate", str(found), *arguments, "--junit", str(junit)]) == 2

    told = capsys.readouterr()
    assert (told.out, told.err.count("\n"), junit.exists()) == ("", 1, False)
    assert said in told.err


def test_a_report_that_was_altered_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    found = run(tmp_path / "run", membership(HIGH))
    write_sums(found)
    report = found / "report.json"
    report.write_text(report.read_text().replace("0.75", "0.71"))

    assert main(["gate", str(found), "--max", "membership.auc=.72"]) == 2
    assert "it was altered" in capsys.readouterr().err


def ended(tmp_path: Path, *limits: str, more: Sequence[str] = ()) -> tuple[int, xml.Element, Any]:
    reason = "not applicable: <no> styles & \x07bell"
    away = replace(membership(), name="linkage", status="skipped", reason=reason)
    found = run(tmp_path / "run", membership(LOW, HIGH), away)
    given = [each for limit in limits for each in ("--max", limit)]
    paths = tmp_path / "gate.xml", tmp_path / "gate.sarif"
    code = main(["gate", str(found), *given, "--junit", str(paths[0]), "--sarif", str(paths[1]), *more])
    return code, xml.fromstring(paths[0].read_text()), json.loads(paths[1].read_text())


def test_a_failing_gate_ends_with_1_and_says_why_in_both_files(tmp_path: Path):
    code, junit, sarif = ended(tmp_path, "membership.auc=.55", "differencing.top1=1")

    (suite,) = junit
    assert code == 1
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "3", "failures": "1", "errors": "1", "skipped": "0",
    }  # fmt: skip
    assert [[child.tag for child in case] for case in suite.findall("testcase")] == [
        ["system-out"],
        ["failure"],
        ["error"],
    ]
    assert "upper end 0.75 is above 0.55" in str(suite.findall("testcase")[1][0].get("message"))
    (log,) = sarif["runs"]
    assert [(result["kind"], result["level"]) for result in log["results"]] == [
        ("pass", "none"), ("fail", "error"), ("fail", "error"),
    ]  # fmt: skip
    assert log["invocations"] == [{"executionSuccessful": True, "exitCode": 1}]


def test_a_passing_gate_ends_with_0_and_what_was_skipped_is_written(tmp_path: Path):
    code, junit, sarif = ended(
        tmp_path, "membership.auc=.8", "linkage.top1=1", more=["--allow-not-applicable", "--by", "interval"]
    )

    assert code == 0
    assert [[child.tag for child in case] for case in junit[0].findall("testcase")][-1] == ["skipped"]
    assert sarif["runs"][0]["results"][-1]["kind"] == "notApplicable"


def test_a_gate_that_judged_nothing_fails_in_its_files_with_the_reason(tmp_path: Path):
    code, junit, sarif = ended(tmp_path, "linkage.top1=1", more=["--allow-not-applicable"])

    assert code == 1
    assert (junit.get("tests"), junit.get("errors")) == ("1", "1")
    (log,) = sarif["runs"]
    assert log["invocations"][0]["exitCode"] == 1
    (result,) = log["results"]
    assert (result["kind"], result["level"], result["ruleId"]) == ("fail", "error", "max/linkage.top1=1")
    assert "nothing was judged: not applicable" in result["message"]["text"]


def test_limits_made_in_python_are_held_to_what_a_measurement_can_be():
    for limit in (math.nan, math.inf, 7.0):
        with pytest.raises(UsageError):
            Threshold(side="max", attack="membership", measurement="auc", where={}, limit=limit)


def test_every_result_names_a_rule_of_the_log_and_where_it_is(tmp_path: Path):
    _, _, sarif = ended(tmp_path, "membership.auc=.55", "differencing.top1=1")

    (log,) = sarif["runs"]
    rules = log["tool"]["driver"]["rules"]
    assert (sarif["version"], sarif["$schema"].endswith("sarif-schema-2.1.0.json")) == ("2.1.0", True)
    assert all(rules[result["ruleIndex"]]["id"] == result["ruleId"] for result in log["results"])
    assert all(result["message"]["text"] and result["locations"] for result in log["results"])


def test_the_table_shows_limits_with_their_brackets(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    found = run(tmp_path / "run", membership(LOW))

    main(["gate", str(found), "--max", "membership.auc[domain=photo]=.6"])

    assert "--max membership.auc[domain=photo]=0.6" in capsys.readouterr().out


def test_the_first_line_is_the_result_and_quiet_prints_no_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    found = run(tmp_path / "run", membership(LOW, HIGH))

    assert main(["gate", str(found), "--max", "membership.auc=.55", "--quiet"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("gate FAILED for ")
    assert line.endswith("of 2 checks 1 passed, 1 beyond their limit")


def test_every_result_of_an_attack_is_judged_and_descriptions_are_not(tmp_path: Path):
    described = replace(HIGH, higher_is="descriptive")
    found = run(tmp_path / "run", membership(LOW, described), membership(HIGH))

    assert outcomes(found, ["membership.auc=.55"]) == ["passed", "failed"]
    alone = run(tmp_path / "alone", membership(described))
    assert outcomes(alone, ["membership.auc=.99"]) == ["error"]


@pytest.mark.parametrize("limit", ["membership.auc[domain=photo,domain=sketch]=.55", "membership.auc=5_5"])
def test_a_limit_that_says_two_things_is_refused(limit: str):
    with pytest.raises(UsageError):
        thresholds_of([limit], [])


def test_files_of_the_run_and_one_file_for_two_results_are_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    found = run(tmp_path / "run", membership(LOW))
    before = (found / "report.json").read_bytes()

    for options in (["--junit", str(found / "report.json")], ["--junit", "one.xml", "--sarif", "one.xml"]):
        assert main(["gate", str(found), "--max", "membership.auc=.55", *options]) == 2
        assert "another file" in capsys.readouterr().err
    assert (found / "report.json").read_bytes() == before
