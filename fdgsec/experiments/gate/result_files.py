"""A gate's result for continuous integration: JUnit XML, and SARIF 2.1.0 (OASIS)."""

import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as xml

from fdgsec.experiments.gate.judge_gate import Check, Gate
from fdgsec.runtime.version import __version__

SARIF = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS: Mapping[str, tuple[str, str]] = {
    "passed": ("pass", "none"), "failed": ("fail", "error"), "error": ("fail", "error"),
    "skipped": ("notApplicable", "none"),
}  # fmt: skip
"""SARIF's kind and level by outcome; what could not be judged is a failure."""


def junit(gate: Gate) -> str:
    """A suite with a case per check; a failure is a limit that was exceeded, an error what could not be judged."""
    counts = {name: sum(check.outcome == name for check in gate.checks) for name in ("failed", "error", "skipped")}
    counted = {"tests": str(len(gate.checks)), "failures": str(counts["failed"]), "errors": str(counts["error"])}
    root = xml.Element("testsuites", {"name": "fdgsec gate", **counted})
    named = {"name": _plain(f"fdgsec gate {gate.report.target}"), **counted, "skipped": str(counts["skipped"])}
    suite = xml.SubElement(root, "testsuite", named)
    properties = xml.SubElement(suite, "properties")
    for name, value in (("run", gate.path), ("judged by", gate.judged_by), ("fdgsec", __version__)):
        xml.SubElement(properties, "property", name=name, value=_plain(str(value)))
    for check in gate.checks:
        case = xml.SubElement(suite, "testcase", classname=f"fdgsec.{check.threshold.attack}",
                              name=_plain(f"{check.row} {check.threshold.text}"))  # fmt: skip
        tag = {"failed": "failure", "error": "error", "skipped": "skipped"}.get(check.outcome)
        if tag is None:
            xml.SubElement(case, "system-out").text = _plain(check.said)
        else:
            xml.SubElement(case, tag, message=_plain(check.said), type=check.outcome).text = _plain(check.said)
    xml.indent(root)
    return xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _plain(text: str) -> str:
    """A text without the control characters that XML cannot hold."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def sarif(gate: Gate) -> str:
    """A SARIF log with a rule per limit and a result per check, located in the run's report."""
    rules = list(dict.fromkeys(check.threshold.text for check in gate.checks))
    results = [_result(check, rules.index(check.threshold.text), gate) for check in gate.checks]
    driver = {
        "name": "fdgsec", "version": __version__,
        "rules": [{"id": _rule(text), "shortDescription": {"text": text}} for text in rules],
    }  # fmt: skip
    invocation = {"executionSuccessful": True, "exitCode": 0 if gate.passed else 1}
    log = {
        "$schema": SARIF, "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "invocations": [invocation], "results": results}],
    }  # fmt: skip
    return json.dumps(log, indent=1) + "\n"


def _rule(text: str) -> str:
    return text.removeprefix("--").replace(" ", "/", 1)


def _result(check: Check, rule: int, gate: Gate) -> dict[str, Any]:
    kind, level = LEVELS[check.outcome]
    uri = gate.path.as_uri() if gate.path.is_absolute() else quote(os.fsencode(gate.path))
    location = {
        "physicalLocation": {"artifactLocation": {"uri": uri}},
        "logicalLocations": [{"fullyQualifiedName": check.row}],
    }
    return {
        "ruleId": _rule(check.threshold.text), "ruleIndex": rule, "kind": kind, "level": level,
        "message": {"text": f"{check.row}: {check.said}"}, "locations": [location],
    }  # fmt: skip
