"""Reports from stored documents: report.json read back into an AttackReport."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from fdgsec.experiments.report.schema import SCHEMA, AttackReport, AttackResult, Figure
from fdgsec.metrics.measurement import Control, Measurement
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.untrusted_text import read_json_object


def stored_path(run: Path) -> Path:
    """The report.json of a run's folder, or the file itself. Raises UsageError where there is none."""
    path = run if run.is_file() else run / "report.json"
    if not path.is_file():
        raise UsageError(f"{run} holds no report.json; give a folder that `fdgsec attack` or `fdgsec train` wrote.")
    return path


def stored_report(run: Path) -> AttackReport:
    """Read the report of a finished run. Figures have their series but no pictures, which lie beside the report.

    Raises UsageError where there is no report, or none of this schema."""
    path = stored_path(run)
    document = read_json_object(path, error=UsageError)
    try:
        return report_of(document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is not a report of schema {SCHEMA}: {type(error).__name__} {error}.") from error


def report_of(document: Mapping[str, Any]) -> AttackReport:
    """The report whose document this is. Raises KeyError, TypeError or ValueError for anything else."""
    if document["schema"] != SCHEMA:
        raise ValueError(f"schema {document['schema']}")
    if missing := {"name", "images"} - set(document["dataset"]):
        raise KeyError(f"dataset.{min(missing)}")
    known = {spec.name for spec in fields(AttackReport)}
    values = {name: value for name, value in document.items() if name in known}
    return AttackReport(**{**values, "attacks": [_result(attack) for attack in document["attacks"]]})


def _result(attack: Mapping[str, Any]) -> AttackResult:
    controls = {kind: [_control(one) for one in found] for kind, found in attack["controls"].items()}
    through = controls.get("through-the-target", [])
    return AttackResult(
        name=attack["name"], adversary=attack["adversary"], status=attack["status"], reason=attack["reason"],
        seconds=attack["seconds"], figures=[Figure(**figure) for figure in attack["figures"]],
        positive=controls.get("positive", ()), negative=controls.get("negative", ()),
        target=through[0] if through else None,
        measurements=[_measurement(row) for row in attack["measurements"]],
    )  # fmt: skip


def _measurement(row: Mapping[str, Any]) -> Measurement:
    known = {spec.name for spec in fields(Measurement)}
    return Measurement(**{name: value for name, value in row.items() if name in known})


def _control(row: Mapping[str, Any]) -> Control:
    return Control(measurement=_measurement(row), expected=row["expected"], passed=row["passed"])
