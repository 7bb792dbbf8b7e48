"""Least squares with every unknown in [0, 1], by a primal-dual interior-point method (Mehrotra 1992; Nocedal & Wright
2006, section 16.6).

Of scipy's solvers of this problem (`lsq_linear`) "bvls" finds the same answer, at 850 unknowns and 512 exact
equations in 33 s where this took 2; "trf" had not converged there after 400 iterations."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.linalg import LinAlgError, blas, cho_factor, cho_solve, lapack

Array = npt.NDArray[np.float64]

MOST_STEPS = 80
PATIENCE = 4
"""Steps without progress after which rounding is taken to have ended it."""
BACK = 0.995
"""Share of the longest step to the boundary that is taken."""
CLOSEST = 1e-12
"""Distance that w keeps from its bounds."""
REFINEMENTS = 2
"""Steps of iterative refinement at most, where systems are solved by the Woodbury identity."""
EXACT = 1e-13
"""Of the right side: what is left of it, at which a solution is not refined."""
JITTER = 1e-14
"""Of the largest diagonal entry: added where rounding leaves the normal equations without a Cholesky factor."""


def box_least_squares(
    matrix: Array,
    target: Array,
    *,
    ridge: float = 0.0,
    toward: float = 0.0,
    gap: float = 1e-3,
    too_large: float = math.inf,
    enough: Callable[[Array], bool] | None = None,
) -> Array:
    """Minimize |matrix w - target|^2 / 2 + ridge |w - toward|^2 / 2 over 0 <= w <= 1: w (G,).

    `matrix` is (rows, G) and `target` (rows,). Stops where the value is within about `gap` of the smallest, where
    rounding ends its progress, at a w from which it follows that the smallest value is `too_large`, or at one that is
    `enough`."""
    count, slope = matrix.shape[1], -matrix.T @ target - ridge * toward
    unit = max(float(np.square(matrix).sum(0).max()) + ridge, float(np.abs(slope).max()), 1.0)
    curvature, slope = _curvature(matrix / math.sqrt(unit), ridge / unit), slope / unit
    low, below, above = np.full(count, 0.5), np.ones(count), np.ones(count)
    best, least, since = low, float("inf"), 0
    for _ in range(MOST_STEPS):
        if too_large < math.inf and least_value(matrix, target, low, ridge=ridge, toward=toward) > too_large:
            return low
        if enough is not None and enough(low):
            return low
        high = 1 - low
        residual = curvature.times(low) + slope - below + above
        complementarity = float(low @ below + high @ above)
        merit = float(complementarity + np.abs(residual).sum())
        if merit < least:
            best, least, since = low, merit, 0
        since += 1
        if merit * unit < gap or since > PATIENCE:
            break
        solve = curvature.inverse(below / low + above / high)
        if solve is None:
            break
        affine = _step(solve, residual, low, high, below, above, -low * below, -high * above)
        primal, dual = _lengths(low, high, below, above, affine)
        move, lower, upper = affine
        ahead = (low + primal * move) @ (below + dual * lower) + (high - primal * move) @ (above + dual * upper)
        center = (ahead / complementarity) ** 3 * complementarity / (2 * count)
        step = _step(
            solve, residual, low, high, below, above,
            center - low * below - move * lower, center - high * above + move * upper,
        )  # fmt: skip
        primal, dual = _lengths(low, high, below, above, step)
        move, lower, upper = step
        low = (low + BACK * primal * move).clip(CLOSEST, 1 - CLOSEST)
        below = (below + BACK * dual * lower).clip(CLOSEST**2)
        above = (above + BACK * dual * upper).clip(CLOSEST**2)
    return best


def least_value(matrix: Array, target: Array, weights: Array, *, ridge: float = 0.0, toward: float = 0.0) -> float:
    """What no w within the box undercuts: a lower bound of what `box_least_squares` minimizes.

    One is the least value over the box of the tangent at `weights` (G,), which lies below a convex function. The other
    leaves the ridge out. With y = matrix weights - target, |matrix w - target|^2 / 2 is not below
    s y (matrix w - target) - s^2 |y|^2 / 2 for any s, hence for the best one not below c^2 / (2 |y|^2), where c, if it
    is positive, is the least y (matrix w - target) over the box: far from the minimum y is too long, and this tells
    earlier that no w comes near the target. The closer weights are to the minimum, the tighter are both."""
    off, pull = matrix @ weights - target, weights - toward
    gradient = matrix.T @ off
    slope, square = gradient + ridge * pull, float(off @ off)
    tangent = 0.5 * (square + float(ridge * pull @ pull)) + float(np.where(slope > 0, -weights, 1 - weights) @ slope)
    apart = float(np.minimum(gradient, 0.0).sum() - off @ target)
    return max(tangent, apart**2 / (2 * square)) if apart > 0 else tangent


Solve = Callable[[Array], Array]


class Curvature(Protocol):
    """The matrix H of the quadratic form, rows^T rows + ridge I, (G, G)."""

    def times(self, values: Array) -> Array:
        """Give H x for x (G,)."""
        ...

    def inverse(self, diagonal: Array) -> Solve | None:
        """What solves (H + diag) x = b for a positive `diagonal` (G,); None where rounding leaves no factor."""
        ...


def _curvature(rows: Array, ridge: float) -> Curvature:
    """The cheaper form: with few rows the systems to factorize are (rows, rows), else (G, G)."""
    if 0 < 3 * rows.shape[0] < 2 * rows.shape[1]:
        return FewRows(rows=np.asfortranarray(rows), ridge=ridge)
    hessian = rows.T @ rows
    hessian[np.diag_indices(len(hessian))] += ridge
    return WholeHessian(hessian=hessian)


@dataclass(frozen=True, kw_only=True, eq=False)
class WholeHessian:
    """H as a matrix (G, G)."""

    hessian: Array

    def times(self, values: Array) -> Array:
        """Give H x for x (G,)."""
        return self.hessian @ values

    def inverse(self, diagonal: Array) -> Solve | None:
        """What solves (H + diag) x = b, at need with a little more on the diagonal."""
        for jitter in (0.0, JITTER, 100 * JITTER):
            system = self.hessian.copy().T  # symmetric, and stored by columns as LAPACK reads it
            more = diagonal + jitter * float((system.diagonal() + diagonal).max())
            system[np.diag_indices(len(more))] += more
            try:
                factor = cho_factor(system, lower=True, overwrite_a=True, check_finite=False)
            except LinAlgError:
                continue
            return partial(cho_solve, factor, check_finite=False)
        return None


@dataclass(frozen=True, kw_only=True, eq=False)
class FewRows:
    """H by its `rows` (R, G), for R below G: systems are solved with S = (diag + ridge I)^-1 by the Woodbury identity

    (rows^T rows + S^-1)^-1 = S - S rows^T (I + rows S rows^T)^-1 rows S,

    and the result is refined, because the difference cancels digits where S is large. Rows that are stored by columns,
    as LAPACK reads them, are not copied."""

    rows: Array
    ridge: float

    def times(self, values: Array) -> Array:
        """Give H x for x (G,)."""
        return self.rows.T @ (self.rows @ values) + self.ridge * values

    def inverse(self, diagonal: Array) -> Solve | None:
        """What solves (H + diag) x = b."""
        inverse = 1 / (diagonal + self.ridge)
        system = blas.dsyrk(1.0, self.rows * np.sqrt(inverse), lower=1)  # the half that the factorization reads
        system[np.diag_indices(len(system))] += 1
        factor, failed = lapack.dpotrf(system, lower=1, clean=0, overwrite_a=1)
        if failed:
            return None

        def once(values: Array) -> Array:
            plain = inverse * values
            along, _ = lapack.dpotrs(factor, self.rows @ plain, lower=1)
            found: Array = plain - inverse * (self.rows.T @ along)
            return found

        def solve(values: Array) -> Array:
            found, least = once(values), EXACT * float(np.abs(values).max())
            for _ in range(REFINEMENTS):
                left = values - self.times(found) - diagonal * found
                if np.abs(left).max() <= least:
                    break
                found = found + once(left)
            return found

        return solve


def _step(
    solve: Solve,
    residual: Array,
    low: Array,
    high: Array,
    below: Array,
    above: Array,
    at_low: Array,
    at_high: Array,
) -> tuple[Array, Array, Array]:
    """Newton's step of w and of the multipliers of its two bounds, toward the given complementarities."""
    move = solve(at_low / low - at_high / high - residual)
    return move, (at_low - below * move) / low, (at_high + above * move) / high


def _lengths(
    low: Array, high: Array, below: Array, above: Array, step: tuple[Array, Array, Array]
) -> tuple[float, float]:
    """The longest steps of w and of the multipliers that stay within bounds."""
    move, lower, upper = step
    return min(_longest(low, move), _longest(high, -move)), min(_longest(below, lower), _longest(above, upper))


def _longest(values: Array, change: Array) -> float:
    falling = change < 0
    return min(1.0, float((-values[falling] / change[falling]).min())) if bool(falling.any()) else 1.0
