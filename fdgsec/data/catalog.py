"""Every dataset that fdgsec knows by name, and `load_dataset`, which turns a name into images.

A dataset is one entry of `DATASETS`: what it consists of, where it may lie, and which domain is unseen by default."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fdgsec.cache import cache_root
from fdgsec.data.apportion import apportion
from fdgsec.data.domains import DomainDataset
from fdgsec.data.folder import MEMORY_BUDGET, ImageFile, Progress, decode, open_source
from fdgsec.data.layouts import FolderSpec, find_base, scan
from fdgsec.errors import DataError, DatasetNotFoundError, UsageError, unknown_name
from fdgsec.rng import child, stream


@dataclass(frozen=True, kw_only=True)
class DatasetEntry:
    """One known dataset.

    `target_domain` is the domain left unseen by default, `image_size` the default side in pixels. `folders` are the
    names it goes by under a data root, `page` is where its owners hand it out, `files` what it consists of. A dataset
    that is drawn rather than read has none of the three, but `drawn`: how many images of each domain by default."""

    target_domain: str
    image_size: int
    folders: Sequence[str] = ()
    page: str = ""
    files: FolderSpec | None = None
    drawn: int = 0


# Li et al., "Deeper, Broader and Artier Domain Generalization", ICCV 2017; counts and manifest of the complete set
_PACS = FolderSpec(
    title="PACS",
    domains={
        "art_painting": ("art", "artpainting", "painting"),
        "cartoon": (),
        "photo": ("photos",),
        "sketch": ("sketches",),
    },
    classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
    counts={
        "art_painting": (379, 255, 285, 184, 201, 295, 449),
        "cartoon": (389, 457, 346, 135, 324, 288, 405),
        "photo": (189, 202, 182, 186, 199, 280, 432),
        "sketch": (772, 740, 753, 608, 816, 80, 160),
    },
    manifest_sha256="7c29ffead8965a7cd100da02e451a5e7de673c6529fe25578ee9c87feaba224b",
)

DATASETS: Mapping[str, DatasetEntry] = {
    "pacs": DatasetEntry(
        target_domain="sketch",
        image_size=128,
        folders=("PACS", "pacs_v1.0"),
        page="https://dali-dl.github.io/project_iccv2017.html",
        files=_PACS,
    ),
    "shapes": DatasetEntry(target_domain="sketch", image_size=64, drawn=420),
}


def load_dataset(
    name: str,
    *,
    data_root: Path | None = None,
    image_size: int | None = None,
    allow_partial: bool = False,
    per_domain: int | None = None,
    seed: int = 0,
    memory_budget: int = MEMORY_BUDGET,
    progress: Progress | None = None,
) -> DomainDataset:
    """Load the dataset called `name`, square images of `image_size` pixels, checked against its known manifest.

    `data_root` (else $FDGSEC_DATA, else the cache's `data`) is a .zip file, the dataset's folder, or a folder that holds
    either; see `locate`. With `allow_partial` missing images are accepted and foreign ones left out. `per_domain` keeps
    at most that many images of each domain, classes in proportion, drawn by `seed` before anything is decoded (shapes
    draws that many instead; which shapes they are never depends on `seed`). Pixels above `memory_budget` bytes are
    mapped from a file. Raises UsageError, DatasetNotFoundError or DataError."""
    entry = dataset_entry(name)
    size = entry.image_size if image_size is None else image_size
    for option, value in {"image_size": size, "per_domain": 1 if per_domain is None else per_domain}.items():
        if value < 1:
            raise UsageError(f"{option} must be at least 1; got {value}.")
    if entry.files is None:
        return _draw(size, entry.drawn if per_domain is None else per_domain, progress)
    with open_source(locate(name, data_root)) as source:
        files = scan(source, entry.files, allow_partial=allow_partial)
        if per_domain is not None:
            files = _sample(files, per_domain, stream(seed, "world", "per-domain", name))
        pixels = decode(source, files, image_size=size, memory_budget=memory_budget, progress=progress)
    return DomainDataset(
        name=name,
        store=pixels,
        rows=torch.arange(len(files)),
        labels=torch.tensor([file.label for file in files]),
        domains=torch.tensor([file.domain for file in files]),
        ids=tuple(file.id for file in files),
        class_names=tuple(entry.files.classes),
        domain_names=tuple(entry.files.domains),
    )


def _draw(image_size: int, per_domain: int, progress: Progress | None) -> DomainDataset:
    """Draw shapes, the one procedural dataset; its generation seed is 0, so that `shapes` names one set of images."""
    from fdgsec.data.shapes import DOMAINS, shapes  # reading a dataset does not need the drawing

    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress("drawing", done, per_domain * len(DOMAINS))

    return shapes(image_size=image_size, per_domain=per_domain, seed=0, progress=advance)


def dataset_entry(name: str) -> DatasetEntry:
    """Look a dataset up. Raises UsageError with the nearest name."""
    if name not in DATASETS:
        raise unknown_name("dataset", name, DATASETS)
    return DATASETS[name]


def locate(name: str, data_root: Path | None = None) -> Path:
    """Find the folder or .zip file that holds a dataset.

    Tried in this order, names without regard to case: `data_root` itself where it is a file; its folders called as the
    dataset (PACS, pacs_v1.0); `data_root` itself; its .zip files, in alphabetical order, whose names start like the
    dataset's. The first that holds images of the dataset is taken. Raises DatasetNotFoundError where nothing is there,
    and DataError where what goes by the name holds no such images."""
    entry = dataset_entry(name)
    if entry.files is None:
        raise UsageError(f"{name} is drawn, not read from disk: it has no place.")
    root = _data_root(data_root)
    if root.is_file():
        return root
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
    raise DatasetNotFoundError(
        f"{entry.files.title} not found in {root}: expected {root / entry.folders[0]} with the folders "
        f"{', '.join(entry.files.domains)}, or a {name}*.zip; get it from {entry.page} and give its place with "
        "--data-root or FDGSEC_DATA; see docs/data.md."
    )


def _refuse(path: Path, spec: FolderSpec) -> None:
    """Raise the DataError that says what is wrong with a folder or archive that goes by the dataset's name."""
    with open_source(path) as source:
        scan(source, spec)


def _data_root(given: Path | None) -> Path:
    if given is not None:
        return given.expanduser()
    named = os.environ.get("FDGSEC_DATA")
    return Path(named).expanduser() if named else cache_root() / "data"


def _candidates(root: Path, entry: DatasetEntry) -> list[Path]:
    """List what may hold the dataset under `root`, in the order of `locate`."""
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
    """Tell cheaply whether `root` is itself the dataset's folder, as walking all of a large disk is not cheap."""
    names = {path.name.casefold() for path in root.iterdir()}
    return not names.isdisjoint({*spec.domain_numbers, "kfold", "images", "raw", "metadata.csv"})


def _sample(files: Sequence[ImageFile], limit: int, rng: torch.Generator) -> list[ImageFile]:
    """Keep at most `limit` files of each domain, classes in proportion; the order stays."""
    kept: list[ImageFile] = []
    for domain in sorted({file.domain for file in files}):
        members = [file for file in files if file.domain == domain]
        cells = {label: [file for file in members if file.label == label] for label in {file.label for file in members}}
        quotas = apportion([len(cell) for cell in cells.values()], min(limit, len(members)))
        for (label, cell), quota in zip(cells.items(), quotas, strict=True):
            order = torch.randperm(len(cell), generator=child(rng, domain, label))
            kept += [cell[int(i)] for i in order[:quota].sort().values]
    return sorted(kept, key=lambda file: (file.domain, file.label))
