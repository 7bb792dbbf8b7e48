"""How precise the numbers of a release are, and what their rounding leaves open of its statistic."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, takewhile
from typing import Literal

import torch
from torch import Tensor

from fdgsec.federation.artifacts import Artifact
from fdgsec.federation.released_statistics import ReleasedStatistic
from fdgsec.runtime.random_streams import stream

SINGLE = 24
"""Bits of a float32 number; those of a float16 number are 11, of a bfloat16 number 8."""
LARGEST_HALF = 65504.0
ROUNDINGS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "float16": lambda values: values.clamp(-LARGEST_HALF, LARGEST_HALF).half().to(values.dtype),
    "2 decimals": lambda values: values.round(decimals=2),
}
"""Ways of writing the numbers of a release with less precision."""
MOST_DIGITS = 6
"""Decimal digits that a float32 number keeps, whatever its size."""
NEAR = 1e-9
"""What the logarithm of a power of ten may lack of an integer."""
LEAST_NUMBERS = 5
"""Differences that are told to be multiples of a step, at least: as many others are none by chance."""
COARSE = 512.0
"""Steps are told from float32 numbers where they are at least so many times the precision of these."""
TOLERATED = 2.0
"""How often that precision a multiple may be missed by."""
MOST_PARTS = 12
"""Steps in the smallest difference between two numbers, at most."""
TWICE = 2.0
"""How much further each turn reaches from the smallest difference."""
PERTURBED = 32
"""Perturbed copies of a release by which the effect of its rounding on t is estimated."""


def rounded(artifact: Artifact, rounding: str) -> Artifact:
    """The artifact with all its floating-point numbers rounded in one of `ROUNDINGS`."""
    parts = {name: ROUNDINGS[rounding](v) for name, v in artifact.tensors().items() if v.is_floating_point()}
    return replace(artifact, **parts)


@dataclass(frozen=True)
class Writing:
    """A way of writing numbers: with so many bits, or so many decimal digits, from the first that is not 0 on
    ("bits", "digits"), or so many decimals after the point ("decimals")."""

    unit: Literal["bits", "digits", "decimals"]
    count: int

    def written(self, values: Tensor) -> Tensor:
        """The nearest numbers that can be written so, as float32."""
        step = self._step(values)
        return (torch.round(values.double() / step) * step).float()

    def error(self, values: Tensor) -> Tensor:
        """The largest error of each of `values`, float64, where they were written so and as float32."""
        size = values.double().abs()
        if self.unit == "bits":
            return size * 2.0**-self.count
        return 0.5 * self._step(values) + size * 2.0**-SINGLE

    def _step(self, values: Tensor) -> Tensor:
        """The distance between neighboring numbers around each of `values`, float64."""
        size = values.double().abs()
        if self.unit == "decimals":
            return torch.full_like(size, 10.0**-self.count)
        base, log = (2.0, size.log2()) if self.unit == "bits" else (10.0, size.log10())
        first = torch.where(size > 0, torch.floor(log + NEAR), 0.0)
        return torch.pow(base, first + 1 - self.count)


@dataclass(frozen=True)
class Steps:
    """Multiples of one number above an offset: fixed-point codes, and integers times a scale, as in 8 bits."""

    step: float
    offset: float

    def written(self, values: Tensor) -> Tensor:
        """The nearest numbers that can be written so, as float32."""
        return (self.offset + torch.round((values.double() - self.offset) / self.step) * self.step).float()

    def holds(self, values: Tensor) -> bool:
        """Whether all of `values` are such numbers, as float32."""
        apart = (self.written(values).double() - values.double()).abs()
        return bool((apart <= float(values.double().abs().max()) * 2.0 ** (1 - SINGLE)).all())

    def error(self, values: Tensor) -> Tensor:
        """The largest error of each of `values`, float64."""
        return 0.5 * self.step + values.double().abs() * 2.0**-SINGLE


def steps_of(values: Tensor) -> Steps | None:
    """The largest steps in which the differences of `values` (N,) are written; None where there are none above the
    precision of float32, or too few numbers to tell.

    The smallest difference is a few steps. From it on, ever larger ones correct the step by least squares, so that each
    is counted in whole steps with an error far below one."""
    numbers = values.double().unique()
    above = (numbers - numbers[:1])[1:] if len(numbers) else numbers
    if len(above) < LEAST_NUMBERS:
        return None
    precision = float(numbers.abs().max()) * 2.0 ** (1 - SINGLE)
    gap = float(numbers.diff().min())
    for parts in range(1, MOST_PARTS + 1):
        step = _fitted(above, gap / parts, precision)
        if step >= COARSE * precision:
            return Steps(step=step, offset=float(numbers[0]))
    return None


def _fitted(above: Tensor, step: float, precision: float) -> float:
    """The step near `step` of which all numbers `above` (N,), in ascending order, are multiples; 0 where they are not
    to `precision`, or `step` is not far above it."""
    if step < COARSE * precision:
        return 0.0
    reach = TWICE * float(above[0])
    while True:
        within = above[above <= reach]
        counts = torch.round(within / step)
        step = float(within @ counts / counts.square().sum())
        if bool(((within - counts * step).abs() > TOLERATED * precision).any()):
            return 0.0
        if len(within) == len(above):
            return step
        reach = TWICE * max(reach, float(above[len(within)]))


WAYS: Mapping[Writing, float] = {
    **{Writing("bits", count): 1e-9 for count in range(1, SINGLE)},
    **{Writing("digits", count): 1e-3 for count in range(1, MOST_DIGITS + 1)},
    **{Writing("decimals", count): 1.0 for count in range(MOST_DIGITS)},
    **{Writing("bits", count): 1.0 for count in (8, 11, SINGLE)},
}
"""Ways of writing numbers, by how usual they are, so that a few numbers that happen to be short are not taken for
rounded ones: decimals and bfloat16, float16 and float32 first, other numbers of bits last."""


def rounding_of(artifact: Artifact) -> Callable[[Tensor], Tensor]:
    """The largest rounding error of each number of a tensor of `artifact`.

    Whoever reads a release sees how precise its numbers are."""
    return rounding_of_values([value for value in artifact.tensors().values() if value.is_floating_point()])


def rounding_of_values(values: Sequence[Tensor]) -> Callable[[Tensor], Tensor]:
    """The largest rounding error of numbers that are written as precisely as all of `values`.

    Of the ways that leave all of these as they are, that is the likeliest: a way with k times the error has a k-th of
    the numbers, so that each number is k times as likely."""
    numbers = torch.cat([value.flatten() for value in values]).float()
    counted = numbers[numbers != 0]

    def likelihood(way: Writing) -> float:
        return math.log(WAYS[way]) + float(way.error(counted).log().sum())

    likeliest = max(_fitting(numbers), key=likelihood)
    apart = [found for value in values if (found := steps_of(value.flatten().float())) is not None]
    whole = steps_of(numbers)
    lattices = [*apart, *([] if whole is None else [whole])]

    def error(of: Tensor) -> Tensor:
        """That of the likeliest way, or of the steps in which these very numbers are written, if that is larger."""
        usual = likeliest.error(of)
        coarser = [lattice.error(of) for lattice in lattices if lattice.holds(of)]
        return torch.stack([usual, *coarser]).amax(0)

    return error


def _fitting(numbers: Tensor) -> Iterator[Writing]:
    """The ways that leave `numbers` (N,) as they are: of one unit, all from the finest to the coarsest one."""
    for _, ways in groupby(sorted(WAYS, key=lambda way: (way.unit, -way.count)), key=lambda way: way.unit):
        yield from takewhile(lambda way: way.count == SINGLE or torch.equal(way.written(numbers), numbers), ways)


def rounding_noise(
    artifact: Artifact, released_statistic: ReleasedStatistic, about: Tensor, *, images: int | None
) -> Tensor:
    """The standard deviation (D,) of t of a release that its rounding leaves open, by perturbing its numbers."""
    rng, error = stream(0, "attack", "rounding of a release"), rounding_of(artifact)
    values = {name: value for name, value in artifact.tensors().items() if value.is_floating_point()}
    sizes = [value.numel() for value in values.values()]
    drawn = 2 * torch.rand(PERTURBED, sum(sizes), generator=rng, dtype=torch.float64) - 1
    moved = {
        name: value.double() + draws.reshape(-1, *value.shape) * error(value)
        for (name, value), draws in zip(values.items(), drawn.split(sizes, dim=1), strict=True)
    }
    legal = {
        name: each if name == "mean" else each.clamp_min(0) for name, each in moved.items()
    }  # means may be below 0
    read = [
        released_statistic.release(replace(artifact, **dict(zip(legal, one, strict=True))), images=images)[0]
        for one in zip(*legal.values(), strict=True)
    ]
    return released_statistic.about(torch.stack(read), about).std(0)
