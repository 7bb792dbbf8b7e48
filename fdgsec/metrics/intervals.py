"""Confidence intervals that keep their coverage at n = 50, and never have width zero by accident.

Proportions: `wilson`; class means of proportions: `balanced_accuracy_interval`. Means and other
statistics: `bootstrap`, `paired_bootstrap`, `cluster_bootstrap`, all BCa with small-sample corrections (`bca_bounds`),
because a percentile bootstrap covers too rarely. AUC: `delong`, `cluster_auc_bootstrap`. Every interval contains its
estimate. Input may be a tensor, a float array or a sequence; all arithmetic is float64 on the CPU."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from scipy import special
from torch import Tensor

from fdgsec.metrics.bootstrap import (
    Bounds,
    Statistic,
    bca_bounds,
    bootstrap_statistics,
    cluster_multiplicities,
    constant,
    jackknife,
    unseen_bounds,
)
from fdgsec.metrics.roc import Labels, Numbers, as_vector, labels, placements, recalls

Method = Literal[
    "wilson", "clopper-pearson", "bootstrap", "paired-bootstrap", "cluster-bootstrap", "delong", "jackknife"
]


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A two-sided interval, `low` <= `high`, and the name of its method in the report."""

    low: float
    high: float
    method: Method

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise ValueError(f"an interval needs finite low <= high; got [{self.low}, {self.high}] ({self.method}).")


def mean(values: Tensor) -> Tensor:
    """Average the last dimension: the default statistic, for which resampling is faster."""
    return values.mean(-1)


def median(values: Tensor) -> Tensor:
    """Take the median of the last dimension, averaging the middle two."""
    return values.quantile(0.5, dim=-1)


def wilson(successes: float, n: int, *, level: float = 0.95) -> Interval:
    """Bound a proportion by inverting the score test (Wilson 1927); ties may make `successes` fractional.

    Raises ValueError unless 0 <= successes <= n and n >= 1."""
    _check_proportion(successes, n, level)
    z, rate = _normal_quantile(level), successes / n
    center = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    low = 0.0 if successes == 0 else min(center - half, rate)
    high = 1.0 if successes == n else max(center + half, rate)
    return Interval(low=max(low, 0.0), high=min(high, 1.0), method="wilson")


def bootstrap(
    values: Numbers,
    statistic: Statistic = mean,
    *,
    rng: torch.Generator,
    repeats: int = 2000,
    level: float = 0.95,
    bounds: Bounds | None = None,
) -> Interval:
    """Bound a statistic of independent `values` (n,) by BCa; `statistic` reduces the last dimension of a tensor.

    `bounds` are the least and greatest value possible. Where all values are equal, the interval follows from `bounds`
    alone (see `unseen_bounds`). Raises ValueError there without `bounds`, and where n < 2."""
    vector = as_vector(values, "values")
    return _resampled(vector, statistic, "bootstrap", rng, repeats=repeats, level=level, bounds=bounds)


def paired_bootstrap(
    first: Numbers,
    second: Numbers,
    *,
    rng: torch.Generator,
    repeats: int = 2000,
    level: float = 0.95,
    bounds: Bounds | None = None,
) -> Interval:
    """Bound the mean of `first` - `second`, measured on the same n records; `bounds` are those of one difference."""
    one, other = as_vector(first, "first"), as_vector(second, "second")
    if len(one) != len(other):
        raise ValueError(f"paired values must be equally many; got {len(one)} and {len(other)}.")
    return _resampled(one - other, mean, "paired-bootstrap", rng, repeats=repeats, level=level, bounds=bounds)


def cluster_bootstrap(
    values: Numbers,
    clusters: Labels,
    *,
    rng: torch.Generator,
    repeats: int = 2000,
    level: float = 0.95,
    bounds: Bounds | None = None,
) -> Interval:
    """Bound the mean over all `values` (n,), resampling whole `clusters` (n,) to keep the dependence within each.

    A drawn cluster contributes all its values; n counts clusters. `bounds` as for `bootstrap`."""
    vector, owner = as_vector(values, "values"), labels(clusters, "clusters")
    if len(owner) != len(vector):
        raise ValueError(f"every value needs a cluster; got {len(vector)} values and {len(owner)} clusters.")
    _check_bounds(vector, bounds)
    names: Tensor
    column: Tensor
    names, column = torch.unique(owner, return_inverse=True)
    sums = torch.zeros(len(names), dtype=torch.float64).index_add_(0, column, vector)
    counts = torch.bincount(column).to(torch.float64)
    drawn, _, _ = cluster_multiplicities(names, names, rng=rng, repeats=repeats)
    estimate, resampled = float(vector.mean()), (drawn @ sums) / (drawn @ counts)
    if constant(resampled):
        low, high = unseen_bounds(estimate, len(names), bounds, level=level)
        return Interval(low=low, high=high, method="cluster-bootstrap")
    without_one = (sums.sum() - sums) / (counts.sum() - counts)
    return _interval(estimate, resampled, without_one, level=level, bounds=bounds, method="cluster-bootstrap")


def delong(positive: Numbers, negative: Numbers, *, level: float = 0.95) -> Interval:
    """Bound the AUC of independent scores on the logit scale (DeLong, DeLong & Clarke-Pearson 1988).

    DeLong's variance collapses near AUC 1 and under unequal group sizes, so it is never below the exponential model's
    (Hanley & McNeil 1982, with the roles that make it larger). An AUC never varies more than a proportion of min(n, m)
    trials does, so the interval is cut to that proportion's Clopper-Pearson interval, which alone applies at AUC 0 and
    1. Raises ValueError for fewer than two scores on a side."""
    hits, others = as_vector(positive, "positive", finite=False), as_vector(negative, "negative", finite=False)
    n, m = len(hits), len(others)
    if min(n, m) < 2:
        raise ValueError(f"an AUC interval needs two scores on each side; got {n} positive and {m} negative.")
    outer, inner = placements(hits, others), 1 - placements(others, hits)
    area = float(outer.mean())
    low, high = _beta_bounds(area * min(n, m), min(n, m), level)
    if 0 < area < 1:
        side = max(area, 1 - area)
        model = max(_exponential_variance(side, n, m), _exponential_variance(side, m, n))
        spread = math.sqrt(max(float(outer.var()) / n + float(inner.var()) / m, model)) / (area * (1 - area))
        z, logit = _normal_quantile(level), math.log(area / (1 - area))
        low = max(low, float(special.expit(logit - z * spread)))
        high = min(high, float(special.expit(logit + z * spread)))
    return Interval(low=min(low, area), high=max(high, area), method="delong")


def cluster_auc_bootstrap(
    positive: Numbers,
    negative: Numbers,
    *,
    pos_clusters: Labels,
    neg_clusters: Labels,
    rng: torch.Generator,
    repeats: int = 2000,
    level: float = 0.95,
    within: bool = True,
) -> Interval:
    """Bound an AUC whose scores come in clusters (clients, runs) by resampling clusters.

    An id on both sides is one cluster. With `within` this bounds the plain mean over clusters of the AUC inside each
    (every cluster needs both sides), otherwise the AUC of all scores pooled. Raises ValueError for fewer than two
    clusters of a kind."""
    hits, others = as_vector(positive, "positive", finite=False), as_vector(negative, "negative", finite=False)
    own, foreign = labels(pos_clusters, "pos_clusters"), labels(neg_clusters, "neg_clusters")
    if len(own) != len(hits) or len(foreign) != len(others):
        raise ValueError(
            f"every score needs a cluster; got {len(hits)}+{len(others)} scores, {len(own)}+{len(foreign)} clusters."
        )
    if within:
        areas = _areas_within(hits, others, own, foreign)
        return _resampled(areas, mean, "cluster-bootstrap", rng, repeats=repeats, level=level, bounds=(0.0, 1.0))
    drawn, pos_column, neg_column = cluster_multiplicities(own, foreign, rng=rng, repeats=repeats)
    wins = _wins(hits, others, pos_column, neg_column, drawn.shape[1])
    n = torch.bincount(pos_column, minlength=drawn.shape[1]).to(torch.float64)
    m = torch.bincount(neg_column, minlength=drawn.shape[1]).to(torch.float64)

    def area(counts: Tensor) -> Tensor:
        return ((counts @ wins) * counts).sum(1) / ((counts @ n) * (counts @ m))

    estimate, resampled = float(wins.sum() / (n.sum() * m.sum())), area(drawn)
    if constant(resampled):
        units = min(int((n > 0).sum()), int((m > 0).sum()))
        low, high = unseen_bounds(estimate, units, (0.0, 1.0), level=level)
        return Interval(low=low, high=high, method="cluster-bootstrap")
    without_one = area(1 - torch.eye(drawn.shape[1], dtype=torch.float64))
    return _interval(estimate, resampled, without_one, level=level, bounds=(0.0, 1.0), method="cluster-bootstrap")


def balanced_accuracy_interval(true: Labels, predicted: Labels, *, classes: int, level: float = 0.95) -> Interval:
    """Bound balanced accuracy by combining the Clopper-Pearson intervals of the recalls.

    The squared distances of each recall from its bounds add like variances (method of variance estimates recovery, Zou
    & Donner 2008). A bootstrap stratified by class has no spread in a class that is all right or all wrong: in
    simulations at n = 50 it covered down to 23%, this at least 92.7% (400 random designs of 2 to 7 classes). Raises
    ValueError for a class without records."""
    hits, counts = recalls(true, predicted, classes=classes)
    rates = (hits / counts).tolist()
    bounds = [_beta_bounds(h, int(c), level) for h, c in zip(hits.tolist(), counts.tolist(), strict=True)]
    below = math.sqrt(sum((rate - low) ** 2 for rate, (low, _) in zip(rates, bounds, strict=True))) / classes
    above = math.sqrt(sum((high - rate) ** 2 for rate, (_, high) in zip(rates, bounds, strict=True))) / classes
    estimate = math.fsum(rates) / classes
    return Interval(low=max(0.0, estimate - below), high=min(1.0, estimate + above), method="clopper-pearson")


def _resampled(
    values: Tensor,
    statistic: Statistic,
    method: Method,
    rng: torch.Generator,
    *,
    repeats: int,
    level: float,
    bounds: Bounds | None,
) -> Interval:
    n = len(values)
    if statistic is not mean and bounds is not None:
        raise ValueError("bounds are those of a mean; other statistics take none.")
    _check_bounds(values, bounds)
    estimate = float(statistic(values))
    if constant(values):
        low, high = unseen_bounds(estimate, n, bounds, level=level)
        return Interval(low=low, high=high, method=method)
    resampled = bootstrap_statistics(values, statistic, rng=rng, repeats=repeats)
    without_one = (values.sum() - values) / (n - 1) if statistic is mean else jackknife(values, statistic)
    return _interval(estimate, resampled, without_one, level=level, bounds=bounds, method=method)


def _interval(
    estimate: float, resampled: Tensor, without_one: Tensor, *, level: float, bounds: Bounds | None, method: Method
) -> Interval:
    """Apply BCa and clip to `bounds`."""
    low, high = bca_bounds(estimate, resampled, without_one, level=level)
    if bounds is not None:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    return Interval(low=low, high=high, method=method)


def _check_bounds(values: Tensor, bounds: Bounds | None) -> None:
    if bounds is not None and not bounds[0] <= float(values.min()) <= float(values.max()) <= bounds[1]:
        raise ValueError(f"values must lie in {bounds}; got {float(values.min())}..{float(values.max())}.")


def _areas_within(hits: Tensor, others: Tensor, own: Tensor, foreign: Tensor) -> Tensor:
    """Compute the AUC inside each cluster, in the order of their ids."""
    ids: Tensor = torch.unique(own)
    if not torch.equal(ids, torch.unique(foreign)):
        raise ValueError("within=True needs positives and negatives in every cluster; some have one side only.")
    return torch.stack([placements(hits[own == i], others[foreign == i]).mean() for i in ids])


def _wins(hits: Tensor, others: Tensor, pos_column: Tensor, neg_column: Tensor, clusters: int) -> Tensor:
    """Count the pairs where positives of cluster c (row) outscore negatives of cluster d (column), ties 1/2."""
    wins = torch.zeros(clusters, clusters, dtype=torch.float64)
    for column in torch.unique(neg_column).tolist():
        rivals = others[neg_column == column]
        wins[:, column].index_add_(0, pos_column, placements(hits, rivals) * len(rivals))
    return wins


def _exponential_variance(area: float, n: int, m: int) -> float:
    """Compute the AUC's variance for exponential scores (Hanley & McNeil 1982), n positives and m negatives."""
    one, other = area / (2 - area), 2 * area * area / (1 + area)
    return (area * (1 - area) + (n - 1) * (one - area * area) + (m - 1) * (other - area * area)) / (n * m)


def _beta_bounds(successes: float, n: int, level: float) -> tuple[float, float]:
    """Compute Clopper-Pearson's bounds, extended to fractional successes by the incomplete beta function."""
    tail = (1 - level) / 2
    low = 0.0 if successes <= 0 else float(special.betaincinv(successes, n - successes + 1, tail))
    high = 1.0 if successes >= n else float(special.betaincinv(successes + 1, n - successes, 1 - tail))
    return low, high


def _check_proportion(successes: float, n: int, level: float) -> None:
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"a proportion needs n >= 1 and 0 <= successes <= n; got {successes} of {n}.")
    if not 0 < level < 1:
        raise ValueError(f"level must lie in (0, 1); got {level}.")


def _normal_quantile(level: float) -> float:
    return float(special.ndtri((1 + level) / 2))
