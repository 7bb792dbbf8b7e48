"""FINCH: clustering by first neighbors, without a number of clusters, a threshold or a random draw.

Sarfraz, Sharma & Stiefelhagen, CVPR 2019, https://arxiv.org/abs/1902.11266: two rows are linked where one is the
other's first neighbor or both have the same one (eq. 1), the connected components are the first partition, and the
means of its clusters are linked in the same way until one cluster is left (Algorithm 1). FISC and FPL use it.

`finch` clusters one set exactly; many small sets at once are clustered by fdgsec.nn.styles.stacked_partitions."""

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Metric = Literal["cosine", "euclidean"]
BLOCK_NUMBERS = 1 << 23  # similarities in memory at a time: 64 MiB of float64
FEW = 64
"""Rows, up to which all are compared in float64 at once: searching them in float32 first takes longer."""
STRIP = 128
"""Rows whose products with all later rows are taken at a time."""
SEVERAL = 16
"""Neighbors that are compared in float64 one by one; where more are equally near in float32, all rows are."""


def finch(rows: Tensor, *, metric: Metric = "cosine") -> list[Tensor]:
    """Compute FINCH's partitions of `rows` (n, d), the finest first: labels (n,) int64, numbered by first appearance.

    Each partition merges clusters of the one before. All rows in one cluster are a partition only where the first step
    already gives it (always for n = 2 and 3). As in the authors' code it is not added at the end, so the list is never
    empty and its last entry is the coarsest with structure. Every cluster has at least 2 rows; n = 1 gives [[0]].

    Exact: what float32 cannot tell apart is compared in float64, in blocks, so that memory grows with n and not with
    n * n. The partition does not depend on the order of the rows: they are sorted first; of several equally near rows
    the smallest in that order is the neighbor, and rows that are equal bit by bit are each other's neighbors. A row of
    zeros has cosine 0 with all. The package finch-clust (0.2.3) is not used because it rounds rows to float32, which
    changes first neighbors, holds n x n distances, above 20,000 rows searches approximately or raises, and warns when
    imported without that search.
    Raises ValueError where rows are not finite floats (n, d) with n, d >= 1, or for an unknown metric."""
    if metric not in ("cosine", "euclidean"):
        raise ValueError(f"metric must be 'cosine' or 'euclidean'; got {metric!r}.")
    if rows.ndim != 2 or not rows.numel() or not rows.is_floating_point():
        raise ValueError(f"finch takes float rows (n, d) with n, d >= 1; got {rows.dtype} {tuple(rows.shape)}.")
    if not math.isfinite(float(rows.sum())) and not bool(torch.isfinite(rows).all()):
        bad = int((~torch.isfinite(rows)).any(1).sum())
        raise ValueError(f"finch takes finite rows; {bad} of {len(rows)} are not.")
    points, place, copies = _sorted_rows(rows.detach().to(torch.float64))
    nearest = first_neighbors(points, metric=metric)
    nearest = torch.where(copies > 1, torch.arange(len(points), device=points.device), nearest)  # a copy is nearer
    labels = _components(nearest)
    partitions = [labels]
    while int(labels.max()) > 0:
        merged = _components(first_neighbors(cluster_means(points, labels, copies=copies), metric=metric))[labels]
        if int(merged.max()) == 0:
            break
        partitions.append(merged)
        labels = merged
    return [_numbered(partition[place]) for partition in partitions]


def _sorted_rows(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct rows in lexicographic order, the place of each row among them, and how often each occurs."""
    first, order = rows[:, 0].sort()
    if bool((first[1:] > first[:-1]).all()):  # the first column decides, in a tenth of the time
        return rows[order], order.argsort(), torch.ones_like(order)
    points: Tensor
    place: Tensor
    copies: Tensor
    points, place, copies = torch.unique(rows, dim=0, return_inverse=True, return_counts=True)
    return points, place, copies


def first_neighbors(rows: Tensor, *, metric: Metric = "cosine") -> Tensor:
    """Find each row's nearest other row, (n,) int64, the first of those equally near: kappa of eq. (1).

    `rows` is (n, d) float64. A single row is its own neighbor. Similarities of many rows are searched in float32; those
    that are nearer to the largest than its rounding can put them are compared in float64."""
    if metric == "cosine":
        length = rows.norm(dim=1, keepdim=True)
        points, half = rows / torch.where(length > 0, length, 1.0), rows.new_zeros(len(rows))
    else:  # the nearest has the largest x.y - |y|^2 / 2; about the mean, fewer digits cancel
        points = rows - rows.mean(0)
        half = points.square().sum(1) / 2
    every = torch.arange(len(points), device=rows.device)
    found, unsure = (every.clone(), every) if len(points) <= FEW else _searched_roughly(points, half)
    size = max(1, BLOCK_NUMBERS // len(points))
    for part in unsure.split(size):
        likeness = points[part] @ points.T - half
        likeness[torch.arange(len(part), device=rows.device), part] = -torch.inf
        found[part] = likeness.argmax(1)
    return found


def _searched_roughly(points: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest other point by x.y - `half` in float32, or in float64 where rounding may decide between a few; and
    the points for which it may decide between many."""
    longest = points.norm(dim=1).max().clamp_min(1e-300)
    rough, rough_half = (points / longest).float(), (half / longest.square()).float()
    # |fl(x.y) - x.y| <= (d + 2) u |x| |y| with all lengths at most 1; one more for the difference, and for each operand
    least = 2 * (points.shape[1] + 5) * 2.0**-24
    size = max(1, BLOCK_NUMBERS // len(points))
    found, unsure = [], []
    for start, likeness in _products(rough, size):
        likeness -= rough_half
        own = torch.arange(len(likeness), device=points.device)
        likeness[own, own + start] = -torch.inf
        best, place = likeness.max(1)
        likeness[own, place] = -torch.inf
        doubtful = own[likeness.amax(1) >= best - least]
        likeness[own, place] = best
        row, other = (likeness[doubtful] >= (best - least)[doubtful, None]).nonzero(as_tuple=True)
        many = row.bincount(minlength=len(doubtful)) > SEVERAL
        few = ~many[row]
        found.append(_settled(place, points, half, doubtful[row[few]] + start, other[few], start))
        unsure.append(doubtful[many] + start)
    return torch.cat(found), torch.cat(unsure)


def _products(points: Tensor, size: int) -> Iterator[tuple[int, Tensor]]:
    """The inner products of all points (n, d), `size` rows at a time; of each two once, where all fit in memory."""
    count = len(points)
    if size < count:
        yield from ((start, points[start : start + size] @ points.T) for start in range(0, count, size))
        return
    products = points.new_empty(count, count)
    for start in range(0, count, STRIP):
        end = min(start + STRIP, count)
        strip = points[start:end] @ points[start:].T
        products[start:end, start:] = strip
        products[end:, start:end] = strip[:, end - start :].T
    yield 0, products


def _settled(place: Tensor, points: Tensor, half: Tensor, row: Tensor, other: Tensor, start: int) -> Tensor:
    """`place`, from point `start` on, after pairs `row`, `other` were compared in float64: the nearest, of equally near
    ones the first."""
    size = max(1, BLOCK_NUMBERS // points.shape[1])
    likeness = torch.cat(
        [
            (points[one] * points[two]).sum(1) - half[two]
            for one, two in zip(row.split(size), other.split(size), strict=True)
        ]
    )
    at = row - start
    best = likeness.new_full((len(place),), -torch.inf).scatter_reduce(0, at, likeness, "amax")
    hit = likeness == best[at]
    return place.scatter_reduce(0, at[hit], other[hit], "amin", include_self=False)


def cluster_means(rows: Tensor, labels: Tensor, *, copies: Tensor | None = None) -> Tensor:
    """Average the rows (n, d) of each cluster, (clusters, d); row i counts `copies[i]` times where they are given."""
    clusters = int(labels.max()) + 1
    weight = rows.new_ones(len(rows), 1) if copies is None else copies.to(rows).unsqueeze(1)
    sums = rows.new_zeros(clusters, rows.shape[1]).index_add_(0, labels, rows * weight)
    return sums / rows.new_zeros(clusters, 1).index_add_(0, labels, weight)


def _components(neighbors: Tensor) -> Tensor:
    """Number the connected components of eq. (1)'s graph; rows with a common neighbor are linked through it.

    Every row leads to one cycle, which names its component: by pointer jumping (Wyllie 1979), log2(n) times."""
    ahead, least = neighbors.cpu().numpy(), np.arange(len(neighbors))
    for _ in range(len(ahead).bit_length()):
        least = np.minimum(least, least[ahead])  # of 2, 4, 8, ... rows from here on
        ahead = ahead[ahead]
    return _numbered(torch.from_numpy(least[ahead])).to(neighbors.device)


def _numbered(labels: Tensor) -> Tensor:
    """Renumber clusters 0, 1, ... in the order of their first rows."""
    _, first, inverse = np.unique(labels.cpu().numpy(), return_index=True, return_inverse=True)
    return torch.from_numpy(first.argsort().argsort()[inverse].astype(np.int64)).to(labels.device)
