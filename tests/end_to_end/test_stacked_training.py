"""`fdgsec train --with NAME --adapt NAME`: the report says what was stacked, and what adapting at test time gives."""

import json
from pathlib import Path

import pytest

from fdgsec.cli import main
from fdgsec.experiments.run_config import RunConfig
from fdgsec.experiments.train import train
from fdgsec.runtime.progress import NoProgress

SMALL = ["--dataset", "shapes", "--per-domain", "14", "--image-size", "32", "--rounds", "1"]


@pytest.mark.medium
def test_ccst_with_mixstyle_and_tent_reports_both_names_and_both_accuracies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "run"

    code = main(["train", "--method", "ccst", "--with", "mixstyle", "--set", "with.probability=1.0", "--adapt", "tent",
                 *SMALL, "--out", str(out)])  # fmt: skip

    assert code == 0, capsys.readouterr().err
    report = json.loads((out / "report.json").read_text())
    assert (report["target"], report["method"]) == ("ccst+mixstyle", "ccst+mixstyle")
    assert [row["kind"] for row in report["artifacts"]] == ["StyleStatistics"] * 3 + ["StyleBank"] * 3
    adapted = report["accuracy"]["adapted"]
    assert (adapted["adaptation"], adapted["n"]) == ("tent", 14)
    assert 0 <= adapted["low"] <= adapted["value"] <= adapted["high"] <= 1
    config = json.loads((out / "config.json").read_text())
    assert (config["local"], config["local_options"], config["adapt"]) == ("mixstyle", {"probability": 1.0}, "tent")


@pytest.mark.medium
def test_adapting_changes_neither_the_run_nor_the_plain_accuracy():
    plain, adapted = (
        train(RunConfig(method="fedavg", image_size=32, per_domain=14, rounds=1, adapt=adapt), data_root=None, out=None,
              progress=NoProgress())
        for adapt in ("", "tent-ccst")
    )  # fmt: skip

    assert plain.accuracy is not None
    assert adapted.accuracy is not None
    assert adapted.transcript_sha256 == plain.transcript_sha256
    assert {key: value for key, value in adapted.accuracy.items() if key != "adapted"} == plain.accuracy
    assert "adapted" not in plain.accuracy
