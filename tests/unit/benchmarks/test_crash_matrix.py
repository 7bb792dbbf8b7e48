"""The crash matrix sees what it is for: lost content, other numbers, errors that nobody typed."""

import json
import os
from pathlib import Path

import pytest

from benchmarks.crash_matrix import Command, Ended, Place, documents, lose_power, note_syncs, outcome
from fdgsec.runtime.cache_files import write_atomic

COMMAND = Command(words=("attack",), documents=("report.json",))


def finished(place: Place, **report: object) -> None:
    place.out.mkdir(parents=True)
    (place.out / "report.json").write_text(json.dumps(report))


def ended(code: int, line: str = "") -> Ended:
    return Ended(code=code, seconds=1.0, operations=0, line=line)


def test_a_power_failure_takes_what_was_not_synced_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "fsync", os.fsync)  # so that it is restored
    place = Place(root=tmp_path)
    note_syncs(place.synced)
    for number in range(8):
        write_atomic(place.out / f"synced{number}", "whole")
        write_atomic(place.out / f"unsynced{number}", "whole", synced=False)
    write_atomic(place.out / "synced8", "whole")  # syncs the names of all before it, not their content

    assert lose_power(place) == 8

    content = {path.name: path.read_text() for path in place.out.iterdir()}
    assert {name for name, text in content.items() if text} == {f"synced{number}" for number in range(9)}
    assert len(content) == 17


def test_a_name_that_was_not_synced_may_be_lost(tmp_path: Path):
    place = Place(root=tmp_path)
    place.out.mkdir(parents=True)
    for number in range(20):
        (place.out / str(number)).write_text("whole")

    assert lose_power(place) == 20

    left = list(place.out.iterdir())
    assert 0 < len(left) < 20  # by the hash of the path; 2 in a million that all fall on one side
    assert all(path.read_text() == "" for path in left)


@pytest.mark.parametrize(
    ("end", "value", "said"),
    [
        (ended(0), 1, "equal"),
        (ended(0), 2, "different"),
        (ended(1, "fdgsec: runs/out holds no results"), 1, "typed"),
        (ended(1, "fdgsec: KeyError: 'x' (a defect of fdgsec; add --debug for the traceback)"), 1, "different"),
        (ended(1), 1, "different"),
        (ended(-11, "fdgsec: something"), 1, "different"),
    ],
)
def test_only_an_equal_report_and_a_typed_error_are_good(end: Ended, value: int, said: str, tmp_path: Path):
    undisturbed, again = Place(root=tmp_path / "undisturbed"), Place(root=tmp_path / "again")
    finished(undisturbed, value=1, seconds=3.0)
    finished(again, value=value, seconds=4.0)

    assert outcome(COMMAND, again, end, documents(COMMAND, undisturbed.out)) == said
