"""A lock is held by one process, ends with it, and says whose it is."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fdgsec.runtime.file_locks import InUseError, locked

HOLDER = """
import sys, time
from pathlib import Path
from fdgsec.runtime.file_locks import locked
with locked(Path(sys.argv[1]), what="the folder"):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of `path` until its standard input ends."""
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        if process.poll() is None:
            process.communicate("")


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
