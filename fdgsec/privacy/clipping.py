"""Clipping regions for records and clients, and the L2 sensitivities that follow from them.

A region is a public set with public coordinates. Every release is made of coordinates inside it, so that the largest
L2 distance between neighbors is known without looking at the data:

* "replace-one": a record becomes any other. The number of records is public.
* "zero-out": a record becomes one that contributes the region's public center. The number of records is public.
* "add-remove": a record joins or leaves. The number of records is private.

Pure functions in float64; fdgsec.privacy.mechanisms calibrates the noise."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fdgsec.nn.styles.channel_statistics import EPS
from fdgsec.privacy.accounting import Relation

COUNT_WEIGHT = 0.5**0.5
"""The weight of the count beside a sum of records, in units of the region's radius."""
SMALLEST_SCALE = 0.1
"""Least scale of a coordinate, as a share of the median scale among public images."""
ROUNDING = 1e-12
"""Relative: subtracted from the bound, so that float64 rounding cannot put a clipped row outside it."""


class Region(Protocol):
    """The set that contains every row of coordinates, whatever the data."""

    @property
    def radius(self) -> float:
        """The largest distance of a row from 0, the public center."""
        ...

    @property
    def diameter(self) -> float:
        """The largest distance between two rows."""
        ...

    def inside(self, values: Tensor) -> Tensor:
        """Compute the coordinates (..., D) float64 of `values` (..., D), clipped to the region row by row."""
        ...

    def values(self, coordinates: Tensor) -> Tensor:
        """Compute the values (..., D) at `coordinates`, without clipping."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Ball:
    """Rows within `bound` of a public `center` (D,), in units of a public `scale` (D,): clipping in L2 norm.

    t~ = c + s min(1, C / |(t - c) / s|) (t - c) / s; rows inside are unchanged."""

    center: Tensor
    scale: Tensor
    bound: float

    def __post_init__(self) -> None:
        if not (self.bound > 0 and bool((self.scale > 0).all())):
            raise ValueError(
                f"a ball needs a bound and scales above 0; got {self.bound} and {float(self.scale.min())}."
            )

    @property
    def radius(self) -> float:
        """C."""
        return self.bound

    @property
    def diameter(self) -> float:
        """2 C."""
        return 2 * self.bound

    def inside(self, values: Tensor) -> Tensor:
        """Scale down rows that are too long."""
        rows = (values.to(torch.float64) - self.center) / self.scale
        return clip_rows(rows, self.bound)

    def values(self, coordinates: Tensor) -> Tensor:
        """Undo center and scale."""
        return self.center + self.scale * coordinates


@dataclass(frozen=True, kw_only=True, eq=False)
class HalfDiscs:
    """Mean and std of channels with pixels in [0, 1], normalized by a public `mean` and `std` (c,): rows (..., 2c).

    sigma^2 <= mu (1 - mu): each channel's (mu, sigma) lies in the half disc of radius 1/2 around (1/2, 0), so that two
    rows are at most sqrt(sum 1 / std^2) apart: sqrt(3) for plain RGB, 7.665 under ImageNet's normalization. A sigma
    that divides by HW - 1, or has an epsilon in its root, may lie slightly outside and is clipped: the bound holds for
    any row."""

    mean: Tensor
    std: Tensor

    @property
    def radius(self) -> float:
        """Half the diameter: distances from (1/2, 0) of every channel."""
        return self.diameter / 2

    @property
    def diameter(self) -> float:
        """sqrt(sum 1 / std^2)."""
        return float(self.std.to(torch.float64).square().reciprocal().sum().sqrt())

    def inside(self, values: Tensor) -> Tensor:
        """Shorten (mu - 1/2, sigma) of each channel to 1/2, sigma at least 0, in the normalized space."""
        mean, std = self._plain(values)
        length = torch.hypot(mean, std)
        share = (0.5 * (1 - ROUNDING) / length.clamp_min(torch.finfo(torch.float64).tiny)).clamp_max(1)
        return torch.cat([mean * share / self.std, std * share / self.std], dim=-1)

    def values(self, coordinates: Tensor) -> Tensor:
        """Undo the center (1/2, 0)."""
        mean, std = coordinates.chunk(2, dim=-1)
        return torch.cat([mean + (0.5 - self.mean) / self.std, std], dim=-1)

    def _plain(self, values: Tensor) -> tuple[Tensor, Tensor]:
        center = torch.cat([(0.5 - self.mean) / self.std, torch.zeros_like(self.std)]).double()
        known = torch.where(torch.isfinite(values).all(-1, keepdim=True), values.double(), center)
        mean, std = known.chunk(2, dim=-1)
        return mean * self.std + self.mean - 0.5, (std * self.std).clamp_min(0)


def clip_rows(rows: Tensor, bound: float) -> Tensor:
    """Scale rows (..., D) down to length `bound`, in float64; shorter ones are unchanged bit by bit, none overflows.

    A row with a number that is not finite becomes zeros."""
    rows = finite_rows(rows)
    largest = rows.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    length = largest * torch.linalg.vector_norm(rows / largest, dim=-1, keepdim=True)
    return torch.where(length > bound * (1 - ROUNDING), rows * (bound * (1 - ROUNDING) / length), rows)


def finite_rows(rows: Tensor) -> Tensor:
    """Replace every row (..., D) with a number that is not finite by zeros: no clipping bounds it."""
    return torch.where(torch.isfinite(rows).all(-1, keepdim=True), rows, torch.zeros_like(rows))


def ball_of(
    public: Tensor, *, bound: float | None, quantile: float = 0.95, centered: bool = True, scaled: bool = True
) -> Ball:
    """Make a ball from `public` rows (n, D): their mean, their standard deviations, and a `bound`.

    Without a bound it is the `quantile` of the public rows' lengths. `centered` False puts the center at 0, `scaled`
    False sets all scales to 1. Raises ValueError for fewer than two rows."""
    if public.ndim != 2 or len(public) < 2:
        raise ValueError(f"a public reference needs at least two rows (n, D); got {tuple(public.shape)}.")
    rows = public.to(torch.float64)
    center = rows.mean(0) if centered else torch.zeros_like(rows[0])
    spread = rows.std(0, correction=0)
    varying = spread[spread > 0]
    floor = SMALLEST_SCALE * float(varying.median()) if len(varying) else 1.0
    scale = spread.clamp_min(floor) if scaled else torch.ones_like(spread)
    lengths: Tensor = torch.linalg.vector_norm((rows - center) / scale, dim=1)
    own = float(lengths.quantile(quantile))
    return Ball(center=center, scale=scale, bound=max(own, EPS) if bound is None else bound)


def sensitivity_of_mean(region: Region, records: int) -> Mapping[Relation, float]:
    """Compute the sensitivity of the mean of `records` rows, their number public."""
    return {"replace-one": region.diameter / records, "zero-out": region.radius / records}


def sensitivity_of_sum_and_count(region: Region) -> Mapping[Relation, float]:
    """Compute the sensitivity of (sum of rows, `count_weight` x their number), which need no public number."""
    return {
        "replace-one": region.diameter,
        "add-remove": math.hypot(region.radius, count_weight(region)),
        "zero-out": region.radius,
    }


def count_weight(region: Region) -> float:
    """Compute the factor lambda of a count released with a sum: more is less noise on the count, more on the sum."""
    return COUNT_WEIGHT * region.radius


def sensitivity_of_rows(region: Region) -> Mapping[Relation, float]:
    """Compute the sensitivity of rows where each record has at most one, their number public."""
    return {"replace-one": region.diameter, "zero-out": region.radius}


def sensitivity_of_client(region: Region, rows: int) -> Mapping[Relation, float]:
    """Compute the sensitivity of all `rows` of one client, their number public: a client may change them all."""
    return {relation: math.sqrt(rows) * value for relation, value in sensitivity_of_rows(region).items()}
