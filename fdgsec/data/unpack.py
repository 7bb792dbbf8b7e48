"""Unpacking of downloaded tar archives, which never writes outside the target folder."""

import gzip
import io
import lzma
import os
import secrets
import shutil
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from tarfile import HeaderError, ReadError
from typing import IO, BinaryIO, cast

from fdgsec.data.image_sources import printable
from fdgsec.runtime.errors import DataError, MissingResourceError

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_EVERY = 256  # members between two progress reports
_LEFT = ".fetch-"  # prefix of a folder that is being filled
_MOST = 200  # limit on unpacked size / archive size: images hardly compress, a bomb of zeros does
_FREE = 2**30  # bytes that any archive may unpack to
_LZMA_MEMORY = 2**28  # bytes that a decoder of LZMA may take: xz -9 asks for 65 MiB, a header may ask for 4 GiB
_XZ = b"\xfd7zXZ\0"


def inner_path(name: str) -> PurePosixPath | None:
    """Parse `name` as a relative path; None where it is absolute, contains "..", or is empty, on any system."""
    path, windows = PurePosixPath(name), PureWindowsPath(name)
    climbs = ".." in path.parts or ".." in windows.parts
    return None if path.is_absolute() or windows.anchor or climbs or not path.parts or "\0" in name else path


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder beside `folder` to fill; it is renamed to `folder` on success and deleted on failure.

    Folders that killed processes left are removed, where the system can lock folders. Raises OSError where `folder`
    exists and is not empty."""
    staging = folder.with_name(f"{_LEFT}{secrets.token_hex(4)}")
    staging.mkdir(parents=True)
    try:
        with _locked(staging):
            for other in folder.parent.glob(f"{_LEFT}*"):
                with _locked(other) as abandoned:
                    if abandoned:
                        shutil.rmtree(other, ignore_errors=True)
            yield staging
            staging.replace(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a folder, and tell whether it exists and no other process holds it; False on systems without such locks."""
    if sys.platform == "win32":
        yield False
        return
    import fcntl

    with ExitStack() as held:
        try:
            handle = os.open(folder, os.O_RDONLY)
            held.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except OSError:
            free = False
        yield free


def unpack_tar(file: Path, folder: Path, *, progress: Callable[[int, int | None], None] | None = None) -> None:
    """Write the files of the tar archive `file`, compressed or not, under `folder`; `progress` counts its bytes.

    Raises DataError where it is damaged, would unpack to far more than its size, or has a member that is a link or a
    device, or whose path is absolute or contains "..". A dataset needs no such members, so the whole archive is
    refused. Raises MissingResourceError where the disk is too small. Files written before the error stay: unpack into
    a temporary folder (`whole_folder`)."""
    try:
        _extract(file, folder, progress)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError) as error:
        raise _damaged(file, error) from error
    except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:  # one name is a file and a folder
        raise _damaged(file, error) from error
    except OSError as error:
        if error.errno is None:  # bz2 reports damage as an OSError without a number
            raise _damaged(file, error) from error
        raise


def _damaged(file: Path, error: Exception) -> DataError:
    return DataError(f"{file} is damaged or not a tar archive: {printable(str(error))}. Fetch it again.")


def _extract(file: Path, folder: Path, progress: Callable[[int, int | None], None] | None) -> None:
    size, unpacked = file.stat().st_size, 0
    with file.open("rb") as packed, _archive(packed) as archive:
        if hasattr(tarfile, "data_filter"):  # in addition to the checks below; Python 3.11.0 to 3.11.3 lack it
            archive.extraction_filter = tarfile.data_filter
        for number, member in enumerate(iter(archive.next, None)):
            if member.isdir() and not PurePosixPath(member.name).parts:
                continue  # `.`, the folder that was packed
            unpacked += member.size
            if unpacked > max(_FREE, _MOST * size):
                raise DataError(
                    f"{file} is refused: it would unpack to {unpacked} bytes or more, over {_MOST} times its own size."
                )
            _check_member(file, member, folder)
            archive.extract(member, folder, set_attrs=False)
            archive.members.clear()  # type: ignore[attr-defined]  # half a million of them would take 300 MB
            if progress and number % _EVERY == 0:
                progress(packed.tell(), size)
        while archive.fileobj and archive.fileobj.read(1 << 20):
            pass  # read to the end, where the checksum of the compressed data is


def _archive(packed: BinaryIO) -> tarfile.TarFile:
    """Open a tar archive, packed as its first bytes say: xz with bounded memory, gzip, bzip2, or not at all."""
    start = packed.read(len(_XZ))
    packed.seek(0)
    if start == _XZ:
        stream = cast(IO[bytes], io.BufferedReader(_Xz(packed)))
        return tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member)
    if start.startswith(b"\x1f\x8b"):
        return tarfile.open(fileobj=packed, mode="r:gz", tarinfo=_Member)
    if start.startswith(b"BZh"):
        return tarfile.open(fileobj=packed, mode="r:bz2", tarinfo=_Member)
    return tarfile.open(fileobj=packed, mode="r:", tarinfo=_Member)


def _decoder() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_LZMA_MEMORY)


class _Xz(io.RawIOBase):
    """What a file of xz unpacks to, its streams one after another; `lzma.open` has no limit on memory."""

    def __init__(self, packed: BinaryIO) -> None:
        self._packed, self._decoder, self._left = packed, _decoder(), b""

    def readable(self) -> bool:
        """It is there to be read."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # as BufferedReader calls it
        """Fill the buffer with unpacked bytes; none at the end. Raises LZMAError and EOFError where it is damaged."""
        part = b""
        while not part:
            if self._decoder.eof and not self._next_stream():
                return 0
            more, self._left = self._left, b""
            if not more and self._decoder.needs_input:
                more = self._packed.read(io.DEFAULT_BUFFER_SIZE)
                if not more:
                    raise EOFError("it breaks off")
            part = self._decoder.decompress(more, len(buffer))
        buffer[: len(part)] = part
        return len(part)

    def _next_stream(self) -> bool:
        """Pass over the padding after a stream, and tell whether there is another one."""
        left = self._decoder.unused_data.lstrip(b"\0")
        while not left:
            more = self._packed.read(io.DEFAULT_BUFFER_SIZE)
            if not more:
                return False
            left = more.lstrip(b"\0")
        self._decoder, self._left = _decoder(), left
        return True


class _Member(tarfile.TarInfo):
    """A member that rejects a damaged header, which tarfile would take for the end of the archive."""

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> "_Member":
        """Read the next header, as tarfile does."""
        try:
            return super().fromtarfile(tarfile)
        except HeaderError as error:
            if type(error).__name__ == "EOFHeaderError":  # an empty block: the true end (the type stubs lack the class)
                raise
            raise ReadError(f"it breaks off at byte {tarfile.offset}") from error


def _check_member(file: Path, member: tarfile.TarInfo, folder: Path) -> None:
    name = printable(member.name)
    if inner_path(member.name) is None:
        raise DataError(f"{file} is refused: its member {name!r} would lie outside the folder it is unpacked into.")
    if not (member.isfile() or member.isdir()):
        raise DataError(f"{file} is refused: its member {name!r} is a link or a device; a dataset has only files.")
    if member.size > (free := shutil.disk_usage(folder).free):
        raise MissingResourceError(
            f"{file} does not fit: its member {name!r} has {member.size} bytes, {folder.parent} has {free} free; "
            "make room."
        )
