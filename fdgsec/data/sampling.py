"""Sampling of images: apportionment of a total to classes, domains or roles, and random draws from a pool."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.runtime.random_streams import integer_seed


def apportion(weights: Sequence[float], total: int) -> list[int]:
    """Divide the integer `total` in proportion to `weights` by largest remainders; ties go to the first."""
    whole = sum(weights)
    shares = [total * weight / whole for weight in weights] if whole else [0.0] * len(weights)
    parts = [math.floor(share) for share in shares]
    by_remainder = sorted(range(len(parts)), key=lambda i: parts[i] - shares[i])
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    return parts


def stratified(data: DomainDataset, per_class: int, rng: torch.Generator) -> DomainDataset:
    """Keep `per_class` images of each class (0: all), drawn at random, in the order of `data`."""
    order = torch.randperm(len(data), generator=rng)
    if per_class:
        kept = [order[data.labels[order] == label][:per_class] for label in range(len(data.class_names))]
        order = torch.cat(kept)
    return data.subset(order.sort().values)


def uniform(pool: DomainDataset, count: int, rng: torch.Generator) -> Tensor:
    """Give the positions of `count` images, drawn uniformly without replacement, in random order."""
    return torch.randperm(len(pool), generator=rng)[:count]


def skewed(
    pool: DomainDataset,
    count: int,
    rng: torch.Generator,
    *,
    concentration: float = 0.3,
    by: Literal["labels", "domains"] = "labels",
) -> Tensor:
    """Draw images whose classes (or domains) follow proportions from Dirichlet(concentration).

    Without replacement, in random order; classes that the pool lacks get no image."""
    values, kinds = (pool.labels, pool.class_names) if by == "labels" else (pool.domains, pool.domain_names)
    proportions = np.random.default_rng(integer_seed(rng)).dirichlet([concentration] * len(kinds))
    share = (torch.from_numpy(proportions) + 1e-12)[values]
    per_kind = torch.bincount(values, minlength=len(kinds)).clamp_min(1)
    weight = share / per_kind[values]
    chosen = torch.multinomial(weight, count, replacement=False, generator=rng)
    return chosen[torch.randperm(count, generator=rng)]
