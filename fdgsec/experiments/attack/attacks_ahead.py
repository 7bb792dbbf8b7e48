"""Attacks that other processes compute ahead of the loop.

A process is a copy of this one (fork), with the run, its images and all that was learned of them, and keeps what it
finishes as the loop does (fdgsec.experiments.attack.kept_outcomes). The loop computes the attacks from the first one
on that nobody has begun, and then waits for the others. An attack draws from streams of its own, so that who computes
it changes no number. What a process does not finish, because it was killed or met an error, the loop computes
itself."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

from fdgsec.runtime.progress import NoProgress, reporting
from fdgsec.runtime.worker_processes import end_with

MOST_BY_DEFAULT = 2
"""Processes that share out attacks unless told otherwise: each has memory of its own for what it trains."""
ENOUGH = 4 * 2**20
"""KiB of available memory from which a second process is begun without being asked for: CCST on PACS needs 3.0 GiB in
two processes."""


def default_workers() -> int:
    """The number of processes that share out attacks where none is said: two, where there are two cores and memory."""
    if sys.platform != "linux" or _available() < ENOUGH:
        return 1
    return min(MOST_BY_DEFAULT, len(os.sched_getaffinity(0)))


def _available() -> int:
    """The memory that can be had without swapping, in KiB; 0 where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), 0)


class Ahead(Protocol):
    """What other processes compute of numbered tasks."""

    def begins(self, number: int) -> bool:
        """Claim a task for this process; False where another process has begun it."""
        ...

    def finishes(self, number: int) -> bool:
        """Wait for a task that another process has begun; False where it ended without finishing it."""
        ...


class Alone:
    """No other process: every task is this one's."""

    def begins(self, number: int) -> bool:  # noqa: ARG002 - an argument of the protocol
        """Return True."""
        return True

    def finishes(self, number: int) -> bool:  # noqa: ARG002 - an argument of the protocol
        """Return False."""
        return False


@dataclass(frozen=True, kw_only=True, eq=False)
class Processes:
    """Other processes, each with the `claims` of all, one byte per task, and a pipe on which it names what it finished.

    `finished` has the numbers of those that were named."""

    claims: Any  # ctypes have no types of their own here
    pipes: list[Connection]
    finished: set[int]

    def begins(self, number: int) -> bool:
        """Claim a task for this process; False where another process has begun it."""
        return _claimed(self.claims, number)

    def finishes(self, number: int) -> bool:
        """Wait for a task that another process has begun; False where all ended without finishing it."""
        while number not in self.finished and self.pipes:
            for pipe in wait(self.pipes):
                assert isinstance(pipe, Connection)  # nothing else is waited for
                try:
                    self.finished.add(int.from_bytes(pipe.recv_bytes(), "big"))
                except (EOFError, OSError):
                    self.pipes.remove(pipe)
        return number in self.finished


@contextmanager
def working_ahead(work: Callable[[int], bool], tasks: Sequence[int], *, workers: int) -> Iterator[Ahead]:
    """Have `workers` - 1 other processes call `work` on `tasks`, in their order; it says whether one is finished.

    None is started with one worker or fewer than two tasks, where the system cannot copy a process, or where a copy
    could not use what this one uses: several threads, a GPU. All end with the block, and with this process however it
    ends."""
    count = min(workers, len(tasks)) - 1
    if count < 1 or not _can_copy():
        yield Alone()
        return
    context = get_context("fork")
    try:
        claims = context.Array("b", max(tasks) + 1)
    except OSError:  # no shared memory, as in some containers
        yield Alone()
        return
    watched, held = context.Pipe(duplex=False)
    pipes, processes = list[Connection](), []
    for _ in range(count):
        told, tells = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(work, tasks, claims, tells, watched, held))
        process.start()
        tells.close()
        pipes.append(told)
        processes.append(process)
    try:
        yield Processes(claims=claims, pipes=pipes, finished=set())
    finally:
        held.close()  # ends them
        for process in processes:
            process.join()
        watched.close()


def _can_copy() -> bool:
    import torch

    return sys.platform == "linux" and torch.get_num_threads() == 1 and not torch.cuda.is_initialized()


def _claimed(claims: Any, number: int) -> bool:
    with claims.get_lock():
        free = not claims[number]
        claims[number] = 1
    return free


def _work(
    work: Callable[[int], bool],
    tasks: Sequence[int],
    claims: Any,
    tells: Connection,
    watched: Connection,
    held: Connection,
) -> None:
    """Call `work` on tasks that nobody has begun, in their order, until one is not finished."""
    held.close()  # the copy of it, which would keep `watched` open
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the process that began it decides
    threading.Thread(target=end_with, args=(watched,), daemon=True).start()
    with reporting(NoProgress()):
        for number in tasks:
            if not _claimed(claims, number):
                continue
            try:
                if not work(number):
                    return
            except Exception:  # noqa: BLE001 - the loop meets it too, and says so
                return
            tells.send_bytes(number.to_bytes(4, "big"))
