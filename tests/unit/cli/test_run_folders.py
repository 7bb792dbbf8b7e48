"""Default folders of runs, and the list of what lies in them."""

import json
from pathlib import Path

import pytest

from fdgsec.cli import main
from fdgsec.cli.run_folders import default_folder
from fdgsec.experiments.run_config import attack_settings, train_settings

TRAINED = {
    "schema": 1, "target": "ccst", "method": "ccst", "preset": "", "dataset": {"name": "shapes", "images": 480},
    "encoder": "mini", "backbone": "tiny", "seed": 3, "profile": "full", "reused": False, "defenses": [],
    "guarantees": [], "accuracy": {"unseen_domain": "sketch", "value": 0.5, "low": 0.4, "high": 0.6, "n": 100},
    "attacks": [], "artifacts": [], "model_traffic": [], "unread_kinds": [], "transcript_sha256": "",
    "environment": {}, "seconds": 1.0,
}  # fmt: skip


def test_an_attack_behind_a_defense_has_a_folder_of_its_own():
    plain, defended = (
        attack_settings("ccst-overall", {"defenses": defenses}) for defenses in ((), ("style-noise:scale=1",))
    )

    folders = {str(default_folder("ccst-overall-shapes-quick-server-seed0", one)) for one in (plain, defended)}

    assert len(folders) == 2
    assert all(folder.startswith("runs/ccst-overall-shapes-quick-server-seed0-") for folder in folders)


def test_trainings_with_other_rounds_or_backbones_do_not_meet():
    given = ({"rounds": 5}, {"rounds": 6}, {"rounds": 5, "backbone": "squeezenet1_0"})

    assert len({default_folder("train-ccst-pacs-seed0", train_settings("ccst", one)) for one in given}) == 3


def test_the_same_settings_have_the_same_folder():
    assert len({default_folder("x", train_settings("ccst", {"rounds": 5}), Path("data")) for _ in range(2)}) == 1


def test_runs_are_listed_with_what_they_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for name, text in (("first", json.dumps(TRAINED)), ("broken", "{")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(text)

    assert main(["runs", str(tmp_path), "--json"]) == 0

    rows = {Path(row["folder"]).name: row for row in json.loads(capsys.readouterr().out)}
    assert rows["first"]["verb"] == "train"
    assert rows["first"]["about"] == "ccst on shapes, seed 3"
    assert rows["first"]["found"].startswith("ccst reaches .50 [.40, .60] accuracy on the unseen domain sketch")
    assert rows["broken"]["found"].startswith("report.json cannot be read")


def test_a_folder_that_does_not_exist_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["runs", str(tmp_path / "none")]) == 2
    assert "is no folder" in capsys.readouterr().err
