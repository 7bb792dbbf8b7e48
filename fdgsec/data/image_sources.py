"""Image folders and zip archives behind one interface, and the decoding of their images to uint8 pixels.

Nothing is extracted to disk. `fdgsec.data.dataset_scan` says which files of a source belong to a dataset."""

import hashlib
import io
import os
import shutil
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from fdgsec.runtime.cache_files import atomic, cache_root
from fdgsec.runtime.checked_files import append_seal, is_whole
from fdgsec.runtime.errors import DataError
from fdgsec.runtime.zip_members import ZIP_DAMAGE, unpacked

Progress = Callable[[str, int, int], None]
Pixels = npt.NDArray[np.uint8]
Box = tuple[int, int, int, int]

MEMORY_BUDGET = 4 * 2**30  # bytes of pixels; above it they are stored in a memory-mapped file
_DEPTH = 8  # folders below the root that are searched, so that a link to a parent cannot loop
_CHUNK = 64  # images that one thread decodes between two progress reports
_LARGEST = 2**31  # bytes of one file of an archive: larger ones would fill the memory, and no image or list is
_LAST = threading.local()
# what Pillow's decoders raise on damaged input, depending on the format
DAMAGE = (
    *ZIP_DAMAGE, SyntaxError, TypeError, AttributeError, AssertionError, MemoryError, Image.DecompressionBombError,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)  # by the hundred thousand
class ImageFile:
    """One image before decoding: its path in its source, id, domain, class, and size in bytes.

    `split` is the official one where there is any, `group` names the slide or sequence it belongs to, `box`
    (left, top, right, bottom) is the region of the file that is used, None for all of it."""

    path: str
    id: str
    domain: int
    label: int
    size: int
    split: str = ""
    group: str = ""
    box: Box | None = None


class Source(Protocol):
    """A folder or an archive: `files` maps every path in it (with `/`) to its size in bytes."""

    path: Path
    files: Mapping[str, int]

    def read(self, name: str) -> bytes:
        """Read the bytes of one file; called from several threads."""
        ...

    def stamp(self, name: str) -> str:
        """Give a value that changes when the file does, without reading it: its checksum or modification time."""
        ...


class _Folder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: Mapping[str, int] = dict(self._walk())

    def _walk(self) -> Iterator[tuple[str, int]]:
        for folder, folders, names in os.walk(self.path, followlinks=True):
            relative = Path(folder).relative_to(self.path)
            folders[:] = [] if len(relative.parts) >= _DEPTH else [name for name in folders if not hidden(name)]
            for name in names:
                if not hidden(name):
                    yield (relative / name).as_posix(), (Path(folder) / name).stat().st_size

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def stamp(self, name: str) -> str:
        return str((self.path / name).stat().st_mtime_ns)


class _Archive:
    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path = path
        self._archive = archive
        self.files: Mapping[str, int] = {
            entry.filename: entry.file_size
            for entry in archive.infolist()
            if not entry.is_dir() and not any(map(hidden, entry.filename.split("/")))
        }

    def read(self, name: str) -> bytes:
        if (size := self.files[name]) > _LARGEST:
            raise DataError(f"{self.path}: {printable(name)} would unpack to {size} bytes; remove or replace it.")
        return unpacked(self._archive, self._archive.getinfo(name), most=_LARGEST)

    def stamp(self, name: str) -> str:
        return f"{self._archive.getinfo(name).CRC:08x}"

    def close(self) -> None:
        self._archive.close()


def hidden(name: str) -> bool:
    """Tell whether a file or folder is a system's metadata (`.DS_Store`, `__MACOSX`, `Thumbs.db`)."""
    return name.startswith(".") or name in ("__MACOSX", "Thumbs.db")


def printable(text: str) -> str:
    """Replace characters that would break a one-line message; file names may hold anything."""
    return "".join(character if character.isprintable() else "?" for character in text)


@contextmanager
def open_source(path: Path) -> Iterator[Source]:
    """Open a folder or a .zip file for reading, and close it afterwards. Raises DataError where it cannot be read."""
    source = acquire_source(path)
    try:
        yield source
    finally:
        if isinstance(source, _Archive):
            source.close()


def acquire_source(path: Path) -> Source:
    """Open a folder or a .zip file without a context manager. Raises DataError where it cannot be read."""
    try:
        return _Folder(path) if path.is_dir() else _Archive(path, zipfile.ZipFile(path))
    except OSError as error:
        place = printable(str(error.filename or path))
        raise DataError(f"{place} cannot be read: {error.strerror or error}.") from error
    except ZIP_DAMAGE as error:
        reason = printable(str(error))
        raise DataError(f"{path} is not a complete zip archive ({reason}); copy or download it again.") from error


def text_of(source: Source, name: str) -> str:
    """Read a text file in UTF-8. Raises DataError where it is not UTF-8 or cannot be unpacked."""
    try:
        return source.read(name).decode("utf-8-sig")
    except DataError:
        raise
    except UnicodeDecodeError as error:
        raise DataError(f"{source.path}: {name} is not text in UTF-8; copy or download it again.") from error
    except DAMAGE as error:
        reason = printable(str(error))
        raise DataError(f"{source.path}: {name} cannot be unpacked ({reason}); copy or download it again.") from error


def decode(
    source: Source,
    files: Sequence[ImageFile],
    *,
    image_size: int,
    threads: int = 0,
    memory_budget: int = MEMORY_BUDGET,
    progress: Progress | None = None,
) -> Tensor:
    """Decode `files` into one (N, 3, image_size, image_size) uint8 tensor of RGB pixels.

    Images of another size are resampled (bicubic, antialiased). `threads` 0 means one per core, up to 4. Above
    `memory_budget` bytes the pixels live in a cache file, written once and memory-mapped: writing to the tensor changes
    the copy in memory, never the file. `progress` receives (description, done, total). Raises DataError with the name
    of a corrupt image."""
    shape = (len(files), 3, image_size, image_size)
    size = len(files) * 3 * image_size**2
    threads = threads or default_threads()
    if size <= memory_budget:
        pixels = torch.empty(shape, dtype=torch.uint8)
        _fill(pixels.numpy(), source, files, threads=threads, progress=progress)
        return pixels
    target = _pixel_file(source, files, image_size)
    if not is_whole(target, key=target.name, size=size):
        _require_space(source, target, size)
        with atomic(target, private=True) as temporary:
            mapped = np.memmap(temporary, dtype=np.uint8, mode="w+", shape=shape)
            _fill(mapped, source, files, threads=threads, progress=progress)
            mapped.flush()
            append_seal(temporary, key=target.name)
    return torch.from_file(str(target), shared=False, size=size, dtype=torch.uint8).view(shape)


def default_threads() -> int:
    """Give the number of decoding threads: one per core, up to 4."""
    return min(4, os.cpu_count() or 1)


def _pixel_file(source: Source, files: Sequence[ImageFile], image_size: int) -> Path:
    """Name the cache file of these pixels, so that another image under the same name has another one."""
    told = (f"{file.id}\t{file.size}\t{file.box or ''}\t{source.stamp(file.path)}" for file in files)
    key = hashlib.sha256("\n".join(told).encode()).hexdigest()
    return cache_root() / "pixels" / f"{key[:40]}-{image_size}.u8"


def _require_space(source: Source, target: Path, size: int) -> None:
    """Raise DataError where the disk is too small: a full disk under a mapped file kills the process."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(target.parent).free) < size:
        needed = f"needs {size / 2**30:.1f} GiB in {target.parent}, which has {free / 2**30:.1f} GiB free"
        raise DataError(f"{source.path} {needed}; set FDGSEC_CACHE to a larger disk, or lower --image-size.")


def _fill(
    pixels: Pixels, source: Source, files: Sequence[ImageFile], *, threads: int, progress: Progress | None
) -> None:
    """Decode every file into its row, in threads: Pillow releases the interpreter lock."""

    def work(start: int) -> int:
        stop = min(start + _CHUNK, len(files))
        for row in range(start, stop):
            pixels[row] = decode_image(source, files[row], pixels.shape[-1])
        return stop

    with ThreadPoolExecutor(max_workers=threads) as pool:
        for done in pool.map(work, range(0, len(files), _CHUNK)):
            if progress is not None:
                progress("decoding", done, len(files))


def decode_image(source: Source, file: ImageFile, image_size: int) -> Pixels:
    """Decode one image to (3, image_size, image_size) uint8. Raises DataError with the name of a corrupt one."""
    try:
        if file.box is not None:
            rgb = _whole(source, file.path).crop(file.box)
        else:
            with Image.open(io.BytesIO(source.read(file.path))) as image:
                rgb = _eight_bit(image).convert("RGB")
        if rgb.size != (image_size, image_size):
            rgb = rgb.resize((image_size, image_size), Image.Resampling.BICUBIC)
    except DataError:
        raise
    except DAMAGE as error:
        reason = printable(str(error))
        raise DataError(f"{source.path}: {printable(file.path)} cannot be decoded ({reason}); replace it.") from error
    return np.asarray(rgb, dtype=np.uint8).transpose(2, 0, 1)


def _whole(source: Source, path: str) -> Image.Image:
    """Open a large image to crop patches; each thread keeps its last one, as patches of one image come together."""
    if getattr(_LAST, "key", None) != (source.path, path):
        with Image.open(io.BytesIO(source.read(path))) as image:
            _LAST.image, _LAST.key = _eight_bit(image).convert("RGB"), (source.path, path)
    kept: Image.Image = _LAST.image
    return kept


def _eight_bit(image: Image.Image) -> Image.Image:
    """Convert 16-bit grays (microscopes, fundus cameras) to 8 bits by their range; Pillow would clip them at 255."""
    if not image.mode.startswith("I"):
        return image
    values = np.asarray(image)
    return Image.fromarray((values.astype(np.float64) / 257).round().clip(0, 255).astype(np.uint8))
