"""The cache folder of fdgsec, and atomic writing of files."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_root() -> Path:
    """$FDGSEC_CACHE, else $XDG_CACHE_HOME/fdgsec, else ~/.cache/fdgsec; not created here."""
    if override := os.environ.get("FDGSEC_CACHE"):
        return Path(override).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "fdgsec"
    return Path.home() / ".cache" / "fdgsec"


@contextmanager
def atomic(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Yield a temporary sibling of `path` to write to; it is renamed to `path` on success and deleted on failure.

    Others may read it as far as the umask allows, unless it is `private`: what was computed from single images."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = draft_of(path)
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600 if private else 0o666))
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomic(path: Path, content: bytes | str, *, private: bool = False) -> None:
    """Write `content` to `path` completely or not at all, readable as with `atomic`."""
    with atomic(path, private=private) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def draft_of(path: Path) -> Path:
    """Name a hidden sibling of `path` that nobody else can have named."""
    return path.parent / f".{path.stem}.{secrets.token_hex(8)}{path.suffix}"
