"""Means over clusters as equations of unknown weights, and stds beside them as equations of the same weights.

FISC's mean is linear in the means of images, with weights that nobody knows
(fdgsec.attacks.set_reconstruction.unequal_weights). Its std is linear in nothing, but near the mean of the images' stds
under these weights: how near, and what weights there are, the adversary simulates on lists of the candidates. Together
they are twice as many equations, of which half have an error. First the likeliest weights that are not negative are
found; around them, by expectation propagation, the probability of each that it is not 0, under a prior that knows that
most are and how the others are distributed (a spike and a slab: Hernández-Lobato et al., "Expectation propagation in
linear regression models with spike-and-slab priors", Machine Learning 2015)."""

from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from fdgsec.attacks.set_reconstruction.box_least_squares import Array
from fdgsec.attacks.set_reconstruction.cluster_errors import (
    Asked,
    ErrorCovariance,
    NearlyEqual,
    asked_of,
    kept_last,
    records_of,
    release_in,
    shrunk_covariance,
    whitened_equations,
)
from fdgsec.attacks.set_reconstruction.expectation_propagation import propagated_near
from fdgsec.attacks.set_reconstruction.list_equations import COUNTED, ListEquations, MemberPosterior
from fdgsec.attacks.set_reconstruction.partition_refinement import WeightsBehind
from fdgsec.attacks.set_reconstruction.release_equations import ReleaseReader
from fdgsec.attacks.set_reconstruction.unequal_weights import refitted_weights
from fdgsec.threats.attack import Case

EXACT = 1e-5
"""Of a coordinate's spread over images: the least error of a mean.

With 1e-4, what few directions tell of the means, in which images hardly differ, would be lost to the stds. Far below,
the sum of all equations is rounding."""
SLAB = 8
"""Parts of the distribution of members' weights, each of which is taken as normal."""
NARROWEST = 0.05
"""The least standard deviation of one of them, in units of the mean weight."""
SPIKE = 1e-3
"""That of the weights of others, which are 0."""
DAMPING = 0.65
"""Of the steps of expectation propagation; with .5 and .8 as many lists of 12 were exact."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SpreadError:
    """The mean (C,) and covariance of a std less the weighted mean of stds over its images; and their weights, times n,
    in parts of equally many: their means (SLAB,) and standard deviations."""

    bias: Tensor
    covariance: ErrorCovariance
    levels: Array
    spreads: Array

    @property
    def square(self) -> float:
        """The mean square of a weight, times n."""
        return float(np.mean(self.levels**2 + self.spreads**2))


@dataclass(frozen=True, kw_only=True, eq=False)
class WeightedSpreads:
    """Reads releases of one domain as means with unknown weights and stds near those of the same weights.

    `weights` reads means, and `near` means and stds; both know the adversary's simulations."""

    weights: ReleaseReader
    near: NearlyEqual
    found: dict[Asked, SpreadError] = field(default_factory=dict)

    def solved(self, case: Case, seen: Case, known: ListEquations) -> MemberPosterior:
        """The probabilities that candidates of `case` are behind the release in `seen`, whose means are `known`.

        Where the likeliest images, or those of largest weight, explain the means, these are the members."""
        assert case.candidates is not None
        error, images = self.error(case), known.images
        release, noise = self.near.reader.release(case, seen)
        stds = _stds(records_of(case.candidates, self.near.reader))
        soft = whitened_equations(
            stds, _stds(release) - error.bias, error.covariance.plus(_stds(noise).square().numpy()), images=images
        )
        matrix, target = _equations(known, soft)
        likeliest = _likeliest(matrix, target, images, error.square)
        probable = _probable(matrix, target, images, error, likeliest)
        for scores in (likeliest,) if probable is None else (probable, likeliest):
            if (listed := refitted_weights(known, scores)) is not None:
                return listed
        return MemberPosterior(weights=likeliest if probable is None else probable, listed=images)

    def error(self, case: Case) -> SpreadError:
        """The error of the stds of clients that hold lists as in `case`."""
        asked = asked_of(case)
        if asked not in self.found:
            made, weights = self.near.simulated(case), self._weights(case)
            stds = _stds(torch.stack([release_in(one, self.near.reader) for one in made.sent]))
            records = _stds(records_of(made.gallery, self.near.reader))
            counted = torch.zeros(len(weights), len(records), dtype=torch.float64).scatter(1, made.lists, weights)
            off = stds - counted @ records
            parts = np.array_split(np.sort(weights.flatten().numpy() * made.lists.shape[1]), SLAB)
            kept_last(self.found)[asked] = SpreadError(
                bias=off.mean(0), covariance=shrunk_covariance((off - off.mean(0)).numpy()),
                levels=np.array([part.mean() for part in parts]),
                spreads=np.array([max(part.std(), NARROWEST) for part in parts]),
            )  # fmt: skip
        return self.found[asked]

    def _weights(self, case: Case) -> Tensor:
        """The weights (L, n) of the simulated lists, of sum 1; from their means, where the method does not tell."""
        made = self.near.simulated(case)
        if made.weights is not None:
            return made.weights
        members = torch.zeros(len(made.lists), len(made.gallery), dtype=torch.bool).scatter(1, made.lists, value=True)
        means = torch.stack([release_in(one, self.weights) for one in made.sent])
        found = WeightsBehind(records_of(made.gallery, self.weights)).weights(members, means)
        return found.gather(1, made.lists) / made.lists.shape[1]


def _stds(numbers: Tensor) -> Tensor:
    """The second half of means and stds, (..., 2C)."""
    return numbers[..., numbers.shape[-1] // 2 :]


def _equations(known: ListEquations, soft: ListEquations) -> tuple[Array, Array]:
    """Means of next to no error, stds of error 1, and the sum of weights, as equations of weights times n: (D, G) and
    (D,), in units of their errors."""
    count, images = len(known.candidates), known.images
    noise = np.maximum(known.noise, EXACT * known.spread)
    rows = np.concatenate([(known.candidates / noise).T, soft.candidates.T, np.full((1, count), images / COUNTED)])
    return rows / images, np.concatenate([known.release / noise, soft.release, [images / COUNTED]])


def _likeliest(matrix: Array, target: Array, images: int, square: float) -> Array:
    """The weights (G,) of most posterior density, at least 0 each, under a Gaussian prior of their variance, which
    `square` gives for members."""
    count = matrix.shape[1]
    share = images / count
    pull = 1 / max(share * square - share**2, 1 / count)
    normal = matrix.T @ matrix + pull * np.eye(count)
    upper = np.linalg.cholesky(normal).T
    found: Array = nnls(upper, np.linalg.solve(upper.T, matrix.T @ target + pull * share), maxiter=20 * count)[0]
    return found


def _probable(matrix: Array, target: Array, images: int, error: SpreadError, start: Array) -> Array | None:
    """The probability (G,) that a candidate has a weight, sought around the weights `start`; None where rounding leaves
    none."""
    share = images / matrix.shape[1]
    found = propagated_near(
        matrix, target, levels=np.append(0.0, error.levels), spreads=np.append(SPIKE, error.spreads),
        shares=np.append(1 - share, np.full(len(error.levels), share / len(error.levels))), start=start,
        damping=DAMPING,
    )  # fmt: skip
    return None if found is None else found.members
