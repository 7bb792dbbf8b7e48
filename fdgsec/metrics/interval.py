"""A confidence interval as one of a family over all tail probabilities, and the p-value that agrees with it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fdgsec.metrics.bootstrap import Bounds, unseen_bounds

Method = Literal[
    "wilson", "clopper-pearson", "bootstrap", "paired-bootstrap", "cluster-bootstrap", "delong", "jackknife", "exact"
]
Ends = Callable[[float], tuple[float, float]]
"""Maps a tail probability, above 0 and at most 1/2, to the interval that leaves so much on either side."""
TAIL = 0.025
"""The tail of all reported intervals, which are 95% ones."""
LEAST_TAIL = 1e-15


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A two-sided 95% interval, `low` <= `high`, the family `ends` that it is of, and its method in the report."""

    low: float
    high: float
    method: Method
    ends: Ends = field(compare=False, repr=False)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise ValueError(f"an interval needs finite low <= high; got [{self.low}, {self.high}] ({self.method}).")

    @classmethod
    def of(cls, ends: Ends, method: Method) -> "Interval":
        """The 95% interval of a family."""
        low, high = ends(TAIL)
        return cls(low=low, high=high, method=method, ends=ends)

    def p_value(self, limit: float, *, higher: bool = True) -> float:
        """The one-sided p-value of "at most `limit`", or of "at least `limit`" where `higher` is False.

        It is the least tail at which the family's interval excludes `limit`, from 1e-15; 1 where that is above 1/2.
        Below .025 it says the same as the 95% interval."""

        def excluded(tail: float) -> bool:
            low, high = self.ends(tail)
            return low > limit if higher else high < limit

        if not excluded(0.5):
            return 1.0
        least, most = math.log(LEAST_TAIL), math.log(0.5)
        if excluded(LEAST_TAIL):
            return LEAST_TAIL
        for _ in range(30):
            middle = (least + most) / 2
            least, most = (least, middle) if excluded(math.exp(middle)) else (middle, most)
        return math.exp(most)

    def reaching(self, limit: float, p_value: float, *, higher: bool = True) -> "Interval":
        """The interval, widened at every tail below `p_value` so that it reaches `limit`; the method stays.

        `p_value` is another test's, of the hypothesis that `p_value(limit, higher=higher)` tests. The result rejects it
        only where both do, so that its error is bounded by that of either test."""

        def ends(tail: float) -> tuple[float, float]:
            low, high = self.ends(tail)
            if tail >= p_value:
                return low, high
            return (min(low, limit), high) if higher else (low, max(high, limit))

        return Interval.of(ends, self.method)


def union(one: Interval, other: Interval, method: Method) -> Interval:
    """The least interval that contains both, at every tail."""

    def ends(tail: float) -> tuple[float, float]:
        first, second = one.ends(tail), other.ends(tail)
        return min(first[0], second[0]), max(first[1], second[1])

    return Interval.of(ends, method)


def averaged(intervals: Sequence[Interval], weights: Sequence[float], method: Method) -> Interval:
    """The interval of a weighted mean: the weighted mean of the ends of intervals, at every tail.

    It is as wide as if all errors were one error, so that it holds whatever they have in common."""
    total = math.fsum(weights)

    def ends(tail: float) -> tuple[float, float]:
        found = [one.ends(tail) for one in intervals]
        low, high = (math.fsum(w * end[side] for w, end in zip(weights, found, strict=True)) for side in (0, 1))
        return low / total, high / total

    return Interval.of(ends, method)


def unseen_interval(estimate: float, units: int, bounds: Bounds | None, *, method: Method) -> Interval:
    """The interval where no resampling varies the estimate."""
    return Interval.of(lambda tail: unseen_bounds(estimate, units, bounds, tail=tail), method)
