"""Row order: whether neighboring released rows are similar, and whether a row's neighbors identify its image."""

import torch
from torch import Tensor

from fdgsec.metrics.significance import permutation_pvalue

LEAST_SPREAD = 1e-9  # a coordinate that never varies must not divide by zero


def standardize(rows: Tensor, *, like: Tensor) -> Tensor:
    """Standardize `rows` (R, D) by the means and deviations of `like` (n, D)."""
    return (rows - like.mean(0)) / like.std(0, correction=0).clamp_min(LEAST_SPREAD)


def neighbor_distances(rows: Tensor, known: Tensor) -> Tensor:
    """The mean distance of each candidate `known` (G, D) from the rows before and after each of `rows` (R, D): (R, G).

    The row itself is not used, so that in a random order all candidates are equally near. Raises ValueError for fewer
    than three rows."""
    if len(rows) < 3:
        raise ValueError(f"neighbors on both sides need three rows; got {len(rows)}.")
    apart = torch.cdist(standardize(rows, like=known), standardize(known, like=known))
    return torch.cat([apart[1:2], (apart[:-2] + apart[2:]) / 2, apart[-2:-1]])


def lag_correlation(rows: Tensor, *, rng: torch.Generator, orders: int = 999) -> tuple[float, float]:
    """The mean product of neighboring standardized rows (R, D), over coordinates, and its permutation p-value.

    The first is the lag-1 autocorrelation, -1/(R - 1) in a random order; large values are evidence of order. Raises
    ValueError for fewer than three rows."""
    if len(rows) < 3:
        raise ValueError(f"an order needs three rows; got {len(rows)}.")
    z = standardize(rows, like=rows)
    alike = z @ z.T / z.shape[1]
    drawn = torch.rand(orders, len(rows), generator=rng).argsort(1)
    null = alike[drawn[:, :-1], drawn[:, 1:]].mean(1)
    observed = float(alike.diagonal(1).mean())
    return observed, permutation_pvalue(observed, null)
