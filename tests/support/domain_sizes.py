"""Domains as partitions see them: one number per image."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fdgsec.runtime.random_streams import stream


def domain_ids(sizes: Sequence[int], *, seed: int = 0) -> Tensor:
    """Domain 0 `sizes[0]` times, and so on, in random order."""
    ids = torch.cat([torch.full((size,), domain) for domain, size in enumerate(sizes)])
    return ids[torch.randperm(len(ids), generator=stream(seed, "world", "ids"))]


def table(ids: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """Images of each client (rows) and domain (columns)."""
    return torch.stack([ids[part].bincount(minlength=int(ids.max()) + 1) for part in parts])
