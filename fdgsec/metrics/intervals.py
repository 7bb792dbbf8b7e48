"""Confidence intervals that keep their coverage at n = 50, and never have width zero by accident.

Hit rates: `clopper_pearson`, `clustered_proportion`; other proportions: `wilson`; class means of proportions:
`balanced_accuracy_interval`. Means and other statistics: `bootstrap`, `paired_bootstrap`, `cluster_bootstrap`, all BCa
with small-sample corrections (`bca_bounds`), because a percentile bootstrap covers too rarely. AUC: `delong`,
`cluster_auc_bootstrap`; TPR at a low FPR: `tpr_interval`. Every interval contains its estimate, and gives the one-sided
p-value that agrees with it (`Interval.p_value`). Input may be a tensor, a float array or a sequence; all arithmetic is
float64 on the CPU."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
    ordered_quantile,
    unseen_bounds,
)
from fdgsec.metrics.roc import Labels, Numbers, as_vector, labels, placements, recalls, tpr_resamples

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


def union(one: Interval, other: Interval, method: Method) -> Interval:
    """The least interval that contains both, at every tail."""

    def ends(tail: float) -> tuple[float, float]:
        first, second = one.ends(tail), other.ends(tail)
        return min(first[0], second[0]), max(first[1], second[1])

    return Interval.of(ends, method)


def mean(values: Tensor) -> Tensor:
    """Average the last dimension: the default statistic, for which resampling is faster."""
    return values.mean(-1)


def median(values: Tensor) -> Tensor:
    """Take the median of the last dimension, averaging the middle two."""
    return values.quantile(0.5, dim=-1)


def wilson(successes: float, n: int) -> Interval:
    """Bound a proportion by inverting the score test (Wilson 1927); ties may make `successes` fractional.

    Raises ValueError unless 0 <= successes <= n and n >= 1."""
    _check_proportion(successes, n)
    rate = successes / n

    def ends(tail: float) -> tuple[float, float]:
        z = -float(special.ndtri(tail))
        center = (rate + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
        low = 0.0 if successes == 0 else min(center - half, rate)
        high = 1.0 if successes == n else max(center + half, rate)
        return max(low, 0.0), min(high, 1.0)

    return Interval.of(ends, "wilson")


def clopper_pearson(successes: float, n: int) -> Interval:
    """Bound a proportion by inverting the binomial tails: covers 95% or more at every n (Clopper & Pearson 1934).

    Ties may make `successes` fractional. Raises ValueError unless 0 <= successes <= n and n >= 1."""
    _check_proportion(successes, n)
    return Interval.of(lambda tail: _beta_bounds(successes, n, tail), "clopper-pearson")


def clustered_proportion(successes: Numbers, trials: Numbers) -> Interval:
    """Bound the share of successes in all trials, which come in clusters (k,): by case, client or image.

    Clopper-Pearson's interval of as many independent trials as have the variance between clusters (Korn & Graubard
    1998), never of more than there are, in union with what the clusters cannot have shown (`unseen_bounds`), because
    near 0 and 1 few clusters carry the variance. A single cluster's trials are taken for independent; the interval
    then is about it alone."""
    hits, counts = as_vector(successes, "successes"), as_vector(trials, "trials")
    total, n, clusters = math.fsum(hits.tolist()), int(counts.sum()), len(counts)
    _check_proportion(min(total, float(n)), n)
    rate = min(total / n, 1.0)
    independent = clopper_pearson(rate * n, n)
    if clusters in (1, n):
        return independent

    def ends(tail: float) -> tuple[float, float]:
        size = _effective_trials(hits, counts, tail)
        return _beta_bounds(rate * size, size, tail)

    dependent = union(Interval.of(ends, "clopper-pearson"), independent, "clopper-pearson")
    return union(dependent, _unseen(rate, clusters, (0.0, 1.0), method="clopper-pearson"), "clopper-pearson")


def _effective_trials(hits: Tensor, counts: Tensor, tail: float) -> float:
    """How many independent trials vary as much as these clusters do; the Student quantiles are those of `tail`.

    Trials of one cluster, and clusters of one trial, are independent."""
    n, clusters = float(counts.sum()), len(counts)
    rate = float(hits.sum()) / n
    spread = float((hits - rate * counts).square().sum()) * clusters / (max(clusters - 1, 1) * n * n)
    if clusters in (1, n) or not spread:
        return n
    return min(rate * (1 - rate) / spread * _student_ratio(clusters, int(n), tail), n)


def median_interval(values: Numbers, *, bounds: Bounds, sizes: Sequence[int] = ()) -> Interval | None:
    """Bound a median by two order statistics: covers 95% or more at every n, also where values are equal.

    The k-th smallest of n values lies above the median only if fewer than k fall below it, so k is a quantile of
    Binomial(n, 1/2). With `sizes`, values come in clusters of so many, one after the other; then n is the number of
    independent values that vary about the median as much as the clusters do (Woodruff 1952). Too few values are bounded
    by `bounds`, the least and greatest value possible; None where such a bound is infinite."""
    vector = as_vector(values, "values")
    ordered, n = vector.sort().values, len(vector)
    middle = float(vector.quantile(0.5))
    above = (vector > middle).to(torch.float64) + (vector == middle).to(torch.float64) / 2
    parts = above.split(list(sizes) or [1] * n)
    hits, counts = torch.stack([part.sum() for part in parts]), torch.tensor([float(len(part)) for part in parts])

    def ends(tail: float) -> tuple[float, float]:
        size = n if not sizes else max(int(_effective_trials(hits, counts, tail)), 1)
        k = math.ceil(special.bdtrik(tail, size, 0.5) - 1e-9)  # P(fewer than k below the median) <= tail
        place = k * n // size
        return bounds if place < 1 else (float(ordered[place - 1]), float(ordered[n - place]))

    return None if any(map(math.isinf, ends(TAIL))) else Interval.of(ends, "exact")


def bootstrap(
    values: Numbers,
    statistic: Statistic = mean,
    *,
    rng: torch.Generator,
    repeats: int = 2000,
    bounds: Bounds | None = None,
) -> Interval:
    """Bound a statistic of independent `values` (n,) by BCa; `statistic` reduces the last dimension of a tensor.

    `bounds` are the least and greatest value possible. Where all values are equal, the interval follows from `bounds`
    alone (see `unseen_bounds`). Raises ValueError there without `bounds`, and where n < 2."""
    vector = as_vector(values, "values")
    return _resampled(vector, statistic, "bootstrap", rng, repeats=repeats, bounds=bounds)


def paired_bootstrap(
    first: Numbers,
    second: Numbers,
    *,
    rng: torch.Generator,
    repeats: int = 2000,
    bounds: Bounds | None = None,
) -> Interval:
    """Bound the mean of `first` - `second`, measured on the same n records; `bounds` are those of one difference."""
    one, other = as_vector(first, "first"), as_vector(second, "second")
    if len(one) != len(other):
        raise ValueError(f"paired values must be equally many; got {len(one)} and {len(other)}.")
    return _resampled(one - other, mean, "paired-bootstrap", rng, repeats=repeats, bounds=bounds)


def cluster_bootstrap(
    values: Numbers,
    clusters: Labels,
    *,
    rng: torch.Generator,
    repeats: int = 2000,
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
        return _unseen(estimate, len(names), bounds, method="cluster-bootstrap")
    without_one = (sums.sum() - sums) / (counts.sum() - counts)
    return _interval(estimate, resampled, without_one, bounds=bounds, method="cluster-bootstrap")


def delong(positive: Numbers, negative: Numbers) -> Interval:
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
    side = max(area, 1 - area)
    model = max(_exponential_variance(side, n, m), _exponential_variance(side, m, n))
    deviation = math.sqrt(max(float(outer.var()) / n + float(inner.var()) / m, model))

    def ends(tail: float) -> tuple[float, float]:
        low, high = _beta_bounds(area * min(n, m), min(n, m), tail)
        if 0 < area < 1:
            reach, logit = -float(special.ndtri(tail)) * deviation / (area * (1 - area)), float(special.logit(area))
            low, high = max(low, float(special.expit(logit - reach))), min(high, float(special.expit(logit + reach)))
        return min(low, area), max(high, area)

    return Interval.of(ends, "delong")


def cluster_auc_bootstrap(
    positive: Numbers,
    negative: Numbers,
    *,
    pos_clusters: Labels,
    neg_clusters: Labels,
    rng: torch.Generator,
    repeats: int = 2000,
    within: bool = True,
) -> Interval:
    """Bound an AUC whose scores come in clusters (clients, runs) by resampling clusters.

    An id on both sides is one cluster. With `within` this bounds the plain mean over clusters of the AUC inside each
    (every cluster needs both sides), also by their logits, which are not skewed near 0 and 1; otherwise the AUC of all
    scores pooled. Raises ValueError for fewer than two clusters of a kind."""
    hits, others = as_vector(positive, "positive", finite=False), as_vector(negative, "negative", finite=False)
    own, foreign = labels(pos_clusters, "pos_clusters"), labels(neg_clusters, "neg_clusters")
    if len(own) != len(hits) or len(foreign) != len(others):
        raise ValueError(
            f"every score needs a cluster; got {len(hits)}+{len(others)} scores, {len(own)}+{len(foreign)} clusters."
        )
    if within:
        areas = _areas_within(hits, others, own, foreign)
        drawn = _resampled(areas, mean, "cluster-bootstrap", rng, repeats=repeats, bounds=(0.0, 1.0))
        return (
            drawn
            if constant(areas)
            else union(drawn, _shifted(areas, len(hits) * len(others) // len(areas) ** 2), drawn.method)
        )
    drawn, pos_column, neg_column = cluster_multiplicities(own, foreign, rng=rng, repeats=repeats)
    wins = _wins(hits, others, pos_column, neg_column, drawn.shape[1])
    n = torch.bincount(pos_column, minlength=drawn.shape[1]).to(torch.float64)
    m = torch.bincount(neg_column, minlength=drawn.shape[1]).to(torch.float64)

    def area(counts: Tensor) -> Tensor:
        return ((counts @ wins) * counts).sum(1) / ((counts @ n) * (counts @ m))

    estimate, resampled = float(wins.sum() / (n.sum() * m.sum())), area(drawn)
    if constant(resampled):
        units = min(int((n > 0).sum()), int((m > 0).sum()))
        return _unseen(estimate, units, (0.0, 1.0), method="cluster-bootstrap")
    without_one = area(1 - torch.eye(drawn.shape[1], dtype=torch.float64))
    return _interval(estimate, resampled, without_one, bounds=(0.0, 1.0), method="cluster-bootstrap")


def _shifted(areas: Tensor, pairs: int) -> Interval:
    """Bound a mean of AUCs by moving the logits of all of them by Student's half-width for the mean logit.

    An AUC of 0 or 1 counts as half a pair of `pairs` wrong or right, the number in a cluster of average size."""
    n, half = len(areas), 0.5 / max(pairs, 1)
    logits = areas.clamp(half, 1 - half).logit()
    error = float(logits.std()) / math.sqrt(n - 1)  # widened by sqrt(n / (n - 1)), as in `bca_bounds`

    def ends(tail: float) -> tuple[float, float]:
        reach = -float(special.stdtrit(n - 1, tail)) * error
        return float((logits - reach).sigmoid().mean()), float((logits + reach).sigmoid().mean())

    return Interval.of(ends, "cluster-bootstrap")


def tpr_interval(
    positive: Numbers,
    negative: Numbers,
    *,
    pos_clusters: Labels,
    neg_clusters: Labels,
    fpr: float,
    rng: torch.Generator,
    repeats: int = 1000,
) -> Interval:
    """Bound the true-positive rate at false-positive rate `fpr`, one threshold for all, by resampling clusters.

    The union of the percentile interval with Student's and, where that reaches no further than the estimate, with what
    the clusters cannot have shown (`unseen_bounds`): few or none may differ."""
    owners = labels(pos_clusters, "pos_clusters"), labels(neg_clusters, "neg_clusters")
    estimate, resampled = tpr_resamples(positive, negative, clusters=owners, fpr=fpr, rng=rng, repeats=repeats)
    units, spread = min(len(owner.unique()) for owner in owners), float(resampled.std())
    ordered = resampled.sort().values

    def ends(tail: float) -> tuple[float, float]:
        low, high = ordered_quantile(ordered, tail), ordered_quantile(ordered, 1 - tail)
        reach = -float(special.stdtrit(max(units - 1, 1), tail)) * spread
        low, high = max(min(low, estimate - reach), 0.0), min(max(high, estimate + reach), 1.0)
        floor, ceiling = unseen_bounds(estimate, units, (0.0, 1.0), tail=tail)
        return (floor if low >= estimate else low), (ceiling if high <= estimate else high)

    return Interval.of(ends, "cluster-bootstrap")


def balanced_accuracy_interval(
    true: Labels, predicted: Labels, *, classes: int, clusters: Labels | None = None
) -> Interval:
    """Bound balanced accuracy: the union of two ways to combine Clopper-Pearson intervals.

    Of the recalls, the squared distances from their bounds add like variances (method of variance estimates recovery,
    Zou & Donner 2008). A bootstrap stratified by class has no spread in a class that is all right or all wrong: in
    simulations at n = 50 it covered down to 23%, this at least 92.7% (400 random designs of 2 to 7 classes). With one
    record per class, however, it excludes 1/3 at every level. So the interval of as many independent trials as have the
    variance of equal recalls, or of `clusters` (n,) where that is larger, is added. Raises ValueError for a class
    without records."""
    hits, counts = recalls(true, predicted, classes=classes)
    rates = (hits / counts).tolist()
    estimate = math.fsum(rates) / classes
    alike = classes**2 / float((1 / counts).sum())

    def recovered(tail: float) -> tuple[float, float]:
        bounds = [_beta_bounds(h, c, tail) for h, c in zip(hits.tolist(), counts.tolist(), strict=True)]
        below = math.sqrt(sum((rate - low) ** 2 for rate, (low, _) in zip(rates, bounds, strict=True))) / classes
        above = math.sqrt(sum((high - rate) ** 2 for rate, (_, high) in zip(rates, bounds, strict=True))) / classes
        return max(0.0, estimate - below), min(1.0, estimate + above)

    own, said = labels(true, "true"), labels(predicted, "predicted")
    pulls = ((own == said).to(torch.float64) - (hits / counts)[own]) / (classes * counts[own])
    owners = torch.arange(len(own)) if clusters is None else labels(clusters, "clusters")
    _, column = torch.unique(owners, return_inverse=True)
    sums = torch.zeros(int(column.max()) + 1, dtype=torch.float64).index_add_(0, column, pulls)

    def pooled(tail: float) -> tuple[float, float]:
        size = alike
        if 1 < len(sums) < len(own) and not constant(sums):
            spread = float(sums.square().sum()) * len(sums) / (len(sums) - 1)
            size = min(estimate * (1 - estimate) / spread * _student_ratio(len(sums), len(own), tail), alike)
        return _beta_bounds(estimate * size, size, tail)

    return union(Interval.of(recovered, "clopper-pearson"), Interval.of(pooled, "clopper-pearson"), "clopper-pearson")


def _student_ratio(clusters: int, n: int, tail: float) -> float:
    """The squared ratio of Student's quantiles, of n independent values to those of so many clusters."""
    few, many = (float(special.stdtrit(units - 1, min(tail, 0.49))) for units in (clusters, n))
    return (many / few) ** 2


def _resampled(
    values: Tensor,
    statistic: Statistic,
    method: Method,
    rng: torch.Generator,
    *,
    repeats: int,
    bounds: Bounds | None,
) -> Interval:
    n = len(values)
    if statistic is not mean and bounds is not None:
        raise ValueError("bounds are those of a mean; other statistics take none.")
    _check_bounds(values, bounds)
    estimate = float(statistic(values))
    if constant(values):
        return _unseen(estimate, n, bounds, method=method)
    resampled = bootstrap_statistics(values, statistic, rng=rng, repeats=repeats)
    without_one = (values.sum() - values) / (n - 1) if statistic is mean else jackknife(values, statistic)
    return _interval(estimate, resampled, without_one, bounds=bounds, method=method)


def _interval(
    estimate: float, resampled: Tensor, without_one: Tensor, *, bounds: Bounds | None, method: Method
) -> Interval:
    """Apply BCa and clip to `bounds`."""
    ordered = resampled.sort().values

    def ends(tail: float) -> tuple[float, float]:
        low, high = bca_bounds(estimate, ordered, without_one, tail=tail)
        return (low, high) if bounds is None else (max(low, bounds[0]), min(high, bounds[1]))

    return Interval.of(ends, method)


def _unseen(estimate: float, units: int, bounds: Bounds | None, *, method: Method) -> Interval:
    """The interval where no resampling varies the estimate."""
    return Interval.of(lambda tail: unseen_bounds(estimate, units, bounds, tail=tail), method)


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


def _beta_bounds(successes: float, n: float, tail: float) -> tuple[float, float]:
    """Compute Clopper-Pearson's bounds, extended to fractional numbers by the incomplete beta function."""
    low = 0.0 if successes <= 0 else float(special.betaincinv(successes, n - successes + 1, tail))
    high = 1.0 if successes >= n else float(special.betainccinv(successes + 1, n - successes, tail))
    return low, high


def _check_proportion(successes: float, n: int) -> None:
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"a proportion needs n >= 1 and 0 <= successes <= n; got {successes} of {n}.")
