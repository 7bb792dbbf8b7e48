"""Locks between processes that end with the process that holds them, by flock(2); none where the system has none."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fdgsec.runtime.errors import FdgsecError

_held: Counter[Path] = Counter()
"""The paths that this process holds, and how often: a lock is taken again inside its own block."""


class InUseError(FdgsecError):
    """A folder or a stored entry that another process is writing (exit 1)."""


def try_lock(handle: int) -> bool:
    """Lock an open file or folder for this process; False where another one has it.

    True, without a lock, on file systems and platforms that know none."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # ENOLCK, EOPNOTSUPP: some network file systems
        return True
    return True


@contextmanager
def locked(path: Path, *, what: str, waiting: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the lock of `path`, the hidden file `.NAME.lock` beside it, during the block; a block inside may take it
    again.

    Where another process holds it, raises InUseError; with `waiting`, says so once and waits."""
    place = Path(os.path.realpath(path))  # one for "out", for "missing/../out" and for a link to it
    if _held[place]:
        handle = None
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        handle = _acquired(place.parent / f".{place.name}.lock", what=f"{what} {path}", waiting=waiting)
    _held[place] += 1
    try:
        yield
    finally:
        _held[place] -= 1
        if handle is not None:
            (place.parent / f".{place.name}.lock").unlink(missing_ok=True)  # before others can have it: they look again
            os.close(handle)


def _acquired(file: Path, *, what: str, waiting: Callable[[str], None] | None) -> int:
    """Open and lock `file`, which must still be there under its name once it is locked."""
    while True:
        handle = os.open(file, os.O_CREAT | os.O_RDWR, 0o666)
        if not try_lock(handle):
            said = f"{what} is in use by another process of fdgsec{_owner(handle)}"
            if waiting is None:
                os.close(handle)
                raise InUseError(f"{said}; wait for it to end, or name another folder.")
            waiting(f"{said}; waiting for it.")
            waiting = _nothing
            _wait(handle)
        if _same(handle, file):
            os.ftruncate(handle, 0)
            os.write(handle, str(os.getpid()).encode())
            return handle
        os.close(handle)


def _wait(handle: int) -> None:
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX)


def _nothing(_: str) -> None:
    """Say nothing: it was said before."""


def _same(handle: int, file: Path) -> bool:
    """Whether the locked file is the one under its name, and not one that its last holder removed."""
    try:
        return os.path.samestat(os.fstat(handle), file.stat())
    except FileNotFoundError:
        return False


def _owner(handle: int) -> str:
    """The holder's process number, as it wrote it down."""
    number = os.pread(handle, 20, 0).decode(errors="replace").strip()
    return f" ({number})" if number.isdecimal() else ""
