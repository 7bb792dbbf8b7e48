"""A lock is held by one process, ends with it, and says whose it is."""

import os
import signal
from pathlib import Path

import pytest

from fdgsec.runtime.file_locks import InUseError, locked
from tests.support.lock_holder import holder


def test_a_second_process_is_told_whose_lock_it_is(tmp_path: Path):
    with holder(tmp_path / "out") as other:
        said = rf"the folder .*out is in use by another process .*\({other.pid}\)"
        with pytest.raises(InUseError, match=said), locked(tmp_path / "out", what="the folder"):
            pass
        with locked(tmp_path / "another", what="the folder"):
            pass


def test_a_lock_ends_with_a_killed_process_and_leaves_no_file_once_it_was_taken_again(tmp_path: Path):
    with holder(tmp_path / "out") as other:
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert list(tmp_path.iterdir()) == [tmp_path / ".out.lock"]

    with locked(tmp_path / "out", what="the folder"):
        assert (tmp_path / ".out.lock").read_text() == str(os.getpid())

    assert list(tmp_path.iterdir()) == []


def test_a_block_inside_takes_the_lock_again_and_only_the_outer_one_ends_it(tmp_path: Path):
    with locked(tmp_path / "out", what="the folder"):
        with locked(tmp_path / "out", what="the folder"):
            pass
        assert (tmp_path / ".out.lock").exists()

    assert not (tmp_path / ".out.lock").exists()


def test_whoever_waits_says_so_once_and_goes_on_when_the_other_ends(tmp_path: Path):
    told: list[str] = []

    def say(text: str) -> None:
        told.append(text)
        other.communicate("")

    with holder(tmp_path / "run") as other, locked(tmp_path / "run", what="the run", waiting=say):
        assert (tmp_path / ".run.lock").read_text() == str(os.getpid())

    assert [line.endswith("waiting for it.") for line in told] == [True]
