"""What a person sees while waiting."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fdgsec.runtime.progress import (
    Lines,
    NoProgress,
    NotebookLine,
    Output,
    duration,
    output,
    output_as,
    progress_bars,
    progress_shown,
    reporting,
    say_more_or_less,
    tracked,
    warn,
)


@dataclass
class Seen:
    states: list[tuple[str, int, int]] = field(default_factory=list)

    def update(self, description: str, done: int, total: int) -> None:
        self.states.append((description, done, total))


def lines(times: Iterator[float], *, each: bool = False) -> tuple[Lines, list[str]]:
    said: list[str] = []
    return Lines(write=said.append, clock=lambda: next(times), each=each), said


def test_a_tracked_loop_tells_every_step_to_whoever_shows_progress():
    seen = Seen()

    with reporting(seen):
        assert list(tracked(range(2), "steps")) == [0, 1]

    assert seen.states == [("steps", 0, 2), ("steps", 1, 2), ("steps", 2, 2), ("steps", 2, 2)]


def test_a_tracked_loop_that_ends_early_is_shown_as_done():
    seen = Seen()

    with reporting(seen):
        for step in tracked(range(5), "steps"):
            if step == 1:
                break

    assert seen.states[-1] == ("steps", 5, 5)


def test_without_a_command_a_tracked_loop_only_loops():
    assert list(tracked([3, 1], "anything")) == [3, 1]


def test_a_line_says_the_inner_step_with_the_time_left():
    found, said = lines(iter([0.0, 10.0, 70.0]))

    found.update("style-inversion", 0, 1)
    found.update("steps", 0, 40)
    found.update("steps", 10, 40)
    found.say()

    assert said == ["steps: 10/40, 1 min 0 s, about 3 min 0 s left"]


def test_a_step_without_inner_steps_has_lines_too():
    found, said = lines(iter([0.0, 65.0]))

    found.update("membership", 0, 1)
    found.say()

    assert said == ["membership: 0/1, 1 min 5 s"]


def test_a_verbose_line_tells_the_end_of_a_step_once():
    found, said = lines(iter([0.0, 61.0]), each=True)

    found.update("membership", 0, 1)
    found.update("membership", 1, 1)
    found.say()

    assert said == ["membership: done in 1 min 1 s"]


def test_quiet_shows_nothing_and_a_log_file_has_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    log = tmp_path / "run.log"

    with output_as(Output(quiet=True, log_file=log)), progress_bars() as progress:
        progress.update("membership", 0, 1)
        warn("a note")

    assert capsys.readouterr().err == "fdgsec: a note\n"
    assert log.read_text().endswith(" a note\n")


def test_what_a_command_chose_ends_with_it():
    with output_as(Output()):
        say_more_or_less(quiet=True)
        assert output().quiet

    assert not output().quiet


@pytest.mark.parametrize(("seconds", "text"), [(12.4, "12 s"), (185, "3 min 5 s"), (7800, "2 h 10 min")])
def test_durations_are_words(seconds: float, text: str):
    assert duration(seconds) == text


def test_a_notebook_shows_one_line_twice_a_second_and_the_last_state():
    shown: list[str] = []
    times = iter([0.0, 0.1, 0.7, 10.0])
    line = NotebookLine(show=shown.append, clock=lambda: next(times))

    for done in range(4):
        line.update("<attack>", done, 3)

    assert [text.partition("> ")[2] for text in shown] == [
        "&lt;attack&gt;: 0/3, 0 s", "&lt;attack&gt;: 2/3, 1 s, about 0 s left", "&lt;attack&gt;: 3/3, 10 s",
    ]  # fmt: skip


def test_where_nobody_looks_progress_is_shown_only_when_it_is_asked_for(capfd: pytest.CaptureFixture[str]):
    with progress_shown("auto") as quiet, progress_shown(False) as silent:
        assert quiet == silent == NoProgress()
    with progress_shown(True) as told:
        assert isinstance(told, Lines)
    assert capfd.readouterr() == ("", "")  # a line only every 30 seconds


TERMINAL = """
import os, pty, subprocess, sys
main, side = pty.openpty()
code = "from fdgsec.runtime.progress import progress_shown as p\\nwith p('auto') as shown: shown.update('step', 1, 2)"
done = subprocess.run([sys.executable, "-c", code], stderr=side, stdout=subprocess.PIPE, check=True)
os.close(side)
shown = b""
try:
    while part := os.read(main, 65536):
        shown += part
except OSError:
    pass
print(len(done.stdout), b"step" in shown)
"""


def test_on_a_terminal_progress_goes_to_stderr_alone():
    told = subprocess.run([sys.executable, "-c", TERMINAL], check=True, capture_output=True, text=True)

    assert told.stdout.split() == ["0", "True"]
