"""The time left on a progress line is that of the steps done since the line began."""

import pytest

from fdgsec.runtime.progress import time_left


@pytest.mark.parametrize(
    ("seconds", "done", "total", "said"),
    [
        (60.0, 1, 3, "about 0:02:00 left"),
        (7200.0, 2, 500, "about 20 days, 18:00:00 left"),
        (60.0, 0, 3, ""),
        (60.0, 3, 3, ""),
    ],
)
def test_what_is_left_takes_as_long_as_what_was_done(seconds: float, done: int, total: int, said: str):
    assert time_left(seconds, done=done, total=total) == said
