"""Ctrl-C as a user hears of it: in one line, what is kept and how to go on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class Interrupted(KeyboardInterrupt):
    """A user's interruption (Ctrl-C) of work that is kept in part; its text says what is kept (exit 130)."""


@contextmanager
def telling(kept: Callable[[], str]) -> Iterator[None]:
    """Have an interruption of the block end with what `kept` says then."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise Interrupted(kept()) from stop


def kept_text(where: Path, finished: int, planned: int, what: str) -> str:
    """Say how many of the planned parts of a long command are kept, and how to go on."""
    return f"{finished} of {planned} {what} are finished and kept in {where}; the same command goes on after them."
