"""Download of datasets, or a one-line error with the page of their owners."""

import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fdgsec.data.hub import COLUMNS, write_hub_copy
from fdgsec.data.unpack import TAR_SUFFIXES, inner_path, unpack_tar, whole_folder
from fdgsec.runtime.download import DownloadError, download, in_megabytes
from fdgsec.runtime.errors import DataError, DatasetNotFoundError

Progress = Callable[[str, int, int], None]  # (description, done, total)


@dataclass(frozen=True, kw_only=True)
class Archive:
    """One downloadable file of a dataset; `file_name`, which may contain folders, is its path under the data root.

    `sha256` (or its first digits) and `size` in bytes are checked where they are known."""

    url: str
    file_name: str
    sha256: str | None = None
    size: int | None = None

    @property
    def packed(self) -> bool:
        """Whether it has to be unpacked: a tar does; a zip is read in place."""
        return self.file_name.lower().endswith(TAR_SUFFIXES)


def fetch_dataset(
    name: str,
    *,
    title: str,
    page: str,
    root: Path,
    folder: str,
    archives: Sequence[Archive] = (),
    hub: str | None = None,
    hub_columns: Sequence[str] = COLUMNS,
    progress: Progress | None = None,
) -> list[Path]:
    """Download the dataset `name` to the data root `root`, and give the files and folders that now hold it.

    `archives` are downloaded to `root`/<file_name>; tars are unpacked together into `root`/`folder` and deleted, zips
    stay as they are. Without archives the `hub` repository is written to `root`/`folder`/<domain>/<class>/, by its
    `hub_columns` of domain and class. Files that are already there are not downloaded again. Every file and folder
    gets its name only when it is complete, so an interrupted call can be repeated. Raises DatasetNotFoundError, in one
    line with `page`, where neither archives nor hub are known or the network fails; MissingResourceError without the
    extra `hub`; DataError for a file that is damaged or unsafe."""
    for part in (folder, *(archive.file_name for archive in archives)):
        if inner_path(part) is None:
            raise ValueError(f"a dataset's path must lie inside the data root; got {part!r}.")
    home = root / folder
    try:
        if archives:
            return _fetch_archives(archives, root=root, home=home, progress=progress)
        if hub is not None:
            return [_fetch_hub(hub, hub_columns, title=title, home=home, progress=progress)]
    except DownloadError as error:
        raise DatasetNotFoundError(f"{title} was not fetched: {error} {_by_hand(name, page, root)}") from error
    except OSError as error:
        raise DatasetNotFoundError(f"{title} cannot be written to {root}: {error.strerror or error}.") from error
    raise DatasetNotFoundError(f"{title} cannot be fetched automatically. {_by_hand(name, page, root)}")


def _by_hand(name: str, page: str, root: Path) -> str:
    return f"Get it from {page}, put it into {root}, and run `fdgsec data check {name}`."


def _fetch_archives(archives: Sequence[Archive], *, root: Path, home: Path, progress: Progress | None) -> list[Path]:
    packed = [] if _filled(home) else [archive for archive in archives if archive.packed]
    plain = [archive for archive in archives if not archive.packed]
    for archive in [*packed, *plain]:
        file = root / archive.file_name
        show = in_megabytes(progress, file.name) if progress else None
        there = file.is_file()
        download(archive.url, file, sha256=archive.sha256, size=archive.size, progress=show)
        if file.suffix.lower() == ".zip" and not zipfile.is_zipfile(file):
            if there:  # it may be the user's own
                raise DataError(f"{file} is not a zip archive; move it away and fetch it again.")
            file.unlink()
            raise DataError(f"{archive.url} gave no zip archive; it was deleted. Fetch it again.")
    if packed:
        _unpack([root / archive.file_name for archive in packed], home, progress)
    unpacked = [home] if any(archive.packed for archive in archives) else []
    return [*unpacked, *(root / archive.file_name for archive in plain)]


def _unpack(files: Sequence[Path], home: Path, progress: Progress | None) -> None:
    """Unpack tars into one folder; delete a damaged one, as the next call would take it for complete."""
    with whole_folder(home) as staging:
        for file in files:
            try:
                unpack_tar(
                    file, staging, progress=in_megabytes(progress, f"unpacking {file.name}") if progress else None
                )
            except DataError:
                file.unlink()
                raise
    for file in files:
        file.unlink()


def _fetch_hub(hub: str, columns: Sequence[str], *, title: str, home: Path, progress: Progress | None) -> Path:
    def count(done: int, total: int | None) -> None:
        if progress:
            progress(f"writing {title}", done, done if total is None else total)

    if not _filled(home):
        with whole_folder(home) as staging:
            write_hub_copy(hub, staging, columns=columns, progress=count)
    return home


def _filled(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())
