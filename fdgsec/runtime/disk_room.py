"""Whether results can be kept, asked before they are computed, and what to say when the system refuses later."""

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fdgsec.runtime.errors import FdgsecError

MEGABYTE = 2**20
ROOM = 16 * MEGABYTE
"""The least free space for the files of a command: tables, pages, figures."""

_SPACE = "free some space"
_PLACE = "give a folder that can be written (--out, FDGSEC_CACHE) or read (--data-root)"
_MEMORY = "take fewer images (--per-domain), or fewer --workers"
ADVICE: Mapping[int, str] = {
    errno.ENOSPC: _SPACE, errno.EDQUOT: _SPACE, errno.EFBIG: _SPACE, errno.EROFS: _PLACE, errno.EACCES: _PLACE,
    errno.EPERM: _PLACE, errno.ENOTDIR: _PLACE, errno.ENAMETOOLONG: _PLACE, errno.ENOMEM: _MEMORY,
    errno.EIO: "check the disk",
}  # fmt: skip
"""What to do about an error of the system that is no defect of fdgsec."""
_NUMBER = re.compile(r"\(os error (\d+)\)")
"""How Rust writes errno: safetensors raises errors of its own."""
_ALLOCATION = ("can't allocate memory", "not enough memory", "std::bad_alloc", "CUDA out of memory")


class NoRoomError(FdgsecError):
    """A disk without room for the results, or a folder that cannot be written (exit 1)."""


def check_room(folder: Path, *, needed: int, option: str) -> None:
    """Raise NoRoomError where `folder` cannot be written, or its disk has fewer than `needed` bytes free.

    One that does not exist is judged by the folder that it would be made in. `option` is what a user names it with."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        if not existing.is_dir():
            raise FileExistsError
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"fdgsec")
            file.flush()
            os.fsync(file.fileno())
        free = shutil.disk_usage(existing).free
    except OSError as error:
        reason = f"{existing} is a file" if isinstance(error, FileExistsError) else error.strerror
        raise NoRoomError(f"{folder} cannot be written: {reason}; name another folder with {option}.") from error
    if free < needed:
        raise NoRoomError(
            f"the disk of {folder} has {free // MEGABYTE} MB free; the results may need {-(-needed // MEGABYTE)} MB. "
            f"Free some space, or name another folder with {option}."
        )


def system_line(error: BaseException) -> str | None:
    """One line about an error of disk, permissions or memory, and what to do; None for any other error."""
    number, where = _number(error), getattr(error, "filename", None)
    if number not in ADVICE:
        return None
    said = f"{where}: {os.strerror(number)}" if where else os.strerror(number)
    return f"{said}; {ADVICE[number]}, then give the same command again: what was finished is kept."


def _number(error: BaseException) -> int:
    """The errno of an error, 0 where it has none."""
    if isinstance(error, MemoryError) or any(text in str(error) for text in _ALLOCATION):
        return errno.ENOMEM
    if isinstance(error, OSError):
        return error.errno or 0
    found = _NUMBER.search(str(error))
    return int(found[1]) if found else 0
