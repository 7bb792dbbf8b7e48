"""What a command of many runs does about those that fail."""

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from fdgsec.experiments.failed_runs import Failed, FailedRunsError, Runs
from fdgsec.runtime.errors import LONGEST_LINE, DataError, UsageError


def halved(failing: tuple[int, ...], number: int) -> int:
    if number in failing:
        raise UsageError(f"{number} is odd.")
    return number // 2


def test_all_others_are_done_and_failed_ones_named():
    runs = Runs()

    found = dict(runs.results(partial(halved, (2, 4, 5, 6)), range(1, 8), workers=1, name=str))

    assert {task for task, result in found.items() if isinstance(result, Failed)} == {2, 4, 5, 6}
    assert (found[1], found[3], found[7]) == (0, 1, 3)
    with pytest.raises(
        FailedRunsError, match=r"^runs that failed: 4; .*: 2: 2 is odd\.; 4: .*; 5: 5 is odd\.; and 1 more"
    ):
        runs.check()


def test_where_none_fails_nothing_is_said():
    runs = Runs()

    assert list(runs.results(partial(halved, ()), [2], workers=1, name=str)) == [(2, 1)]
    runs.check()


def test_where_the_first_fails_none_follows_and_later_calls_go_on():
    runs = Runs()
    begun = list[int]()

    def work(number: int) -> int:
        begun.append(number)
        return halved((1, 4), number)

    with pytest.raises(UsageError, match=r"^1 is odd\.$"):
        list(runs.results(work, [1, 2, 3], workers=1, name=str))
    assert begun == [1]

    found = [task for task, _ in runs.results(work, [4, 2], workers=1, name=str)]
    assert found == [4, 2]


def test_where_others_ended_before_the_first_that_fails_is_one_of_many():
    """As for the same command again, whose finished runs are stored."""
    runs = Runs(ended=2)

    found = [task for task, _ in runs.results(partial(halved, (1,)), [1, 2], workers=1, name=str)]

    assert found == [1, 2]
    assert runs.failed == ["1: 1 is odd."]


def test_failures_are_told_in_a_line():
    def loud(_: int) -> int:
        raise DataError("a\x1b[2Jb\n" + "x" * 5000)

    runs = Runs(ended=1)
    list(runs.results(loud, [1], workers=1, name=str))

    assert len(runs.failed[0]) <= LONGEST_LINE + len("1: ")
    assert runs.failed[0].isprintable()


def killed_after_a_failure(seen: Path, number: int) -> int:
    """Fails at once for 0; 1 is killed when that is told."""
    (seen / str(number)).touch()
    if number == 0:
        raise DataError("nothing is there.")
    time.sleep(1.5)
    os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.medium
def test_the_first_failure_is_raised_where_another_process_is_killed_after_it(tmp_path: Path):
    with pytest.raises(DataError, match=r"^nothing is there\.$"):
        list(Runs().results(partial(killed_after_a_failure, tmp_path), [0, 1], workers=2, name=str))


def slow_but_for_the_first(seen: Path, number: int) -> int:
    """Fails at once for 0, waits for that and then a while for 1, and notes what was begun."""
    (seen / str(number)).touch()
    if number == 0:
        while not (seen / "1").exists():
            time.sleep(0.05)
        raise DataError("nothing is there.")
    time.sleep(1.0)
    return number


@pytest.mark.medium
def test_where_the_first_fails_what_is_under_way_is_kept(tmp_path: Path):
    kept = dict[int, int | Failed]()

    with pytest.raises(DataError, match=r"^nothing is there\.$"):
        kept.update(Runs().results(partial(slow_but_for_the_first, tmp_path), range(12), workers=2, name=str))

    assert kept[1] == 1
    assert len(kept) < 6
