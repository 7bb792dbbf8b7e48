"""The datasets that fdgsec knows by name, and `load_dataset`, which loads one of them.

Each dataset is an entry of `DATASETS`: its files, the folders it may be in, and the default unseen domain."""

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

from fdgsec.data.dataset_scan import scan
from fdgsec.data.dataset_specs import FolderSpec, ListSpec, PatchSpec
from fdgsec.data.domains import DomainDataset
from fdgsec.data.fetch import Archive, fetch_dataset
from fdgsec.data.hub import COLUMNS
from fdgsec.data.image_sources import MEMORY_BUDGET, ImageFile, Progress, Source, decode, open_source
from fdgsec.data.layout_readers import find_base
from fdgsec.data.lazy_pixels import LazyPixels
from fdgsec.data.leaf_json import read_leaf
from fdgsec.data.sampling import apportion
from fdgsec.runtime.cache_files import cache_root
from fdgsec.runtime.errors import DataError, DatasetNotFoundError, UsageError, unknown_name
from fdgsec.runtime.random_streams import child, stream
from fdgsec.runtime.registry import plugins, resolve

LAZY_ABOVE = 100_000
"""Datasets with more images than this are decoded lazily, others at once."""


@dataclass(frozen=True, kw_only=True)
class DatasetEntry:
    """One known dataset, a table of datasets.toml.

    `target_domain` is the default unseen domain ("" for the last one), `image_size` the default side in pixels.
    `folders` are the folder names under a data root, `page` is the download page of the owners. `archives` are the
    files that can be downloaded without registration. `hub` is a copy on the Hugging Face hub; `hub_columns` hold its
    domains and classes. `official` names the official splits of some distribution of it. `files` specifies its files.
    A procedural dataset has no `files`, but `drawn`: the default number of images of each domain."""

    title: str
    target_domain: str
    image_size: int
    paper: str = ""
    page: str = ""
    license: str = ""
    hub: str = ""
    hub_columns: Sequence[str] = COLUMNS
    archives: Sequence[Archive] = ()
    official: Sequence[str] = ()
    folders: Sequence[str] = ()
    files: FolderSpec | None = None
    drawn: int = 0

    @property
    def anything(self) -> bool:
        """Whether any tree of images can be this dataset (`folder`)."""
        return self.files is not None and not self.folders


def _read_catalogue() -> Mapping[str, DatasetEntry]:
    tables = tomllib.loads(resources.files("fdgsec.data").joinpath("datasets.toml").read_text())
    known = {spec.name for spec in fields(DatasetEntry)}
    entries = {}
    for name, table in tables.items():
        own = {key: value for key, value in table.items() if key in known}
        own["archives"] = tuple(Archive(**archive) for archive in table.get("archives", ()))
        rest = {key: value for key, value in table.items() if key not in known}
        for key, kind in (("list", ListSpec), ("patches", PatchSpec)):
            if key in rest:
                rest[key] = kind(**rest[key])
        files = None if own.get("drawn") else FolderSpec(title=own["title"], **rest)
        entries[name] = DatasetEntry(**own, files=files)
    return entries


DATASETS: Mapping[str, DatasetEntry] = _read_catalogue()


def load_dataset(
    name: str,
    *,
    data_root: Path | None = None,
    image_size: int | None = None,
    allow_partial: bool = False,
    per_domain: int | None = None,
    per_class: int | None = None,
    seed: int = 0,
    memory_budget: int = MEMORY_BUDGET,
    lazy: bool | None = None,
    progress: Progress | None = None,
) -> DomainDataset:
    """Load the dataset called `name` as square images of `image_size` pixels, checked against its known manifest.

    `data_root` (else $FDGSEC_DATA, else the cache's `data`) is a .zip file, the dataset's folder, or a folder that
    holds either; see `locate`. With `allow_partial` missing images are accepted and foreign ones left out.
    `per_domain` keeps at most that many images of each domain, classes in proportion, sampled by `seed` before
    decoding. Of a procedural dataset it draws that many; which images these are never depends on `seed`.
    `per_class` keeps at most that many images of each class in each domain. Pixels above `memory_budget` bytes are
    mapped from a file. With `lazy` (None: above 100,000 images) images are decoded when they are accessed.
    Raises UsageError, DatasetNotFoundError or DataError."""
    entry = dataset_entry(name)
    size = entry.image_size if image_size is None else image_size
    for option, value in {"image_size": size, "per_domain": per_domain, "per_class": per_class}.items():
        if value is not None and value < 1:
            raise UsageError(f"{option} must be at least 1; got {value}.")
    if entry.files is None:
        return _draw(name, size, entry.drawn if per_domain is None else per_domain, per_class, progress)
    path = locate(name, data_root)
    with open_source(path) as source:
        if entry.files.leaf and (pixels := read_leaf(source, image_size=size, per_domain=per_domain, seed=seed)):
            if per_class is not None:
                raise UsageError(f"{name} is stored as LEAF's JSON, which only per_domain limits; leave per_class out.")
            return pixels
        listing = scan(source, entry.files, allow_partial=allow_partial)
        files = listing.files
        if per_domain is not None or per_class is not None:
            files = _sample(files, per_domain, per_class, stream(seed, "world", "per-domain", name))
        store: Tensor | LazyPixels
        if lazy or (lazy is None and len(files) > LAZY_ABOVE):
            store = LazyPixels(path, files, image_size=size)
        else:
            store = _decoded(source, files, image_size=size, memory_budget=memory_budget, progress=progress)
    splits = sorted({file.split for file in files} - {""})
    attributes = {}
    if splits:
        attributes["split"] = torch.tensor([splits.index(file.split) if file.split else -1 for file in files])
    if any(file.group for file in files):
        numbers = {group: number for number, group in enumerate(dict.fromkeys(file.group for file in files))}
        attributes["group"] = torch.tensor([numbers[file.group] for file in files])
    return DomainDataset(
        name=name,
        store=store,
        rows=torch.arange(len(files)),
        labels=torch.tensor([file.label for file in files]),
        domains=torch.tensor([file.domain for file in files]),
        ids=tuple(file.id for file in files),
        class_names=tuple(listing.classes),
        domain_names=tuple(listing.domains),
        attributes=attributes,
        split_names=tuple(splits),
    )


_ARCHIVE: dict[tuple[object, ...], Tensor] = {}  # memo: what was read of the last archive -> its pixels, per process


def _decoded(
    source: Source, files: Sequence[ImageFile], *, image_size: int, memory_budget: int, progress: Progress | None
) -> Tensor:
    """The pixels of `files`; those of the last archive are kept, so that runs in one process decode it once."""
    if source.path.is_dir():
        return decode(source, files, image_size=image_size, memory_budget=memory_budget, progress=progress)
    found = source.path.stat()
    key = (source.path.resolve(), found.st_mtime_ns, found.st_size, image_size, memory_budget, tuple(files))
    if key not in _ARCHIVE:
        _ARCHIVE.clear()
        _ARCHIVE[key] = decode(source, files, image_size=image_size, memory_budget=memory_budget, progress=progress)
    return _ARCHIVE[key]


def _draw(
    name: str, image_size: int, per_domain: int, per_class: int | None, progress: Progress | None
) -> DomainDataset:
    """Draw a procedural dataset; its seed is always 0, so that its name stands for one set of images."""
    from fdgsec.data import shapes, swatches  # loading files does not need the renderers

    module = shapes if name == "shapes" else swatches
    if per_class is not None:
        per_domain = min(per_domain, per_class * len(module.CLASSES))
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress("drawing", done, per_domain * len(module.DOMAINS))

    if name == "shapes":
        return shapes.shapes(image_size=image_size, per_domain=per_domain, seed=0, progress=advance)
    return swatches.swatches(
        image_size=image_size, per_domain=per_domain, seed=0, random_labels=name == "swatches-random", progress=advance
    )


def dataset_names() -> tuple[str, ...]:
    """The datasets of the catalogue, then those of plug-ins, each a `DatasetEntry`."""
    return (*DATASETS, *(name for name in plugins("datasets") if name not in DATASETS))


def dataset_entry(name: str) -> DatasetEntry:
    """Look a dataset up. Raises UsageError with the nearest name."""
    if name in DATASETS:
        return DATASETS[name]
    if name not in dataset_names():
        raise unknown_name("dataset", name, dataset_names())
    entry = resolve("datasets", name)
    if not isinstance(entry, DatasetEntry) or entry.files is None or not entry.folders:
        raise UsageError(
            f"the dataset {name!r} of a plug-in must be a DatasetEntry with files and folders; got {entry!r}."
        )
    return entry


def fetch(name: str, *, data_root: Path | None = None, progress: Progress | None = None) -> list[Path]:
    """Download a dataset into the data root, and give the folder or files that now hold it.

    Raises UsageError for an unknown or procedural dataset. Raises DatasetNotFoundError, with the page of its owners,
    where it cannot be downloaded; see `fdgsec.data.fetch`."""
    entry = dataset_entry(name)
    if entry.files is None or entry.anything:
        raise UsageError(f"{name} is {entry.title}: there is nothing to fetch.")
    root = data_root_of(data_root)
    if root.is_file():
        raise UsageError(f"{root} is a file; --data-root must be a folder to download to.")
    return fetch_dataset(
        name, title=entry.title, page=entry.page, root=root, folder=entry.folders[0], archives=entry.archives,
        hub=entry.hub or None, hub_columns=entry.hub_columns, progress=progress,
    )  # fmt: skip


def locate(name: str, data_root: Path | None = None) -> Path:
    """Find the folder or .zip file that holds a dataset.

    Candidates, in this order and ignoring case: `data_root` itself where it is a file; its folders with a name of the
    dataset (PACS, pacs_v1.0); `data_root` itself; its .zip files, in alphabetical order, whose names start like the
    dataset's. The first that holds images of the dataset is taken. Raises DatasetNotFoundError where there is no
    candidate, and DataError where a candidate with the right name holds no such images."""
    entry = dataset_entry(name)
    if entry.files is None:
        raise UsageError(f"{name} is drawn, not read from disk: it has no folder.")
    root = data_root_of(data_root)
    if root.is_file() or (entry.anything and data_root is not None and root.is_dir()):
        return root
    if entry.anything:
        raise UsageError(f"{name} is {entry.files.title}: name its root with --data-root.")
    try:
        candidates = _candidates(root, entry) if root.is_dir() else []
    except OSError as error:
        raise DataError(f"{root} cannot be listed: {error.strerror or error}; pass another --data-root.") from error
    for path in candidates:
        if path == root and not _may_hold(root, entry.files):
            continue
        with open_source(path) as source:
            if find_base(source, entry.files) is not None:
                return path
    named = [path for path in candidates if path.name.casefold().startswith(name)]
    if named:
        _refuse(named[0], entry.files)
    inside = f" with the folders {', '.join(entry.files.domains)}" if entry.files.domains else ""
    raise DatasetNotFoundError(
        f"{entry.files.title} not found in {root}: expected {root / entry.folders[0]}{inside}, or a {name}*.zip; "
        f"get it from {entry.page} and pass its folder with --data-root or FDGSEC_DATA; see docs/data.md."
    )


def check_found(name: str, data_root: Path | None = None) -> None:
    """Raise what `locate` raises for a dataset that is read from disk; one that is drawn is always there."""
    if dataset_entry(name).files is not None:
        locate(name, data_root)


def _refuse(path: Path, spec: FolderSpec) -> None:
    """Raise the DataError that says what is wrong with a folder or archive that has the dataset's name."""
    with open_source(path) as source:
        scan(source, spec)


def data_root_of(given: Path | None) -> Path:
    """Give the folder of all datasets: `given`, else $FDGSEC_DATA, else the cache's `data`."""
    if given is not None:
        return given.expanduser()
    named = os.environ.get("FDGSEC_DATA")
    return Path(named).expanduser() if named else cache_root() / "data"


def _candidates(root: Path, entry: DatasetEntry) -> list[Path]:
    """List the folders and archives under `root` that may hold the dataset, in the order of `locate`."""
    known = [folder.casefold() for folder in entry.folders]
    children = sorted(root.iterdir(), key=lambda path: path.name)
    folders = [path for folder in known for path in children if path.name.casefold() == folder and path.is_dir()]
    archives = [
        path
        for path in children
        if path.suffix.casefold() == ".zip" and path.name.casefold().startswith(known[0]) and path.is_file()
    ]
    return [*folders, root, *archives]


def _may_hold(root: Path, spec: FolderSpec) -> bool:
    """Tell whether `root` may itself be the dataset's folder, without walking all of a large disk."""
    names = {path.name.casefold() for path in root.iterdir()}
    lists = {spec.list.file} if spec.list is not None else set()
    if spec.patches is not None or spec.leaf:
        return any(name.endswith(".json") for name in names)
    return not names.isdisjoint(
        {*map(str.casefold, spec.domains), *spec.domain_numbers, "kfold", "images", "raw", *lists}
    )


def _sample(
    files: Sequence[ImageFile], per_domain: int | None, per_class: int | None, rng: torch.Generator
) -> list[ImageFile]:
    """Keep at most `per_domain` files of each domain, classes in proportion, and `per_class` of each, in order."""
    kept: list[ImageFile] = []
    for domain in sorted({file.domain for file in files}):
        members = [file for file in files if file.domain == domain]
        cells = {label: [file for file in members if file.label == label] for label in {file.label for file in members}}
        sizes = [len(cell) if per_class is None else min(len(cell), per_class) for cell in cells.values()]
        quotas = apportion(sizes, sum(sizes) if per_domain is None else min(per_domain, sum(sizes)))
        for (label, cell), quota in zip(cells.items(), quotas, strict=True):
            order = torch.randperm(len(cell), generator=child(rng, domain, label))
            kept += [cell[int(i)] for i in order[:quota].sort().values]
    return sorted(kept, key=lambda file: (file.domain, file.label))
