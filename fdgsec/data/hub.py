"""Datasets from the Hugging Face hub, written to disk as image folders.

The columns are those of the flwrlabs copies (dataset cards of flwrlabs/pacs and flwrlabs/office-home): `image`, and two
columns whose values (text, a number, or the number of a named class) give the domain and the class. These are `domain`
and `label` unless the catalog names others (`writer_id` and `character` of flwrlabs/femnist)."""

import importlib
import io
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, redirect_stderr
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

from fdgsec.data.image_sources import printable
from fdgsec.data.unpack import inner_path
from fdgsec.runtime.download import DownloadError, Progress, reach
from fdgsec.runtime.errors import DataError, MissingResourceError

COLUMNS = ("domain", "label")
_SIGNATURES = {b"\x89PNG\r\n\x1a\n": ".png", b"\xff\xd8\xff": ".jpg"}
_TRUE = ("1", "ON", "YES", "TRUE")  # the values that the hub's own library accepts as true
_EVERY = 64  # images between two progress reports


@runtime_checkable
class _Named(Protocol):
    """A column of numbers that have names (`datasets.ClassLabel`)."""

    names: Sequence[str]


class _Table(Protocol):
    """The part of `datasets.Dataset` that is used here."""

    @property
    def features(self) -> Mapping[str, object]: ...
    def cast_column(self, column: str, feature: object) -> "_Table": ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Mapping[str, object]]: ...


class _Library(Protocol):
    """The part of the package `datasets` that is used here."""

    def load_dataset(self, path: str) -> Mapping[str, _Table]: ...
    def Image(self, *, decode: bool) -> object: ...


def write_hub_copy(
    repository: str, folder: Path, *, columns: Sequence[str] = COLUMNS, progress: Progress | None = None
) -> None:
    """Write every image of the hub's `repository` to `folder`/<domain>/<class>/ as it is stored there.

    `columns` are those of the domain and of the class. An image keeps its name on the hub if that is unique, else it
    gets a number; its bytes are not decoded. `progress` counts images. Raises MissingResourceError without the extra
    `hub`; DownloadError, at once and in one line, without a network and (unless the hub's own cache has the dataset)
    with HF_HUB_OFFLINE; DataError for another layout. The hub's cache keeps its copy, under $HF_HOME."""
    domain, label = columns
    library = _library()
    splits = _loaded(library, repository)
    done, total = 0, sum(len(split) for split in splits.values())
    taken: dict[Path, set[str]] = {}
    for split in splits.values():
        table = _stored(library, split, repository, ("image", domain, label))
        for row in _rows(table, repository):
            cell = folder / _name(table, row, domain, repository) / _name(table, row, label, repository)
            if cell not in taken:
                cell.mkdir(parents=True)
                taken[cell] = set()
            content, suffix, stem = _image(row["image"], f"{repository}, image {done}")
            (cell / f"{_unused(stem, taken[cell])}{suffix}").write_bytes(content)
            done += 1
            if progress and (done % _EVERY == 0 or done == total):
                progress(done, total)


def _library() -> _Library:
    try:
        return cast(_Library, importlib.import_module("datasets"))
    except ImportError as error:
        raise MissingResourceError(
            'the hub is read with the package `datasets`: run `pip install "fdgsec[hub]"`.'
        ) from error


def _loaded(library: _Library, repository: str) -> Mapping[str, _Table]:
    """Load the splits of `repository`."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() not in _TRUE:
        # without a network the library would retry for half a minute
        reach(f"{os.environ.get('HF_ENDPOINT', 'https://huggingface.co').rstrip('/')}/api/datasets/{repository}")
    try:
        with nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO()):  # progress bars need a terminal
            return library.load_dataset(repository)
    except Exception as error:  # the library raises its own errors, those of its HTTP library and those of Arrow
        raise DownloadError(f"{repository} cannot be loaded from the hub: {_one_line(error)}.") from error


def _stored(library: _Library, split: _Table, repository: str, columns: Sequence[str]) -> _Table:
    """Give `split` with its images as stored bytes. Raises DataError where a column is missing."""
    missing = [column for column in columns if column not in split.features]
    if missing:
        raise DataError(
            f"{repository} must have the columns {', '.join(columns)}; it has {printable(', '.join(split.features))}."
        )
    try:
        return split.cast_column("image", library.Image(decode=False))
    except Exception as error:  # Arrow's errors, and the library's own
        raise _unreadable(repository, error) from error


def _rows(table: _Table, repository: str) -> Iterator[Mapping[str, object]]:
    """Yield the rows. Raises DataError where the library cannot read one."""
    try:
        yield from table
    except Exception as error:
        raise _unreadable(repository, error) from error


def _unreadable(repository: str, error: Exception) -> DataError:
    return DataError(f"{repository} cannot be read: {_one_line(error)}.")


def _one_line(error: Exception) -> str:
    return printable(" ".join(str(error).split())).rstrip(".") or type(error).__name__


def _name(table: _Table, row: Mapping[str, object], column: str, repository: str) -> str:
    """Give the name in `column` of a row. Raises DataError unless it can name a folder."""
    value, feature = row[column], table.features[column]
    if isinstance(value, int) and isinstance(feature, _Named):
        value = feature.names[value] if 0 <= value < len(feature.names) else None
    elif isinstance(value, int):
        value = str(value)
    path = inner_path(value) if isinstance(value, str) else None
    if path is None or len(path.parts) != 1 or path.name.startswith(".") or not path.name.isprintable():
        raise DataError(f"{repository}: {column} {printable(repr(row[column]))} cannot name a folder.")
    return path.name


def _image(value: object, where: str) -> tuple[bytes, str, str]:
    """Give an image's bytes, the suffix of their format, and the stem of its name on the hub ("": none)."""
    content = value.get("bytes") if isinstance(value, Mapping) else None
    if not isinstance(content, bytes):  # a path would let a downloaded table choose files of this machine
        raise DataError(f"{where} is not stored in the table.")
    suffix = next((suffix for start, suffix in _SIGNATURES.items() if content.startswith(start)), None)
    if suffix is None:
        raise DataError(f"{where} is neither PNG nor JPEG; it begins with {content[:4].hex()}.")
    path = re.split(r"[\\/]", str(cast("Mapping[str, object]", value).get("path") or ""))[-1]
    plain = inner_path(path) if path.isprintable() and not path.startswith(".") else None
    return content, suffix, plain.stem if plain else ""


def _unused(stem: str, taken: set[str]) -> str:
    """Give `stem`, or the next number where the folder has it already (ignoring case), and add it to `taken`."""
    number = len(taken)
    while not stem or stem.casefold() in taken:
        number += 1
        stem = f"{number:05}"
    taken.add(stem.casefold())
    return stem
