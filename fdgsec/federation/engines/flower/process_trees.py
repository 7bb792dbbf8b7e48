"""A process of Flower with all its descendants: they end with the block, even where this process is killed."""

import os
import re
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fdgsec.federation.engines.flower.environment import flower_environment
from fdgsec.federation.engines.flower.orphan_processes import sweep
from fdgsec.runtime.errors import FdgsecError, UsageError

POLL = 0.1
GRACE = 10.0
"""Seconds for processes to end by themselves; a SuperNode says goodbye to its server in this time."""
RAISED = re.compile(r"^([\w.]*(Error|Exception|Interrupt)): ")
TELLING = re.compile(r"error|exception|refused|denied|failed|cannot|in use|invalid|unable|unavailable", re.IGNORECASE)
HOLLOW = re.compile(
    r"^(Traceback|File |An unhandled|For more information)|^Exit Code|raised an exception$|error detected|^Error$"
)
"""Log lines of an exception; lines that mention an error; and those of them that do not name it."""


class FlowerFailedError(FdgsecError):
    """A process of Flower did not start, or ended too early."""


@dataclass(frozen=True, kw_only=True)
class Running:
    """One process with its descendants, and its log; `mark` is in their environment."""

    process: subprocess.Popen[bytes]
    log: Path
    begins: int
    mark: str

    def text(self) -> str:
        """Give the output of the process so far, without colors."""
        with self.log.open("rb") as file:
            file.seek(self.begins)
            return plain(file.read())

    def check(self, what: str) -> None:
        """Raise FlowerFailedError with the log's most informative line where the process has ended."""
        if (code := self.process.poll()) is not None:
            raise FlowerFailedError(f"{what} ended with code {code}: {telling_line(self.text())} (log: {self.log})")

    def wait_for(self, what: str, ready: Callable[[], bool], *, timeout: float) -> None:
        """Return once `ready()`. Raises FlowerFailedError where the process ends before, or after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not ready():
            self.check(what)
            if time.monotonic() > deadline:
                line = telling_line(self.text())
                raise FlowerFailedError(f"{what} was not ready within {timeout:.0f} s: {line} (log: {self.log})")
            time.sleep(POLL)


@contextmanager
def running(
    command: Sequence[str], *, home: Path, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Running]:
    """Run `command` with Flower's folders at `home`, appending to `log`; end it and its descendants with the block.

    A second process does so where this one is killed. `environment` is added to this process's own. Raises
    FlowerFailedError where a process does not end."""
    mark = secrets.token_hex(16)
    home.mkdir(parents=True, exist_ok=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    variables = flower_environment(home, mark=mark, added=environment or {})
    reaper = subprocess.Popen(
        [sys.executable, "-m", "fdgsec.federation.engines.flower.orphan_processes", mark], start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    left: list[int] = []
    try:
        private = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)  # it quotes names of data
        with os.fdopen(private, "ab") as output:
            begins = output.tell()
            process = subprocess.Popen(
                list(command), env=variables, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            yield Running(process=process, log=log, begins=begins, mark=mark)
        finally:
            left = sweep(mark, grace=GRACE)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10 * POLL)
    finally:
        reaper.communicate()
    if left:
        raise FlowerFailedError(f"processes {left} of {command[0]} would not end (log: {log})")


def plain(content: bytes) -> str:
    """Decode a log's text without colors."""
    return re.sub(r"\x1b\[[0-9;]*m", "", content.decode(errors="replace"))


def telling_line(text: str) -> str:
    """Find the most informative line of a log: the last exception, else the last that names an error, else the last."""
    lines = [re.sub(r"^(INFO|WARNING|ERROR)\s*:\s+", "", line.strip(" \t│╭╰─╮╯")) for line in text.splitlines()]
    lines = [line for line in lines if line]
    raised = [line for line in lines if RAISED.search(line)]
    told = [line for line in lines if TELLING.search(line) and not HOLLOW.search(line)]
    return (raised or told or lines or ["it wrote nothing"])[-1]


def free_port() -> int:
    """Find a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def refuse_taken(host: str, port: int) -> None:
    """Raise UsageError where `host`:`port` cannot be bound; Flower would report it in the middle of its log."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UsageError(f"cannot listen at {host}, port {port}: {error.strerror or error}.") from None
