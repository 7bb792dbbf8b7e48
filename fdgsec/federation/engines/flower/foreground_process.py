"""Support for foreground programs: a lock on their folder, termination by signals, and forwarding of a log."""

import fcntl
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from fdgsec.federation.engines.flower.process_trees import Running

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ToldToEndError(BaseException):
    """SIGINT, SIGTERM or SIGHUP arrived; a BaseException, so that `except Exception` does not catch it."""


@contextmanager
def until_told() -> Iterator[None]:
    """Run the block until it ends or a signal arrives; further signals do not interrupt the cleanup."""
    if threading.current_thread() is not threading.main_thread():  # Python delivers signals to the main thread alone
        yield
        return

    def end(_number: int, _frame: FrameType | None) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise ToldToEndError

    before = {number: signal.signal(number, end) for number in SIGNALS}
    try:
        yield
    except ToldToEndError:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def alone(path: Path) -> Iterator[bool]:
    """Hold the lock file `path` during the block; False where another process holds it.

    Its folder is created where missing, for its owner alone."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


class LogForwarder:
    """Forwards new lines of a log, each once, without the lines of single requests."""

    def __init__(self, run: Running, say: Callable[[str], None]) -> None:
        self.run, self.say, self.told = run, say, 0

    def pass_on(self) -> None:
        """Forward every complete new line."""
        text = self.run.text()
        complete = text.rfind("\n") + 1
        for line in text[self.told : complete].splitlines():
            if line.strip(" :") not in ("", "INFO") and "[uvicorn." not in line and not line.startswith("INFO:  "):
                self.say(line)
        self.told = complete
