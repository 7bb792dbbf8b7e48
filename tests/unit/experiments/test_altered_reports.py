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
    write_sums(run)

    with pytest.raises(UsageError, match="would be lost"):
        AttackReport.of(report([done("set-reconstruction", LISTS)])).save(run.parent / "missing" / ".." / run.name)

    assert (run / "transcript.jsonl").is_file()


def test_a_folder_that_is_reserved_by_another_path_of_it_can_be_written(tmp_path: Path):
    place = tmp_path / "missing" / ".." / "out"

    with reserved(place), new_folder(place) as draft:
        (draft / "report.json").write_text("{}")

    assert (tmp_path / "out" / "report.json").is_file()


def written(folder: Path, **files: str) -> Path:
    """A run of attacks as new_folder writes it, with these files more."""
    with new_folder(folder) as draft:
        for name, content in {"report_json": "{}", "transcript_jsonl": "", **files}.items():
            (draft / name.replace("_", ".")).write_text(content)
    return folder


def test_a_strangers_folder_with_a_file_called_report_json_is_not_replaced(tmp_path: Path):
    mine = tmp_path / "coverage"
    mine.mkdir()
    (mine / "report.json").write_text("{}")
    (mine / "thesis.txt").write_text("mine")

    with pytest.raises(UsageError, match=r"holds files that fdgsec did not write: report\.json"), new_folder(mine):
        pass

    assert (mine / "thesis.txt").read_text() == "mine"


def test_a_strangers_folder_with_a_list_of_hashes_of_its_own_is_not_replaced(tmp_path: Path):
    mine = tmp_path / "data"
    mine.mkdir()
    (mine / "rows.npy").write_text("mine")
    write_sums(mine)

    with pytest.raises(UsageError, match="holds files that fdgsec did not write"), new_folder(mine):
        pass

    assert (mine / "rows.npy").read_text() == "mine"


@pytest.mark.parametrize("finished", [True, False], ids=["finished", "unfinished"])
def test_a_file_that_was_put_into_a_runs_folder_is_not_lost(tmp_path: Path, *, finished: bool):
    folder = tmp_path / "run"
    if finished:
        written(folder, curve_json="[]")
    else:
        (folder / "unfinished").mkdir(parents=True)
        (folder / "unfinished" / "run.json").write_text("{}")
    with new_folder(folder, "training") as draft:  # nothing of anybody else's is in it
        (draft / "report.json").write_text("{}")
        (draft / "curve.json").write_text("[]")
    notes = folder / ("unfinished" if finished else "notes") / "monday.txt"
    notes.parent.mkdir()
    notes.write_text("mine")

    with pytest.raises(UsageError, match=r"did not write: \w+/monday\.txt"), new_folder(folder, "training"):
        pass

    assert notes.read_text() == "mine"


def test_a_folder_of_another_kind_is_not_replaced(tmp_path: Path):
    trained = written(tmp_path / "trained", curve_json="[]")

    with pytest.raises(UsageError, match="holds a training, which would be lost"), new_folder(trained, "attack"):
        pass
    with pytest.raises(UsageError, match="holds a run of attacks"), new_folder(written(tmp_path / "run"), "training"):
        pass

    assert (trained / "curve.json").is_file()


def test_what_file_managers_leave_is_no_reason_to_refuse_a_folder(tmp_path: Path):
    folder = written(tmp_path / "run")
    (folder / ".DS_Store").write_text("")

    assert written(folder) == folder


def test_a_sweep_does_not_write_into_a_folder_of_other_files(tmp_path: Path):
    (tmp_path / "sweep.md").write_text("mine")

    with (
        pytest.raises(UsageError, match=r"holds other files \(sweep\.md\)"),
        reserved(tmp_path, goes_on=("points.json",)),
    ):
        pass
    (tmp_path / "points.json").write_text("{}")
    with reserved(tmp_path, goes_on=("points.json",)):
        pass


def test_what_lies_where_a_killed_process_would_have_put_a_folder_aside_is_not_deleted(tmp_path: Path):
    aside = tmp_path / ".run.previous"
    aside.mkdir()
    (aside / "thesis.txt").write_text("mine")
    written(tmp_path / "other").rename(tmp_path / "run")

    with pytest.raises(UsageError, match=r"\.run\.previous holds files"), new_folder(tmp_path / "run"):
        pass

    assert (aside / "thesis.txt").read_text() == "mine"


def test_a_comparison_does_not_take_the_place_of_a_run_that_it_compares(run: Path, capsys: pytest.CaptureFixture[str]):
    other = shutil.copytree(run, run.parent / "other")

    assert main(["compare", str(run), str(other), "--out", str(run)]) == 2

    assert "which would be lost" in capsys.readouterr().err
    assert (run / "report.json").is_file()


def test_a_report_is_saved_where_a_link_leads(tmp_path: Path):
    found = AttackReport.of(report([done("set-reconstruction", LISTS)]))
    found.save(tmp_path / "saved")
    (tmp_path / "link").symlink_to(tmp_path / "saved")

    found.save(tmp_path / "link")

    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "saved" / "report.json").is_file()


@pytest.mark.parametrize("listed", [True, False])
def test_of_a_report_in_no_list_it_is_said_that_it_may_have_been_altered(
    run: Path, *, listed: bool, capsys: pytest.CaptureFixture[str]
):
    if not listed:
        (run / "SHA256SUMS").write_text(f"{'0' * 64}  transcript.jsonl\n")

    assert main(["report", str(run)]) == 0

    assert ("whether it is as fdgsec wrote it cannot be told" in capsys.readouterr().err) is not listed


def test_an_altered_report_is_not_listed_with_what_it_found(run: Path, capsys: pytest.CaptureFixture[str]):
    (run / "report.json").write_text((run / "report.json").read_text().replace('"pacs"', '"vlcs"'))

    assert main(["runs", str(run.parent), "--json"]) == 0

    listed = json.loads(capsys.readouterr().out)
    assert [one["verb"] for one in listed] == ["?"]
    assert "was altered" in listed[0]["found"]


def test_of_a_listed_run_in_no_list_of_hashes_it_is_said(run: Path, capsys: pytest.CaptureFixture[str]):
    (run / "SHA256SUMS").unlink()

    assert main(["runs", str(run.parent), "--json"]) == 0

    assert "it may have been altered" in json.loads(capsys.readouterr().out)[0]["found"]
