"""Specifications of the files of a dataset, as fdgsec/data/datasets.toml gives them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True, kw_only=True)
class ListSpec:
    """A CSV file that describes each image; every text is a template over its columns.

    `label` gives a class by name, `index` counted from 0 (used where `label` is empty). `elsewhere` is tried where
    `path` is missing. `split_names` translates values of `split`; `split_of_domain` overrides them for whole domains.
    `names` is a second CSV file (columns y, name) with the names of the classes."""

    file: str
    path: str
    domain: str
    label: str = ""
    index: str = ""
    split: str = ""
    group: str = ""
    elsewhere: str = ""
    names: str = ""
    split_names: Mapping[str, str] = field(default_factory=dict)
    split_of_domain: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PatchSpec:
    """Patches of `side` pixels around annotated boxes of large images, listed in COCO's JSON.

    `classes` maps category numbers to classes; `domain` is the field of an image that names its domain."""

    side: int
    classes: Mapping[str, str]
    domain: str


@dataclass(frozen=True, kw_only=True)
class FolderSpec:
    """The domains, classes and images that a dataset on disk must have.

    `domains` maps each canonical domain to its other names. `classes` are in the order of their labels; other names are
    in `class_aliases`, and where `numbered_from` is set folders may have their numbers as names. Empty `domains` or
    `classes` are open: the folders found are taken. Names are compared without case, and blanks and hyphens count as
    underscores. Each table of `counts` is one accepted version: by domain the number of images, or one number per
    class. `total`, `class_count` and `domain_count` are checked where they are not 0. `manifest_sha256` hashes the
    sorted `domain/class/stem` lines, without suffixes, which differ between distributions. `splits` is the folder of
    Dassl's lists; with `only_listed` they select the images. `duplicates` is a list of images, one path a line, that
    are left out where the list lies beside the domains."""

    title: str
    domains: Mapping[str, Sequence[str]]
    classes: Sequence[str] = ()
    class_aliases: Mapping[str, Sequence[str]] = field(default_factory=dict)
    numbered_from: int | None = None
    counts: Sequence[Mapping[str, Sequence[int] | int]] = ()
    manifest_sha256: str = ""
    total: int = 0
    class_count: int = 0
    domain_count: int = 0
    splits: str = "splits"
    only_listed: bool = False
    duplicates: str = ""
    list: ListSpec | None = None
    patches: PatchSpec | None = None
    leaf: bool = False

    @property
    def images(self) -> int:
        """Give the number of images of the complete dataset, 0 where unknown."""
        if not self.counts:
            return self.total
        return sum(row if isinstance(row, int) else sum(row) for row in self.counts[0].values())

    @cached_property
    def domain_numbers(self) -> Mapping[str, int]:
        """Map each normalized name of a domain to its number."""
        return {normalize_name(name): i for i, (key, more) in enumerate(self.domains.items()) for name in (key, *more)}

    @cached_property
    def class_numbers(self) -> Mapping[str, int]:
        """Map each normalized name of a class to its number."""
        known = {
            normalize_name(name): index
            for index, key in enumerate(self.classes)
            for name in (key, *self.class_aliases.get(key, ()))
        }
        if self.numbered_from is not None:
            known |= {str(index + self.numbered_from): index for index in range(len(self.classes))}
        return known


def normalize_name(name: str) -> str:
    """Normalize case, blanks and hyphens, in which distributions of one dataset differ."""
    return name.casefold().replace(" ", "_").replace("-", "_")
