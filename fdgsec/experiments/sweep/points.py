"""The finished points of a sweep as they are kept: points.json, written completely or not at all, and no larger than
needed.

An attack measures hundreds of rows; a sweep follows one of each. Kept is what tables and figures are drawn from: the
followed row with its neighbors (likelihood ratio, expectation), that of linkage for every population, the spread
between clients, and which controls failed."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fdgsec.experiments.sweep.hidden_clients import ATTACK, alike, kin
from fdgsec.experiments.sweep.tables import SPREAD, followed_rows
from fdgsec.runtime.cache_files import write_atomic
from fdgsec.runtime.errors import DataError
from fdgsec.runtime.untrusted_text import read_json_object

SCHEMA = 1
ROW = ("name", "slice", "value", "low", "high", "chance", "n", "verdict")
"""What tables and figures read of a measurement."""

Point = Mapping[str, Any]


def stored(path: Path) -> dict[str, dict[str, Any]]:
    """Read the finished points by key; none where there is no file. Raises DataError for a file that is not ours."""
    if not path.exists():
        return {}
    try:
        document = read_json_object(path)
        points = {str(key): _read(found) for key, found in document["points"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} holds no points of a sweep: {error}; move it away or give another --out.") from error
    if document.get("schema") != SCHEMA:
        raise DataError(f"{path} has schema {document.get('schema')!r}; this version reads {SCHEMA}.")
    return points


def store(path: Path, points: Mapping[str, Point]) -> None:
    """Write `points` by key, where that changes the file."""
    text = as_json({"schema": SCHEMA, "points": points})
    if not path.exists() or path.read_text() != text:
        write_atomic(path, text)


def slim(path: Path) -> None:
    """Leave out of a file of finished points what nothing reads, where all were made beside one undefended point.

    A file of several sweeps is left alone: which row was followed cannot be told. Raises DataError as `stored` does."""
    points = stored(path)
    bare = [key for key, point in points.items() if point["kind"] == "privacy" and point["value"] is None]
    if len(bare) == 1:
        store(path, slimmed(points))


def slimmed(points: Mapping[str, Point]) -> dict[str, Point]:
    """Keep of one sweep's points, by key, what its tables and figures need; all, until the undefended point is
    finished.

    What a point lacks afterwards is counted: `measured` rows per attack, `passed` controls. Twice is as once."""
    bare = [point for point in points.values() if point["kind"] == "privacy" and point["value"] is None]
    if len(bare) != 1:
        return dict(points)
    wanted = followed_rows(bare[0])
    return {
        key: {
            **point,
            "attacks": [_slim(each, wanted.get(each["name"]), bare=point is bare[0]) for each in point["attacks"]],
        }
        for key, point in points.items()
    }


def _slim(attack: Point, followed: Point | None, *, bare: bool) -> dict[str, Any]:
    rows = attack["measurements"]
    asked = [row for row in rows if (bare and row["name"] == SPREAD) or _asked(row, followed, attack["name"])]
    kept = [{key: row[key] for key in ROW} for row in asked]
    return {
        "name": attack["name"], "status": attack["status"], "reason": attack["reason"],
        "controls": _counted(attack["controls"]), "measured": attack.get("measured", len(rows)), "measurements": kept,
    }  # fmt: skip


def _asked(row: Point, followed: Point | None, attack: str) -> bool:
    """Whether a row is the followed one, or one that is read in its place or beside it; linkage of any population."""
    return followed is not None and any(
        alike(row, name, where) if attack == ATTACK else row["name"] == name and row["slice"] == where
        for name, where in kin(followed["name"], followed["slice"])
    )


def _counted(controls: Mapping[str, Any]) -> dict[str, Any]:
    """How many controls passed, and in full those that did not."""
    return {
        "passed": controls.get("passed", sum(row["passed"] for _, row in _rows(controls))),
        "failed": [{"side": side, **row} for side, row in _rows(controls) if not row["passed"]],
    }


def _rows(controls: Mapping[str, Any]) -> Iterator[tuple[str, Point]]:
    for side, rows in controls.items():
        if isinstance(rows, Sequence):
            yield from ((row.get("side", side), row) for row in rows)


def as_json(document: Mapping[str, Any]) -> str:
    """Write JSON, which has no infinity: "inf" stands for it."""
    return json.dumps(_finite(document), indent=1, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:  # any JSON value
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _read(found: Point) -> dict[str, Any]:
    value = found["value"]
    return {**found, "value": None if value is None else float(value)}
