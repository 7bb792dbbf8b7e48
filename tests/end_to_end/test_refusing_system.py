"""A disk, a device or a memory that refuses: said in one line, before the work where it can be known, and nothing lost."""

import errno
import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fdgsec.cli import main
from fdgsec.runtime.disk_room import NoRoomError, check_room, system_line

COMMAND = [
    "attack", "--target", "ccst-single", "--per-domain", "40", "--image-size", "16", "--attack", "pool-exposure",
]  # fmt: skip


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Have the system refuse to write more than `size` bytes into one file (EFBIG)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def refuse(monkeypatch: pytest.MonkeyPatch, number: int, *, after: int) -> None:
    """Have the disk refuse with this errno from the call of fsync after `after` on."""
    calls, sync = iter(range(10**6)), os.fsync

    def failing(handle: int) -> None:
        if next(calls) >= after:
            raise OSError(number, os.strerror(number))
        sync(handle)

    monkeypatch.setattr(os, "fsync", failing)


def measured(out: Path) -> Any:
    """The attacks of a report, but for seconds."""
    (attack,) = json.loads((out / "report.json").read_text())["attacks"]
    return {**attack, "seconds": 0}


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    (line,) = capsys.readouterr().err.splitlines()
    assert "defect" not in line
    return line


@pytest.mark.parametrize("out", ["file/out", "file/deeper/out"])
def test_an_output_that_cannot_be_written_is_said_before_anything_is_computed(
    out: str, own_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "file").touch()

    assert main([*COMMAND, "--out", str(tmp_path / out)]) == 1

    assert f"cannot be written: {tmp_path / 'file'} is a file; name another folder with --out." in one_line(capsys)
    assert not own_cache.exists()


def test_a_cache_that_cannot_be_written_is_said_before_anything_is_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path / "file" / "cache"))

    assert main([*COMMAND, "--out", str(tmp_path / "out")]) == 1

    reason = f"{tmp_path / 'file'} is a file"
    assert f"cannot be written: {reason}; name another folder with FDGSEC_CACHE." in one_line(capsys)


def test_too_little_room_names_what_is_free_and_what_is_needed(tmp_path: Path):
    with pytest.raises(NoRoomError, match=r"has \d+ MB free; the results may need 1099511627776 MB. Free some space"):
        check_room(tmp_path, needed=2**60, option="--out")


@pytest.mark.parametrize("device", ["gpu", *([] if torch.cuda.is_available() else ["cuda"])])
@pytest.mark.usefixtures("own_cache")
def test_a_device_that_is_not_there_is_bad_usage_also_where_nothing_is_trained(
    device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main([*COMMAND, "--device", device, "--out", str(tmp_path / "out")]) == 2

    assert "device" in one_line(capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.medium
def test_a_report_that_does_not_fit_costs_nothing_that_was_finished(
    own_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    whole = [*COMMAND, "--out", str(tmp_path / "whole"), "--fresh"]
    assert main(whole) == 0
    (kept,) = (own_cache / "attacks").iterdir()
    before = measured(tmp_path / "whole")
    size = (tmp_path / "whole" / "report.html").stat().st_size
    capsys.readouterr()

    with files_of_at_most(size - 100):  # the page names its command, which is shorter without --fresh
        assert main([*COMMAND, "--out", str(tmp_path / "out")]) == 1
    assert "File too large; free some space, then give the same command again: what was finished is kept." in (
        one_line(capsys)
    )
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == []

    written = kept.stat().st_mtime_ns
    assert main([*COMMAND, "--out", str(tmp_path / "out")]) == 0
    assert measured(tmp_path / "out") == before
    assert kept.stat().st_mtime_ns == written


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
@pytest.mark.usefixtures("own_cache")
def test_a_disk_that_refuses_while_the_command_runs_ends_it_with_one_line(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    refuse(monkeypatch, number, after=6)  # the checks are passed, the image statistics are not stored

    assert main([*COMMAND, "--out", str(tmp_path / "out")]) == 1

    line = one_line(capsys)
    assert os.strerror(number) in line
    assert "then give the same command again: what was finished is kept." in line


def test_errors_of_libraries_are_known_by_the_number_that_they_tell(tmp_path: Path):
    with files_of_at_most(100), pytest.raises(Exception, match=r"os error|too large") as full:
        save_file({"weights": torch.zeros(1000)}, tmp_path / "weights.safetensors")
    with pytest.raises(RuntimeError) as memory:
        torch.empty(2**58, dtype=torch.uint8)

    assert "File too large" in str(system_line(full.value))
    assert "Cannot allocate memory; take fewer images" in str(system_line(memory.value))
    assert "Cannot allocate memory" in str(system_line(MemoryError()))
    assert system_line(ValueError("wrong")) is None
    assert system_line(FileNotFoundError(errno.ENOENT, "No such file or directory", "nowhere")) is None
