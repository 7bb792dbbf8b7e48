"""Finished runs of the claims go into one file and come back, and nothing else does."""

import hashlib
import json
import lzma
from pathlib import Path

import pytest

from benchmarks.claims_runs import keep, restore
from fdgsec.experiments.claims.measured_runs import _stamped
from fdgsec.runtime.checked_files import write_sums
from fdgsec.runtime.errors import DataError, UsageError


def finished(out: Path, name: str, report: str = '{"schema": 1}', *, key: str = "settings") -> Path:
    folder = out / "runs" / name
    folder.mkdir(parents=True)
    (folder / "report.json").write_text(report)
    (folder / "report.html").write_text("a page")
    write_sums(folder)
    (folder.parent / f"{name}.key").write_text(f"{key} {hashlib.sha256(report.encode()).hexdigest()}")
    return folder


def test_runs_come_back_as_the_claims_take_them(tmp_path: Path):
    first, file = tmp_path / "first", tmp_path / "runs.jsonl.xz"
    finished(first, "ccst-seed35", '{"value": 0.1}')
    finished(first, "fisc-seed35", '{"value": 0.2}')
    (first / "runs" / "unfinished").mkdir()

    assert (keep(first, file), restore(file, tmp_path / "second"), restore(file, tmp_path / "second")) == (2, 2, 0)

    folder = tmp_path / "second" / "runs" / "fisc-seed35"
    stamp = folder.parent / "fisc-seed35.key"
    assert _stamped(folder, stamp, "settings") == {"value": 0.2}
    assert _stamped(folder, stamp, "other settings") is None
    before = file.read_bytes()
    assert keep(tmp_path / "second", file) == 2
    assert file.read_bytes() == before


def test_a_run_that_is_there_is_left_alone(tmp_path: Path):
    finished(tmp_path / "first", "ccst-seed35", '{"value": 0.1}')
    file = tmp_path / "runs.jsonl.xz"
    keep(tmp_path / "first", file)
    there = finished(tmp_path / "second", "ccst-seed35", '{"value": 0.3}')

    assert restore(file, tmp_path / "second") == 0
    assert (there / "report.json").read_text() == '{"value": 0.3}'


def test_an_altered_run_is_neither_kept_nor_restored(tmp_path: Path):
    folder = finished(tmp_path / "first", "ccst-seed35")
    (folder / "report.html").write_text("another page")
    with pytest.raises(DataError, match=r"report\.html"):
        keep(tmp_path / "first", tmp_path / "runs.jsonl.xz")

    line = {"run": "ccst-seed35", "stamp": "settings 0123", "report": "{}"}
    (tmp_path / "forged.xz").write_bytes(lzma.compress(json.dumps(line).encode()))
    with pytest.raises(DataError, match="is not the one that was stamped"):
        restore(tmp_path / "forged.xz", tmp_path / "second")


@pytest.mark.parametrize("name", ["../outside", "a/b", "", ".."])
def test_a_name_that_leads_elsewhere_is_refused(name: str, tmp_path: Path):
    line = {"run": name, "stamp": hashlib.sha256(b"{}").hexdigest(), "report": "{}"}
    (tmp_path / "runs.xz").write_bytes(lzma.compress(json.dumps(line).encode()))

    with pytest.raises(DataError, match="is no name of a run"):
        restore(tmp_path / "runs.xz", tmp_path / "second")
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"text", lzma.compress(b"\xff"), lzma.compress(b'{"run": "a"}'), lzma.compress(b"{}\n" * 9)[:-20]],
    ids=["nothing", "text", "no UTF-8", "another object", "cut short"],
)
def test_another_file_is_refused(content: bytes, tmp_path: Path):
    (tmp_path / "runs.xz").write_bytes(content)

    with pytest.raises((UsageError, DataError)):
        restore(tmp_path / "runs.xz", tmp_path / "second")
