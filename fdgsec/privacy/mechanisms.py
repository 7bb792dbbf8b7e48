"""Calibration of noise: the analytic Gaussian mechanism, the classical one for comparison, and the Laplace mechanism.

Balle & Wang, ICML 2018, https://arxiv.org/abs/1805.06530, Theorem 8: N(0, sd^2 I) on a release of L2 sensitivity Delta
is (epsilon, delta)-differentially private if and only if

    Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu) <= delta,    mu = Delta / sd.

A *noise multiplier* is sd / Delta = 1 / mu, for the neighboring relation of Delta; such a release is mu-GDP. Everything
is exact up to rounding for every epsilon, with no bound on tails, and is computed with logarithms where e^epsilon would
overflow. The formulas assume exact sampling: noise in floating point reveals more (Mironov, CCS 2012)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from scipy import optimize, special

from fdgsec.runtime.errors import UsageError

LARGEST_CLASSICAL_EPSILON = 1.0
SAFE_SIDE = 1 + 1e-12  # a multiplier is rounded up by more than the error of its root, so that it meets its delta
# Gauss-Legendre on [0, 1]: five points are exact to the ninth power of the width
NODES = (0.04691007703066800, 0.23076534494715845, 0.5, 0.76923465505284155, 0.95308992296933200)
WEIGHTS = (0.11846344252809454, 0.23931433524968324, 0.28444444444444444, 0.23931433524968324, 0.11846344252809454)


@lru_cache(maxsize=256)  # an audit asks for the same one thousands of times
def noise_multiplier(epsilon: float, delta: float) -> float:
    """Compute the least standard deviation over sensitivity that is (`epsilon`, `delta`)-private (Theorem 8).

    Zero where `epsilon` is infinite. At most 2e-12 of itself above the exact value, never below it. Raises UsageError
    unless epsilon > 0 and 0 < delta < 1."""
    _check_epsilon(epsilon)
    _check_delta(delta)
    if math.isinf(epsilon):
        return 0.0
    # The first term alone reaches delta at mu = s + sqrt(s^2 + 2 epsilon), s = Phi^-1(delta): the root is not below.
    quantile = float(special.ndtri(delta))
    root = math.hypot(quantile, math.sqrt(2 * epsilon))
    low = quantile + root if quantile > 0 else 2 * epsilon / (root - quantile)
    target = math.log(delta)

    def excess(log_mu: float) -> float:
        return _log_delta(math.exp(log_mu), epsilon) - target

    start = math.log(low) - 1e-9
    end = start + 1.0
    while excess(end) < 0:
        end += 1.0
    return SAFE_SIDE / math.exp(_root(excess, start, end))


def delta_of(noise_multiplier: float, epsilon: float) -> float:
    """Compute the exact delta at `epsilon` of Gaussian noise with this multiplier (Theorem 8); 1 without noise.

    Raises UsageError unless epsilon >= 0 and the multiplier >= 0."""
    _check_multiplier(noise_multiplier)
    if not epsilon >= 0:
        raise UsageError(f"epsilon must not be negative; got {epsilon}.")
    if math.isinf(epsilon) or math.isinf(noise_multiplier):
        return 0.0
    if noise_multiplier == 0:
        return 1.0
    return math.exp(_log_delta(1 / noise_multiplier, epsilon))


def epsilon_of(noise_multiplier: float, delta: float) -> float:
    """Compute the exact epsilon at `delta` of Gaussian noise with this multiplier; infinite without noise.

    Zero where even (0, `delta`) holds. Raises UsageError unless 0 < delta < 1 and the multiplier >= 0."""
    _check_multiplier(noise_multiplier)
    _check_delta(delta)
    if noise_multiplier == 0:
        return math.inf
    if math.isinf(noise_multiplier) or delta_of(noise_multiplier, 0.0) <= delta:
        return 0.0
    mu, target = 1 / noise_multiplier, math.log(delta)
    # Phi(-u) <= exp(-u^2 / 2): at this epsilon the first term alone is under delta.
    end = mu * (mu / 2 + math.sqrt(-2 * target))
    return _root(lambda epsilon: _log_delta(mu, epsilon) - target, 0.0, end * (1 + 1e-9))


def classical_multiplier(epsilon: float, delta: float) -> float:
    """Compute sqrt(2 ln(1.25 / delta)) / epsilon, the textbook calibration (Dwork & Roth 2014), for comparison.

    Its proof covers epsilon <= 1 only, and at delta 1e-5 it is below the required noise from epsilon 8.5 on; so an
    epsilon above 1 is a UsageError. Theorem 8 replaces it: `noise_multiplier` is never above it."""
    _check_epsilon(epsilon)
    _check_delta(delta)
    if epsilon > LARGEST_CLASSICAL_EPSILON:
        raise UsageError(
            f"the classical Gaussian mechanism is proven for epsilon <= 1 only; got {epsilon:g}: use noise_multiplier."
        )
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def laplace_scale(epsilon: float) -> float:
    """Compute the scale of Laplace noise over the L1 sensitivity that is (`epsilon`, 0)-private: 1 / epsilon."""
    _check_epsilon(epsilon)
    return 1 / epsilon


def multiplier_per_release(multiplier: float, *, releases: int) -> float:
    """Compute the multiplier of each of `releases` equal releases that together cost as much as one with `multiplier`.

    mu^2 adds up under composition, so the standard deviation grows with sqrt(releases)."""
    _check_multiplier(multiplier)
    if releases < 1:
        raise UsageError(f"releases must be at least 1; got {releases}.")
    return multiplier * math.sqrt(releases)


def _log_delta(mu: float, epsilon: float) -> float:
    """Evaluate ln(Phi(-u) - e^epsilon Phi(-u - mu)) at u = epsilon / mu - mu / 2, without overflow or cancellation.

    As e^epsilon phi(u + mu) = phi(u), delta is phi(u) (R(u) - R(u + mu)) with Mills' ratio R = (1 - Phi) / phi. This
    form needs no e^epsilon and no difference of nearly equal tails."""
    u = epsilon / mu - mu / 2
    if u <= -1:  # mu > 2: the terms are far apart, and R(u) would overflow
        first, second = float(special.log_ndtr(-u)), _log_density(u) + math.log(_mills(u + mu))
        return first + math.log(-math.expm1(second - first))
    # R' = x R - 1: for a small step the drop is integrated, as the difference would lose its digits
    if mu < 0.05:
        drop = mu * math.fsum(w * _mills_slope(u + x * mu) for w, x in zip(WEIGHTS, NODES, strict=True))
    else:
        drop = _mills(u) - _mills(u + mu)
    return -math.inf if drop <= 0 else _log_density(u) + math.log(drop)


def _log_density(x: float) -> float:
    """Compute ln phi(x)."""
    return -x * x / 2 - math.log(2 * math.pi) / 2


def _mills(x: float) -> float:
    """Compute (1 - Phi(x)) / phi(x)."""
    return math.sqrt(math.pi / 2) * float(special.erfcx(x / math.sqrt(2)))


def _mills_slope(x: float) -> float:
    """Compute -R'(x) = 1 - x R(x), of which 1e-16 x^2 is lost: beyond x = 39 every delta is 0 in float64 anyway."""
    return 1 - x * _mills(x)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Find where `function` changes its sign between `low` and `high`, to the last digits (Brent)."""
    return float(optimize.brentq(function, low, high, xtol=1e-300, rtol=1e-14, maxiter=500))


def _check_epsilon(epsilon: float) -> None:
    if not epsilon > 0:
        raise UsageError(f"epsilon must be above 0 (infinite for no noise); got {epsilon}.")


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise UsageError(f"delta must lie strictly between 0 and 1; got {delta}.")


def _check_multiplier(multiplier: float) -> None:
    if not multiplier >= 0:
        raise UsageError(f"a noise multiplier must not be negative; got {multiplier}.")


Mechanism = Literal["gaussian", "laplace"]


@dataclass(frozen=True, order=True)
class Step:
    """A release as an accountant needs it: noise over distance (above 0), sampling rate, and count."""

    mechanism: Mechanism
    multiplier: float
    rate: float
    count: int
