"""Gaussian noise that is safe in a computer: the discrete Gaussian on a grid, sampled exactly.

Real Gaussian noise cannot be drawn in floating point, and the last bits of a noisy number can tell what it was before
(Mironov, CCS 2012). Canonne, Kamath & Steinke, NeurIPS 2020, https://arxiv.org/abs/2004.00010, therefore add an integer
Z with P(Z = z) proportional to exp(-z^2 / (2 s^2)) (Definition 1) to a value on a grid. It is drawn as in their
Algorithm 3, from candidates of the discrete Laplace distribution. Their sizes, and whether one is accepted, follow from
uniform real numbers of as many bits as it takes: float64 decides where its rounding cannot matter, and decimals of more
and more digits where it could, once in some ten thousand draws. So the law is exact but for what is dropped beyond 41 s
(LEAST_WORD), and draws are equal everywhere.

`lattice_gaussian` rounds each coordinate to a multiple of g and adds g Z:

* g is the power of two with 2^24 <= sd / g < 2^25, so that the sum is exact in float64;
* rounding moves two neighbors apart by at most g sqrt(d) for d coordinates. s is raised by as much as keeps s g over
  the new distance at sd over the old one, and by one more;
* for s >= 2^24 the noise cannot be told from a Gaussian of variance s^2 - 1/12 that is rounded to the grid, which
  post-processes the real mechanism: within 12 s the probabilities differ by a factor of at most 1 + 7 / s^4.

docs/defenses/noise.md has the statement and the proof."""

import math
from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_EVEN, Context, Decimal, localcontext
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor

from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.secret_streams import Flags, Integers, SecretStream, Words

GRID_BITS = 24
LARGEST_SCALE = 2 ** (GRID_BITS + 2) + 1
AT_ONCE = 2**16
"""Candidates in one batch, whose arrays stay in a processor's cache."""
WORD_BITS, COIN_BITS = 64, 63
MARGIN = 2.0**-40
"""At least 16 times what rounding changes in a probability, or in the logarithm of a word: at most 45, with 4 units in
the last place of 2^-45."""
LEAST_WORD = 28
"""Lesser words are dropped: sizes of at least 41 scales, accepted with a probability of at most exp(-40^2 / 2)."""


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

    The scale t of candidates is `scale`, in place of floor(scale) + 1: the law is the same for every t, and |y| -
    scale^2 / t is a whole number for this one. Raises ValueError unless 1 <= scale <= LARGEST_SCALE, for which the
    margin of float64 holds."""
    if not 1 <= scale <= LARGEST_SCALE:
        raise ValueError(f"scale must lie between 1 and {LARGEST_SCALE}; got {scale}.")

    def candidates(wanted: int) -> Integers:
        words = rng.words(2 * wanted)
        large = words[:wanted] >= LEAST_WORD
        of_sizes, of_coins = words[:wanted][large], words[wanted:][large]
        sizes = _laplace_sizes(of_sizes, scale, rng)
        negative = of_coins & np.uint64(1) == 1
        kept = _coins(of_coins >> np.uint64(1), sizes - scale, scale, rng) & ~(negative & (sizes == 0))
        return cast(Integers, np.where(negative, -sizes, sizes)[kept])

    return _filled(candidates, count)


def _laplace_sizes(words: Words, scale: int, rng: SecretStream) -> Integers:
    """floor(-scale ln U), U uniform in [word, word + 1) / 2^64: each size y has a share proportional to
    exp(-y / scale)."""
    uniform = (words.astype(np.float64) + 0.5) * 2.0**-WORD_BITS
    exponents, slack = -np.log(uniform), MARGIN + 1 / (words + 1.0)  # half the interval of ln U is below 1 / (word + 1)
    sizes = np.floor(scale * (exponents - slack)).astype(np.int64)
    for place in np.flatnonzero(np.floor(scale * (exponents + slack)) != sizes):
        sizes[place] = _settled(partial(_size, scale=scale), int(words[place]), WORD_BITS, rng)
    return sizes


def _digits(count: int) -> Context:
    """Decimals of so many digits, whatever the caller has set."""
    return Context(prec=count, rounding=ROUND_HALF_EVEN, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[])


def _size(word: int, bits: int, *, scale: int) -> int | None:
    """floor(-scale ln U) for all U in [word, word + 1) / 2^bits, or None where these differ."""
    with localcontext(_digits(bits)):
        slack = Decimal(10) ** -(bits // 2)
        low, high = (scale * (bits * Decimal(2).ln() - Decimal(end).ln()) for end in (word + 1, word))
        found = {math.floor(max(each, Decimal(0))) for each in (low - slack, high + slack)}
    return found.pop() if len(found) == 1 else None


def _coins(words: Words, apart: Integers, scale: int, rng: SecretStream) -> Flags:
    """Flags (n,): whether U < exp(-apart^2 / (2 scale^2)), U uniform in [word, word + 1) / 2^63."""
    uniform = (words.astype(np.float64) + 0.5) * 2.0**-COIN_BITS
    chance = np.exp(-0.5 * (apart / scale) ** 2)
    heads = uniform < chance
    for place in np.flatnonzero(np.abs(uniform - chance) <= MARGIN):
        below = partial(_below, apart=int(apart[place]), scale=scale)
        heads[place] = _settled(below, int(words[place]), COIN_BITS, rng)
    return heads


def _below(word: int, bits: int, *, apart: int, scale: int) -> bool | None:
    """Whether U < exp(-apart^2 / (2 scale^2)) for all U in [word, word + 1) / 2^bits, or None where some are."""
    with localcontext(_digits(bits)):
        slack = Decimal(10) ** -(bits // 2)
        chance = (-(Decimal(apart) ** 2) / (2 * scale * scale)).exp()
        low, high = (Decimal(end) / Decimal(2) ** bits for end in (word, word + 1))
        below, above = high < chance - slack, low > chance + slack
    return below if below or above else None


def _settled(decide: Callable[[int, int], int | None], word: int, bits: int, rng: SecretStream) -> int:
    """Decide for a uniform number that begins with these bits, and draw further ones until they settle it."""
    while (found := decide(word, bits)) is None:
        word, bits = word << WORD_BITS | int(rng.words(1)[0]), bits + WORD_BITS
    return found


def _filled(draw: Callable[[int], Integers], count: int) -> Integers:
    """Draw batches until there are `count` accepted numbers; .76 of the candidates of a discrete Gaussian are."""
    parts, found = list[Integers](), 0
    while found < count:
        part = draw(min(4 * (count - found) // 3 + 16, AT_ONCE))
        parts, found = [*parts, part], found + part.size
    return np.concatenate(parts)[:count] if parts else np.zeros(0, dtype=np.int64)
