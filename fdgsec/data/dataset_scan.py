"""The scan of a folder or archive for the images of a known dataset: numbered, sorted and checked against its spec."""

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fdgsec.data.dataset_specs import FolderSpec, normalize_name
from fdgsec.data.image_sources import ImageFile, Source, printable
from fdgsec.data.layout_readers import (
    FoundImage,
    find_base,
    from_boxes,
    from_folders,
    from_list,
    has_list,
    with_splits,
    without_duplicates,
)
from fdgsec.runtime.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The images of one dataset before decoding, with the names of its domains, classes and splits."""

    files: Sequence[ImageFile]
    domains: Sequence[str]
    classes: Sequence[str]


def scan(source: Source, spec: FolderSpec, *, allow_partial: bool = False) -> Listing:
    """List the images of `spec` in `source`, sorted by domain, class and stem.

    Raises DataError where there are none, a file is empty, two files have one id, or images are missing or foreign.
    With `allow_partial` missing images are accepted and foreign ones left out."""
    base = find_base(source, spec)
    if base is None:
        found = ", ".join(sorted({name.split("/")[0] for name in source.files})[:3]) or "no file"
        layout = (
            "folders <domain>/<class>/" if spec.list is None or spec.domains else f"{spec.list.file} and its images"
        )
        named = f" with the domains {', '.join(spec.domains)}" if spec.domains else ""
        lacking = f"is not {spec.title}" if spec.title.startswith("a ") else f"holds no {spec.title} images"
        raise DataError(f"{source.path} {lacking}: expected {layout}{named}; found {printable(found)}.")
    read = list(_read(source, base, spec))
    domains = list(spec.domains) or sorted({image.domain for image in read if image.domain}, key=_naturally)
    classes = list(spec.classes) or _open_classes(read, spec)
    # open class names are not normalized: FEMNIST's A and a are two classes
    numbers = spec.domain_numbers or {name: index for index, name in enumerate(domains)}
    labels = spec.class_numbers or {name: index for index, name in enumerate(classes)}
    files: list[ImageFile] = []
    foreign: list[str] = []
    for image in read:
        domain = numbers.get(normalize_name(image.domain or "") if spec.domains else image.domain or "")
        label = _numbered(image.label, labels, spec)
        if domain is None or label is None:
            foreign.append(image.path)
            continue
        files.append(
            ImageFile(
                path=image.path, id=f"{domains[domain]}/{classes[label]}/{image.stem}", domain=domain, label=label,
                size=source.files[image.path], split=image.split, group=image.group, box=image.box,
            )
        )  # fmt: skip
    del read  # it takes as much memory as `files`
    files.sort(key=lambda file: (file.domain, file.label, file.id, file.path))
    _check_files(source, files)
    if not allow_partial:
        _check_counts(source, spec, files, foreign, classes)
    if not files:
        examples = printable(_some(sorted(foreign), limit=3)) or "none at all"
        raise DataError(f"{source.path} holds no {spec.title} images, only others ({examples}).")
    return Listing(files=files, domains=domains, classes=classes)


def _read(source: Source, base: str, spec: FolderSpec) -> Iterable[FoundImage]:
    if spec.patches is not None:
        return from_boxes(source, base, spec.patches)
    if spec.list is not None and has_list(source, base, spec.list):
        return from_list(source, base, spec.list)
    found = without_duplicates(from_folders(source, base), source, base, spec)
    return with_splits(found, source, base, spec)


def _naturally(name: str) -> tuple[str, int, str]:
    """Sort key that orders location_9 before location_10."""
    head = name.rstrip("0123456789")
    return head, int(name[len(head) :] or -1), name


def _open_classes(read: Sequence[FoundImage], spec: FolderSpec) -> list[str]:
    """Name the classes that the catalog leaves open: by their folders, or by number where lists only number them."""
    named = sorted({image.label for image in read if isinstance(image.label, str)})
    numbered = [image.label for image in read if isinstance(image.label, int)]
    if not numbered:
        return named
    width = len(str(max(numbered)))
    return [f"class_{index:0{width}d}" for index in range(max([*numbered, spec.class_count - 1]) + 1)]


def _numbered(label: str | int | None, names: Mapping[str, int], spec: FolderSpec) -> int | None:
    if isinstance(label, int):
        return label if label < (len(spec.classes) or len(names)) else None
    return None if label is None else names.get(normalize_name(label) if spec.classes else label)


def _check_files(source: Source, files: Sequence[ImageFile]) -> None:
    for file in files:
        if file.size == 0:
            raise DataError(f"{source.path}: {printable(file.path)} is empty (0 bytes); copy or download it again.")
    for first, second in itertools.pairwise(files):
        if first.id == second.id:
            pair = printable(f"{first.path} and {second.path}")
            raise DataError(f"{source.path}: {pair} are two files for the one image {first.id!r}; remove one.")


def _check_counts(
    source: Source, spec: FolderSpec, files: Sequence[ImageFile], foreign: Sequence[str], classes: Sequence[str]
) -> None:
    """Raise DataError where these are not exactly the known images, with the differences."""
    faults = _off(spec, files, classes)
    if foreign:
        faults.append(f"foreign images: {len(foreign)} ({printable(_some(sorted(foreign), limit=3))})")
    if not faults and spec.manifest_sha256:
        manifest = hashlib.sha256("\n".join(sorted(file.id for file in files)).encode()).hexdigest()
        if manifest != spec.manifest_sha256:
            faults.append(f"the numbers agree but the names do not (manifest {manifest[:12]}, not the known one)")
    if faults:
        size = f" of {spec.images} images" if spec.images else ""
        raise DataError(
            f"{source.path} is not the known {spec.title}{size}: {'; '.join(faults)}. "
            "Complete it, or pass --allow-partial to use the known images that are there."
        )


def _off(spec: FolderSpec, files: Sequence[ImageFile], classes: Sequence[str]) -> list[str]:
    """Describe the counts that differ from the nearest accepted version; empty where none does."""
    faults = []
    if spec.counts:
        found = Counter((file.domain, file.label) for file in files)
        tables = [_cells(table, spec, found) for table in spec.counts]
        nearest = min(tables, key=len)
        if nearest:
            faults.append(_some(nearest, limit=5))
    for name, known, number in (
        ("images", spec.total, len(files)),
        ("classes", spec.class_count, len(classes)),
        ("domains", spec.domain_count, len({file.domain for file in files})),
    ):
        if known and number != known:
            faults.append(f"{number} of {known} {name}")
    return faults


def _cells(
    table: Mapping[str, Sequence[int] | int], spec: FolderSpec, found: Mapping[tuple[int, int], int]
) -> list[str]:
    off = []
    for i, domain in enumerate(spec.domains):
        known = table.get(domain, 0)
        if isinstance(known, int):
            number = sum(count for (where, _), count in found.items() if where == i)
            off += [f"{domain} has {number} of {known}"] if number != known else []
            continue
        for j, name in enumerate(spec.classes):
            if found.get((i, j), 0) != known[j]:
                off.append(f"{domain}/{name} has {found.get((i, j), 0)} of {known[j]}")
    return off


def _some(names: Sequence[str], *, limit: int) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
