"""Cached files and run folders that are not what was written: a miss that is said, or an error that names the file."""

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fdgsec.runtime.checked_files import (
    MARK,
    SEAL_BYTES,
    SECRET,
    SUMS,
    append_seal,
    check_sums,
    computed_anew,
    is_whole,
    recalled,
    recalled_folder,
    remember,
    remember_folder,
    write_sums,
)
from fdgsec.runtime.errors import DataError

CONTENT = b"epsilon 3.98"


@pytest.fixture
def entry(own_cache: Path) -> Path:
    remember(own_cache / "features" / "one", CONTENT, key="run 1")
    return own_cache / "features" / "one"


@pytest.fixture
def folder(own_cache: Path) -> Path:
    made = own_cache / "runs" / "one"
    (made / "states").mkdir(parents=True)
    (made / "facts.json").write_text('{"epsilon": 3.98}')
    (made / "states" / "client:0").write_bytes(b"state")
    remember_folder(made, key="run 1")
    return made


def plain(content: bytes) -> bytes:
    return content


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_cached_file_comes_back_and_is_private(entry: Path, capsys: pytest.CaptureFixture[str]):
    assert recalled(entry, key="run 1", read=plain) == CONTENT
    assert recalled(entry.with_name("absent"), key="run 1", read=plain) is None
    assert entry.stat().st_mode & 0o777 == 0o600
    assert capsys.readouterr().err == ""


def test_every_flipped_byte_and_every_shortening_of_a_cached_file_is_a_miss_in_one_line(
    entry: Path, capsys: pytest.CaptureFixture[str]
):
    whole = entry.read_bytes()
    damaged = [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in range(len(whole))]
    damaged += [whole[:i] for i in range(len(whole))] + [whole + b"\n"]

    for content in damaged:
        entry.write_bytes(content)
        assert recalled(entry, key="run 1", read=plain) is None

        said = capsys.readouterr().err
        assert said == f"fdgsec: {entry} is not used, it is computed anew: its seal does not hold\n"


def test_an_entry_of_another_key_is_a_miss(entry: Path):
    assert recalled(entry, key="run 2", read=plain) is None


def test_an_entry_of_another_cache_is_a_miss(entry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path / "other"))
    assert recalled(entry, key="run 1", read=plain) is None  # it has no secret yet
    remember(tmp_path / "other" / "two", CONTENT, key="run 1")

    assert recalled(entry, key="run 1", read=plain) is None
    assert recalled(tmp_path / "other" / "two", key="run 1", read=plain) == CONTENT


def test_a_plain_hash_of_the_content_is_no_seal(entry: Path):
    forged = b"epsilon 0.01"
    entry.write_bytes(forged + MARK + hashlib.sha256(forged).digest())

    assert recalled(entry, key="run 1", read=plain) is None


def test_what_was_stored_before_there_were_seals_is_a_miss(entry: Path):
    entry.write_bytes(CONTENT)

    assert recalled(entry, key="run 1", read=plain) is None


def test_content_that_its_reader_refuses_is_a_miss_with_the_reason(entry: Path, capsys: pytest.CaptureFixture[str]):
    def refuse(content: bytes) -> bytes:
        raise DataError("it holds no statistics.")

    assert recalled(entry, key="run 1", read=refuse) is None
    assert capsys.readouterr().err.endswith("it is computed anew: it holds no statistics.\n")


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 33])
def test_a_damaged_secret_is_drawn_anew_and_everything_under_the_old_one_is_a_miss(
    entry: Path, own_cache: Path, content: bytes
):
    (own_cache / SECRET).write_bytes(content)
    assert recalled(entry, key="run 1", read=plain) is None

    remember(entry, CONTENT, key="run 1")

    assert recalled(entry, key="run 1", read=plain) == CONTENT
    assert (own_cache / SECRET).stat().st_mode & 0o777 == 0o600
    assert files(own_cache) == [SECRET, "one"]


def test_a_file_that_is_sealed_in_place_is_whole_until_a_byte_changes(entry: Path):
    entry.write_bytes(b"p" * 3_000_000)
    append_seal(entry, key="pixels")
    assert is_whole(entry, key="pixels", size=3_000_000)
    assert not is_whole(entry, key="others", size=3_000_000)
    assert not is_whole(entry, key="pixels", size=2_999_999)
    whole = entry.read_bytes()

    for place in (0, 1_500_000, 2_999_999, 3_000_000, len(whole) - 1):
        entry.write_bytes(whole[:place] + b"q" + whole[place + 1 :])
        assert not is_whole(entry, key="pixels", size=3_000_000)
    entry.write_bytes(whole[:-1])
    assert not is_whole(entry, key="pixels", size=3_000_000)
    assert not is_whole(entry.with_name("absent"), key="pixels", size=0)


def test_nothing_of_the_cache_is_found_where_everything_is_computed_anew(entry: Path, folder: Path):
    remember(entry, CONTENT, key="a run")
    large = entry.with_name("pixels")
    large.write_bytes(CONTENT)
    append_seal(large, key="pixels")
    remember_folder(folder, key="a run")

    def found() -> list[bool]:
        return [
            recalled(entry, key="a run", read=bytes) is not None,
            is_whole(large, key="pixels", size=len(CONTENT)),
            recalled_folder(folder, key="a run", read=lambda path: path) is not None,
        ]

    assert found() == [True] * 3
    with computed_anew(fresh=False):
        assert found() == [True] * 3
        with computed_anew():
            assert found() == [False] * 3
    assert found() == [True] * 3


def test_a_cached_folder_comes_back(folder: Path):
    assert recalled_folder(folder, key="run 1", read=lambda path: files(path)) == [SUMS, "client:0", "facts.json"]
    assert recalled_folder(folder.with_name("absent"), key="run 1", read=files) is None


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "facts.json").write_text('{"epsilon": 0.01}'), "facts.json is not the file"),
        (lambda folder: (folder / "facts.json").unlink(), "facts.json is missing"),
        (lambda folder: (folder / "states" / "client:1").touch(), "client:1 does not belong to it"),
        (lambda folder: (folder / SUMS).unlink(), "it has no SHA256SUMS"),
        (lambda folder: (folder / SUMS).write_bytes((folder / SUMS).read_bytes()[:-SEAL_BYTES]), "seal does not hold"),
        (lambda folder: (folder / SUMS).write_bytes(b""), "seal does not hold"),
        (lambda folder: [path.unlink() for path in folder.rglob("*") if path.is_file()], "it has no SHA256SUMS"),
    ],
)  # fmt: skip
def test_a_cached_folder_with_other_files_is_a_miss(
    folder: Path, damage: Callable[[Path], object], said: str, capsys: pytest.CaptureFixture[str]
):
    damage(folder)

    assert recalled_folder(folder, key="run 1", read=files) is None

    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


def test_a_forged_file_with_a_new_list_is_a_miss_because_the_list_is_sealed(folder: Path):
    seal = (folder / SUMS).read_bytes()[-SEAL_BYTES:]
    (folder / "facts.json").write_text('{"epsilon": 0.01}')
    write_sums(folder)
    (folder / SUMS).write_bytes((folder / SUMS).read_bytes() + seal)

    assert recalled_folder(folder, key="run 1", read=files) is None


def run_of(folder: Path) -> Path:
    (folder / "payloads").mkdir(parents=True)
    (folder / "report.json").write_text("{}")
    (folder / "payloads" / "a b").write_bytes(b"x")
    write_sums(folder)
    return folder


def test_a_run_that_is_as_it_was_written_passes_and_so_does_one_with_more_files(tmp_path: Path):
    run = run_of(tmp_path / "run")
    check_sums(run)
    (run / "plot.png").touch()

    check_sums(run)

    checked = subprocess.run(["sha256sum", "--check", "--strict", SUMS], cwd=run, capture_output=True, check=False)
    assert checked.returncode == 0


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda run: (run / "report.json").write_text("[]"), "report.json is not the file that was written"),
        (lambda run: (run / "payloads" / "a b").unlink(), "a b is missing"),
        (lambda run: (run / SUMS).unlink(), "run has no SHA256SUMS"),
        (lambda run: (run / SUMS).write_bytes(b"\xff\n"), "SHA256SUMS is no list of hashes"),
        (lambda run: (run / SUMS).write_text((run / SUMS).read_text()[:-1]), "SHA256SUMS is no list of hashes"),
        (lambda run: (run / SUMS).write_text(f"{'0' * 64}  ../../x\n"), "SHA256SUMS is no list of hashes"),
        (lambda run: (run / SUMS).write_text(f"{'0' * 64}  /etc/passwd\n"), "SHA256SUMS is no list of hashes"),
    ],
)
def test_a_run_with_another_file_is_an_error_that_names_it(tmp_path: Path, damage: Callable[[Path], object], said: str):
    run = run_of(tmp_path / "run")
    damage(run)

    with pytest.raises(DataError, match=said):
        check_sums(run)
