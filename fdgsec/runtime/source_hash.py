"""Hashes of fdgsec's own source files: what was stored by other code is not used again."""

import hashlib
from functools import cache
from importlib import resources

from fdgsec.runtime.errors import UsageError


@cache
def source_sha256(package: str) -> str:
    """Hash the names and contents of all .py and .toml files of a package and those in it, once per process."""
    return _hashed(package)


@cache
def module_sha256(name: str) -> str:
    """Hash the source of one module, once per process."""
    package, _, module = name.rpartition(".")
    return hashlib.sha256((resources.files(package) / f"{module}.py").read_bytes()).hexdigest()


def check_unchanged(package: str, *, since: str = "") -> None:
    """Raise UsageError where files of a package are no longer those that `source_sha256` found, or that had this hash.

    Modules are imported when they are first needed, so that a process may run later code than it began with, and than
    the process that started it (`since`)."""
    if not is_unchanged(package, since=since):
        raise UsageError(
            f"files of {package} were changed while it ran; nobody can say which made the result. Run again."
        )


def is_unchanged(package: str, *, since: str = "") -> bool:
    """Whether files of a package are those that `source_sha256` found, or that had the hash `since`."""
    return _hashed(package) == (since or source_sha256(package))


def _hashed(package: str) -> str:
    digest = hashlib.sha256()
    folders = [resources.files(package)]
    while folders:
        for entry in sorted(folders.pop().iterdir(), key=lambda item: item.name):
            if entry.is_dir() and entry.name != "__pycache__":
                folders.append(entry)
            elif entry.name.endswith((".py", ".toml")):
                digest.update(entry.name.encode() + entry.read_bytes())
    return digest.hexdigest()
