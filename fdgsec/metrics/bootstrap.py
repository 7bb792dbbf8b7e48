"""Bootstrap procedures behind the intervals: resampling of records or whole clusters, and BCa bounds.

BCa is Efron, "Better bootstrap confidence intervals" (JASA 1987); its small-sample widening is Hesterberg,
"What teachers should know about the bootstrap" (2015). All tensors are float64 on the CPU."""

import math
from collections.abc import Callable

import torch
from scipy import special
from torch import Tensor

Statistic = Callable[[Tensor], Tensor]
Bounds = tuple[float, float]
_ELEMENTS = 4_000_000  # in a block of resamples: 32 MB


def cluster_multiplicities(
    pos_clusters: Tensor, neg_clusters: Tensor, *, rng: torch.Generator, repeats: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Resample clusters with replacement, separately those with positives only, with negatives only and with both.

    Gives how often each of the C clusters is drawn, (repeats, C) float64, and the column of each positive and negative.
    Raises ValueError where one of the three groups has a single cluster, which no resampling could vary."""
    names: Tensor
    column: Tensor
    names, column = torch.unique(torch.cat([pos_clusters, neg_clusters]), return_inverse=True)
    pos_column, neg_column = column[: len(pos_clusters)], column[len(pos_clusters) :]
    has_pos = torch.bincount(pos_column, minlength=len(names)) > 0
    has_neg = torch.bincount(neg_column, minlength=len(names)) > 0
    drawn = torch.zeros(repeats, len(names), dtype=torch.float64)
    for group in (has_pos & has_neg, has_pos & ~has_neg, ~has_pos & has_neg):
        members = group.nonzero().flatten()
        if len(members) == 1:
            raise ValueError("clusters need a second one of each kind (positives, negatives, both); got one of a kind.")
        if len(members):
            pick = members[torch.randint(len(members), (repeats, len(members)), generator=rng)]
            drawn.scatter_add_(1, pick, torch.ones_like(pick, dtype=torch.float64))
    return drawn, pos_column, neg_column


def bootstrap_statistics(values: Tensor, statistic: Statistic, *, rng: torch.Generator, repeats: int) -> Tensor:
    """Evaluate `statistic`, which reduces the last dimension, on `repeats` resamples of `values` (n,): (repeats,)."""
    n = len(values)
    rows = max(1, _ELEMENTS // n)
    blocks = [min(rows, repeats - start) for start in range(0, repeats, rows)]
    return torch.cat([statistic(values[torch.randint(n, (block, n), generator=rng)]) for block in blocks])


def jackknife(values: Tensor, statistic: Statistic) -> Tensor:
    """Evaluate `statistic` with each of `values` (n,) left out in turn: (n,), in O(n^2)."""
    others = torch.arange(len(values) - 1)
    blocks = torch.split(torch.arange(len(values)), max(1, _ELEMENTS // len(values)))
    return torch.cat([statistic(values[others + (others >= out.unsqueeze(1))]) for out in blocks])


def bca_bounds(estimate: float, resampled: Tensor, without_one: Tensor, *, tail: float) -> tuple[float, float]:
    """Cut `resampled` (R,) at the BCa levels of `tail`; give the union with Student's interval around `estimate`.

    `resampled` is in ascending order. `without_one` (n,) are the jackknife values; their skewness gives the
    acceleration. Efron's normal quantiles become Student's, widened by sqrt(n / (n - 1)). Student's own interval
    (bootstrap standard error, n - 1 degrees of freedom) is included because resamples of few or bounded values cannot
    reach beyond the observed ones. The result contains `estimate`."""
    n, repeats = len(without_one), len(resampled)
    below = float((resampled < estimate).sum()) + 0.5 * float((resampled == estimate).sum())
    bias = float(special.ndtri(min(max(below / repeats, 1 / (repeats + 1)), repeats / (repeats + 1))))
    pull = without_one.mean() - without_one
    energy = float(pull.square().sum())
    acceleration = float(pull.pow(3).sum()) / (6 * energy**1.5) if energy > 0 else 0.0
    width = -float(special.stdtrit(n - 1, tail)) * math.sqrt(n / (n - 1))
    cuts = [_bca_level(bias, acceleration, -width), _bca_level(bias, acceleration, width)]
    low, high = (ordered_quantile(resampled, cut) for cut in cuts)
    half = width * float(resampled.std())
    return min(low, estimate - half), max(high, estimate + half)


def ordered_quantile(ordered: Tensor, level: float) -> float:
    """The quantile of values (n,) in ascending order, as `torch.quantile` has it, without sorting them again."""
    place = level * (len(ordered) - 1)
    below = min(int(place), len(ordered) - 2)
    first, second = ordered[below : below + 2].tolist()
    return float(first + (place - below) * (second - first))


def _bca_level(bias: float, acceleration: float, z: float) -> float:
    shifted = bias + z
    shrink = 1 - acceleration * shifted
    if shrink <= 0:  # skewed beyond the range of the transformation: take the end of the distribution
        return 1.0 if shifted > 0 else 0.0
    return float(special.ndtr(bias + shifted / shrink))


def constant(values: Tensor) -> bool:
    """Whether all `values` are equal up to rounding."""
    return float(values.max() - values.min()) <= 1e-12 * max(1.0, float(values.abs().max()))


def unseen_bounds(estimate: float, units: int, bounds: Bounds | None, *, tail: float) -> tuple[float, float]:
    """Bound a mean where every observed unit has the value `estimate`.

    A share q of units with other values may exist and be missed by all of `units`: q = 1 - tail ** (1 / units),
    the exact form of the rule of three. These units may lie anywhere within `bounds`. Raises ValueError
    without `bounds`."""
    if bounds is None:
        raise ValueError(
            f"all {units} values equal {estimate}, so resampling gives no interval; "
            "give bounds=(least, greatest) possible value."
        )
    unseen = 1 - tail ** (1 / units)
    return estimate - unseen * (estimate - bounds[0]), estimate + unseen * (bounds[1] - estimate)
