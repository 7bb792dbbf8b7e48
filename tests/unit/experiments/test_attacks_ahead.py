"""Other processes compute attacks ahead of the loop, and whatever becomes of them, every attack is computed."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fdgsec.experiments.attack.attacks_ahead import working_ahead

TASKS = [5, 3, 2, 0]
"""In the order in which other processes take them."""


def shared_out(work: Callable[[int], bool], *, workers: int, pause: float = 0.0) -> dict[int, bool]:
    """Whether each task was finished elsewhere, where this process takes them from the first one on."""
    found = {}
    with working_ahead(work, TASKS, workers=workers) as ahead:
        for number in reversed(TASKS):
            time.sleep(pause)
            found[number] = not ahead.begins(number) and ahead.finishes(number)
    return found


@pytest.fixture(autouse=True)
def one_thread() -> None:
    assert torch.get_num_threads() == 1 or "PYTEST_XDIST_WORKER" not in os.environ
    torch.set_num_threads(1)


@pytest.mark.parametrize("workers", [2, 3])
def test_each_task_is_computed_once(workers: int, tmp_path: Path):
    def work(number: int) -> bool:
        (tmp_path / f"{number}-{os.getpid()}").touch()
        time.sleep(0.1)
        return True

    elsewhere = shared_out(work, workers=workers, pause=0.1)
    done = [(int(path.name.split("-")[0]), int(path.name.split("-")[1])) for path in tmp_path.iterdir()]
    assert sorted(number for number, _ in done) == [number for number, other in elsewhere.items() if other]
    assert elsewhere[TASKS[0]]
    assert os.getpid() not in {process for _, process in done}
    assert len({process for _, process in done}) <= workers - 1


def test_one_worker_computes_everything_itself(tmp_path: Path):
    assert not any(shared_out(lambda number: bool((tmp_path / str(number)).touch()), workers=1).values())
    assert not list(tmp_path.iterdir())


def test_copies_of_a_process_on_several_threads_are_not_made(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert not any(shared_out(lambda _: True, workers=2, pause=0.05).values())


def killed(_: int) -> bool:
    os.kill(os.getpid(), signal.SIGKILL)
    return True


def broken(number: int) -> bool:
    raise ValueError(number)


def left_undone(_: int) -> bool:
    return False


@pytest.mark.parametrize("work", [killed, broken, left_undone])
def test_what_another_process_does_not_finish_is_left_to_this_one(
    work: Callable[[int], bool], capfd: pytest.CaptureFixture[str]
):
    assert not any(shared_out(work, workers=3, pause=0.1).values())
    assert "Traceback" not in capfd.readouterr().err


def test_a_process_ends_with_the_block(tmp_path: Path):
    def forever(number: int) -> bool:
        (tmp_path / f"{number}-{os.getpid()}").touch()
        while True:
            time.sleep(0.01)

    with working_ahead(forever, TASKS, workers=2) as ahead:
        while not list(tmp_path.iterdir()):
            time.sleep(0.01)
        assert ahead.begins(0)
    (begun,) = tmp_path.iterdir()
    with pytest.raises(ProcessLookupError):
        os.kill(int(begun.name.split("-")[1]), 0)
