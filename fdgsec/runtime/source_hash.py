"""Hashes of fdgsec's own source files: what was stored by other code is not used again."""

import hashlib
from functools import cache
from importlib import resources


@cache
def source_sha256(package: str) -> str:
    """Hash the names and contents of all .py and .toml files of a package and those in it."""
    digest = hashlib.sha256()
    folders = [resources.files(package)]
    while folders:
        for entry in sorted(folders.pop().iterdir(), key=lambda item: item.name):
            if entry.is_dir() and entry.name != "__pycache__":
                folders.append(entry)
            elif entry.name.endswith((".py", ".toml")):
                digest.update(entry.name.encode() + entry.read_bytes())
    return digest.hexdigest()
