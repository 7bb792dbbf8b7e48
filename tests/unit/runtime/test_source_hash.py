"""The hash of a package's files, and the check that they are still those that it was taken of."""

import hashlib
from pathlib import Path

import pytest

from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.source_hash import check_unchanged, module_sha256, source_sha256


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of one module and a table, called by the test's own folder."""
    name = f"hashed_{tmp_path.name.replace('-', '_')}"
    folder = tmp_path / name
    (folder / "inner").mkdir(parents=True)
    for path, text in {"__init__.py": "", "inner/__init__.py": "", "inner/table.toml": "x = 1"}.items():
        (folder / path).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_a_changed_file_is_found(package: Path):
    first = source_sha256(package.name)
    check_unchanged(package.name)

    (package / "inner" / "table.toml").write_text("x = 2")

    assert source_sha256(package.name) == first  # of what the process began with
    with pytest.raises(UsageError, match="were changed while it ran"):
        check_unchanged(package.name)


def test_a_new_file_is_found_and_one_that_is_no_source_is_not(package: Path):
    source_sha256(package.name)

    (package / "notes.txt").write_text("anything")
    check_unchanged(package.name)
    (package / "later.py").write_text("")
    with pytest.raises(UsageError, match="were changed"):
        check_unchanged(package.name)


def test_a_process_is_held_to_the_files_of_the_one_that_started_it(package: Path):
    """A worker that starts after a change finds its own files unchanged."""
    began = "0" * 64
    source_sha256(package.name)
    check_unchanged(package.name)
    with pytest.raises(UsageError, match="were changed"):
        check_unchanged(package.name, since=began)


def test_a_module_has_a_hash_of_its_own(package: Path):
    (package / "one.py").write_text("x = 1")
    (package / "other.py").write_text("x = 2")

    assert module_sha256(f"{package.name}.one") == hashlib.sha256(b"x = 1").hexdigest()
    assert module_sha256(f"{package.name}.other") != module_sha256(f"{package.name}.one")
