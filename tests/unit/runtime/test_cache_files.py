"""Files and folders that fdgsec writes: complete or absent, for others to read or for their owner alone."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fdgsec.data.catalog import load_dataset
from fdgsec.federation.engines.state import FileStates
from fdgsec.federation.run_folder import new_folder, save_run
from fdgsec.federation.wire import Transcript
from fdgsec.nn.networks.weights import locate
from fdgsec.nn.styles.image_styles import prepare_statistics
from fdgsec.runtime.cache_files import atomic, cache_root, exchange, named_in_cache, write_atomic
from fdgsec.runtime.checked_files import write_sums
from fdgsec.runtime.errors import WeightsUnavailableError


@pytest.fixture(params=[0o022, 0o077], ids=["022", "077"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_what_is_written_is_as_readable_as_the_umask_allows(umask: int, tmp_path: Path):
    write_atomic(tmp_path / "pages" / "claims.html", "<p>")
    with new_folder(tmp_path / "run", "report") as draft:
        (draft / "report.html").write_text("<p>")

    assert mode(tmp_path / "pages" / "claims.html") == mode(tmp_path / "run" / "report.html") == 0o666 & ~umask
    assert mode(tmp_path / "pages") == mode(tmp_path / "run") == 0o777 & ~umask


def test_a_file_that_is_replaced_does_not_keep_a_narrower_mode(umask: int, tmp_path: Path):
    (tmp_path / "claims.html").touch(0o600)
    write_atomic(tmp_path / "claims.html", "<p>")

    assert mode(tmp_path / "claims.html") == 0o666 & ~umask


@pytest.mark.usefixtures("umask")
def test_private_files_are_their_owners_alone_from_the_first_byte_on(tmp_path: Path):
    with atomic(tmp_path / "features", private=True) as draft:
        assert mode(draft) == 0o600
        draft.write_bytes(b"x")

    assert mode(tmp_path / "features") == 0o600


@pytest.mark.usefixtures("umask")
def test_what_was_computed_from_images_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path / "cache"))
    images = load_dataset("shapes", data_root=None, image_size=16, per_domain=8, seed=0)
    state = {"stylized": torch.ones(2)}

    prepare_statistics("mini", images, reuse=True)
    FileStates(folder=tmp_path / "state").write("client:0", state)
    save_run(tmp_path / "cached", Transcript(), {"client:0": state}, {})

    found = [path for name in ("cache", "state") for path in (tmp_path / name).rglob("*") if path.is_file()]
    assert len(found) == 4  # the secret of the cache is one of them
    assert {mode(path) for path in found} == {0o600}
    assert mode(tmp_path / "cached") == 0o700


def test_nothing_is_left_of_a_write_that_failed(tmp_path: Path):
    (tmp_path / "kept").write_text("before")
    for name in ("kept", "new"):
        with pytest.raises(UnicodeEncodeError):
            write_atomic(tmp_path / name, "\ud800")

    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("kept", "before")]


KILLED = """
import os, signal, sys
from pathlib import Path
from fdgsec.federation.run_folder import new_folder
from fdgsec.runtime.cache_files import atomic
with new_folder(Path(sys.argv[1]) / "run") as draft, atomic(Path(sys.argv[1]) / "claims.html") as page:
    (draft / "half").write_text("x")
    page.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.medium
def test_what_a_killed_process_left_is_collected_by_the_next_write(tmp_path: Path):
    run = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert run.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 3  # a draft of each, and the folder's lock

    write_atomic(tmp_path / "claims.html", "<p>")
    with new_folder(tmp_path / "run", "report") as draft:
        (draft / "report.json").write_text("{}")

    assert sorted(path.name for path in tmp_path.iterdir()) == ["claims.html", "run"]


def test_the_draft_of_a_living_process_is_not_collected(tmp_path: Path):
    with atomic(tmp_path / "page") as mine:
        mine.write_text("mine")
        write_atomic(tmp_path / "page", "other")
        assert mine.read_text() == "mine"

    assert (tmp_path / "page").read_text() == "mine"


@pytest.mark.parametrize("swaps", [True, False], ids=["swapped in one step", "in two renames"])
def test_a_new_folder_takes_the_place_of_the_old_one(swaps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if not swaps:  # as where the system's library knows no swap
        monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    for content in ("first", "second"):
        with new_folder(tmp_path / "run", "report") as draft:
            (draft / "report.json").write_text(content)

    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert (tmp_path / "run" / "report.json").read_text() == "second"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux swaps names")
def test_two_folders_swap_names_in_one_step(tmp_path: Path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()

    assert exchange(tmp_path / "one", tmp_path / "other")
    assert (tmp_path / "one" / "other").exists()
    assert (tmp_path / "other" / "one").exists()
    assert not exchange(tmp_path / "one", tmp_path / "nowhere")


def test_a_folder_that_was_moved_aside_by_a_killed_process_comes_back(tmp_path: Path):
    (tmp_path / ".run.previous").mkdir()
    (tmp_path / ".run.previous" / "report.json").write_text("first")
    write_sums(tmp_path / ".run.previous")

    with pytest.raises(UnicodeEncodeError), new_folder(tmp_path / "run", "report") as draft:
        (draft / "report.json").write_text("\ud800")

    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert (tmp_path / "run" / "report.json").read_text() == "first"


@pytest.mark.parametrize(
    ("variable", "named"),
    [
        ("FDGSEC_CACHE", "$FDGSEC_CACHE/weights/one.safetensors"),
        ("XDG_CACHE_HOME", "$XDG_CACHE_HOME/fdgsec/weights/one.safetensors"),
        ("", "~/.cache/fdgsec/weights/one.safetensors"),
    ],
)
def test_a_file_of_the_cache_is_named_without_the_folders_of_its_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, named: str
):
    for name in ("FDGSEC_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, str(tmp_path / "somebody"))

    assert named_in_cache(cache_root() / "weights" / "one.safetensors") == named


def test_weights_that_are_missing_are_said_to_be_so_without_the_folders_of_a_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path / "somebody"))
    monkeypatch.delenv("FDGSEC_WEIGHTS", raising=False)

    with pytest.raises(WeightsUnavailableError) as error:
        locate("alexnet")

    assert "$FDGSEC_CACHE/weights/alexnet.safetensors" in str(error.value)
    assert "somebody" not in str(error.value)
