"""`fdgsec train` under kill -9 and Ctrl-C: the same command goes on, to the bytes of an undisturbed run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from fdgsec.federation.checkpoints import BEGUN, UNFINISHED, rounds_in
from fdgsec.runtime.random_streams import stream

pytestmark = pytest.mark.slow
GIVEN = [
    "train", "--method", "ccst", "--dataset", "shapes", "--per-class", "6", "--image-size", "32", "--rounds", "8",
    "--device", "cpu",
]  # fmt: skip
COMMAND = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background inherits to ignore it
from fdgsec.cli import main
sys.exit(main())
"""
MOMENTS = 6
PATIENCE = 600.0


def begun(folder: Path, out: Path) -> subprocess.Popen[str]:
    """Start the command, and come back when its rounds have begun, or it has ended."""
    environment = {**os.environ, "FDGSEC_CACHE": str(folder / "cache")}
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *GIVEN, "--out", str(out)], env=environment, stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and not (out / UNFINISHED / BEGUN).exists():
        assert time.monotonic() < deadline
        ended_within(process, 0.02)
    return process


def ended_within(process: subprocess.Popen[str], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


TIMED = ("report.", "SHA256SUMS")


def finished(process: subprocess.Popen[str], out: Path) -> dict[str, Any]:
    """Wait for the end, and give what the run's folder says."""
    said = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 0, said
    return contents(out)


def contents(out: Path) -> dict[str, Any]:
    """Everything that a run's folder says, without times, which the hash of its report holds as well."""
    report = json.loads((out / "report.json").read_text())
    del report["seconds"], report["environment"]["date"], report["environment"]["command"]
    names = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    return {"report": report} | {name: (out / name).read_bytes() for name in names if not name.startswith(TIMED)}


@pytest.mark.nightly
def test_a_run_killed_at_random_moments_ends_with_the_same_bytes(tmp_path: Path):
    process = begun(tmp_path, tmp_path / "whole")
    started = time.monotonic()
    whole = finished(process, tmp_path / "whole")
    seconds = time.monotonic() - started

    moments = torch.rand(10 * MOMENTS, generator=stream(0, "world", "moments of kills")).tolist()
    killed, ended, reached = 0, 0, set[int]()
    while killed < MOMENTS:
        process, started = begun(tmp_path, tmp_path / "cut"), time.monotonic()
        moment = seconds * moments.pop()
        if killed % 2:  # every other one after a round was kept: imports take longer than these rounds
            while process.poll() is None and not rounds_in(tmp_path / "cut" / UNFINISHED):
                ended_within(process, 0.02)
            moment /= 10
        if not ended_within(process, moment):
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.communicate()
        reached |= set(rounds_in(tmp_path / "cut" / UNFINISHED))
        if (tmp_path / "cut" / "report.json").exists():  # written: the next moment is one of another run
            assert contents(tmp_path / "cut") == whole
            ended, seconds = ended + 1, min(seconds, time.monotonic() - started)
            (tmp_path / "cut").rename(tmp_path / f"cut-{ended}")

    assert reached
    assert finished(begun(tmp_path, tmp_path / "cut"), tmp_path / "cut") == whole


def test_ctrl_c_says_in_one_line_what_is_kept_and_the_same_command_goes_on(tmp_path: Path):
    out = tmp_path / "run"
    process = begun(tmp_path, out)
    while not rounds_in(out / UNFINISHED):
        assert not ended_within(process, 0.02), "it ended before it could be interrupted"
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=PATIENCE)[1].splitlines()

    assert process.returncode == 130
    assert [line for line in said if f"kept in {out / UNFINISHED} (" in line and "the same command goes on" in line]
    again = begun(tmp_path, out)
    assert "going on after round" in again.communicate(timeout=PATIENCE)[1]
    assert (out / "report.json").exists()
