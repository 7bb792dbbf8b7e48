"""Worker processes for independent runs, and the memory that a process keeps between training steps."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import islice
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, TypeVar

from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.invocation import continue_with, current_arguments

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

VARIABLE = "FDGSEC_HEAP"

# Parameters of glibc's mallopt(3): its malloc.h numbers them.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_TRIM, _PAD = 2**31 - 1, 2**26


def keep_freed_memory() -> bool:
    """Have large blocks come from the heap, and the heap not shrink; say whether that was done. Changes no number.

    By default glibc maps every block of 32 MiB or more, and returns the top of its heap, so that activations of each
    step start as zeroed pages of the system again. Nothing is done where there is no glibc, where GLIBC_TUNABLES or
    MALLOC_* already say how memory is to be had, or where FDGSEC_HEAP is `default`."""
    told = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "") or any(
        name.startswith("MALLOC_") for name in os.environ
    )
    if sys.platform != "linux" or told or os.environ.get(VARIABLE) == "default":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is None:
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    return all(
        mallopt(name, value) == 1 for name, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _TRIM), (_TOP_PAD, _PAD))
    )


def return_freed_memory() -> None:
    """Return memory that nothing holds any more to the system, where there is glibc: between tasks of different sizes.

    What one task needed most is else kept beside what the next one needs, in other places."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim.argtypes, trim.restype = (ctypes.c_size_t,), ctypes.c_int
            trim(0)


Task = TypeVar("Task")
Result = TypeVar("Result")
Error = TypeVar("Error", bound=Exception)
Otherwise = TypeVar("Otherwise", bound=Exception)


def computed(
    work: Callable[[Task], Result],
    tasks: Sequence[Task],
    *,
    workers: int,
    last: Callable[[Result], bool] = lambda _: False,
) -> Generator[tuple[Task, Result], None, None]:
    """Yield each task with what `work` makes of it: one after the other, or from `workers` processes as they finish.

    Processes share out this one's threads; `work` and its tasks travel to them, so `work` is a function of a module or
    a `partial` of one. After a failure nothing new is begun; what was under way is yielded, then the error is raised.
    After a result that is `last` nothing new is begun either. While nobody asks for the next result, those `workers`
    tasks go on that are under way, and no others.
    Processes end with this one, however it ends, and at once where it is interrupted. Raises UsageError where a process
    is killed."""
    if workers == 1:
        yield from _in_turn(work, tasks, last)
        return
    from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    import torch

    threads, context = max(1, torch.get_num_threads() // workers), get_context("spawn")
    watched, held = context.Pipe(duplex=False)
    count = min(workers, max(len(tasks), 1))
    given = (threads, watched, current_arguments())
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_begin, initargs=given)
    failure: BaseException | None = None
    waiting = iter(tasks)
    try:  # no more is submitted than is begun: a process would take what waits for it, whatever has failed since
        begun: dict[Future[Result], Task] = {
            pool.submit(_portably, work, task): task for task in islice(waiting, count)
        }
        while begun:
            for future in wait(begun, return_when=FIRST_COMPLETED).done:
                task, failed = begun.pop(future), future.exception()
                failure = failure or failed
                if failure is not None or last(future.result()):
                    waiting = iter(())
                try:
                    begun.update({pool.submit(_portably, work, more): more for more in islice(waiting, 1)})
                except BrokenProcessPool as broken:  # another one was killed just now
                    failure, waiting = broken, iter(())
                if failed is None:
                    yield task, future.result()
    except (KeyboardInterrupt, GeneratorExit):
        held.close()  # ends the workers, which hear of no signal themselves
        raise
    finally:
        pool.shutdown(cancel_futures=True)  # also when whoever reads this stops early
        held.close()
        watched.close()
    if isinstance(failure, BrokenProcessPool):
        raise UsageError(
            f"one of {workers} processes was killed, as happens when memory runs out; take fewer workers."
        ) from failure
    if failure is not None:
        raise failure


def _portably(work: Callable[[Task], Result], task: Task) -> Result:
    """What `work` makes of a task, in a worker; an error that cannot travel is told in words."""
    try:
        return work(task)
    except Exception as error:
        if (told := portable(error, RuntimeError)) is error:
            raise
        raise told from error


def _in_turn(
    work: Callable[[Task], Result], tasks: Sequence[Task], last: Callable[[Result], bool]
) -> Iterator[tuple[Task, Result]]:
    for task in tasks:
        result = work(task)
        ends = last(result)
        yield task, result
        if ends:
            return


def portable(error: Error, otherwise: Callable[[str], Otherwise]) -> Error | Otherwise:
    """The exception, or where it cannot travel between processes `otherwise` of its name and words."""
    try:
        ForkingPickler.dumps(error)
        if str(type(error)(*error.args)) == str(error):  # as it is rebuilt at the other end
            return error
    except Exception:  # noqa: BLE001, S110 - whatever a foreign exception's own code raises
        pass
    return otherwise(f"{type(error).__name__}: {error}")


def _begin(threads: int, watched: "Connection", arguments: tuple[str, ...] | None) -> None:
    """Prepare a worker of the command with these arguments, which ends as soon as the process that holds the other end
    of `watched` closes it or ends."""
    import torch

    threading.Thread(target=end_with, args=(watched,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the process that began it decides
    keep_freed_memory()
    continue_with(arguments)
    torch.set_num_threads(threads)


def end_with(watched: "Connection") -> None:
    """Wait for the end of the pipe, then end this process: a worker without its master would wait for tasks forever."""
    try:
        watched.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)
