"""The command line that is being run, for reports; empty where fdgsec is called from Python."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

_arguments: ContextVar[tuple[str, ...] | None] = ContextVar("arguments", default=None)


@contextmanager
def invoked_with(arguments: Sequence[str]) -> Iterator[None]:
    """Run the block as the command with these arguments."""
    token = _arguments.set(tuple(arguments))
    try:
        yield
    finally:
        _arguments.reset(token)


def current_arguments() -> tuple[str, ...] | None:
    """The arguments of the command that is being run; None where fdgsec is called from Python."""
    return _arguments.get()


def continue_with(arguments: tuple[str, ...] | None) -> None:
    """In a process that works for another one: what runs here from now on is that one's command."""
    _arguments.set(arguments)


def command_line() -> str:
    """The command as a person would type it: `fdgsec attack --dataset shapes`."""
    arguments = _arguments.get()
    return "" if arguments is None else shlex.join(("fdgsec", *arguments))
