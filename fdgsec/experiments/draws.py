"""Ways to draw images from a pool: so many of each class, evenly, or with skewed class shares."""

import numpy as np
import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.rng import integer_seed


def stratified(data: DomainDataset, per_class: int, rng: torch.Generator) -> DomainDataset:
    """Keep `per_class` images of each class (0: all), drawn at random, in the order of `data`."""
    order = torch.randperm(len(data), generator=rng)
    if per_class:
        kept = [order[data.labels[order] == label][:per_class] for label in range(len(data.class_names))]
        order = torch.cat(kept)
    return data.subset(order.sort().values)


def uniform(pool: DomainDataset, count: int, rng: torch.Generator) -> Tensor:
    """Give the positions of `count` images, each as likely as any, without replacement, shuffled."""
    return torch.randperm(len(pool), generator=rng)[:count]


def skewed(pool: DomainDataset, count: int, rng: torch.Generator, *, concentration: float = 0.3) -> Tensor:
    """Draw images whose classes follow proportions from Dirichlet(concentration), without replacement, shuffled."""
    classes = len(pool.class_names)
    proportions = np.random.default_rng(integer_seed(rng)).dirichlet([concentration] * classes)
    share = (torch.from_numpy(proportions) + 1e-12)[pool.labels]
    per_class = torch.bincount(pool.labels, minlength=classes).clamp_min(1)
    weight = share / per_class[pool.labels]
    chosen = torch.multinomial(weight, count, replacement=False, generator=rng)
    return chosen[torch.randperm(count, generator=rng)]
