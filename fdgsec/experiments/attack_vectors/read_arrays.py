"""Vectors, candidates and truths from memory or from files: what the Python interface takes beside paths."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fdgsec.experiments.attack_vectors.read_candidates import CandidateTable, candidate_table, read_candidates
from fdgsec.experiments.attack_vectors.read_vectors import (
    Rows,
    Sent,
    read_vectors,
    sent_of_artifact,
    sent_of_table,
    tensor_of,
)
from fdgsec.federation.artifacts import Artifact
from fdgsec.runtime.errors import DataError, UsageError

Array = npt.NDArray[Any] | Tensor
Vectors = Path | Artifact | Array | Mapping[str, Array]
"""A file, an artifact, rows (R, 2C), or per client one vector (2C,) or the rows of its images (R, 2C)."""
Candidates = Path | Array
"""A file of statistics or an array of them, (G, 2C); or images: a folder, or an array with four axes."""
Owners = Path | Array | Sequence[int]
"""A file, or one number for each candidate (CandidateTable.owner; True and False about one vector)."""


def vectors_of(source: Vectors, *, rows: Rows, option: str = "--artifacts") -> dict[str, Sent]:
    """Read vectors by client name. Raises UsageError, DataError or ArtifactError, naming `option` or the file."""
    if isinstance(source, Path):
        return read_vectors(source, rows=rows, option=option)
    if isinstance(source, Artifact):
        return sent_of_artifact(source, rows=rows, where=option)
    if isinstance(source, Mapping):
        return _of_mapping(
            {str(name): numbers_of(one, option) for name, one in source.items()}, rows=rows, where=option
        )
    return sent_of_table(numbers_of(source, option), rows=rows, where=option)


def _of_mapping(given: Mapping[str, Tensor], *, rows: Rows, where: str) -> dict[str, Sent]:
    """One client per entry: its style (2C,), or the styles (R, 2C) of its images."""
    axes = {values.ndim for values in given.values()}
    if axes not in ({1}, {2}) or (axes == {2} and rows == "clients"):
        raise UsageError(
            f"{where} as a mapping must give every client one vector (2C,), or all of them rows (R, 2C) of images."
        )
    if len({values.shape[-1] for values in given.values()}) > 1:
        raise DataError(f"{where} must have as many numbers for every client; got {_shapes(given)}.")
    single = axes == {1}
    sent = {}
    for number, (title, values) in enumerate(given.items(), 1):
        table = values.unsqueeze(0) if single else values
        (one,) = sent_of_table(table, rows="clients" if single else "images", where=f"{where}, {title}").values()
        sent[f"client:{number}"] = replace(one, title=title)
    return sent


def _shapes(given: Mapping[str, Tensor]) -> str:
    return ", ".join(f"{name} {tuple(values.shape)}" for name, values in given.items())


def numbers_of(values: object, where: str) -> Tensor:
    """An array or tensor as float32 or float64, as precise as it is.

    Raises DataError for anything else, and for a masked array with masked entries."""
    array = array_of(values, where)
    if array.dtype.kind not in "fiu":
        raise DataError(f"{where} must hold numbers; got {array.dtype}.")
    return tensor_of(array)


def array_of(values: object, where: str) -> npt.NDArray[Any]:
    """An array or tensor as an array; floats that numpy lacks, as bfloat16, become float32, which holds them exactly.

    Raises DataError for a masked array with masked entries, and for tensors and lists that are no array, as sparse
    tensors and lists of several lengths."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise DataError(
            f"{where} has {int(np.sum(values.mask))} masked entries, and every entry must be a number; fill them, or "
            "leave out their rows or columns."
        )
    try:
        if not isinstance(values, Tensor):
            return np.asarray(values)
        small = values.is_floating_point() and values.dtype.itemsize < 4
        found: npt.NDArray[Any] = (values.float() if small else values).detach().cpu().numpy()
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{where} must be an array of numbers: {error}.") from error
    return found


def candidates_of(source: Candidates, truth: Owners | None) -> CandidateTable:
    """Read candidates with the truth about them. Raises UsageError or DataError."""
    if isinstance(source, Path):
        if truth is None or isinstance(truth, Path):
            return read_candidates(source, truth)
        return replace(read_candidates(source, None), owner=_owners(truth))
    if isinstance(truth, Path):
        raise UsageError("the truth about candidates in an array must be an array too, with one number for each.")
    return candidate_table(
        numbers_of(source, "candidates"), None if truth is None else _owners(truth), where="candidates"
    )


def _owners(truth: Array | Sequence[int]) -> Tensor:
    fault = DataError(
        "the truth about candidates must be one bool or one number for each of them: 0 for nobody's image, k for one "
        "of the k-th vector's."
    )
    if np.ma.is_masked(truth):
        raise fault
    try:
        values = torch.as_tensor(truth)
    except (TypeError, ValueError, RuntimeError) as error:  # names, None, lists of several lengths
        raise fault from error
    if values.ndim != 1 or values.is_floating_point() or values.is_complex() or bool((values < 0).any()):
        raise fault
    return values.to(torch.int64)
