"""DomainDataset: images with a label, a domain and an id."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from fdgsec.data.lazy_pixels import LazyPixels
from fdgsec.runtime.errors import DataError


def as_float(pixels: Tensor) -> Tensor:
    """Convert uint8 pixels of any shape to float32 in [0, 1]; float images are returned as they are."""
    return pixels if pixels.is_floating_point() else pixels.to(torch.float32).div_(255.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class DomainDataset:
    """A multi-domain image dataset stored as uint8; subsets share the pixels.

    `store` is (S, 3, H, W) uint8, possibly memory-mapped or decoded lazily; `rows` (N,) are the rows of `store` that
    are in this dataset. `labels` and `domains` are (N,) int64 indices into `class_names` and `domain_names`; `ids` are
    unique strings (`domain/class/stem`). `attributes` are (N,) or (N, k) tensors: the factors of procedural data,
    `split` (an index into `split_names`, -1 for none) and `group` (a slide or sequence of dependent images) where the
    distribution has them. Raises DataError where sizes or ranges disagree."""

    name: str
    store: Tensor | LazyPixels
    rows: Tensor
    labels: Tensor
    domains: Tensor
    ids: Sequence[str]
    class_names: Sequence[str]
    domain_names: Sequence[str]
    attributes: Mapping[str, Tensor] = field(default_factory=dict)
    split_names: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.store.ndim != 4 or self.store.shape[1] != 3 or self.store.dtype != torch.uint8:
            raise DataError(f"store must be (S, 3, H, W) uint8; got {tuple(self.store.shape)} {self.store.dtype}.")
        size = len(self.ids)
        for name, values in {"rows": self.rows, "labels": self.labels, "domains": self.domains}.items():
            if values.shape != (size,) or values.dtype != torch.int64:
                raise DataError(f"{name} must be ({size},) int64; got {tuple(values.shape)} {values.dtype}.")
        for name, values, limit in (
            ("rows", self.rows, self.store.shape[0]),
            ("labels", self.labels, len(self.class_names)),
            ("domains", self.domains, len(self.domain_names)),
        ):
            if size and (int(values.min()) < 0 or int(values.max()) >= limit):
                raise DataError(f"{name} must lie in [0, {limit}); got {int(values.min())}..{int(values.max())}.")
        for name, values in self.attributes.items():
            if values.shape[0] != size:
                raise DataError(f"attribute {name} has {values.shape[0]} rows for {size} images.")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return int(self.store.shape[2]), int(self.store.shape[3])

    def pixels(self, positions: Tensor | None = None) -> Tensor:
        """Copy the uint8 images at `positions` (default: all): (n, 3, H, W)."""
        return self.store[self.rows if positions is None else self.rows[positions]]

    def subset(self, positions: Tensor) -> "DomainDataset":
        """Keep the images at `positions` (int64 indices, or a bool mask of length N), in that order."""
        chosen = positions.nonzero().flatten() if positions.dtype == torch.bool else positions.to(torch.int64)
        return replace(
            self,
            rows=self.rows[chosen],
            labels=self.labels[chosen],
            domains=self.domains[chosen],
            ids=tuple(self.ids[i] for i in chosen.tolist()),
            attributes={name: values[chosen] for name, values in self.attributes.items()},
        )

    def of_domain(self, domain: int | str) -> "DomainDataset":
        """Keep one domain, named or numbered. Raises DataError for an unknown name."""
        return self.subset((self.domains == self.domain_index(domain)).nonzero().flatten())

    def of_split(self, name: str) -> "DomainDataset":
        """Keep one official split. Raises DataError where the distribution has none of that name."""
        if name not in self.split_names:
            known = ", ".join(self.split_names) or "none"
            raise DataError(f"{self.name} has no official split {name!r}; it has {known}.")
        return self.subset(self.attributes["split"] == list(self.split_names).index(name))

    def domain_index(self, domain: int | str) -> int:
        """Give the number of a domain. Raises DataError for an unknown name."""
        if isinstance(domain, int):
            return domain
        if domain not in self.domain_names:
            raise DataError(f"{self.name} has no domain {domain!r}; its domains are {', '.join(self.domain_names)}.")
        return list(self.domain_names).index(domain)

    @cached_property
    def manifest_sha256(self) -> str:
        """Hash the sorted ids, one per line: this identifies the images, whatever their encoding."""
        return hashlib.sha256("\n".join(sorted(self.ids)).encode()).hexdigest()

    @cached_property
    def content_sha256(self) -> str:
        """Hash ids, labels, domains and pixels in order: the key of every cache."""
        digest = hashlib.sha256("\n".join(self.ids).encode())
        digest.update(self.labels.numpy().tobytes() + self.domains.numpy().tobytes())
        if isinstance(self.store, LazyPixels):  # identified by name, size and stamp, to avoid decoding every image
            digest.update(f"lazy {tuple(self.store.shape[1:])}".encode() + self.store.describe(self.rows))
            return digest.hexdigest()
        for start in range(0, len(self), 1024):
            digest.update(self.store[self.rows[start : start + 1024]].numpy().tobytes())
        return digest.hexdigest()


def join(parts: Sequence[DomainDataset]) -> DomainDataset:
    """Concatenate subsets of one dataset, in order. Raises DataError where they do not share their pixels."""
    if not parts:
        raise DataError("nothing to join: no parts were given.")
    first = parts[0]
    if any(part.store is not first.store for part in parts):
        raise DataError("only subsets of one dataset can be joined; these hold different pixels.")
    return replace(
        first,
        rows=torch.cat([part.rows for part in parts]),
        labels=torch.cat([part.labels for part in parts]),
        domains=torch.cat([part.domains for part in parts]),
        ids=tuple(name for part in parts for name in part.ids),
        attributes={name: torch.cat([part.attributes[name] for part in parts]) for name in first.attributes},
    )


def downsample(images: Tensor | DomainDataset, size: tuple[int, int]) -> Tensor:
    """Resize uint8 images (N, 3, H, W) to `size` by area averaging, and scale them to [0, 1]."""
    parts = [
        interpolate(
            as_float(images[rows] if isinstance(images, Tensor) else images.pixels(rows)), size=size, mode="area"
        )
        for rows in torch.arange(len(images)).split(256)
    ]
    return torch.cat(parts) if len(images) else torch.empty(0, 3, *size)


def shares_of(kinds: Tensor, count: int) -> Tensor:
    """Give the share of each kind in each row of `kinds` (..., n): (..., count)."""
    return torch.nn.functional.one_hot(kinds, count).to(torch.float64).mean(-2)
