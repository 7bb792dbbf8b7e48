"""Progress: bars with the time left on a terminal's stderr, elsewhere a line every 30 seconds."""

import html
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from fdgsec.runtime.errors import UsageError, message_line
from fdgsec.runtime.threads import check_wanted

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")
ShowProgress = bool | Literal["auto"]
"""Whether a function of `fdgsec` shows progress; "auto" means in a notebook and on a terminal."""
EVERY = 30.0
"""Seconds between the lines that are written where stderr is no terminal."""
BETWEEN = 0.5
"""Seconds between two states of the line in a notebook."""


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
class Output:
    """How much a command says on stderr: nothing but errors, also when each step ends, and the same in a file."""

    quiet: bool = False
    verbose: bool = False
    log_file: Path | None = None


_output: ContextVar[Output] = ContextVar("output", default=Output())  # noqa: B039 (frozen)
_shown: ContextVar[Progressive] = ContextVar("shown", default=NoProgress())  # noqa: B039 (frozen)


def output() -> Output:
    """How much the running command says."""
    return _output.get()


def say_more_or_less(**changes: object) -> None:
    """Change how much the running command says. Raises UsageError for less and more at once."""
    chosen = replace(_output.get(), **changes)  # type: ignore[arg-type]
    if chosen.quiet and chosen.verbose:
        raise UsageError("--quiet says less and --verbose says more; leave one out.")
    _output.set(chosen)


@contextmanager
def output_as(chosen: Output) -> Iterator[None]:
    """Say as much as is `chosen` inside the block, whatever was chosen before."""
    token = _output.set(chosen)
    try:
        yield
    finally:
        _output.reset(token)


@contextmanager
def reporting(progress: Progressive) -> Iterator[None]:
    """Show the steps of `tracked` by `progress` inside the block."""
    token = _shown.set(progress)
    try:
        yield
    finally:
        _shown.reset(token)


def tracked(items: Sequence[T], description: str) -> Iterator[T]:
    """Give the items one by one, and show how far that is where a command shows progress.

    For loops of more than two seconds that no argument connects with the command, as those inside attacks. In a part of
    `side_by_side` they end once nobody waits for it."""
    shown, total = _shown.get(), len(items)
    shown.update(description, 0, total)
    try:
        for done, item in enumerate(items, 1):
            yield item
            check_wanted()
            shown.update(description, done, total)
    finally:  # also where the loop ended early
        shown.update(description, total, total)


@dataclass(frozen=True, kw_only=True)
class Bars:
    """One bar per step, on stderr; a step that begins again starts its clock again."""

    progress: "Progress"
    tasks: dict[str, int]

    def update(self, description: str, done: int, total: int) -> None:
        """Set the bar of `description`, making it on first sight."""
        if description not in self.tasks:
            self.tasks[description] = int(self.progress.add_task(description, total=total))
        task = self.progress.task_ids[self.tasks[description]]
        if done == 0:
            self.progress.reset(task, total=total)
        self.progress.update(task, completed=done, total=total)


@dataclass(kw_only=True, eq=False)
class Lines:
    """Lines of text about the last step that began; `each` also writes one when a step ends.

    `say` is called from outside every EVERY seconds, so that a step that tells nothing in between has lines too."""

    write: Callable[[str], None]
    each: bool = False
    clock: Callable[[], float] = time.monotonic
    steps: dict[str, tuple[float, int, int]] = field(default_factory=dict)

    def update(self, description: str, done: int, total: int) -> None:
        """Note the state of `description`."""
        begun = self.clock() if done == 0 or description not in self.steps else self.steps.pop(description)[0]
        if done < total:
            self.steps.pop(description, None)
            self.steps[description] = (begun, done, total)
            return
        self.steps.pop(description, None)
        if self.each and (seconds := self.clock() - begun) >= 1:
            self.write(f"{description}: done in {duration(seconds)}")

    def say(self) -> None:
        """Write how far the step is that was updated last; nothing where none is running."""
        for description, (begun, done, total) in list(self.steps.items())[-1:]:
            passed = self.clock() - begun
            left = f", about {duration(passed / done * (total - done))} left" if done else ""
            self.write(f"{description}: {done}/{total}, {duration(passed)}{left}")


@dataclass(frozen=True, kw_only=True)
class Several:
    """Shows the same in several ways."""

    ways: tuple[Progressive, ...]

    def update(self, description: str, done: int, total: int) -> None:
        """Update each."""
        for way in self.ways:
            way.update(description, done, total)


@dataclass(kw_only=True, eq=False)
class NotebookLine:
    """One line below a notebook's cell, with a bar for the step that was updated last; it is shown twice a second.

    `show` replaces the line. Nothing is written to stdout."""

    show: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    begun: dict[str, float] = field(default_factory=dict)
    shown_at: float = float("-inf")

    def update(self, description: str, done: int, total: int) -> None:
        """Show the state of `description`."""
        now = self.clock()
        if done == 0:
            self.begun[description] = now
        passed = now - self.begun.setdefault(description, now)
        if now - self.shown_at < BETWEEN and done < total:
            return
        self.shown_at = now
        left = f", about {duration(passed / done * (total - done))} left" if 0 < done < total else ""
        bar = f'<progress value="{done}" max="{max(total, 1)}"></progress>'
        self.show(f"{bar} {html.escape(description)}: {done}/{total}, {duration(passed)}{left}")


def duration(seconds: float) -> str:
    """12 s, 3 min 5 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


@contextmanager
def progress_bars() -> Iterator[Progressive]:
    """Show progress inside the block, as much of it as `output` says, and that of `tracked` loops."""
    chosen = output()
    with ExitStack() as stack:
        ways: list[Progressive] = []
        if not chosen.quiet:
            ways.append(stack.enter_context(_on_stderr(verbose=chosen.verbose)))
        if chosen.log_file is not None:
            ways.append(stack.enter_context(_beating(Lines(write=_logged, each=True))))
        progress = Several(ways=tuple(ways))
        stack.enter_context(reporting(progress))
        yield progress


@contextmanager
def progress_shown(choice: ShowProgress) -> Iterator[Progressive]:
    """Show progress inside the block as the caller of a function of `fdgsec` chose, and that of `tracked` loops.

    In a notebook below the cell, elsewhere on stderr. Raises UsageError for another choice."""
    if choice not in (True, False, "auto"):
        raise UsageError(f"progress must be True, False or 'auto'; got {choice!r}.")
    notebook = _in_notebook()
    with ExitStack() as stack:
        progress: Progressive = NoProgress()
        if choice is not False and notebook:
            progress = stack.enter_context(_below_the_cell())
        elif choice is True or (choice == "auto" and sys.stderr is not None and sys.stderr.isatty()):
            progress = stack.enter_context(_on_stderr(verbose=False))
        stack.enter_context(reporting(progress))
        yield progress


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    running = None if shell is None else shell.get_ipython()
    return running is not None and getattr(running, "kernel", None) is not None


@contextmanager
def _below_the_cell() -> Iterator[Progressive]:
    """A line in the output of the running cell, which is empty when the block ends."""
    from IPython.display import HTML, display

    handle = display(HTML(""), display_id=True)
    assert handle is not None  # a display with an id has a handle
    try:
        yield NotebookLine(show=lambda text: handle.update(HTML(text)))
    finally:
        handle.update(HTML(""))


@contextmanager
def _on_stderr(*, verbose: bool) -> Iterator[Progressive]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal or verbose:
        with _beating(Lines(write=lambda text: print(f"fdgsec: {text}", file=sys.stderr), each=verbose)) as lines:
            yield lines
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as progress:
        yield Bars(progress=progress, tasks={})


@contextmanager
def _beating(lines: Lines) -> Iterator[Lines]:
    """Let `lines` say something every EVERY seconds."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(EVERY):
            lines.say()

    threading.Thread(target=beat, name="progress", daemon=True).start()
    try:
        yield lines
    finally:
        ended.set()


def _logged(text: str) -> None:
    """Append a line with the time to the log file; nothing without one."""
    if (path := output().log_file) is not None:
        with path.open("a") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")


def warn(text: str) -> None:
    """Say something on stderr that the user should know but that stops nothing."""
    line = message_line(text)
    print(f"fdgsec: {line}", file=sys.stderr)
    _logged(line)
