"""Runs in processes of their own give what one process gives, and a failure costs only itself."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import torch

from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.invocation import command_line, invoked_with
from fdgsec.runtime.worker_processes import computed
from tests.support.remaining import remaining, worded


def squared(number: int) -> int:
    return number * number


def where(number: int) -> tuple[int, int]:
    return os.getpid(), torch.get_num_threads()


def slow_or_broken(folder: Path, number: int) -> int:
    (folder / f"begun-{number}").touch()
    if number == 0:
        while not (folder / "begun-1").exists():
            time.sleep(0.01)
        raise ValueError("zero")
    time.sleep(2)
    return number


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_every_task_comes_back_with_its_own_result(workers: int) -> None:
    assert sorted(computed(squared, [3, 1, 2], workers=workers)) == [(1, 1), (2, 4), (3, 9)]
    assert list(computed(squared, [], workers=workers)) == []


def test_one_worker_is_this_process_and_keeps_the_order() -> None:
    found = list(computed(where, [3, 1, 2], workers=1))
    assert [task for task, _ in found] == [3, 1, 2]
    assert {pid for _, (pid, _) in found} == {os.getpid()}


@pytest.mark.slow
def test_workers_are_other_processes_that_share_out_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    found = [result for _, result in computed(where, list(range(4)), workers=2)]
    assert os.getpid() not in {pid for pid, _ in found}
    assert {threads for _, threads in found} == {1}


def command_of(number: int) -> str:
    return command_line()


@pytest.mark.medium
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_know_the_command_that_they_work_for(workers: int) -> None:
    with invoked_with(["bench", "--workers", str(workers)]):
        found = {command for _, command in computed(command_of, [1, 2], workers=workers)}
    assert found == {f"fdgsec bench --workers {workers}"}
    assert {command for _, command in computed(command_of, [1], workers=workers)} == {""}


@pytest.mark.slow
def test_a_failure_is_raised_after_what_was_under_way_and_nothing_new_is_begun(tmp_path: Path) -> None:
    found: list[int] = []
    with pytest.raises(ValueError, match="zero"):
        found.extend(task for task, _ in computed(partial(slow_or_broken, tmp_path), list(range(12)), workers=2))
    assert 1 in found
    assert 0 not in found
    assert {int(path.name.split("-")[1]) for path in tmp_path.iterdir()} == {0, *found}
    assert found == [1]


@pytest.mark.slow
def test_whoever_stops_early_does_not_wait_for_the_rest(tmp_path: Path) -> None:
    started = time.monotonic()
    for task, _ in computed(partial(slow_or_broken, tmp_path), list(range(1, 60)), workers=2):
        assert task
        break
    assert time.monotonic() - started < 40  # all of them take a minute
    assert len(list(tmp_path.iterdir())) <= 4


@pytest.mark.slow
def test_whoever_fails_while_reading_leaves_nothing_to_compute_where_the_error_is_kept(tmp_path: Path) -> None:
    def read() -> None:
        with closing(computed(partial(slow_or_broken, tmp_path), list(range(1, 60)), workers=2)) as found:
            for _ in found:
                raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        read()
    assert len(list(tmp_path.iterdir())) <= 4


class TwoArgumentsError(Exception):
    """Pickles, and cannot be made again of what it pickles."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def foreign(number: int) -> int:
    if number == 2:
        raise TwoArgumentsError("of", "others")
    time.sleep(1)
    return number


@pytest.mark.slow
def test_an_error_that_cannot_travel_is_told_in_words_and_what_was_under_way_is_kept() -> None:
    found = list[int]()
    with pytest.raises(RuntimeError, match=r"^TwoArgumentsError: of others$"):
        found.extend(task for task, _ in computed(foreign, [1, 2, 3], workers=2))
    assert found == [1]


def killed(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.slow
def test_a_killed_process_is_said_to_be_one() -> None:
    with pytest.raises(UsageError, match="one of 2 processes was killed, as happens when memory runs out"):
        list(computed(killed, [1, 2, 3], workers=2))


ORPHANS = """
import signal, sys
from functools import partial
from pathlib import Path
from tests.unit.runtime.test_processes import begun
from fdgsec.runtime.invocation import command_line, invoked_with
from fdgsec.runtime.worker_processes import computed
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background inherits to ignore it
    list(computed(partial(begun, Path(sys.argv[1])), [1, 2, 3, 4], workers=2))
"""


def begun(folder: Path, number: int) -> int:
    (folder / f"begun-{number}").touch()
    while True:
        time.sleep(1)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_workers_end_with_the_process_that_began_them(stop: signal.Signals, tmp_path: Path) -> None:
    word, environment = worded()
    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS)
    command = [sys.executable, str(script), str(tmp_path)]
    environment = {**environment, "PYTHONPATH": os.pathsep.join(map(str, (Path.cwd(), *sys.path)))}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        while len(list(tmp_path.glob("begun-*"))) < 2:
            assert process.poll() is None
            time.sleep(0.05)
        if stop is signal.SIGKILL:
            process.kill()
        else:  # as from a terminal
            os.killpg(process.pid, stop)
        try:
            assert process.wait(20) != 0
        finally:
            process.kill()  # else the block waits for it

    deadline = time.monotonic() + 20
    while remaining(word) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert remaining(word) == []
    assert len(list(tmp_path.glob("begun-*"))) == 2
