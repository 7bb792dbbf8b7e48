"""Unequal weights: a release that is a mean of t with weights nobody knows, as FISC's mean over clusters.

A client of K clusters of n_k images sends sum_i w_i t_i with w_i = 1 / (K n_k) for an image of cluster k (FISC, section
2.2), and the partition stays with it. What is known is w_i >= 0, sum_i w_i = 1, and how many w_i are not 0. A
nonnegative solution with few positive entries is the only one if there are enough equations (Donoho and Tanner, PNAS
2005, "Sparse nonnegative solution of underdetermined linear equations by linear programming"): nonnegative least
squares then finds it (Lawson and Hanson 1974; scipy's `nnls`), without a bound or a prior."""

import math

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from fdgsec.attacks.set_reconstruction.box_least_squares import Array, box_least_squares
from fdgsec.attacks.set_reconstruction.list_equations import COUNTED, EXPLAINED, ListEquations, MemberPosterior

LARGEST = 0.5
"""The largest weight of an image: FINCH's clusters have at least two."""


def solved_unequal(known: ListEquations) -> MemberPosterior:
    """The weights of candidates, all members among them, each times the number of images.

    Where as many candidates as there are members explain the release, with numbers to spare, they are the members: by
    chance no list does. Otherwise the most likely weights under a Gaussian prior, which still rank."""
    return listed_weights(known) or ranked_weights(known)


def listed_weights(known: ListEquations) -> MemberPosterior | None:
    """The weights if as many candidates as there are members explain the release; None where they do not."""
    found = _sparse(*_equations(known), known.images) if known.telling() else None
    return None if found is None else _posterior(known, found)


def refitted_weights(known: ListEquations, scores: Array) -> MemberPosterior | None:
    """The weights of as many candidates of largest score (G,) as there are members, if these explain the release."""
    matrix, target = _equations(known)
    if known.images >= min(matrix.shape) or not known.telling():
        return None
    found = _refitted(matrix, target, np.argsort(-scores, kind="stable")[: known.images])
    return None if found is None else _posterior(known, found)


def ranked_weights(known: ListEquations, *, largest: float = LARGEST) -> MemberPosterior:
    """The most likely weights under a Gaussian prior, each from 0 to the `largest` that an image can have."""
    matrix, target = _equations(known)
    pull = known.images**2 / _variance(known)
    weights = largest * box_least_squares(
        largest * matrix, target, ridge=largest**2 * pull, toward=1 / (largest * len(known.candidates))
    )
    return _posterior(known, weights)


def _variance(known: ListEquations) -> float:
    """The variance of a weight times the number of images: it is 1 for members and 0 for others."""
    count = len(known.candidates)
    share = min(known.images / count, 1.0)
    return max(share * (1 - share), 1 / count)


def _posterior(known: ListEquations, weights: Array) -> MemberPosterior:
    return MemberPosterior(weights=known.images * weights, listed=known.images)


def _equations(known: ListEquations) -> tuple[Array, Array]:
    """The release and the sum of weights as equations (D + 1, G) and (D + 1,), in units of their errors."""
    count, noise = len(known.candidates), known.noise
    matrix = np.concatenate([(known.candidates / noise).T, np.full((1, count), known.images / COUNTED)])
    return matrix, np.append(known.release / noise, known.images / COUNTED)


def _sparse(matrix: Array, target: Array, images: int) -> Array | None:
    """The nonnegative weights (G,) if the `images` largest alone explain the target; None if they do not."""
    rows, count = matrix.shape
    if images >= min(rows, count):  # any such list would explain it
        return None
    try:
        weights: Array = nnls(matrix, target)[0]
    except RuntimeError:  # of scipy: no solution in 3 G steps
        return None
    return _refitted(matrix, target, np.argsort(-weights, kind="stable")[:images])


def _refitted(matrix: Array, target: Array, listed: npt.NDArray[np.intp]) -> Array | None:
    """The nonnegative weights (G,) of the `listed` candidates alone if they explain the target; None if they do not."""
    rows, count = matrix.shape
    refitted, length = nnls(matrix[:, listed], target)
    if length > EXPLAINED * math.sqrt(rows):
        return None
    found = np.zeros(count)
    found[listed] = refitted
    return found
