"""Unpacks what others have packed, and makes nothing of it that lies outside the folder it was meant for."""

import gzip
import lzma
import secrets
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from tarfile import HeaderError, ReadError

from fdgsec.data.folder import printable
from fdgsec.errors import DataError, MissingResourceError

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_EVERY = 256  # members between two progress reports


def inner_path(name: str) -> PurePosixPath | None:
    """Read `name` as a path inside some folder; None where it is absolute, climbs, or names nothing, on any system."""
    path, windows = PurePosixPath(name), PureWindowsPath(name)
    climbs = ".." in path.parts or ".." in windows.parts
    return None if path.is_absolute() or windows.anchor or climbs or not path.parts or "\0" in name else path


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder beside `folder` to fill; it becomes `folder` on success and vanishes on failure.

    Raises OSError where `folder` is there and not empty."""
    staging = folder.with_name(f".fetch-{secrets.token_hex(4)}")
    staging.mkdir(parents=True)
    try:
        yield staging
        staging.replace(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def unpack_tar(file: Path, folder: Path, *, progress: Callable[[int, int | None], None] | None = None) -> None:
    """Write the files of the tar archive `file`, compressed or not, under `folder`; `progress` counts its bytes.

    Raises DataError where it is damaged, and where a member is a link or a device or has an absolute path or one with
    `..`: a dataset has no use for such members, so that the whole archive is refused. Raises MissingResourceError where
    the disk cannot hold it. What was written by then stays: unpack into a folder that is thrown away (`whole_folder`)."""
    try:
        with file.open("rb") as packed, tarfile.open(fileobj=packed, tarinfo=_Member) as archive:
            if hasattr(tarfile, "data_filter"):  # a second wall behind the checks below; Python 3.11.0 to 3 have none
                archive.extraction_filter = tarfile.data_filter
            for number, member in enumerate(archive):
                _check_member(file, member, folder)
                archive.extract(member, folder, set_attrs=False)
                if progress and number % _EVERY == 0:
                    progress(packed.tell(), file.stat().st_size)
            while archive.fileobj and archive.fileobj.read(1 << 20):
                pass  # the checksum of what was packed comes at its very end
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{file} is damaged or not a tar archive: {printable(str(error))}. Fetch it again.") from error


class _Member(tarfile.TarInfo):
    """A member whose header must be whole: tarfile alone takes a broken one for the end of the archive."""

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
            f"{file} does not fit: its member {name!r} has {member.size} bytes, {folder.parent} has {free} free; make room."
        )
