"""A run's bytes do not depend on the cores of the machine, nor on the engine, for a user who has set no variable."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fdgsec

SMALL = {"dataset": "shapes", "per_class": 6, "image_size": 32, "rounds": 1, "device": "cpu"}


@pytest.fixture
def own_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.medium
def test_the_process_may_have_any_number_of_threads_and_the_report_states_those_of_the_run(own_threads: None):
    reports = []
    for count in (1, 2):
        torch.set_num_threads(count)
        reports.append(fdgsec.train("fedavg", **SMALL))
        assert torch.get_num_threads() == count

    assert reports[0].transcript_sha256 == reports[1].transcript_sha256
    assert [report.environment["threads"] for report in reports] == [1, 1]


@pytest.mark.medium
def test_a_run_on_two_threads_says_so():
    assert fdgsec.train("fedavg", threads=2, **SMALL).environment["threads"] == 2


def ran(folder: Path, *arguments: str) -> dict[str, object]:
    """Run `fdgsec ARGUMENTS` as a user does who has set no number of threads; give the report."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    environment |= {"FDGSEC_CACHE": str(folder / "cache"), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "fdgsec.cli", *arguments, "--out", str(folder / "run"), "--json"]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, object] = json.loads((folder / "run" / "report.json").read_text())
    return report


@pytest.mark.slow
def test_local_and_flower_simulation_write_the_same_transcript_without_any_variable(tmp_path: Path):
    given = [
        "train",
        "--method",
        "ccst",
        "--dataset",
        "shapes",
        "--rounds",
        "2",
        "--clients",
        "3",
        "--per-domain",
        "60",
    ]
    found = []
    for engine in ("local", "flower-sim"):
        (tmp_path / engine).mkdir()
        found.append(ran(tmp_path / engine, *given, "--engine", engine)["transcript_sha256"])

    assert found[0] == found[1]


@pytest.mark.slow
def test_an_attack_takes_the_transcript_of_flower_simulation_without_any_variable(tmp_path: Path):
    report = ran(
        tmp_path, "attack", "--target", "ccst-overall", "--dataset", "shapes", "--rounds", "1", "--per-domain", "60",
        "--attack", "linkage", "--engine", "flower-sim",
    )  # fmt: skip

    assert report["attacks"]
