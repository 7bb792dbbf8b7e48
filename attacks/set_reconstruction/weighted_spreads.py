"""Means over clusters as equations of unknown weights, and stds beside them as equations of the same weights.

FISC's mean is linear in the means of images, with weights that nobody knows
(fdgsec.attacks.set_reconstruction.unequal_weights). Its std is linear in nothing, but near the mean of the images' stds
under these weights: how near, the adversary simulates on clients of its own images, whose weights their means tell.
Together they are twice as many equations, of which half have an error."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from fdgsec.attacks.set_reconstruction.box_least_squares import Array
from fdgsec.attacks.set_reconstruction.cluster_errors import (
    ErrorCovariance,
    NearlyEqual,
    records_of,
    release_in,
    shrunk_covariance,
    whitened_equations,
)
from fdgsec.attacks.set_reconstruction.list_equations import COUNTED, ListEquations, MemberPosterior
from fdgsec.attacks.set_reconstruction.partition_refinement import WeightsBehind
from fdgsec.attacks.set_reconstruction.release_equations import ReleaseReader
from fdgsec.attacks.set_reconstruction.unequal_weights import refitted_weights
from fdgsec.threats.attack import Case

EXACT = 1e-4
"""Of a coordinate's spread over images: the least error of a mean, below which the sum of all equations is rounding."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SpreadError:
    """The mean (C,) and covariance of a std less the weighted mean of stds over its images, and the mean square of
    their weights, times n."""

    bias: Tensor
    covariance: ErrorCovariance
    square: float


@dataclass(frozen=True, kw_only=True, eq=False)
class WeightedSpreads:
    """Reads releases of one domain as means with unknown weights and stds near those of the same weights.

    `weights` reads means, and `near` means and stds; both know the adversary's simulations."""

    weights: ReleaseReader
    near: NearlyEqual
    found: dict[int, SpreadError] = field(default_factory=dict)

    def solved(self, case: Case, seen: Case, known: ListEquations, *, share: float = 1.0) -> MemberPosterior:
        """The likeliest weights of the candidates of `case` behind the release in `seen`, whose means are `known`, and
        of whose stds a `share` is read.

        Where the images of largest weight explain the means, these are the members."""
        assert case.candidates is not None
        error, images = self.error(known.images), known.images
        release, noise = self.near.reader.release(case, seen)
        stds = _stds(records_of(case.candidates, self.near.reader))
        soft = whitened_equations(
            stds, _stds(release) - error.bias, error.covariance.plus(_stds(noise).square().numpy()), images=images
        )
        weights = images * _likeliest(known, soft.part(share), error.square)
        ranked = MemberPosterior(weights=weights, listed=images)
        return refitted_weights(known, weights) or ranked

    def error(self, images: int) -> SpreadError:
        """The error of stds of clients with so many images."""
        if images not in self.found:
            own, lists, sent = self.near.simulated(images)
            members = torch.zeros(len(lists), len(own), dtype=torch.bool).scatter(1, lists, value=True)
            means = torch.stack([release_in(one, self.weights) for one in sent])
            weights = WeightsBehind(records_of(own, self.weights)).weights(members, means)
            stds = _stds(torch.stack([release_in(one, self.near.reader) for one in sent]))
            off = stds - weights @ _stds(records_of(own, self.near.reader)) / lists.shape[1]
            around = (off - off.mean(0)) / math.sqrt(1 - lists.shape[1] / len(own))  # they share so many images
            self.found[images] = SpreadError(
                bias=off.mean(0), covariance=shrunk_covariance(around.numpy()),
                square=float(weights.gather(1, lists).square().mean()),
            )  # fmt: skip
        return self.found[images]


def _stds(numbers: Tensor) -> Tensor:
    """The second half of means and stds, (..., 2C)."""
    return numbers[..., numbers.shape[-1] // 2 :]


def _likeliest(known: ListEquations, soft: ListEquations, square: float) -> Array:
    """The weights (G,) of most posterior density, at least 0 each, that add up to 1: under means of next to no error,
    stds of error 1, and a Gaussian prior of the variance that a weight has."""
    count, images = len(known.candidates), known.images
    noise = np.maximum(known.noise, EXACT * known.spread)
    share = images / count
    pull = images / math.sqrt(max(share * square - share**2, 1 / count))
    rows = np.concatenate([(known.candidates / noise).T, soft.candidates.T, np.full((1, count), images / COUNTED)])
    target = np.concatenate([known.release / noise, soft.release, [images / COUNTED]])
    normal = rows.T @ rows + pull**2 * np.eye(count)
    upper = np.linalg.cholesky(normal).T
    found: Array = nnls(upper, np.linalg.solve(upper.T, rows.T @ target + pull**2 / count), maxiter=20 * count)[0]
    return found
