"""Files whose content is checked when they are read: a bad cached file is computed anew, a bad run is an error.

*Cached* files end with a seal: HMAC-SHA256, under a secret of this cache, over what the file is the result of (its
`key`) and its content. A cached folder has a sealed list of the hashes of its files. What is damaged, cut short, of
another key, or was not written by the owner of the secret counts as absent, and one line on stderr says so.
*Runs*, which people copy and keep, have the list without a seal: SHA256SUMS, as `sha256sum -c` reads it.

A seal holds against damage, against entries of another cache, and against everybody who cannot read `cache.key`. It
does not hold against its owner, who may write any number into a report anyway; the list of a run holds against
damage."""

import hashlib
import hmac
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from secrets import token_bytes
from typing import TypeVar

from fdgsec.runtime.cache_files import cache_root, draft_of, write_atomic
from fdgsec.runtime.errors import DataError, FdgsecError
from fdgsec.runtime.progress import warn
from fdgsec.runtime.untrusted_text import read_bytes

T = TypeVar("T")

SUMS = "SHA256SUMS"
SECRET = "cache.key"
MARK = b"fdgsec sealed 1\n"
SEAL_BYTES = len(MARK) + 32
_BLOCK = 2**20
_ANEW: list[bool] = []  # what every open `computed_anew` was told
_LARGEST_SUMS = 2**28
_LINE = re.compile(r"([0-9a-f]{64})  ([^\x00\n]+)")


def remember(path: Path, content: bytes, *, key: str) -> None:
    """Write a cached file with its seal; what was computed from images is its owner's alone."""
    write_atomic(path, content + _seal(key, [content], _own_secret()), private=True)


@contextmanager
def computed_anew(fresh: bool = True) -> Iterator[None]:
    """Inside, no cached file is found by this process, in any of its threads; nothing changes unless `fresh`."""
    _ANEW.append(fresh)
    try:
        yield
    finally:
        _ANEW.remove(fresh)


def recalled(path: Path, *, key: str, read: Callable[[bytes], T], just_made: bool = False) -> T | None:
    """Give what `read` makes of a cached file; None where there is none, or none that can be trusted.

    The latter is said on stderr. `read` may raise FdgsecError for content that it cannot read. A file that was
    `just_made` by another process of the same work is found where everything is `computed_anew` too."""
    if any(_ANEW) and not just_made:
        return None
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        _say_miss(path, error.strerror or str(error))
        return None
    body, seal = content[:-SEAL_BYTES], content[-SEAL_BYTES:]
    try:
        if not _holds(seal, key, [body]):
            raise DataError("its seal does not hold")
        return read(body)
    except FdgsecError as error:
        _say_miss(path, str(error))
        return None


def append_seal(path: Path, *, key: str) -> None:
    """Seal a cached file that was written in place, because it is too large for the memory."""
    seal = _seal(key, _blocks(path, path.stat().st_size), _own_secret())
    with path.open("ab") as file:
        file.write(seal)


def is_whole(path: Path, *, key: str, size: int) -> bool:
    """Tell whether a cached file of `append_seal` has `size` bytes and its seal; says on stderr where it is damaged.

    False where everything is `computed_anew`."""
    if any(_ANEW) or not path.exists():
        return False
    if path.stat().st_size == size + SEAL_BYTES:
        with path.open("rb") as file:
            file.seek(size)
            seal = file.read()
        if _holds(seal, key, _blocks(path, size)):
            return True
    _say_miss(path, "its seal does not hold")
    return False


def remember_folder(folder: Path, *, key: str) -> None:
    """Write the sealed list of the files of a cached folder, when all others are there."""
    remember(folder / SUMS, _sums(folder), key=key)


def recalled_folder(folder: Path, *, key: str, read: Callable[[Path], T]) -> T | None:
    """Give what `read` makes of a cached folder; None where there is none, or where a file is not the one written."""
    if not folder.exists():
        return None
    if not (folder / SUMS).exists():
        _say_miss(folder, f"it has no {SUMS}")
        return None

    def checked(listed: bytes) -> T:
        _check(folder, listed)
        if extra := set(_names(folder)) - {name for _, name in _entries(listed, folder)}:
            raise DataError(f"{folder / min(extra)} does not belong to it.")
        return read(folder)

    return recalled(folder / SUMS, key=key, read=checked)


def write_sums(folder: Path) -> None:
    """List the hashes of all files of a run as SHA256SUMS, when all others are there."""
    write_atomic(folder / SUMS, _sums(folder))


def check_sums(folder: Path) -> None:
    """Raise DataError, naming the file, where a file of a run is missing or is not the one that was written.

    Files that were added are not looked at."""
    if not (folder / SUMS).is_file():
        raise DataError(f"{folder} has no {SUMS}: it is incomplete, or of an older version of fdgsec; run again.")
    _check(folder, read_bytes(folder / SUMS, largest=_LARGEST_SUMS))


def add_to_sums(path: Path) -> None:
    """List one more file in the SHA256SUMS beside it, where there is such a list."""
    sums = path.parent / SUMS
    if sums.is_file():
        kept = [line for line in sums.read_text().splitlines() if not line.endswith(f"  {path.name}")]
        with path.open("rb") as file:
            kept.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}")
        write_atomic(sums, "\n".join(sorted(kept, key=lambda line: line[66:])) + "\n")


def check_listed(path: Path) -> bool:
    """Whether the SHA256SUMS beside a file lists it. Raises DataError where it is not the file that was listed."""
    folder, listed = path.parent, {}
    if (folder / SUMS).is_file():
        content = read_bytes(folder / SUMS, largest=_LARGEST_SUMS)
        listed = {name: digest for digest, name in _entries(content, folder)}
    if path.name in listed:
        _check_file(path, listed[path.name])
    return path.name in listed


def unlisted(folder: Path) -> list[str]:
    """What lies in a folder beside the files that its SHA256SUMS lists; everything, where there is no such list."""
    listed = {SUMS}
    if (folder / SUMS).is_file():
        with suppress(DataError):
            content = read_bytes(folder / SUMS, largest=_LARGEST_SUMS, error=DataError)
            listed |= {name for _, name in _entries(content, folder)}
    every = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    found = sorted(path.relative_to(folder).as_posix() for path in every)
    return found if listed == {SUMS} else [name for name in found if name not in listed]


def _check(folder: Path, listed: bytes) -> None:
    for digest, name in _entries(listed, folder):
        _check_file(folder / name, digest)


def _check_file(path: Path, digest: str) -> None:
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; restore it, or run again.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    if found != digest:
        raise DataError(f"{path} is not the file that was written; it was altered. Restore it, or run again.")


def _entries(listed: bytes, folder: Path) -> list[tuple[str, str]]:
    """The hash and name of each listed file. Raises DataError for a list that is none, or leads out of the folder."""
    lines = listed.decode(errors="replace").split("\n")
    found = [_LINE.fullmatch(line) for line in lines[:-1]]
    entries = [(match[1], match[2]) for match in found if match is not None]
    inside = all(not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts for _, name in entries)
    if lines[-1] or not entries or len(entries) != len(found) or not inside:
        raise DataError(f"{folder / SUMS} is no list of hashes; it was altered. Restore it, or run again.")
    return entries


def _sums(folder: Path) -> bytes:
    lines = []
    for name in _names(folder):
        with (folder / name).open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}\n")
    return "".join(lines).encode()


def _names(folder: Path) -> list[str]:
    files = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in files if name != SUMS)


def _say_miss(path: Path, reason: str) -> None:
    warn(f"{path} is not used, it is computed anew: {reason}")


def _seal(key: str, parts: Iterator[bytes] | list[bytes], secret: bytes) -> bytes:
    code = hmac.new(secret, digestmod="sha256")
    code.update(len(key.encode()).to_bytes(8, "little") + key.encode())
    for part in parts:
        code.update(part)
    return MARK + code.digest()


def _holds(seal: bytes, key: str, parts: Iterator[bytes] | list[bytes]) -> bool:
    secret = _secret()
    return secret is not None and hmac.compare_digest(seal, _seal(key, parts, secret))


def _blocks(path: Path, size: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        left = size
        while left and (block := file.read(min(_BLOCK, left))):
            left -= len(block)
            yield block


def _secret() -> bytes | None:
    """The secret of this cache; None where there is none, or none of 32 bytes."""
    try:
        found = (cache_root() / SECRET).read_bytes()
    except OSError:
        return None
    return found if len(found) == 32 else None


def _own_secret() -> bytes:
    """The secret of this cache, drawn where there is none; of two processes that draw one, the first one's counts."""
    if (known := _secret()) is not None:
        return known
    path, drawn = cache_root() / SECRET, token_bytes(32)
    draft = draft_of(path)
    write_atomic(draft, drawn, private=True)
    try:
        if path.exists():  # not one of 32 bytes
            draft.replace(path)
        else:
            with suppress(FileExistsError):
                os.link(draft, path)
    except OSError:  # a file system without hard links
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return _secret() or drawn
