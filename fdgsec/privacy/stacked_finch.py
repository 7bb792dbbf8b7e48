"""FINCH of many small sets at once: what thousands of simulated federations need.

The same clusters as fdgsec.clustering.finch by cosine (Sarfraz, Sharma & Stiefelhagen, CVPR 2019), up to rounding where
neighbours are equally near; that module is for one large set. Here every step is a product of (R, N, N) matrices."""

import math

import torch
from torch import Tensor
from torch.nn.functional import one_hot


def stacked_finch(rows: Tensor, *, last: bool) -> Tensor:
    """Give the finest partition, or the `last` with structure, of each of R sets (R, N, d): labels (R, N).

    A cluster's label is the position of its first row."""
    gram = rows @ rows.transpose(1, 2)
    labels = _components(_neighbours(gram, torch.ones(rows.shape[:2], dtype=torch.bool)))
    while last:
        member = _members(labels)
        alive = member.sum(2) > 0
        merged = _components(_neighbours(member @ gram @ member.transpose(1, 2), alive)).gather(1, labels)
        coarser = (merged != merged[:, :1]).any(1) & (merged != labels).any(1)  # all in one is no structure
        if not bool(coarser.any()):
            break
        labels = torch.where(coarser.unsqueeze(1), merged, labels)
    return labels


def stacked_cluster_means(rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Average the rows (R, N, d) of each cluster: (R, L, d), L the most that a set has, and how many it has, (R,).

    What a set has less than L clusters is infinite."""
    sizes = _members(labels).sum(2)
    counts = (sizes > 0).sum(1)
    most = int(counts.max())
    kept = sizes.sort(dim=1, descending=True, stable=True).indices[:, :most]
    member = (labels.unsqueeze(1) == kept.unsqueeze(2)).to(rows.dtype)
    size = member.sum(2, keepdim=True)
    means = (member @ rows) / size.clamp_min(1)
    return means.masked_fill(size == 0, torch.inf), counts


def _members(labels: Tensor) -> Tensor:
    """Who is in which cluster: (R, clusters, N), float64."""
    return one_hot(labels, labels.shape[1]).transpose(1, 2).to(torch.float64)


def _neighbours(gram: Tensor, alive: Tensor) -> Tensor:
    """Each row's nearest other one by cosine among those `alive` (R, N); its own position where there is none."""
    length = gram.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt()
    length = torch.where(length > 0, length, 1.0)
    likeness = gram / (length.unsqueeze(1) * length.unsqueeze(2))
    own = torch.eye(gram.shape[1], dtype=torch.bool)
    likeness = likeness.masked_fill(own | ~alive.unsqueeze(1), -torch.inf)
    best, place = likeness.max(dim=2)
    alone = torch.isneginf(best) | ~alive
    return torch.where(alone, torch.arange(gram.shape[1]).expand_as(place), place)


def _components(neighbours: Tensor) -> Tensor:
    """Name each row by the first one that it is linked with, over any number of neighbours: (R, N)."""
    count = neighbours.shape[1]
    linked = one_hot(neighbours, count).to(torch.float32)
    reached = (linked + linked.transpose(1, 2) + torch.eye(count)).clamp_max(1)
    for _ in range(math.ceil(math.log2(max(count, 2)))):
        reached = (reached @ reached).clamp_max(1)
    return reached.argmax(2)
