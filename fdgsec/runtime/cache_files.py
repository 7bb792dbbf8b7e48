"""The cache folder of fdgsec, and atomic writing of files."""

import os
import tempfile
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
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling of `path` to write to; it is renamed to `path` on success and deleted on failure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write `content` to `path` completely or not at all."""
    with atomic(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
