"""Gaussian noise that is safe in a computer: the discrete Gaussian on a grid, sampled exactly.

Real Gaussian noise cannot be drawn in floating point, and the last bits of a noisy number can tell what it was before
(Mironov, CCS 2012). Canonne, Kamath & Steinke, NeurIPS 2020, https://arxiv.org/abs/2004.00010, therefore add an integer
Z with P(Z = z) proportional to exp(-z^2 / (2 s^2)) (Definition 1) to a value on a grid. Algorithms 1 to 3 draw it from
uniform integers alone; here all numbers are integers below 2^63, so nothing is rounded.

`lattice_gaussian` rounds each coordinate to a multiple of g and adds g Z:

* g is the power of two with 2^24 <= sd / g < 2^25, so that the sum is exact in float64;
* rounding moves two neighbors apart by at most g sqrt(d) for d coordinates. s is raised by as much as keeps s g over
  the new distance at sd over the old one, and by one more;
* for s >= 2^24 the noise cannot be told from a Gaussian of variance s^2 - 1/12 that is rounded to the grid, which
  post-processes the real mechanism: within 12 s the probabilities differ by a factor of at most 1 + 7 / s^4.

docs/defenses/noise.md has the statement and the proof."""

import math
from collections.abc import Callable
from typing import cast

import numpy as np
import torch
from torch import Tensor

from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.secret_streams import Flags, Integers, SecretStream

GRID_BITS = 24
LARGEST_SCALE = 2 ** (GRID_BITS + 2) + 1
MOST_PERIODS = 40  # of s in one candidate; a larger one would be accepted with probability exp(-39^2 / 2)


def lattice_gaussian(values: Tensor, sd: float, *, distance: float, rng: SecretStream) -> Tensor:
    """Add discrete Gaussian noise to `values` (float64, any shape), of at least the standard deviation `sd`.

    The release costs no more than N(0, sd^2) on values of L2 sensitivity `distance`. Without noise (sd 0) the values
    are returned as they are. Raises ValueError unless all values are finite and 0 <= sd < infinity."""
    if not (math.isfinite(sd) and sd >= 0 and bool(torch.isfinite(values).all())):
        raise ValueError(f"a noisy release needs finite values and a finite standard deviation; got {sd}.")
    if sd == 0:
        return values
    grid, scale = lattice(sd, distance=distance, coordinates=values.numel())
    noise = torch.from_numpy(discrete_gaussian(scale, values.numel(), rng)).reshape(values.shape)
    steps = torch.round(values.double() / grid)
    return (steps + noise) * grid


def lattice(sd: float, *, distance: float, coordinates: int) -> tuple[float, int]:
    """The grid g, and the standard deviation of the noise in units of g, for `coordinates` rounded numbers.

    Raises UsageError where `distance` is so far below sd that rounding would matter more than a neighbor does."""
    grid = 2.0 ** (math.frexp(sd)[1] - 1 - GRID_BITS)
    rounding = grid * math.sqrt(coordinates)
    if distance <= 0 or rounding > distance:
        raise UsageError(
            f"a distance of {distance:g} between neighbors is lost on a grid of {grid:g}: the noise is too large; give "
            "a larger epsilon, or a larger delta."
        )
    return grid, math.ceil(sd / grid * (1 + rounding / distance)) + 1


def discrete_gaussian(scale: int, count: int, rng: SecretStream) -> Integers:
    """Draw `count` integers with P(z) proportional to exp(-z^2 / (2 scale^2)) (Canonne et al., Algorithm 3).

    The candidate's scale t is `scale`, for which (|y| - scale^2 / t)^2 is an integer. Raises ValueError unless
    1 <= scale <= LARGEST_SCALE, for which all numbers stay below 2^63."""
    if not 1 <= scale <= LARGEST_SCALE:
        raise ValueError(f"scale must lie between 1 and {LARGEST_SCALE}; got {scale}.")

    def candidates(wanted: int) -> Integers:
        drawn = _discrete_laplace(scale, wanted, rng)
        return drawn[_exponential_coins((np.abs(drawn) - scale) ** 2, 2 * scale * scale, rng)]

    return _filled(candidates, count)


def _discrete_laplace(scale: int, wanted: int, rng: SecretStream) -> Integers:
    """Up to `wanted` integers with P(z) proportional to exp(-|z| / scale) (Algorithm 2 with s = 1)."""
    low = rng.integer_array(scale, wanted)
    low = low[_exponential_coins(low, scale, rng)]
    periods, going = np.zeros(low.size, dtype=np.int64), np.arange(low.size)
    while going.size:
        going = going[_exponential_coins(np.ones(going.size, dtype=np.int64), 1, rng)]
        periods[going] += 1
    size, negative = low + scale * periods, rng.integer_array(2, low.size) == 1
    kept = (periods <= MOST_PERIODS) & ~(negative & (size == 0))
    return cast(Integers, np.where(negative, -size, size)[kept])


def _exponential_coins(numerators: Integers, denominator: int, rng: SecretStream) -> Flags:
    """Flags (n,) that are true with probability exp(-numerator / denominator) each (Algorithm 1)."""
    whole, rest = np.divmod(numerators, denominator)
    heads = _coins_of_fractions(rest, denominator, rng)
    while (going := np.flatnonzero(heads & (whole > 0))).size:
        heads[going] = _coins_of_fractions(np.ones(going.size, dtype=np.int64), 1, rng)
        whole[going] -= 1
    return heads


def _coins_of_fractions(numerators: Integers, denominator: int, rng: SecretStream) -> Flags:
    """As `_exponential_coins`, for fractions between 0 and 1."""
    heads, going, turn = np.zeros(numerators.size, dtype=np.bool_), np.arange(numerators.size), 1
    while going.size:
        won = rng.integer_array(denominator * turn, going.size) < numerators[going]
        heads[going[~won]] = turn % 2 == 1
        going, turn = going[won], turn + 1
    return heads


def _filled(draw: Callable[[int], Integers], count: int) -> Integers:
    """Draw batches until there are `count` accepted numbers."""
    parts, found = list[Integers](), 0
    while found < count:
        part = draw(2 * (count - found) + 16)
        parts, found = [*parts, part], found + part.size
    return np.concatenate(parts)[:count] if parts else np.zeros(0, dtype=np.int64)
