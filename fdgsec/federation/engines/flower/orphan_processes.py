"""Cleanup of processes: finds those with a mark in their environment, and their descendants, and ends them.

Flower's helpers leave their process group (SuperExec, ray, a detached SuperLink), so a group is not enough. Run as a
program, this module survives a killed parent, notices its end on stdin, and cleans up."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fdgsec.federation.engines.flower.environment import MARK

PROC = Path("/proc")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A process at one moment; `born` distinguishes it from a later one with the same number."""

    pid: int
    parent: int
    born: str
    marked: bool


def marked_processes(mark: str, *, known: Iterable[Seen] = ()) -> list[Seen]:
    """List every running process (but this one) that has `mark`, is one of `known`, or descends from either."""
    table = _table(f"{MARK}={mark}")
    before = {(seen.pid, seen.born) for seen in known}
    mine = {pid for pid, seen in table.items() if seen.marked or (pid, seen.born) in before}
    grown = True
    while grown:
        children = {pid for pid, seen in table.items() if seen.parent in mine and pid not in mine}
        mine |= children
        grown = bool(children)
    return [table[pid] for pid in sorted(mine - {os.getpid()})]


def sweep(mark: str, *, grace: float = 10.0) -> list[int]:
    """End every marked process: terminate, wait for at most `grace` seconds, kill. Gives the pids that remain."""
    found = marked_processes(mark)
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, grace)):
        deadline = time.monotonic() + patience
        asked: set[tuple[int, str]] = set()
        while (found := marked_processes(mark, known=found)) and time.monotonic() < deadline:
            for seen in found:
                if (seen.pid, seen.born) not in asked:
                    asked.add((seen.pid, seen.born))
                    _send(seen.pid, number)
            time.sleep(0.1)
    return [seen.pid for seen in found]


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _table(needle: str) -> dict[int, Seen]:
    return _linux_table(needle) if (PROC / "self" / "environ").exists() else _ps_table(needle)


def _linux_table(needle: str) -> dict[int, Seen]:
    wanted = needle.encode()
    table = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (seen := _linux_process(entry, wanted)) is not None:
            table[seen.pid] = seen
    return table


def _linux_process(entry: Path, needle: bytes) -> Seen | None:
    """Read one process; None where it has ended, is a zombie, or is not ours."""
    try:
        fields = (entry / "stat").read_text().rpartition(")")[2].split()  # the name may hold spaces and brackets
        if fields[0] in "ZX":
            return None
        marked = needle in (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return Seen(pid=int(entry.name), parent=int(fields[1]), born=fields[19], marked=marked)


def _ps_table(needle: str) -> dict[int, Seen]:
    """Read the table from BSD's and macOS's ps, which prints the environment after the command."""
    listing = subprocess.run(
        ["ps", "-axEww", "-o", "pid=,ppid=,stat=,lstart=,command="], capture_output=True, text=True, check=True
    )
    table = {}
    for line in listing.stdout.splitlines():
        fields = line.split()
        if not fields[2].startswith("Z"):
            born = " ".join(fields[3:8])
            table[int(fields[0])] = Seen(
                pid=int(fields[0]), parent=int(fields[1]), born=born, marked=needle in fields[8:]
            )
    return table


def main(mark: str) -> None:
    """Wait for the parent's end (it holds our stdin open), then sweep."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    sweep(mark)


if __name__ == "__main__":
    main(sys.argv[1])
