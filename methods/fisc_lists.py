"""FISC's step (methods/fisc.py) for many lists of the same images at once: what clients that held them would share.

Thousands of such lists tell an adversary how far a style is from a mean over a client's images, and cost what a few
clients do."""

from collections.abc import Callable

import torch
from torch import Tensor

from fdgsec.federation.artifacts import StyleStatistics
from fdgsec.federation.method import Inbox, InboxesOfLists
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.nn.styles.stacked_partitions import stacked_cluster_styles, stacked_partition

IN_LISTS = 4096
"""Images in lists whose styles are averaged together."""


def shared_lists(
    images: Moments,
    products: Tensor,
    lists: Tensor,
    averaged: Callable[[Moments], tuple[Tensor, Tensor]],
    *,
    last: bool,
) -> InboxesOfLists:
    """What clients with these `lists` (L, N) of `images` share, whose clusters follow from the inner products (G, G) of
    all images' rows, with the weights of their images: 1 / (K n_k) in the k-th of K clusters.

    `averaged` makes a style, mean (C,) and std (C,), of a client's pooled clusters."""
    inboxes, weights = list[Inbox](), [torch.empty(0, lists.shape[1], dtype=torch.float64)]
    for rows in lists.split(max(1, IN_LISTS // max(1, lists.shape[1]))):
        labels = stacked_partition(products[rows.unsqueeze(2), rows.unsqueeze(1)], last=last)
        pooled, there = stacked_cluster_styles(images, rows, labels)
        for start, own in zip(range(0, len(pooled), there.shape[1]), there, strict=True):
            mean, std = averaged(pooled.rows(own.nonzero().flatten() + start))
            inboxes.append({"style": StyleStatistics(mean=mean.float(), std=std.float())})
        sizes = torch.zeros(labels.shape, dtype=torch.float64).scatter_add(1, labels, torch.ones_like(labels).double())
        weights.append(1 / (there.sum(1, keepdim=True) * sizes.gather(1, labels)))
    return InboxesOfLists(inboxes=inboxes, weights=torch.cat(weights))
