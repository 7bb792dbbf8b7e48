"""Several independent runs at once, each in a process of its own; opt-in, as every process holds its own dataset."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TypeVar

import torch

from fdgsec.errors import UsageError
from fdgsec.heap import keep_freed_memory

Task = TypeVar("Task")
Result = TypeVar("Result")


def computed(work: Callable[[Task], Result], tasks: Sequence[Task], *, workers: int) -> Iterator[tuple[Task, Result]]:
    """Yield each task with what `work` makes of it: one after the other, or from `workers` processes as they finish.

    Processes share out this one's threads; `work` and its tasks travel to them, so `work` is a function of a module or a
    `partial` of one. After a failure nothing new is begun; what was under way is yielded, then the error is raised.
    Raises UsageError where a process is killed."""
    if workers == 1:
        yield from ((task, work(task)) for task in tasks)
        return
    threads = max(1, torch.get_num_threads() // workers)
    pool = ProcessPoolExecutor(
        min(workers, max(len(tasks), 1)), mp_context=get_context("spawn"), initializer=_begin, initargs=(threads,)
    )
    failure: BaseException | None = None
    try:
        asked: dict[Future[Result], Task] = {pool.submit(work, task): task for task in tasks}
        waiting = set(asked)
        while waiting:
            finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in finished:
                if (failed := future.exception()) is None:
                    yield asked[future], future.result()
                elif failure is None:
                    failure = failed
                    waiting = {each for each in waiting if not each.cancel()}  # what runs already cannot be cancelled
    finally:
        pool.shutdown(cancel_futures=True)  # also when whoever reads this stops early
    if isinstance(failure, BrokenProcessPool):
        raise UsageError(
            f"one of {workers} processes was killed, as happens when memory runs out; take fewer workers."
        ) from failure
    if failure is not None:
        raise failure


def _begin(threads: int) -> None:
    keep_freed_memory()
    torch.set_num_threads(threads)
