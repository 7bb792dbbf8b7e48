"""Commands that are killed or interrupted, and given again."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ATTACK = [
    sys.executable, "-m", "fdgsec.cli", "attack", "--target", "ccst-single", "--per-domain", "40", "--image-size", "16",
    "--attack", "pool-exposure", "--attack", "reidentification",
    "--attack", "style-inversion", "--set", 'attacks.style-inversion.losses=["mse"]',  # long enough to be interrupted
]  # fmt: skip


def environment(tmp_path: Path) -> Mapping[str, str]:
    return {**os.environ, "FDGSEC_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}


@pytest.mark.nightly
@pytest.mark.slow
def test_killed_commands_report_the_same_when_they_are_given_again(tmp_path: Path):
    """Two moments of each kind; benchmarks/results/crash-matrix.json has more."""
    command = [sys.executable, "-m", "benchmarks.crash_matrix", "--moments", "6", "--commands", "attack,claims"]
    out = tmp_path / "crashes.json"
    subprocess.run([*command, "--out", str(out)], check=True, env=environment(tmp_path), stdout=subprocess.DEVNULL)

    rows = json.loads(out.read_text())["rows"]
    assert [row for row in rows if row["outcome"] == "different"] == []
    assert {row["kind"] for row in rows} == {"time", "write", "power", "pair"}
    assert sum(row["killed"] for row in rows) >= 3


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let processes that the test starts be interrupted, also where it runs in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
def test_an_interruption_says_what_is_kept_and_the_same_command_keeps_it(tmp_path: Path):
    kept, out = tmp_path / "cache" / "attacks", ["--out", str(tmp_path / "out")]
    with subprocess.Popen(
        [*ATTACK, *out], env=environment(tmp_path), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        while not (kept.exists() and list(kept.glob("[0-9a-f]*.json"))):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
    first = {path: path.stat().st_mtime_ns for path in kept.glob("[0-9a-f]*.json")}

    assert process.returncode == 130
    assert said.strip() == (
        f"fdgsec: interrupted: {len(first)} of 3 attacks are finished and kept; the same command goes on after them."
    )
    assert not (tmp_path / "out").exists()

    subprocess.run([*ATTACK, *out], env=environment(tmp_path), check=True, stdout=subprocess.DEVNULL)
    assert {path: path.stat().st_mtime_ns for path in first} == first
    assert [each["status"] for each in json.loads((tmp_path / "out" / "report.json").read_text())["attacks"]] == [
        "done"
    ] * 3
