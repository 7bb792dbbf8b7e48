"""How precise the numbers of a release are, and what their rounding leaves open of its statistic."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fdgsec.federation.artifacts import Artifact
from fdgsec.federation.released_statistics import ReleasedStatistic
from fdgsec.runtime.random_streams import stream

SINGLE, HALF = 2.0**-24, 2.0**-11
"""Largest relative rounding errors of float32 and float16."""
LARGEST_HALF = 65504.0
ROUNDINGS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "float16": lambda values: values.clamp(-LARGEST_HALF, LARGEST_HALF).half().to(values.dtype),
    "2 decimals": lambda values: values.round(decimals=2),
}
"""Ways of writing the numbers of a release with less precision."""
MOST_DECIMALS = 6
PERTURBED = 32
"""Perturbed copies of a release by which the effect of its rounding on t is estimated."""


def rounded(artifact: Artifact, rounding: str) -> Artifact:
    """The artifact with all its floating-point numbers rounded in one of `ROUNDINGS`."""
    parts = {name: ROUNDINGS[rounding](v) for name, v in artifact.tensors().items() if v.is_floating_point()}
    return replace(artifact, **parts)


def rounding_of(artifact: Artifact) -> Callable[[Tensor], Tensor]:
    """The largest rounding error of each number of a tensor of `artifact`: of decimals, float16 or float32.

    Whoever reads a release sees how precise its numbers are."""
    return rounding_of_values([value for value in artifact.tensors().values() if value.is_floating_point()])


def rounding_of_values(values: Sequence[Tensor]) -> Callable[[Tensor], Tensor]:
    """The largest rounding error of numbers that are written as precisely as all of `values`."""
    for decimals in range(MOST_DECIMALS):
        if all(torch.equal(value.double().round(decimals=decimals).float(), value.float()) for value in values):
            return lambda tensor: (tensor.double().abs() * SINGLE).clamp_min(0.5 * 10.0**-decimals)
    half = all(torch.equal(value.half().float(), value.float()) for value in values)
    return lambda tensor: tensor.double().abs() * (HALF if half else SINGLE)


def rounding_noise(
    artifact: Artifact, released_statistic: ReleasedStatistic, about: Tensor, *, images: int | None
) -> Tensor:
    """The standard deviation (D,) of t of a release that its rounding leaves open, by perturbing its numbers."""
    rng, error = stream(0, "attack", "rounding of a release"), rounding_of(artifact)
    read = []
    for _ in range(PERTURBED):
        moved = {
            name: value.double() + (2 * torch.rand(value.shape, generator=rng, dtype=torch.float64) - 1) * error(value)
            for name, value in artifact.tensors().items()
            if value.is_floating_point()
        }
        read.append(_read(artifact, moved, released_statistic, images=images))
    return released_statistic.about(torch.stack(read), about).std(0)


def _read(
    artifact: Artifact, values: Mapping[str, Tensor], released_statistic: ReleasedStatistic, *, images: int | None
) -> Tensor:
    """t (D,) of `artifact` with other numbers; of these, only means may be negative."""
    legal = {name: value if name == "mean" else value.clamp_min(0) for name, value in values.items()}
    return released_statistic.release(replace(artifact, **legal), images=images)[0]
