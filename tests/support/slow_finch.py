"""FINCH written out from Sarfraz et al. (CVPR 2019), pair by pair; and client styles in two blobs to try it on."""

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fdgsec.runtime.random_streams import stream

Rows = npt.NDArray[np.float64]


def distance(a: Rows, b: Rows, metric: str) -> float:
    if metric == "euclidean":
        return math.sqrt(float(((a - b) ** 2).sum()))
    return 1.0 - float(a @ b) / (math.sqrt(float(a @ a)) * math.sqrt(float(b @ b)))


def linked(rows: Rows, metric: str) -> list[list[bool]]:
    """Eq. (1): j is i's first neighbor, or i is j's, or both have the same."""
    count = len(rows)
    kappa = [
        min((distance(rows[i], rows[j], metric), j) for j in range(count) if j != i)[1] if count > 1 else i
        for i in range(count)
    ]
    return [[j == kappa[i] or i == kappa[j] or kappa[i] == kappa[j] for j in range(count)] for i in range(count)]


def components(edges: list[list[bool]]) -> list[int]:
    labels = [-1] * len(edges)
    for root in range(len(edges)):
        if labels[root] >= 0:
            continue
        waiting, label = [root], max(labels) + 1
        while waiting:
            node = waiting.pop()
            labels[node] = label
            waiting += [other for other, edge in enumerate(edges[node]) if edge and labels[other] < 0]
    return labels


def slow_finch(rows: Tensor, metric: str = "cosine") -> list[list[int]]:
    """Algorithm 1: partitions, finest first, without the one that puts several clusters into one."""
    points: Rows = rows.double().numpy()
    partitions = [components(linked(points, metric))]
    while max(partitions[-1]) > 0:
        labels = np.array(partitions[-1])
        means = np.stack([points[labels == label].mean(0) for label in range(labels.max() + 1)])
        merged = components(linked(means, metric))
        if max(merged) == 0:
            break
        partitions.append([merged[label] for label in labels])
    return partitions


def same_partition(first: list[int], second: list[int]) -> bool:
    """Equal up to renaming: the pairs of names form a bijection."""
    pairs = set(zip(first, second, strict=True))
    return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


def two_blobs(number: int, *, channels: int = 64) -> tuple[Tensor, Tensor, list[int]]:
    """Draw the styles of 20 to 40 clients of two domains: means and stds (clients, C) float32, and each one's domain."""
    rng = stream(number, "world", "two blobs")
    clients = int(torch.randint(20, 41, (1,), generator=rng))
    centers = 1 + 3 * torch.rand(2, 2 * channels, generator=rng)
    domain = torch.arange(clients) % 2
    styles = centers[domain] + 0.2 * torch.randn(clients, 2 * channels, generator=rng)
    return styles[:, :channels], styles[:, channels:].abs(), domain.tolist()
