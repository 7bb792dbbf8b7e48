"""A report that is not the one that was written is shown by no command."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from fdgsec.cli import main
from fdgsec.experiments.report.attack_report import AttackReport
from fdgsec.federation.run_folder import new_folder, reserved
from fdgsec.runtime.checked_files import write_sums
from fdgsec.runtime.errors import UsageError
from tests.unit.experiments.test_report_findings import LISTS, done, report


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "report.json").write_text(json.dumps(report([done("set-reconstruction", LISTS)]).document()))
    write_sums(folder)
    return folder


@pytest.mark.parametrize("verb", [["report"], ["report", "--json"], ["compare"]], ids=" ".join)
def test_a_dataset_that_was_renamed_is_noticed(run: Path, verb: Sequence[str], capsys: pytest.CaptureFixture[str]):
    asked = [*verb, str(run), *([str(shutil.copytree(run, run.parent / "other"))] if verb == ["compare"] else [])]
    assert main(asked) == 0
    capsys.readouterr()
    path = run / "report.json"
    path.write_text(path.read_text().replace('"pacs"', '"vlcs"'))

    assert main(asked) == 2

    printed = capsys.readouterr()
    assert "was altered" in printed.err
    assert not printed.out


def test_a_file_is_not_replaced_by_a_folder_whose_path_leads_through_a_missing_one(tmp_path: Path):
    """It was: the check saw no file at `missing/../notes.txt`, and what was written went there."""
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")

    with pytest.raises(UsageError, match="is a file"), new_folder(tmp_path / "missing" / ".." / "notes.txt") as draft:
        (draft / "report.json").write_text("{}")

    assert notes.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [notes]


def test_a_run_is_not_replaced_by_a_report_whose_path_leads_through_a_missing_folder(run: Path):
    (run / "transcript.jsonl").write_text("{}")

    with pytest.raises(UsageError, match="would be lost"):
        AttackReport.of(report([done("set-reconstruction", LISTS)])).save(run.parent / "missing" / ".." / run.name)

    assert (run / "transcript.jsonl").is_file()


def test_a_folder_that_is_reserved_by_another_path_of_it_can_be_written(tmp_path: Path):
    place = tmp_path / "missing" / ".." / "out"

    with reserved(place), new_folder(place) as draft:
        (draft / "report.json").write_text("{}")

    assert (tmp_path / "out" / "report.json").is_file()
