"""`--json` of the verbs that list and look: one document on stdout, nothing beside it, with what the table shows."""

import json
from pathlib import Path
from typing import Any

import pytest

from fdgsec.cli import main


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FDGSEC_CACHE", "FDGSEC_DATA", "FDGSEC_WEIGHTS"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("what", ["targets", "methods", "attacks", "defenses", "datasets", "encoders", "presets"])
def test_a_list_is_an_object_for_each_line_of_its_table(what: str, capsys: pytest.CaptureFixture[str]):
    found = told(capsys, "list", what)

    names = [next(iter(row.values())) for row in found]
    assert len({*names}) == len(names) > 3
    assert main(["list", what]) == 0
    table = capsys.readouterr().out
    assert all(name in table for name in names)


def test_datasets_and_weights_say_what_is_there(capsys: pytest.CaptureFixture[str]):
    datasets = {row["dataset"]: row for row in told(capsys, "data", "list")}
    weights = {row["name"]: row for row in told(capsys, "weights", "list")}

    assert (datasets["shapes"]["found"], datasets["pacs"]["found"]) == ("bundled", "no")
    assert datasets["pacs"]["page"].startswith("https://")
    assert weights["vgg16"] == {**weights["vgg16"], "stored": False, "sha256": None}


@pytest.mark.medium
def test_a_checked_dataset_is_counted_by_domain_and_class(capsys: pytest.CaptureFixture[str]):
    found = told(capsys, "data", "check", "shapes")

    assert found["dataset"] == "shapes"
    assert sum(sum(classes.values()) for classes in found["domains"].values()) == found["images"]


def test_the_cache_is_counted_in_bytes_and_says_what_was_cleared(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    kept = tmp_path / "fdgsec_cache" / "runs" / "one"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"12345")

    found = told(capsys, "cache", "size")
    cleared = told(capsys, "cache", "clear")

    assert found["kinds"]["runs"] == {"bytes": 5, "files": 1}
    assert found["folder"] == cleared["folder"] == str(tmp_path / "fdgsec_cache")
    assert "runs" in cleared["cleared"]
    assert not kept.exists()


def test_the_doctor_names_versions_data_and_weights(capsys: pytest.CaptureFixture[str]):
    found = told(capsys, "doctor")

    assert {"torch", "cache", "dataset pacs", "weights vgg16"} <= found.keys()
    assert (found["dataset pacs"], found["weights vgg16"]) == ("no", "not stored")
