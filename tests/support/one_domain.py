"""A dataset of one domain and one class, for tests that need images and nothing else of it."""

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset


def one_domain(pixels: Tensor, *, ids: str = "image") -> DomainDataset:
    """Hold `pixels` (N, 3, H, W) uint8 as <ids>0, <ids>1, ... of the domain photo."""
    count = len(pixels)
    nothing = torch.zeros(count, dtype=torch.int64)
    return DomainDataset(
        name="made", store=pixels, rows=torch.arange(count), labels=nothing, domains=nothing,
        ids=tuple(f"{ids}{number}" for number in range(count)), class_names=("any",), domain_names=("photo",),
    )  # fmt: skip
