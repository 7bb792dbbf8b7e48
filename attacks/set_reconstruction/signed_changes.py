"""Signed changes: which images a client dropped and which it added, from the difference of its two releases.

Of images that stay, the sum of n' r' - n r holds nothing; new ones have the weight 1 in it, dropped ones -1. Their
numbers are known, so that w = p - q with p, q >= 0, sum p = a, sum q = d. As few weights as these are the only such
solution if there are enough equations, fewer than candidates (Donoho and Tanner, Journal of the AMS 2009, on projected
cross-polytopes; here both parts of the sum are known, not only the whole)."""

import math
from typing import Literal

import numpy as np
from scipy.optimize import nnls

from fdgsec.attacks.set_reconstruction.box_least_squares import Array, box_least_squares
from fdgsec.attacks.set_reconstruction.list_equations import COUNTED, EXPLAINED, ListEquations, MemberPosterior


def solved_change(
    known: ListEquations, *, added: int, dropped: int, asks: Literal["added", "dropped"]
) -> MemberPosterior:
    """The weights in [-1, 1] of candidates, all that changed among them; those of the dropped with their sign turned.

    `known` is the sum over new images less that over dropped ones, over `added` + `dropped`. Where the sparsest weights
    do not explain it, the most likely ones under a Gaussian prior still rank."""
    rows = (known.candidates / known.noise).T / known.images
    weights = _sparse(rows, known.release / known.noise, added, dropped) if known.telling() else None
    if weights is None:
        weights = _likely(rows, known.release / known.noise, added, dropped)
    listed = added if asks == "added" else dropped
    return MemberPosterior(weights=weights if asks == "added" else -weights, listed=listed)


def _sparse(rows: Array, target: Array, added: int, dropped: int) -> Array | None:
    """The weights (G,) by nonnegative least squares, if the lists that follow from them explain the target (D,)."""
    count = rows.shape[1]
    sums = np.kron(np.eye(2), np.ones(count)) / COUNTED
    try:
        parts: Array = nnls(
            np.concatenate([np.hstack([rows, -rows]), sums]),
            np.concatenate([target, [added / COUNTED, dropped / COUNTED]]),
        )[0]
    except RuntimeError:  # of scipy: no solution in 6 G steps
        return None
    weights: Array = parts[:count] - parts[count:]
    order = np.argsort(-weights, kind="stable")
    off = rows[:, order[:added]].sum(1) - rows[:, order[count - dropped :]].sum(1) - target
    return weights if math.sqrt(np.mean(off**2)) <= EXPLAINED else None


def _likely(rows: Array, target: Array, added: int, dropped: int) -> Array:
    """The most likely weights (G,) in [-1, 1] under a Gaussian prior of their mean and variance."""
    count = rows.shape[1]
    mean = (added - dropped) / count
    variance = (added + dropped) / count - mean**2
    matrix = np.concatenate([rows, np.full((1, count), 1 / COUNTED)])
    values = np.append(target, (added - dropped) / COUNTED)
    halved = box_least_squares(2 * matrix, values + matrix.sum(1), ridge=4 / variance, toward=(1 + mean) / 2)
    return 2 * halved - 1  # of w = 2 u - 1, with u in [0, 1]
