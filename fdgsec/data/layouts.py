"""Which files of a folder or archive belong to a known dataset, and whether they are all there.

Layouts recognised below any number of outer folders: `<domain>/<class>/<image>` (DomainBed, also under `kfold/`; Dassl
under `images/`, where the class folders make the 1-based lists in `splits/` unnecessary; FedAlign under `raw/`), and a
WILDS `metadata.csv` that names path, domain and class of every image."""

import csv
import hashlib
import io
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from fdgsec.data.folder import ImageFile, Source, printable
from fdgsec.errors import DataError

IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})
_METADATA = "metadata.csv"
_Listed = tuple[str, int | None, int | None]  # path, domain, class; None where it is not one of the dataset's


@dataclass(frozen=True, kw_only=True)
class FolderSpec:
    """What a dataset on disk must consist of.

    `domains` maps each canonical domain to further names for it; names are compared without case, and blanks and
    hyphens count as underscores. `counts[domain]` holds one number per class, in the order of `classes`.
    `manifest_sha256` hashes the sorted `domain/class/stem` lines: no suffix, as distributions differ in it."""

    title: str
    domains: Mapping[str, Sequence[str]]
    classes: Sequence[str]
    counts: Mapping[str, Sequence[int]]
    manifest_sha256: str

    @property
    def images(self) -> int:
        """How many images the complete dataset has."""
        return sum(sum(row) for row in self.counts.values())

    @cached_property
    def domain_numbers(self) -> Mapping[str, int]:
        """The number of a domain by any of its plain names."""
        return {plain(name): i for i, (key, more) in enumerate(self.domains.items()) for name in (key, *more)}

    @cached_property
    def class_numbers(self) -> Mapping[str, int]:
        """The number of a class by its plain name."""
        return {plain(name): index for index, name in enumerate(self.classes)}


def plain(name: str) -> str:
    """Fold case, blanks and hyphens, in which distributions of one dataset differ."""
    return name.casefold().replace(" ", "_").replace("-", "_")


def scan(source: Source, spec: FolderSpec, *, allow_partial: bool = False) -> list[ImageFile]:
    """List the images of `spec` in `source`, sorted by domain, class and stem.

    Raises DataError where there is none, a file is empty, two files have one id, or images are missing or foreign. With
    `allow_partial` the last is accepted, and foreign images are left out."""
    base = find_base(source, spec)
    if base is None:
        found = ", ".join(sorted({name.split("/")[0] for name in source.files})[:3]) or "no file"
        raise DataError(
            f"{source.path} holds no {spec.title} images: expected folders <domain>/<class>/ with the domains "
            f"{', '.join(spec.domains)}; found {printable(found)}."
        )
    files: list[ImageFile] = []
    foreign: list[str] = []
    for path, domain, label in _listed(source, base, spec) if _has_list(source, base) else _walked(source, base, spec):
        if domain is None or label is None:
            foreign.append(path)
            continue
        name = f"{list(spec.domains)[domain]}/{spec.classes[label]}/{PurePosixPath(path).stem}"
        files.append(ImageFile(path=path, id=name, domain=domain, label=label, size=source.files[path]))
    files.sort(key=lambda file: (file.domain, file.label, PurePosixPath(file.path).stem, file.path))
    _check_files(source, files)
    if not allow_partial:
        _check_manifest(source, spec, files, foreign)
    if not files:
        examples = printable(_some(sorted(foreign), limit=3)) or "none at all"
        raise DataError(f"{source.path} holds no {spec.title} images, only others ({examples}).")
    return files


def find_base(source: Source, spec: FolderSpec) -> PurePosixPath | None:
    """Find the folder that holds the domains: the outermost one in which a known class lies in a known domain.

    Failing that, the one with a list, or one whose known domains hold images of other classes."""
    known: set[PurePosixPath] = set()
    listed: set[PurePosixPath] = set()
    likely: set[PurePosixPath] = set()
    for name in source.files:
        path = PurePosixPath(name)
        if path.name == _METADATA and _has_list(source, path.parent):
            listed.add(path.parent)
        elif _is_image(path) and len(path.parts) >= 3 and plain(path.parts[-3]) in spec.domain_numbers:
            (known if plain(path.parts[-2]) in spec.class_numbers else likely).add(path.parents[2])
    return min(known or listed or likely, key=lambda base: (len(base.parts), str(base)), default=None)


def _is_image(path: PurePosixPath) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES


def _walked(source: Source, base: PurePosixPath, spec: FolderSpec) -> Iterator[_Listed]:
    """Yield each image below `base` with the domain and class that its folders name."""
    for name in source.files:
        path = PurePosixPath(name)
        if not _is_image(path) or not path.is_relative_to(base):
            continue
        parts = path.relative_to(base).parts
        domain, label = (plain(parts[0]), plain(parts[1])) if len(parts) == 3 else ("", "")
        yield name, spec.domain_numbers.get(domain), spec.class_numbers.get(label)


def _listed(source: Source, base: PurePosixPath, spec: FolderSpec) -> Iterator[_Listed]:
    """Yield what the list names: columns path, domain (a name) and category (a name) or y (counted from 0)."""
    for number, row in enumerate(_reader(source, base), start=2):
        name = str(base / (row.get("path") or ""))
        if name not in source.files:
            where = f"line {number} of {base / _METADATA} lists {printable(name)}"
            raise DataError(f"{source.path}: {where}, which is not there; complete the files or correct the list.")
        label: int | None = None
        if category := row.get("category"):
            label = spec.class_numbers.get(plain(category))
        elif (y := row.get("y") or "").isdecimal() and int(y) < len(spec.classes):
            label = int(y)
        yield name, spec.domain_numbers.get(plain(row.get("domain") or "")), label


def _has_list(source: Source, base: PurePosixPath) -> bool:
    """Tell whether `base` holds a metadata.csv that lists images; other datasets' lists have other columns."""
    return str(base / _METADATA) in source.files and {"path", "domain"} <= set(_reader(source, base).fieldnames or ())


def _reader(source: Source, base: PurePosixPath) -> "csv.DictReader[str]":
    name = str(base / _METADATA)
    try:
        return csv.DictReader(io.StringIO(source.read(name).decode("utf-8-sig"), newline=""))
    except UnicodeDecodeError as error:
        raise DataError(f"{source.path}: {name} is not a CSV file in UTF-8; copy or download it again.") from error


def _check_files(source: Source, files: Sequence[ImageFile]) -> None:
    for file in files:
        if file.size == 0:
            raise DataError(f"{source.path}: {printable(file.path)} is empty (0 bytes); copy or download it again.")
    for first, second in itertools.pairwise(files):
        if first.id == second.id:
            pair = printable(f"{first.path} and {second.path}")
            raise DataError(f"{source.path}: {pair} are two files for the one image {first.id!r}; remove one.")


def _check_manifest(source: Source, spec: FolderSpec, files: Sequence[ImageFile], foreign: Sequence[str]) -> None:
    """Raise DataError where these are not exactly the known images, saying which cells are off."""
    manifest = hashlib.sha256("\n".join(sorted(file.id for file in files)).encode()).hexdigest()
    if manifest == spec.manifest_sha256 and not foreign:
        return
    found = Counter((file.domain, file.label) for file in files)
    cells = [
        f"{domain}/{name} has {found[i, j]} of {spec.counts[domain][j]}"
        for i, domain in enumerate(spec.domains)
        for j, name in enumerate(spec.classes)
        if found[i, j] != spec.counts[domain][j]
    ]
    faults = [_some(cells, limit=5)] if cells else []
    if foreign:
        faults.append(f"foreign images: {len(foreign)} ({printable(_some(sorted(foreign), limit=3))})")
    if not faults:
        faults.append(f"the numbers agree but the names do not (manifest {manifest[:12]}, not the known one)")
    raise DataError(
        f"{source.path} is not the known {spec.title} of {spec.images} images: {'; '.join(faults)}. "
        "Complete it, or pass --allow-partial to go on with what is known of it."
    )


def _some(names: Sequence[str], *, limit: int) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
