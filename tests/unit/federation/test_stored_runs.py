"""Runs in the cache: one that was damaged anywhere is made again, whatever is left of it."""

import shutil
from pathlib import Path

import pytest
import torch

from fdgsec.federation.artifacts import StyleStatistics
from fdgsec.federation.run_folder import load_run, save_run, stored_run
from fdgsec.federation.wire import SERVER, Message, Transcript


def transcript() -> Transcript:
    made = Transcript()
    for number in range(3):
        style = StyleStatistics(mean=torch.full((2,), float(number)), std=torch.ones(2))
        made.append(
            Message(round=0, stage="share", sender=f"client:{number}", receiver=SERVER, artifact=style), keep=True
        )
    return made


@pytest.fixture
def folder(own_cache: Path) -> Path:
    save_run(stored_run("1f"), transcript(), {"client:0": {"rows": torch.arange(3)}}, {"guarantees": [{"epsilon": 8}]})
    return stored_run("1f")


def test_a_stored_run_comes_back(folder: Path):
    found = load_run(folder)

    assert found is not None
    assert found[0].sha256 == transcript().sha256
    assert len(found[0].payloads) == 3
    assert torch.equal(found[1]["client:0"]["rows"], torch.arange(3))
    assert found[2] == {"guarantees": [{"epsilon": 8}]}


def test_any_file_that_is_damaged_cut_or_missing_is_said_and_the_run_can_be_stored_again(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    whole = tmp_path / "whole"
    shutil.copytree(folder, whole)
    names = [path.relative_to(whole) for path in whole.rglob("*") if path.is_file()]
    assert len(names) == 3 + 1 + 1 + 1 + 1  # payloads, state, facts, transcript, list
    for name in names:
        content = (whole / name).read_bytes()
        middle = len(content) // 2
        for bad in (None, b"", content[:middle], content[:middle] + b"\xff" + content[middle + 1 :]):
            shutil.rmtree(folder)
            shutil.copytree(whole, folder)
            (folder / name).unlink()
            if bad is not None:
                (folder / name).write_bytes(bad)

            assert load_run(folder) is None
            assert capsys.readouterr().err.count("\n") == 1

    save_run(folder, transcript(), {}, {"guarantees": []})  # nothing marks what is left as a run
    assert load_run(folder) is not None


def test_a_run_under_another_key_is_not_used(folder: Path):
    folder.rename(folder.with_name("2e"))

    assert load_run(folder.with_name("2e")) is None
