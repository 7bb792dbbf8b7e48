"""What a person sees while waiting: progress on a terminal's stderr, nothing anywhere else."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fdgsec.runtime.errors import message_line

if TYPE_CHECKING:
    from rich.progress import Progress


class Progressive(Protocol):
    """Shows how far a long run is."""

    def update(self, description: str, done: int, total: int) -> None:
        """Set the state of the step called `description`."""
        ...


@dataclass(frozen=True)
class NoProgress:
    """Shows nothing."""

    def update(self, description: str, done: int, total: int) -> None:
        """Do nothing."""


@dataclass(frozen=True, kw_only=True)
class Bars:
    """One bar per step, on stderr."""

    progress: "Progress"
    tasks: dict[str, int]

    def update(self, description: str, done: int, total: int) -> None:
        """Set the bar of `description`, making it on first sight."""
        if description not in self.tasks:
            self.tasks[description] = int(self.progress.add_task(description, total=total))
        self.progress.update(self.progress.task_ids[self.tasks[description]], completed=done, total=total)


@contextmanager
def progress_bars() -> Iterator[Progressive]:
    """Give bars where stderr is a terminal, silence elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield NoProgress()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield Bars(progress=progress, tasks={})


def warn(text: str) -> None:
    """Say something on stderr that the user should know but that stops nothing."""
    print(f"fdgsec: {message_line(text)}", file=sys.stderr)
