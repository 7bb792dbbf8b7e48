"""Composition of releases with dp-accounting: privacy loss distributions on refined grids, and Renyi divergences.

The library (https://github.com/google/differential-privacy) puts privacy losses on a grid and rounds so that no delta
is too small. A coarse grid is fast and far too pessimistic, a fine one takes minutes. Therefore grids are refined from
the scale that Renyi accounting suggests until the result converges. Results are cached, because clients with equal
options have equal compositions."""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Protocol, cast

import dp_accounting
from dp_accounting import pld, rdp

from fdgsec.privacy.mechanisms import Step
from fdgsec.runtime.errors import UsageError

SMALLEST_DELTA = 1e-12  # what float64 and the library's truncation of tails still resolve in a composed distribution
COARSEST = 1e-3  # first width of the loss grid, in units of a rough epsilon
FINEST = 1e-6  # last width, in the same units: a grid of millions of losses, for seconds
SMALLEST_WIDTH = 1e-5  # nats; a finer grid changes no printed digit
REFINEMENT = 10**0.5  # the error of the grid falls with the square of its width
EPSILON_SETTLED = 3e-3  # relative change below which a grid is fine enough: the remaining error is about a tenth of it
DELTA_SETTLED = 2e-2


class _Composed(Protocol):
    """The methods of a dp-accounting accountant that are used here."""

    def get_epsilon(self, target_delta: float) -> float: ...

    def get_delta(self, target_epsilon: float) -> float: ...


@lru_cache(maxsize=4096)
def epsilon(steps: tuple[Step, ...], delta: float) -> float:
    """Compute the epsilon of `steps` at `delta` by their loss distribution; UsageError where delta is under 1e-12."""
    if delta < SMALLEST_DELTA:
        raise UsageError(f"a composed loss is not resolved at delta {delta:g}; ask for {SMALLEST_DELTA:g} or more.")
    return _refined(steps, lambda composed: composed.get_epsilon(delta), settled=EPSILON_SETTLED)


@lru_cache(maxsize=4096)
def delta(steps: tuple[Step, ...], epsilon: float) -> float:
    """Compute the delta of `steps` at `epsilon` by their loss distribution."""
    return _refined(steps, lambda composed: composed.get_delta(epsilon), settled=DELTA_SETTLED, worst=1.0)


@lru_cache(maxsize=4096)
def renyi_epsilon(steps: tuple[Step, ...], delta: float) -> float:
    """Compute the epsilon of `steps` at `delta` by Renyi accounting; UsageError for sampled Laplace noise."""
    if any(step.mechanism == "laplace" and step.rate < 1 for step in steps):
        raise UsageError("the Renyi accountant cannot compose sampled Laplace noise; use accountant 'pld'.")
    with _quiet():
        try:
            composed = rdp.RdpAccountant().compose(_event(steps))
        except (OverflowError, ZeroDivisionError):  # so little noise that the losses leave floating point
            return math.inf
        # Rounding can leave a tiny negative loss, which the library would take for no loss at all.
        sound = [(order, loss) for order, loss in zip(composed.orders, composed.rdp, strict=True) if loss > 0]
        orders, losses = [float(order) for order, _ in sound], [float(loss) for _, loss in sound]
        return float(rdp.compute_epsilon(orders, losses, delta)[0]) if sound else math.inf


def _refined(
    steps: tuple[Step, ...], ask: Callable[[_Composed], float], *, settled: float, worst: float = math.inf
) -> float:
    """Evaluate `ask` on ever finer loss distributions until it converges; each is an upper bound, the least is given.

    The value `worst` counts as a failure of the grid until the finest grid confirms it."""
    event, rough = _event(steps), _rough_epsilon(steps)
    if math.isinf(rough):
        return worst
    finest = max(FINEST * rough, SMALLEST_WIDTH)
    best, width = math.inf, max(COARSEST * rough, finest)
    while True:
        composed = pld.PLDAccountant(value_discretization_interval=width)
        composed.compose(event)
        last, best = best, min(best, float(ask(cast(_Composed, composed))))
        if width <= finest or (best < worst * (1 - 1e-9) and last - best <= settled * best):
            return best
        width = max(width / REFINEMENT, finest)


def _rough_epsilon(steps: tuple[Step, ...]) -> float:
    """Estimate the order of magnitude of epsilon, for the first grid: by Renyi, else by adding up."""
    pure = math.fsum(
        step.count * math.log1p(step.rate * math.expm1(min(1 / step.multiplier, 100.0)))
        for step in steps
        if step.mechanism == "laplace"
    )
    normal = tuple(step for step in steps if step.mechanism == "gaussian")
    return pure + (renyi_epsilon(normal, 1e-5) if normal else 0.0)


def _event(steps: tuple[Step, ...]) -> dp_accounting.DpEvent:
    kinds = {"gaussian": dp_accounting.GaussianDpEvent, "laplace": dp_accounting.LaplaceDpEvent}
    builder = dp_accounting.DpEventBuilder()
    for step in steps:
        released = kinds[step.mechanism](step.multiplier)
        sampled = dp_accounting.PoissonSampledDpEvent(step.rate, released) if step.rate < 1 else released
        builder.compose(sampled, step.count)
    return builder.build()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the library's log of the Renyi orders that it leaves out; the others remain valid bounds."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
