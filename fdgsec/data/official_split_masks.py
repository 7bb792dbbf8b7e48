"""Official splits: the images that a dataset's own lists, folders or tables assign to training, validation and testing.

Datasets name them differently (`crossval` in Dassl's lists, `id_val` in those of WILDS); each name maps to one part."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from fdgsec.data.catalog import DATASETS
from fdgsec.data.domains import DomainDataset
from fdgsec.runtime.errors import UsageError

Part = Literal["train", "validation", "test"]
PARTS: Mapping[str, Part] = MappingProxyType({
    "train": "train",
    "crossval": "validation", "val": "validation", "id_val": "validation",
    "test": "test", "id_test": "test",
})  # fmt: skip
"""The part (training, validation or test) of each official split, by its name."""


def official_mask(dataset: DomainDataset, part: Part) -> Tensor:
    """Mark the images that the official splits assign to `part`: (N,) bool, all False where there is no split."""
    numbers = [number for number, name in enumerate(dataset.split_names) if PARTS.get(name) == part]
    if not numbers:
        return torch.zeros(len(dataset), dtype=torch.bool)
    return torch.isin(dataset.attributes["split"], torch.tensor(numbers))


def require_official(dataset: DomainDataset) -> None:
    """Raise UsageError for a dataset without an official training split; the error lists the datasets that have one."""
    if not official_mask(dataset, "train").any():
        known = ", ".join(name for name, entry in DATASETS.items() if entry.official)
        raise UsageError(
            f"{dataset.name} has no official training split in the files here; some layout of these has one: {known} "
            "(see docs/data.md). Without --splits official the seed draws the validation images."
        )
