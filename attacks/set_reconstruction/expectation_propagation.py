"""Expectation propagation: the marginals of unknowns that take few known values, from noisy sums of them.

Of y = A w + e with Gaussian e of variance 1, and every w_i one of a few levels (0 and 1 for memberships), the exact
posterior is a sum over all combinations. Expectation propagation (Minka, "Expectation propagation for approximate
Bayesian inference", UAI 2001) puts a Gaussian factor in place of the prior of each w_i. In every step, the Gaussian
posterior without the own factor of w_i (its cavity) is multiplied by the true prior; the factor becomes the one that
gives the mean and variance of that product. Least squares within bounds knows that w_i lies between 0 and 1; here it
is known to be one of both, which fewer and less precise sums determine.

The variance of the errors is annealed: it begins where sums at the prior's mean are likely, or at MOST_NOISE, and falls
to 1 by a constant factor a step, so that w_i decide one after another; in the fewer steps, the less there is to fall
below LITTLE_NOISE, where none of them decide at once. A new factor is taken up by the share `damping`; steps that are
too long run away, which the residual of the list that follows shows.

A step factorizes a matrix as large as the smaller one of numbers and unknowns, (rows, rows) or (G, G), and takes about
3 G min(rows, G)^2 multiplications: about 0.012 s for 850 unknowns and 512 sums on one core, 60 steps .7 s; half of that
where a factor in float32 does, whose means are refined in float64."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import blas, lapack

from fdgsec.attacks.set_reconstruction.box_least_squares import Array
from fdgsec.attacks.set_reconstruction.padded_matrices import padded_side
from fdgsec.runtime.cached_values import computed_once

STEPS = 60
"""Steps at most, at the largest damping; as many times more as the damping is smaller than LARGEST_DAMPING."""
LARGEST_DAMPING = 0.5
MOST_NOISE = 100.0
"""The largest variance with which annealing begins."""
LITTLE_NOISE = 2.0
"""The variance from which annealing takes all of its steps: where it took half of them from 11, .02 of AUC were lost
(100 sums of 160 unknowns, 24 draws), and .002 where it took three quarters of them from 2.8 (200 sums of 60 unknowns
in threes that are nearly alike)."""
ANNEALED = 0.9
"""Share of the steps in which the variance of the errors falls from LITTLE_NOISE, or from more, to 1."""
SETTLED = 1e-4
"""Largest change of a mean, in units of the levels' spread, with which the steps end."""
RUN_AWAY = 2.0
"""Times the smallest residual of all steps, from which the last step is taken to have run away."""
LEAST_VARIANCE = 1e-7
"""Of a posterior, in units of the prior's: smaller ones are decided."""
FEW = 0.75
"""Of the unknowns: with fewer sums than this share, systems of (rows, rows) are solved."""
SHORT = 16.0
"""Length of the longest column of a matrix, in units of the errors, up to which systems of (rows, rows) are factorized
in float32. No marginal moved by more than 1e-3 then, not where all columns have a large part in common either, whose
means float32 alone loses."""
REFINEMENTS = 2
"""Steps of iterative refinement of means behind a factor in float32."""
SINGLE = (blas.ssyrk, lapack.spotrf, blas.strsm)
DOUBLE = (blas.dsyrk, lapack.dpotrf, blas.dtrsm)
LEAST_PRECISION = 1e-9
"""Of a cavity, in the same units: from smaller ones nothing is learned."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Marginals:
    """For each of G unknowns the probability of every level, (G, L); `levels` are (L,), the first of them 0.

    Where levels have a spread, `near` (G, L) are the means of the unknown if it is near each of them, and `variances`
    those about these."""

    levels: Array
    probabilities: Array
    near: Array | None = None
    variances: Array | None = None

    @property
    def means(self) -> Array:
        """The expected values (G,)."""
        if self.near is None:
            found: Array = self.probabilities @ self.levels
            return found
        near: Array = (self.probabilities * self.near).sum(1)
        return near

    @property
    def spread(self) -> Array:
        """The variances (G,)."""
        if self.near is None or self.variances is None:
            found: Array = self.probabilities @ self.levels**2 - self.means**2
            return found
        squares: Array = (self.probabilities * (self.near**2 + self.variances)).sum(1)
        return squares - self.means**2

    @property
    def likeliest(self) -> Array:
        """The likeliest levels (G,)."""
        found: Array = self.levels[self.probabilities.argmax(1)]
        return found

    @property
    def members(self) -> Array:
        """The probabilities (G,) that a value is not 0."""
        found: Array = self.probabilities[:, 1:].sum(1)
        return found

    @property
    def doubtful(self) -> float:
        """The expected number of unknowns whose likeliest level is wrong."""
        return float((1 - self.probabilities.max(1)).sum())


def propagated(
    matrix: Array, target: Array, *, levels: Array, shares: Array, damping: float = LARGEST_DAMPING
) -> Marginals:
    """The marginals of w (G,) in `levels` (L,), of which each has the prior `shares` (L,), behind `target` (rows,).

    `matrix` is (rows, G), in units of the errors of the target. Where the last step has run away, or rounding leaves
    no factor, the marginals are those of the step whose likeliest values had the smallest residual."""
    sums = _Sums(matrix=matrix, target=target)
    mean, spread = float(shares @ levels), float(np.sqrt(shares @ levels**2 - (shares @ levels) ** 2))
    start = float(np.clip(np.mean((target - mean * matrix.sum(1)) ** 2), 1.0, MOST_NOISE))
    sites = _Sites(
        precision=np.full(matrix.shape[1], spread**-2), linear=np.full(matrix.shape[1], mean * spread**-2),
        spread=spread,
    )  # fmt: skip
    steps = round(STEPS * LARGEST_DAMPING / damping)
    annealed = ANNEALED * steps * min(1.0, math.log(start) / math.log(LITTLE_NOISE))
    found = best = Marginals(levels=levels, probabilities=np.tile(shares, (matrix.shape[1], 1)))
    left = least = sums.residual(found)
    for step in range(steps):
        posterior = sums.posterior(sites, start ** (1 - step / annealed) if step < annealed else 1.0)
        if posterior is None:
            return best
        before, cavity = found, sites.cavity(*posterior)
        found = _tilted(cavity, levels, np.log(shares))
        sites, left = sites.moved(cavity, found, damping), sums.residual(found)
        if left <= least:
            best, least = found, left
        if step > annealed and np.abs(found.means - before.means).max() < SETTLED * spread:
            break
    return found if left <= RUN_AWAY * least else best


def propagated_near(
    matrix: Array,
    target: Array,
    *,
    levels: Array,
    spreads: Array,
    shares: Array,
    start: Array,
    damping: float = LARGEST_DAMPING,
) -> Marginals | None:
    """The marginals of w (G,), normally distributed about `levels` (L,) with standard deviations `spreads` above 0.

    Each level has the prior `shares`, and Gaussian factors begin at means `start` (G,): of several fixed points, steps
    end in one that is near. Variances are not annealed: sums of next to no error would lose what only they tell.
    There are STEPS at most, whatever the damping. Where rounding leaves no factor, or a mean that is no number, the
    marginals are those of the step before; None where there was none."""
    sums = _Sums(matrix=matrix, target=target)
    mean = float(shares @ levels)
    spread = float(np.sqrt(shares @ (levels**2 + spreads**2) - mean**2))
    sites = _Sites(precision=np.full(matrix.shape[1], spread**-2), linear=start * spread**-2, spread=spread)
    found: Marginals | None = None
    for _ in range(STEPS):
        posterior = sums.posterior(sites, 1.0)
        if posterior is None or not np.isfinite(posterior[0]).all():
            break
        before, cavity = found, sites.cavity(*posterior)
        found = _near(cavity, levels, spreads, shares)
        sites = sites.moved(cavity, found, damping)
        if before is not None and np.abs(found.means - before.means).max() < SETTLED * spread:
            break
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class _Cavity:
    """The Gaussian of each unknown (G,) without its own factor, in natural parameters; `known` where there is one."""

    precision: Array
    linear: Array
    known: npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Sites:
    """The Gaussian factor of each unknown (G,) in natural parameters; `spread` is the prior's standard deviation."""

    precision: Array
    linear: Array
    spread: float

    def cavity(self, mean: Array, variance: Array) -> _Cavity:
        """What the posterior (G,) knows without these factors."""
        least = LEAST_PRECISION * self.spread**-2
        safe = np.where(variance > 0, variance, 1.0)
        narrow = 1 / safe - self.precision
        known = (variance > 0) & (narrow > least)
        toward = np.where(known, mean / safe - self.linear, 0.0)
        return _Cavity(precision=np.where(known, narrow, least), linear=toward, known=known)

    def moved(self, cavity: _Cavity, found: Marginals, damping: float) -> "_Sites":
        """The factors, moved by `damping` toward those with which the mean and variance are those of `found`."""
        means = found.means
        variance = found.spread.clip(LEAST_VARIANCE * self.spread**2)
        moves = cavity.known & (1 / variance > cavity.precision)
        precision, linear = 1 / variance - cavity.precision, means / variance - cavity.linear
        return replace(
            self,
            precision=np.where(moves, self.precision + damping * (precision - self.precision), self.precision),
            linear=np.where(moves, self.linear + damping * (linear - self.linear), self.linear),
        )


def _tilted(cavity: _Cavity, levels: Array, logs: Array) -> Marginals:
    """The probabilities of levels under a cavity and the prior's logarithms (L,)."""
    weight = logs + cavity.linear[:, None] * levels - 0.5 * cavity.precision[:, None] * levels**2
    likely = np.exp(weight - weight.max(1, keepdims=True))
    return Marginals(levels=levels, probabilities=likely / likely.sum(1, keepdims=True))


def _near(cavity: _Cavity, levels: Array, spreads: Array, shares: Array) -> Marginals:
    """The probabilities of levels that an unknown is near, by spreads (L,) above 0 and with the prior `shares` (L,)."""
    variance = 1 / cavity.precision[:, None]
    center, own = cavity.linear[:, None] * variance, spreads**2
    weight = np.log(shares) - 0.5 * np.log(own + variance) - 0.5 * (center - levels) ** 2 / (own + variance)
    likely = np.exp(weight - weight.max(1, keepdims=True))
    within = 1 / (1 / own + cavity.precision[:, None])
    return Marginals(
        levels=levels, probabilities=likely / likely.sum(1, keepdims=True),
        near=within * (levels / own + cavity.linear[:, None]), variances=within,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class _Sums:
    """The `matrix` (rows, G) and `target` (rows,) of the sums, and what every step needs of them."""

    matrix: Array
    target: Array

    @computed_once
    def columns(self) -> npt.NDArray[np.floating[Any]]:
        """The matrix, stored by columns as LAPACK reads it, in float32 where columns are SHORT.

        Rows of zeros at the end make it taller where its height is unfortunate."""
        rows, count = self.matrix.shape
        short = np.square(self.matrix).sum(0).max() <= SHORT**2
        columns = np.zeros((padded_side(rows), count), dtype=np.float32 if short else np.float64, order="F")
        columns[:rows] = self.matrix
        return columns

    @computed_once
    def gram(self) -> Array | None:
        """The product (G, G) of the matrix with itself; None where systems of (rows, rows) are cheaper."""
        rows, count = self.matrix.shape
        return None if rows < FEW * count else self.matrix.T @ self.matrix

    @computed_once
    def toward(self) -> Array:
        """The product (G,) of the matrix and the target."""
        found: Array = self.matrix.T @ self.target
        return found

    def residual(self, found: Marginals) -> float:
        """The squared distance of the sums of the likeliest values from the target."""
        return float(np.square(self.target - self.matrix @ found.likeliest).sum())

    def posterior(self, sites: _Sites, noise: float) -> tuple[Array, Array] | None:
        """The means and variances (G,) under Gaussian factors and errors of variance `noise`; None without a factor."""
        total = self.toward / noise + sites.linear
        if self.gram is None:
            return self._of_few(sites.precision, total, noise)
        system = (self.gram / noise).T  # symmetric, and stored by columns
        system[np.diag_indices(len(total))] += sites.precision
        factor, failed = lapack.dpotrf(system, lower=1, clean=1, overwrite_a=1)
        if failed:
            return None
        mean, _ = lapack.dpotrs(factor, total, lower=1)
        root, _ = lapack.dtrtri(factor, lower=1, overwrite_c=1)  # the inverse's diagonal alone: half the work
        return mean, _squares(root)

    def _of_few(self, precision: Array, total: Array, noise: float) -> tuple[Array, Array] | None:
        """The same by the Woodbury identity: with P = diag(precision), A = matrix and B = A P^(-1/2),

        (A^T A / noise + P)^-1 = P^(-1/2) (I - B^T (noise I + B B^T)^-1 B) P^(-1/2)."""
        spread = 1 / np.sqrt(precision)
        half = self.columns * spread.astype(self.columns.dtype)
        syrk, potrf, trsm = SINGLE if half.dtype == np.float32 else DOUBLE
        system = syrk(1.0, half, lower=1)
        system[np.diag_indices(len(system))] += noise
        factor, failed = potrf(system, lower=1, overwrite_a=1)
        if failed:
            return None
        half = trsm(1.0, factor, half, lower=1, overwrite_b=1)

        def solved(right: Array) -> Array:
            scaled = spread * right
            found: Array = spread * (scaled - half.T @ (half @ scaled.astype(half.dtype)))
            return found

        mean = solved(total)
        for _ in range(REFINEMENTS if half.dtype == np.float32 else 0):
            mean = mean + solved(total - self.matrix.T @ (self.matrix @ mean) / noise - precision * mean)
        return mean, spread**2 * (1 - _squares(half))


def _squares(columns: npt.NDArray[np.floating[Any]]) -> Array:
    """The squared length of each column."""
    found: Array = np.einsum("ij,ij->j", columns, columns).astype(np.float64)
    return found
