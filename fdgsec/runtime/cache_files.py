"""The cache folder of fdgsec, and files that are written completely or not at all, also where the power fails."""

import contextlib
import ctypes
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fdgsec.runtime.file_locks import try_lock

DRAFT_BYTES = 8
"""Random bytes in the name of a draft, written in hexadecimal."""

# Linux' renameat2(2): paths relative to the working folder, and RENAME_EXCHANGE.
_HERE, _EXCHANGE = -100, 2


def cache_root() -> Path:
    """$FDGSEC_CACHE, else $XDG_CACHE_HOME/fdgsec, else ~/.cache/fdgsec; not created here."""
    if override := os.environ.get("FDGSEC_CACHE"):
        return Path(override).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "fdgsec"
    return Path.home() / ".cache" / "fdgsec"


def named_in_cache(path: Path) -> str:
    """The path of a file in the cache as a report may give it: without the folders of whoever computed it."""
    root = next((f"${name}" for name in ("FDGSEC_CACHE", "XDG_CACHE_HOME") if os.environ.get(name)), "~/.cache")
    folder = path.relative_to(cache_root()).as_posix()
    return f"{root}/{folder}" if root == "$FDGSEC_CACHE" else f"{root}/fdgsec/{folder}"


@contextmanager
def atomic(path: Path, *, private: bool = False, synced: bool = True) -> Iterator[Path]:
    """Yield a temporary sibling of `path` to write to; it is renamed to `path` on success and deleted on failure.

    It is on the disk before it has the name, unless it is not `synced`: in a folder that is synced as a whole. Others
    may read it as far as the umask allows, unless it is `private`: what was computed from single images."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if synced:  # elsewhere the whole folder is a draft
        collect_drafts(path)
    temporary, handle = _own_draft(path, lambda draft: _new_file(draft, 0o600 if private else 0o666))
    try:
        yield temporary
        if synced:
            sync(temporary)
        temporary.replace(path)
        if synced:
            sync(path.parent)
    finally:
        os.close(handle)
        temporary.unlink(missing_ok=True)


def write_atomic(path: Path, content: bytes | str, *, private: bool = False, synced: bool = True) -> None:
    """Write `content` to `path` completely or not at all, readable and synced as with `atomic`."""
    with atomic(path, private=private, synced=synced) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def draft_folder(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Make a hidden sibling of `path`; it is deleted where the block fails.

    No other process takes it for the leftover of a killed one (collect_drafts)."""
    draft, handle = _own_draft(path, lambda name: _new_folder(name, 0o700 if private else 0o777))
    try:
        yield draft
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    finally:
        os.close(handle)


def draft_of(path: Path) -> Path:
    """Name a hidden sibling of `path` that nobody else can have named."""
    return path.parent / f".{path.stem}.{secrets.token_hex(DRAFT_BYTES)}{path.suffix}"


def collect_drafts(path: Path) -> None:
    """Delete the drafts of `path` that killed processes left; those of living ones are locked."""
    digits = "[0-9a-f]" * 2 * DRAFT_BYTES
    for draft in path.parent.glob(f".{_literal(path.stem)}.{digits}{_literal(path.suffix)}"):
        with contextlib.suppress(OSError):
            handle = os.open(draft, os.O_RDONLY)
            try:
                if try_lock(handle):
                    _delete(draft)
            finally:
                os.close(handle)


def sync(path: Path) -> None:
    """Have the disk hold the content of a file, or the names in a folder."""
    if sys.platform == "win32" and path.is_dir():
        return  # folders cannot be opened there
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Have the disk hold a folder with everything below it."""
    for path in (*folder.rglob("*"), folder):
        sync(path)


def exchange(one: Path, other: Path) -> bool:
    """Swap the names of two files or folders in one step; False where the system or the file system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    if rename is None:
        return False
    return bool(rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)


def _own_draft(path: Path, make: Callable[[Path], int]) -> tuple[Path, int]:
    """Make a draft that is locked as long as the returned handle is open."""
    while True:
        draft = draft_of(path)
        handle = make(draft)
        if try_lock(handle) and draft.exists():  # nobody took it for a leftover in between
            return draft, handle
        os.close(handle)


def _new_file(path: Path, mode: int) -> int:
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)


def _new_folder(path: Path, mode: int) -> int:
    path.mkdir(mode=mode)
    return os.open(path, os.O_RDONLY)


def _delete(draft: Path) -> None:
    if draft.is_dir():
        shutil.rmtree(draft)
    else:
        draft.unlink()


def _literal(text: str) -> str:
    """A glob pattern for `text` alone."""
    return "".join(f"[{letter}]" if letter in "[]*?" else letter for letter in text)
