"""The number of threads of a computation, stated where it begins.

A sum that is split among threads is taken in another order and differs in its last bits, so a run's bytes would depend
on the machine's cores. By default libraries take all of them."""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import parent_process
from typing import TypeVar

from fdgsec.runtime.errors import UsageError

Part = TypeVar("Part")
Result = TypeVar("Result")

THREADS = 1
"""The default: the same sums on every machine and engine."""
MOST = 256

_part = threading.local()  # `ended`: set once nobody waits for the part of `side_by_side` that a thread computes
_stated: list[tuple[int, int]] = []  # the number in force and how many modules were loaded then, innermost last


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """Compute on `count` threads inside: torch, and what numpy, scipy and scikit-learn call (BLAS, OpenMP).

    Afterwards all numbers are as before. Libraries that are loaded inside are limited by the next call, which costs 20
    ms after an import and nothing otherwise. Raises UsageError for a number below 1 or above 256."""
    if isinstance(count, bool) or not 1 <= count <= MOST:
        raise UsageError(f"threads must be 1 to {MOST}; got {count}.")
    import torch

    loaded = len(sys.modules)
    if _stated and _stated[-1] == (count, loaded) and torch.get_num_threads() == count:
        yield
        return
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    with threadpool_limits(limits=count):
        torch.set_num_threads(count)
        _stated.append((count, len(sys.modules)))
        try:
            yield
        finally:
            _stated.pop()
            torch.set_num_threads(before)


class AbandonedError(BaseException):
    """Ends a part of `side_by_side` for which nobody waits any more."""


def check_wanted() -> None:
    """Raise AbandonedError in a part of `side_by_side` for which nobody waits any more."""
    ended = getattr(_part, "ended", None)
    if ended is not None and ended.is_set():
        raise AbandonedError


def side_by_side(work: Callable[[Part], Result], parts: Sequence[Part], *, most: int) -> Iterator[Result]:
    """Yield what `work` makes of each part, in order: on all cores, each part on the threads that are in force.

    No more than `most` parts are under way at once, and one alone in a worker process, which shares out the cores.
    `work` must be safe to call from several threads. After an error or an interruption nothing more is begun, and what
    is under way ends at its next step of a `tracked` loop."""
    import torch

    threads = torch.get_num_threads()
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    at_once = 1 if parent_process() is not None else min(most, cores // threads, len(parts))
    if at_once <= 1:
        for part in parts:  # a StopIteration of `work` would end `map` without a word
            yield work(part)
        return
    from concurrent.futures import ThreadPoolExecutor

    ended = threading.Event()
    pool = ThreadPoolExecutor(at_once, "side-by-side", initializer=_begin, initargs=(threads, ended))
    try:
        yield from pool.map(work, parts)
    finally:  # also when whoever reads this stops early
        ended.set()
        pool.shutdown(cancel_futures=True)


def _begin(count: int, ended: threading.Event) -> None:
    """Compute on `count` threads in a new thread, which would take a number of its own, until `ended` is set."""
    import torch
    from threadpoolctl import threadpool_limits

    _part.ended = ended
    torch.set_num_threads(count)
    threadpool_limits(limits=count)
