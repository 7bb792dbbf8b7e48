"""What a person sees while waiting: progress on a terminal's stderr, nothing anywhere else."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

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
        """Set the bar of `description`, making it on first sight; its time left counts from there."""
        if description not in self.tasks:
            task = self.progress.add_task(description, total=total, completed=done, before=done)
            self.tasks[description] = int(task)
        self.progress.update(self.progress.task_ids[self.tasks[description]], completed=done, total=total)


def time_left(seconds: float, *, done: float, total: float) -> str:
    """The time that the rest takes where `done` of it took so many seconds, as "about 2:05:00 left"; "" at first."""
    if done <= 0 or done >= total:
        return ""
    return f"about {timedelta(seconds=round(seconds / done * (total - done)))} left"


@contextmanager
def progress_bars() -> Iterator[Progressive]:
    """Give bars where stderr is a terminal, silence elsewhere."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.text import Text

    class TimeLeft(ProgressColumn):
        max_refresh = 0.5

        def render(self, task: Task) -> Text:
            before = float(task.fields.get("before", 0))
            done, total = task.completed - before, (task.total or 0) - before
            return Text("" if task.finished else time_left(task.elapsed or 0.0, done=done, total=total))

    console = Console(stderr=True)
    if not console.is_terminal:
        yield NoProgress()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeLeft())
    with Progress(*columns, console=console, transient=True) as progress:
        yield Bars(progress=progress, tasks={})


def warn(text: str) -> None:
    """Say something on stderr that the user should know but that stops nothing."""
    print(f"fdgsec: {text}", file=sys.stderr)
