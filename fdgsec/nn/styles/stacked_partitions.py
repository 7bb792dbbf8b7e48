"""FINCH of many small sets at once (fdgsec.nn.styles.finch), for thousands of simulated clients and federations.

By cosine alone, from the inner products of rows: those of clusters' sums are sums of these, and have the same cosines
as clusters' means. The same clusters as `finch`, up to rounding where neighbors are equally near, as copies are that
differ by less than a millionth."""

import math

import torch
from torch import Tensor

from fdgsec.nn.styles.channel_statistics import Moments


def stacked_finch(rows: Tensor, *, last: bool) -> Tensor:
    """Compute the finest partition, or the `last` with structure, of each of R sets (R, N, d): labels (R, N).

    A cluster's label is the position of its first row."""
    return stacked_partition(rows @ rows.transpose(1, 2), last=last)


def stacked_partition(products: Tensor, *, last: bool) -> Tensor:
    """The same from the inner products (R, N, N) of the rows of each set."""
    sets, count = products.shape[:2]
    first = torch.arange(count).expand(sets, count)  # the first row of each cluster, at the start of each row itself
    place, alive = first, torch.ones(sets, count, dtype=torch.bool)
    labels = merged = _components(_neighbors(products, alive))
    while last:
        between, number, counts = _merged(products, merged, alive)
        first = torch.full((sets, between.shape[1]), count).scatter_reduce(1, number, first, "amin")
        place, products, alive = number.gather(1, place), between, torch.arange(between.shape[1]) < counts.unsqueeze(1)
        merged = _components(_neighbors(products, alive))
        found = first.gather(1, merged).gather(1, place)
        coarser = (found != found[:, :1]).any(1) & (found != labels).any(1)  # one cluster has no structure
        if not bool(coarser.any()):
            break
        labels = torch.where(coarser.unsqueeze(1), found, labels)
    return labels


def _merged(products: Tensor, merged: Tensor, alive: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The inner products (R, L, L) of sums over clusters, the number of each old one's new cluster, and how many there
    are, (R,); an old cluster that is not `alive` is in the first, and adds nothing."""
    heads = (merged == torch.arange(merged.shape[1])) & alive
    counts = heads.sum(1)
    number = torch.where(alive, (heads.cumsum(1) - 1).gather(1, merged), 0)
    member = products.new_zeros(len(products), int(counts.max()), products.shape[1])
    member.scatter_(1, number.unsqueeze(1), alive.to(products).unsqueeze(1))
    return member @ products @ member.transpose(1, 2), number, counts


def stacked_cluster_means(rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Average the rows (R, N, d) of each cluster, (R, L, d), L the most clusters of a set; and their numbers, (R,).

    Rows beyond a set's number of clusters are infinite."""
    member, counts = _members(labels, rows)
    size = member.sum(2, keepdim=True)
    means = (member @ rows) / size.clamp_min(1)
    return means.masked_fill(size == 0, torch.inf), counts


def stacked_cluster_styles(images: Moments, rows: Tensor, labels: Tensor) -> tuple[Moments, Tensor]:
    """Pool the images `rows` (R, N) of each set by cluster: (R * L) rows, L the most clusters of a set, and which of
    these (R, L) there are; the others hold no number.

    Squares are of what lies around the mean of all images: those of a channel that is large and nearly constant would
    cancel."""
    center = images.mean.mean(0)
    member, counts = _members(labels, images.mean)
    count = images.count[rows].unsqueeze(2)
    total = member @ count
    mean, square = (images.mean - center)[rows], images.m2[rows]
    pooled = member @ (count * mean) / total
    m2 = member @ (square + count * mean.square()) - total * pooled.square()
    parts = total.flatten(), (pooled + center).flatten(0, 1), m2.clamp_min(0).flatten(0, 1)
    there = torch.arange(member.shape[1]) < counts.unsqueeze(1)
    return Moments(count=parts[0], mean=parts[1], m2=parts[2]), there


def _members(labels: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Which rows are in which cluster, (R, L, N) in the dtype of `like`, and how many clusters there are, (R,)."""
    heads = labels == torch.arange(labels.shape[1])
    counts = heads.sum(1)
    number = (heads.cumsum(1) - 1).gather(1, labels)
    member = like.new_zeros(len(labels), int(counts.max()), labels.shape[1])
    return member.scatter_(1, number.unsqueeze(1), 1.0), counts


def _neighbors(products: Tensor, alive: Tensor) -> Tensor:
    """Find each row's nearest other row by cosine among those `alive` (R, N); its own position where there is none."""
    length = products.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt()
    length = torch.where(length > 0, length, 1.0)
    likeness = products / (length.unsqueeze(1) * length.unsqueeze(2))
    likeness.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
    likeness.masked_fill_(~alive.unsqueeze(1), -torch.inf)
    best, place = likeness.max(dim=2)
    alone = torch.isneginf(best) | ~alive
    return torch.where(alone, torch.arange(products.shape[1]).expand_as(place), place)


def _components(neighbors: Tensor) -> Tensor:
    """Label each row by the first row of its connected component, (R, N): every row leads to one cycle, by pointer
    jumping as in `finch`."""
    every = torch.arange(neighbors.shape[1]).expand_as(neighbors)
    ahead, least = neighbors, every
    for _ in range(math.ceil(math.log2(max(neighbors.shape[1], 2))) + 1):
        least = torch.minimum(least, least.gather(1, ahead))
        ahead = ahead.gather(1, ahead)
    cycle = least.gather(1, ahead)
    return every.scatter_reduce(1, cycle, every, "amin").gather(1, cycle)
