"""Readers of dataset layouts: class folders, lists of splits, CSV files and annotated boxes.

Each reader gives domains and classes by name; `fdgsec.data.dataset_scan` numbers and checks them."""

import csv
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fdgsec.data.dataset_specs import FolderSpec, ListSpec, PatchSpec, normalize_name
from fdgsec.data.image_sources import Box, Source, printable, text_of
from fdgsec.runtime.errors import DataError
from fdgsec.runtime.untrusted_text import parse_json_object

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
SPLITS = frozenset({"train", "crossval", "val", "test", "full", "images"})
"""Folders between a domain and its classes; `full` repeats other splits (VLCS), `images` is no split (Office-31)."""


@dataclass(frozen=True, kw_only=True, slots=True)  # by the hundred thousand
class FoundImage:
    """One image as its distribution describes it: domain by name, class by name or number, None where not given."""

    path: str
    stem: str
    domain: str | None
    label: str | int | None
    split: str = ""
    group: str = ""
    box: Box | None = None


def is_image(path: str) -> bool:
    """Tell whether `path` has the suffix of an image."""
    return path.lower().endswith(IMAGE_SUFFIXES)


def find_base(source: Source, spec: FolderSpec) -> str | None:
    """Find the outermost folder that fits the layout ("" is the root), or None.

    With closed domains it holds a known class in a known domain; failing that, a list, or known domains with other
    classes."""
    if spec.patches is not None or (spec.leaf and any(name.endswith(".json") for name in source.files)):
        folders = [name.rpartition("/")[0] for name in source.files if name.lower().endswith(".json")]
        return min(folders, key=lambda base: (base.count("/"), base), default=None)
    if not spec.domains and spec.list is None:
        return _common_folder(source)
    known: set[str] = set()
    listed: set[str] = set()
    likely: set[str] = set()
    for name in source.files:
        parts = name.split("/")
        if spec.list is not None and parts[-1] == spec.list.file:
            base = "/".join(parts[:-1])
            if has_list(source, base, spec.list):
                listed.add(base)
        elif is_image(name):
            for depth in (3, 4):
                if len(parts) >= depth and _fits(parts[-depth:-1], spec):
                    base = "/".join(parts[:-depth])
                    (known if not spec.classes or normalize_name(parts[-2]) in spec.class_numbers else likely).add(base)
    if not spec.domains:
        known, likely = set(), set()
    return min(known or listed or likely, key=lambda base: (base.count("/") + bool(base), base), default=None)


def _fits(folders: Sequence[str], spec: FolderSpec) -> bool:
    """Tell whether these folders are <domain>/<class> or <domain>/<split>/<class>."""
    return normalize_name(folders[0]) in spec.domain_numbers and (
        len(folders) == 2 or normalize_name(folders[1]) in SPLITS
    )


def _common_folder(source: Source) -> str | None:
    """Give the folder two levels above the classes, which may lie inside one more folder of the tree or archive."""
    shared: list[str] | None = None
    for name in source.files:
        if not is_image(name):
            continue
        parts = name.split("/")[:-3]
        if shared is None:
            shared = parts
        elif parts[: len(shared)] != shared:
            same = [one == other for one, other in zip(shared, parts, strict=False)]
            shared = shared[: same.index(False) if False in same else len(same)]
    return None if shared is None else "/".join(shared)


def from_folders(source: Source, base: str) -> Iterator[FoundImage]:
    """Read <domain>/<class>/<image> and <domain>/<split>/<class>/<image> below `base`.

    `full` is left out where a domain has other splits, because it repeats their images under other names."""
    prefix = f"{base}/" if base else ""
    names = [name for name in source.files if name.startswith(prefix) and is_image(name)]
    folders = {tuple(name[len(prefix) :].split("/")[:-1]) for name in names}
    split = {
        normalize_name(parts[0])
        for parts in folders
        if len(parts) == 3 and normalize_name(parts[1]) in SPLITS - {"full", "images"}
    }
    for path in names:
        parts = path[len(prefix) :].split("/")
        stem = parts[-1].rpartition(".")[0]
        if len(parts) == 3:
            yield FoundImage(path=path, stem=stem, domain=sys.intern(parts[0]), label=sys.intern(parts[1]))
        elif len(parts) == 4 and (part := normalize_name(parts[1])) in SPLITS:
            if part == "full" and normalize_name(parts[0]) in split:
                continue
            between = part if part not in ("full", "images") else ""
            named = f"{between}-{stem}" if between else stem  # each split numbers its files from 0
            yield FoundImage(path=path, stem=named, domain=parts[0], label=parts[2], split=between)
        else:
            yield FoundImage(path=path, stem=stem, domain=None, label=None)


def without_duplicates(
    found: Iterator[FoundImage], source: Source, base: str, spec: FolderSpec
) -> Iterator[FoundImage]:
    """Leave out the images in the dataset's list of duplicates, where that list is in `base` or beside it."""
    places = [f"{part}/{spec.duplicates}" if part else spec.duplicates for part in (base, base.rpartition("/")[0])]
    name = next((place for place in places if spec.duplicates and place in source.files), None)
    if name is None:
        yield from found
        return
    start = len(base) + 1 if base else 0
    named = {line.strip() for line in text_of(source, name).splitlines()}
    for image in found:
        if image.path[start:] not in named:
            yield image


def with_splits(found: Iterator[FoundImage], source: Source, base: str, spec: FolderSpec) -> Iterator[FoundImage]:
    """Give each image the split of the list that contains it; with `only_listed` leave out unlisted images.

    The lists are `<splits>/<domain>_<split>[_kfold].txt` beside or in `base`; each line holds a path and a number.
    Only the path is used, because some lists number classes from 1 and lists of a subset renumber them. An image in
    several lists counts as training."""
    folders = [f"{part}/{spec.splits}/" if part else f"{spec.splits}/" for part in (base, base.rpartition("/")[0])]
    lists = [name for name in source.files if name.startswith(tuple(folders)) and name.endswith(".txt")]
    split_of: dict[str, str] = {}
    for name in sorted(lists, key=lambda name: ("train" not in name, "test" in name, name)):
        stem = name.rpartition("/")[2].removesuffix(".txt").removesuffix("_kfold")
        for line in text_of(source, name).splitlines():
            path = line.strip().rpartition(" ")[0].replace("\\", "/").removeprefix("./")
            if path:
                split_of.setdefault(path, stem.rpartition("_")[2])
    if spec.only_listed and not lists:
        raise DataError(
            f"{source.path} has no lists {spec.splits}/<domain>_<split>.txt, which select the images of {spec.title}; "
            "put that folder beside the domains."
        )
    start = len(base) + 1 if base else 0
    seen: set[str] = set()
    for image in found:
        split = split_of.get(image.path[start:])
        if split is not None:
            seen.add(image.path[start:])
            yield replace(image, split=split)
        elif not spec.only_listed:
            yield image
    if spec.only_listed and (absent := sorted(set(split_of) - seen)):
        raise DataError(
            f"{source.path}: {len(absent)} images of the lists in {spec.splits} are missing, first "
            f"{printable(absent[0])}; complete the files or correct the lists."
        )


def has_list(source: Source, base: str, spec: ListSpec) -> bool:
    """Tell whether `base` holds the list with the columns that `spec` needs; lists of other datasets have others."""
    name = f"{base}/{spec.file}" if base else spec.file
    return name in source.files and _columns(spec.path, spec.domain) <= set(_rows(source, name).fieldnames or ())


def from_list(source: Source, base: str, spec: ListSpec) -> Iterator[FoundImage]:
    """Read the images of the list, in its order. Raises DataError for a listed image that is missing."""
    prefix = f"{base}/" if base else ""
    names = _class_names(source, prefix + spec.names) if spec.names and prefix + spec.names in source.files else {}
    for number, row in enumerate(_rows(source, prefix + spec.file), start=2):
        values = {
            key: (value or "") for key, value in row.items() if isinstance(key, str) and not isinstance(value, list)
        }
        path = prefix + _filled(spec.path, values)
        if path not in source.files and spec.elsewhere:
            path = prefix + _filled(spec.elsewhere, values)
        if path not in source.files:
            where = f"line {number} of {prefix + spec.file} lists {printable(path)}"
            raise DataError(f"{source.path}: {where}, which is missing; complete the files or correct the list.")
        domain = _filled(spec.domain, values)
        label: str | int | None = _filled(spec.label, values) or None
        if label is None:
            label = int(index) if (index := _filled(spec.index, values).removesuffix(".0")).isdecimal() else None
            label = names.get(label, label) if isinstance(label, int) else label
        split = _filled(spec.split, values)
        split = spec.split_of_domain.get(domain, spec.split_names.get(split, split))
        stem = path.rpartition("/")[2].rpartition(".")[0]
        group = _filled(spec.group, values)
        yield FoundImage(path=path, stem=stem, domain=domain or None, label=label, split=split, group=group)


def _columns(*templates: str) -> set[str]:
    return {part.partition("}")[0] for text in templates for part in text.split("{")[1:]}


def _filled(template: str, values: Mapping[str, str]) -> str:
    for column in _columns(template):
        template = template.replace("{" + column + "}", values.get(column, ""))
    return template


def _class_names(source: Source, name: str) -> dict[int, str]:
    return {
        int(row["y"]): row["name"]
        for row in _rows(source, name)
        if (row.get("y") or "").isdecimal() and row.get("name")
    }


def _rows(source: Source, name: str) -> "csv.DictReader[str]":
    return csv.DictReader(io.StringIO(text_of(source, name), newline=""))


def from_boxes(source: Source, base: str, spec: PatchSpec) -> Iterator[FoundImage]:
    """Crop one patch around each annotated box of COCO's JSON.

    Boxes are (x0, y0, x1, y1); patches may touch the border. All patches of one image form a group, because they are
    not independent."""
    prefix = f"{base}/" if base else ""
    for name in sorted(n for n in source.files if n.startswith(prefix) and n.lower().endswith(".json")):
        try:
            document = parse_json_object(text_of(source, name), source=f"{source.path}: {name}")
            images = {int(image["id"]): image for image in document["images"]}
            boxes = [
                (int(a["image_id"]), int(a["category_id"]), [float(v) for v in a["bbox"]])
                for a in document["annotations"]
            ]
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
            reason = printable(f"{type(error).__name__}: {error}")
            raise DataError(f"{source.path}: {name} is not an annotation file in COCO's JSON ({reason}).") from error
        for number, (image_id, category, (x0, y0, x1, y1)) in enumerate(boxes):
            image = images.get(image_id, {})
            path = prefix + str(image.get("file_name", ""))
            if path not in source.files:
                raise DataError(
                    f"{source.path}: {name} annotates {printable(path)}, which is missing; complete the files."
                )
            left, top = round((x0 + x1 - spec.side) / 2), round((y0 + y1 - spec.side) / 2)
            yield FoundImage(
                path=path, stem=f"{path.rpartition('/')[2].rpartition('.')[0]}-{number:05d}",
                domain=str(image.get(spec.domain) or "") or None, label=spec.classes.get(str(category)), group=path,
                box=(left, top, left + spec.side, top + spec.side),
            )  # fmt: skip
        return
    raise DataError(f"{source.path} holds no annotation file (.json) of {spec.side} px patches.")
