"""What a long command does about a run that fails: it goes on with the others, and names those that failed at its end.

Where the first run to end fails, so will others, most likely: then the command ends with its error. Runs that an
earlier command has finished count."""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from fdgsec.runtime.errors import FdgsecError, message_line
from fdgsec.runtime.worker_processes import computed, portable

Task = TypeVar("Task")
Result = TypeVar("Result")

MOST_NAMED = 3
"""Failed runs that an error names."""


class FailedRunsError(FdgsecError):
    """Some runs of a command failed, and all others are done (exit 1)."""


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A run that ended with an error."""

    error: FdgsecError


@dataclass(eq=False)
class Runs:
    """The runs of a command, how many `ended` (those that are stored included), and the names of those that failed."""

    failed: list[str] = field(default_factory=list)
    ended: int = 0

    def results(
        self, work: Callable[[Task], Result], tasks: Sequence[Task], *, workers: int, name: Callable[[Task], str]
    ) -> Generator[tuple[Task, Result | Failed], None, None]:
        """Yield each task with what `work` makes of it, or its failure, as `computed` does.

        Where a run fails before any other one has ended, yields those that are under way, and raises its error. Whoever
        may stop before the end closes it (`contextlib.closing`): other processes would compute on for nobody."""
        first: FdgsecError | None = None
        ended = computed(partial(_tried, work), tasks, workers=workers, last=self._fails_first)
        try:
            with closing(ended):
                for task, found in ended:
                    if self._fails_first(found):
                        assert isinstance(found, Failed)
                        first = found.error
                    else:
                        if isinstance(found, Failed):
                            self.failed.append(f"{name(task)}: {message_line(str(found.error))}")
                        yield task, found
                    self.ended += 1
        except FdgsecError as killed:  # a process was
            if first is None:
                raise
            raise first from killed
        if first is not None:
            raise first

    def _fails_first(self, found: object) -> bool:
        return isinstance(found, Failed) and not self.ended

    def check(self) -> None:
        """Raise FailedRunsError where runs failed."""
        if self.failed:
            more = len(self.failed) - MOST_NAMED
            named = "; ".join(self.failed[:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
            raise FailedRunsError(f"runs that failed: {len(self.failed)}; the same command tries them again: {named}")


def _tried(work: Callable[[Task], Result], task: Task) -> Result | Failed:
    """A run's result, or its failure."""
    try:
        return work(task)
    except FdgsecError as error:
        return Failed(error=portable(error, FailedRunsError))
