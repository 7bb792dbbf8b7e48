"""Files of random weights that fit the published networks."""

import hashlib
from pathlib import Path

import torch
from torch import Tensor

from fdgsec.nn.networks import weights
from fdgsec.runtime.random_streams import stream


def random_state(name: str, *, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    rng = stream(0, "world", name)
    return {key: torch.randn(shape, generator=rng).to(dtype) for key, shape in weights.expected_shapes(name).items()}


def saved(state: object, path: Path, *, zipped: bool = True) -> Path:
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
