"""A whitening by a known population, where the product estimates one."""

import torch
from torch import Tensor

from fdgsec.attacks.statistics.tracing import Whitening


def known_whitening(mean: Tensor, covariance: Tensor) -> Whitening:
    """Whiten with a known `mean` (D,) and `covariance` (D, D). Raises ValueError where it is not positive definite."""
    values, vectors = torch.linalg.eigh(covariance.to(torch.float64))
    if float(values[0]) <= 0:
        raise ValueError(f"covariance must be positive definite; its smallest eigenvalue is {float(values[0]):.3g}.")
    center = mean.to(torch.float64)
    return Whitening(
        center=center,
        scale=torch.ones_like(center),
        directions=vectors,
        roots=values.sqrt(),
        floor=float(values[-1].sqrt()),
    )
