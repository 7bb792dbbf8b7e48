"""Computations run on the number of threads that was stated, and leave the process's own number as it was."""

import threading
import time
from collections.abc import Generator
from contextlib import nullcontext

import pytest
import torch
from threadpoolctl import threadpool_info

from fdgsec.runtime import threads
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import tracked
from fdgsec.runtime.threads import limited_threads


def numbers() -> set[int]:
    return {torch.get_num_threads(), *(int(library["num_threads"]) for library in threadpool_info())}


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_torch_and_every_loaded_library_are_limited_inside_and_as_before_afterwards():
    before = {library["filepath"]: library["num_threads"] for library in threadpool_info()}

    with limited_threads(1):
        assert numbers() == {1}

    assert torch.get_num_threads() == 2
    assert {library["filepath"]: library["num_threads"] for library in threadpool_info()} == before


@limited_threads(3)
def fail_on_three():
    assert torch.get_num_threads() == 3
    raise KeyError


def test_an_inner_number_holds_inside_and_the_outer_one_after_it_even_after_an_error():
    with limited_threads(1):
        with pytest.raises(KeyError):
            fail_on_three()
        assert torch.get_num_threads() == 1
        with limited_threads(1):
            assert numbers() == {1}
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_a_number_that_code_inside_changed_is_set_again_by_the_next_call():
    with limited_threads(1):
        torch.set_num_threads(2)
        with limited_threads(1):
            assert torch.get_num_threads() == 1


@pytest.mark.parametrize("count", [0, -1, 257, True])
def test_impossible_numbers_are_refused(count: int):
    with pytest.raises(UsageError, match="threads must be 1 to 256"), limited_threads(count):
        pass


@pytest.mark.parametrize("how", ["an error", "an interruption", "nobody reads on"])
def test_what_is_under_way_ends_soon_once_nobody_waits_for_it(how: str, monkeypatch: pytest.MonkeyPatch):
    """Parts that would take an hour, as trainings may, do not keep a command that was ended."""
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _process: {0, 1, 2}, raising=False)
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 3)
    torch.set_num_threads(1)
    begun, ended = threading.Event(), list[int]()

    def work(part: int) -> int:
        if part == 0:
            begun.wait(10)
            if how == "an error":
                raise ValueError("no")
            return 0
        begun.set()
        try:
            for _ in tracked(range(360_000), "long"):
                time.sleep(0.01)
        finally:
            ended.append(part)
        return part

    start, found = time.monotonic(), threads.side_by_side(work, [0, 1, 2, 3, 4], most=3)
    assert isinstance(found, Generator)
    if how == "an error":
        with pytest.raises(ValueError, match="no"):
            next(found)
    else:
        assert next(found) == 0
        with pytest.raises(KeyboardInterrupt) if how == "an interruption" else nullcontext():
            found.throw(KeyboardInterrupt()) if how == "an interruption" else found.close()

    assert time.monotonic() - start < 5
    assert 1 in ended
    assert 4 not in ended


@pytest.mark.parametrize("cores", [1, 2])
def test_no_part_is_left_out_without_a_word(cores: int, monkeypatch: pytest.MonkeyPatch):
    """A forgotten default of `next` in a part would end the loop over all parts, as if there were no more."""
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _process: set(range(cores)), raising=False)
    monkeypatch.setattr(threads.os, "cpu_count", lambda: cores)
    torch.set_num_threads(1)

    def work(part: int) -> int:
        return next(iter([part] if part < 2 else []))

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(threads.side_by_side(work, [0, 1, 2, 3], most=2))


def test_loops_elsewhere_are_not_ended():
    assert list(tracked(range(3), "short")) == [0, 1, 2]
