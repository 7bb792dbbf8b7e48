"""Reports from stored documents: report.json read back into an AttackReport."""

import io
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from PIL import Image

from fdgsec.experiments.report.html import render
from fdgsec.experiments.report.pages import source
from fdgsec.experiments.report.schema import SCHEMA, AttackReport, AttackResult, Figure
from fdgsec.metrics.measurement import Control, Measurement
from fdgsec.runtime.checked_files import SUMS, check_listed, check_sums
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import warn
from fdgsec.runtime.untrusted_text import parse_json_object, read_bytes, read_json_object

LARGEST_PICTURE = 2**26
"""Bytes of a figure's PNG; fdgsec's own have less than two megabytes."""
UNREADABLE = (
    ValueError, LookupError, TypeError, AttributeError, ArithmeticError, AssertionError, TemplateError,
)  # fmt: skip
"""What reading and showing a document may raise that was not written by fdgsec."""

_told: set[Path] = set()  # reports that were said to be in no list, by this process


def stored_path(run: Path) -> Path:
    """The report.json of a run's folder, or the file itself. Raises UsageError where there is none."""
    path = run if run.is_file() else run / "report.json"
    if not path.is_file():
        raise UsageError(f"{run} holds no report.json; give a folder that `fdgsec attack` or `fdgsec train` wrote.")
    return path


def stored_report(run: Path) -> AttackReport:
    """Read the report of a finished run. Figures have their series but no pictures, which lie beside the report.

    Raises UsageError where there is no report, or none of this schema, DataError where the folder's SHA256SUMS does not
    hold."""
    path = stored_path(run)
    _check_written(path)
    document = read_json_object(path, error=UsageError)
    try:
        found = report_of(document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is not a report of schema {SCHEMA}: {type(error).__name__} {error}.") from error
    _say_unlisted(path)
    return found


def consistent_report(run: Path) -> AttackReport:
    """As `stored_report`, of entries that agree: what follows from others (verdicts) is as it would be written now.

    Raises UsageError for any other."""
    report = stored_report(run)
    document = read_json_object(stored_path(run), error=UsageError)
    try:
        _check_equal(document, report.document(), where="report.json")
    except ValueError as error:
        raise UsageError(f"{stored_path(run)} contradicts itself: {error}; was it edited?") from error
    return report


def checked_report(run: Path) -> AttackReport:
    """Read a report that keeps the published schema and whose entries agree, with the pictures that lie beside it.

    Raises UsageError for any other, DataError where the SHA256SUMS of the folder does not hold."""
    path = stored_path(run)
    _check_written(path)
    document = read_json_object(path, error=UsageError)
    try:
        _check_schema(document)
        report = report_of(document)
        _check_equal(document, report.document(), where="report.json")
        report = replace(report, attacks=[_illustrated(result, path.parent) for result in report.attacks])
        render(report)  # what cannot be shown is refused here, and not in somebody's notebook
    except UNREADABLE as error:
        raise UsageError(f"{path} is not a report of schema {SCHEMA}: {type(error).__name__} {error}.") from error
    _say_unlisted(path)
    return report


def _check_written(path: Path) -> None:
    """Raise DataError where a file of the report's folder is not the one that its SHA256SUMS lists."""
    if check_listed(path):
        check_sums(path.parent)


def _say_unlisted(path: Path) -> None:
    """Say once on stderr that a report is in no list of hashes, and may have been altered."""
    if path not in _told and not check_listed(path):
        _told.add(path)
        warn(f"no {SUMS} beside it lists {path}: whether it is as fdgsec wrote it cannot be told")


def report_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of report.json, which docs/report.schema.json publishes."""
    return parse_json_object(source("report.schema.json"), source="report.schema.json")


def _check_schema(document: Mapping[str, Any]) -> None:
    """Raise ValueError, naming the place, for what the published schema refuses."""
    from jsonschema import Draft202012Validator  # a tenth of a second, which commands that read no report do not need
    from jsonschema.exceptions import best_match

    fault = best_match(Draft202012Validator(report_schema()).iter_errors(document))
    if fault is not None:
        raise ValueError(f"report.json{fault.json_path.removeprefix('$')}: {fault.message[:200]}")


def _check_equal(read: object, written: object, *, where: str) -> None:
    """Raise ValueError, naming the place, for an entry that would not be written as it was read."""
    if isinstance(read, Mapping) and isinstance(written, Mapping):
        for key, value in read.items():
            if key not in written:
                raise ValueError(f"{where}.{key} is no entry of a report")
            _check_equal(value, written[key], where=f"{where}.{key}")
    elif isinstance(read, list) and isinstance(written, list) and len(read) == len(written):
        for place, pair in enumerate(zip(read, written, strict=True)):
            _check_equal(*pair, where=f"{where}[{place}]")
    elif read != written or isinstance(read, bool) != isinstance(written, bool):
        raise ValueError(
            f"{where} is {read!r}, and {written!r} by the other entries: altered, or of another version of fdgsec"
        )


def _illustrated(result: AttackResult, folder: Path) -> AttackResult:
    """The attack with the pictures of its figures, where they lie in the folder. Raises ValueError for a broken one."""
    return replace(result, figures=[replace(figure, png=_picture(result, figure, folder)) for figure in result.figures])


def _picture(result: AttackResult, figure: Figure, folder: Path) -> bytes | None:
    path = folder / f"{result.name}-{figure.name}.png"
    if path.parent != folder or not path.is_file():  # a name with a slash leads elsewhere
        return None
    content = read_bytes(path, largest=LARGEST_PICTURE, error=UsageError)
    try:
        with Image.open(io.BytesIO(content)) as image:
            image.verify()
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path.name} is no picture") from error
    return content


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
        variants=[_control(one) for one in attack.get("variant_controls", ())],
        measurements=[_measurement(row) for row in attack["measurements"]],
    )  # fmt: skip


def _measurement(row: Mapping[str, Any]) -> Measurement:
    known = {spec.name for spec in fields(Measurement)}
    return Measurement(**{name: value for name, value in row.items() if name in known})


def _control(row: Mapping[str, Any]) -> Control:
    return Control(measurement=_measurement(row), expected=row["expected"], passed=row["passed"])
