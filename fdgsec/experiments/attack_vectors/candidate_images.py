"""Candidates given as images: their statistics, by an encoder or by the user's own function."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.experiments.attack_vectors.read_arrays import Candidates, Owners, array_of, candidates_of, numbers_of
from fdgsec.experiments.attack_vectors.read_candidates import CandidateTable
from fdgsec.experiments.attack_vectors.read_vectors import images_of_folder
from fdgsec.nn.styles.image_styles import statistics as statistics_by_encoder
from fdgsec.runtime.errors import DataError, UsageError

StatisticsOf = Callable[[Tensor], Any]
"""Gives for float images (N, 3, H, W) in [0, 1] their rows (N, 2C), all means, then all stds, or the pair of both."""
BATCH = 256
"""Images that a function is given at once."""


def are_images(source: Candidates | None) -> bool:
    """Whether candidates are images: a folder of them, or an array with four axes."""
    return source is not None and (source.is_dir() if isinstance(source, Path) else source.ndim == 4)


def candidates_by_statistics(
    source: Candidates,
    truth: Owners | None,
    *,
    encoder: str | None,
    function: StatisticsOf | None,
    image_size: int | None,
) -> CandidateTable:
    """The table of candidate images, by `function` or, without one, by `encoder`, with the truth about them.

    Raises UsageError where neither is given or both are, DataError for images or statistics that are none."""
    if (encoder is None) == (function is None):
        raise UsageError(
            "candidates are images: say how a style is computed of an image, by encoder=... or statistics=..., and not "
            "by both."
        )
    images = _images(source, image_size)
    if function is None:
        assert encoder is not None
        rows = torch.cat(statistics_by_encoder(encoder, images).style(unbiased=False), dim=1)
    else:
        rows = _computed(function, images)
    table = candidates_of(rows, truth)
    return replace(table, images=replace(table.images, ids=images.ids))


def _images(source: Candidates, image_size: int | None) -> DomainDataset:
    """Candidate images from a folder or an array, uint8 or float in [0, 1], (N, 3, H, W) or (N, H, W, 3)."""
    if isinstance(source, Path):
        return images_of_folder(source, image_size=image_size)
    array = array_of(source, "candidates")
    if array.ndim == 4 and array.shape[1] != 3 and array.shape[3] == 3:
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or array.shape[1] != 3 or not array.size:
        raise DataError(f"candidate images must be (N, 3, H, W) or (N, H, W, 3); got {array.shape}.")
    if array.dtype != np.uint8:
        bounded = array.dtype.kind == "f" and bool(np.isfinite(array).all()) and array.min() >= 0 and array.max() <= 1
        if not bounded:
            raise DataError(f"candidate images must be uint8, or floats from 0 to 1; got {array.dtype}.")
        array = (array.astype(np.float64) * 255).round().astype(np.uint8)
    nothing = torch.zeros(len(array), dtype=torch.int64)
    return DomainDataset(
        name="candidates", store=torch.from_numpy(np.ascontiguousarray(array)), rows=torch.arange(len(array)),
        labels=nothing, domains=nothing, ids=tuple(f"image {number}" for number in range(1, len(array) + 1)),
        class_names=("any",), domain_names=("any",),
    )  # fmt: skip


def _computed(function: StatisticsOf, images: DomainDataset) -> Tensor:
    """The rows (N, 2C) that the user's function gives. Raises DataError for anything else."""
    parts = [
        _rows(function(as_float(images.pixels(part))), len(part)) for part in torch.arange(len(images)).split(BATCH)
    ]
    if len({part.shape[1] for part in parts}) > 1:
        raise DataError("statistics must give as many numbers for every image.")
    return torch.cat(parts)


def _rows(found: object, images: int) -> Tensor:
    pair: Sequence[object] = found if isinstance(found, tuple | list) and len(found) == 2 else (found,)
    parts = [numbers_of(part, "statistics") for part in pair]
    if any(part.ndim != 2 or len(part) != images for part in parts):
        came = " and ".join(str(tuple(part.shape)) for part in parts)
        raise DataError(
            f"statistics must give a row for each of {images} images: (N, 2 C) or a pair of means and stds (N, C); got "
            f"{came}."
        )
    return torch.cat(parts, dim=1)
