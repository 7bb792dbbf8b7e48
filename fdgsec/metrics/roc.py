"""Identification metrics: ranks and top-k over a gallery, ROC statistics of scores, accuracy of predicted labels.

Ties share credit everywhere: a statistic is its expectation when equal distances or scores are ordered at random, so an
attack that returns a constant scores exactly chance. Input may be a tensor, a float array or a sequence; it is detached
and moved to the CPU as float64. NaN is a ValueError."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fdgsec.metrics.bootstrap import cluster_multiplicities

Numbers = Tensor | npt.NDArray[np.float64] | npt.NDArray[np.float32] | Sequence[float]
Labels = Tensor | npt.NDArray[np.int64] | Sequence[int]
RESOLVABLE_FALSE_POSITIVES = 10
FEW_CLUSTERS = 100
"""Of so many or fewer, resampled curves are sums of the clusters' own; with more, adding up scores costs less."""


def as_vector(values: Numbers, name: str, *, finite: bool = True) -> Tensor:
    """Convert `values` to float64 (n,). Raises ValueError unless non-empty and without NaN (or inf if `finite`)."""
    given = (
        values.detach().cpu() if isinstance(values, Tensor) else torch.from_numpy(np.array(values, dtype=np.float64))
    )
    vector = given.to(torch.float64)
    if vector.ndim != 1 or not len(vector):
        raise ValueError(f"{name} must be a non-empty vector (n,); got shape {tuple(vector.shape)}.")
    if bool(vector.isnan().any()) or (finite and not bool(vector.isfinite().all())):
        wrong = int((~vector.isfinite()).sum())
        raise ValueError(f"{name} must be {'finite' if finite else 'free of NaN'}; {wrong} of {len(vector)} are not.")
    return vector


def labels(values: Labels, name: str) -> Tensor:
    """Convert `values` to int64 (n,) on the CPU. Raises ValueError unless a non-empty vector of integers."""
    vector = values.detach().cpu() if isinstance(values, Tensor) else torch.from_numpy(np.array(values))
    if vector.ndim != 1 or not len(vector):
        raise ValueError(f"{name} must be a non-empty vector (n,); got shape {tuple(vector.shape)}.")
    if vector.is_floating_point() or vector.is_complex() or vector.dtype == torch.bool:
        raise ValueError(f"{name} must hold integers; got {vector.dtype}.")
    return vector.to(torch.int64)


def _ahead_and_tied(distances: Tensor, truth: Labels) -> tuple[Tensor, Tensor]:
    """Count, per query, the gallery items nearer than the true one and those tied with it (itself included)."""
    index = labels(truth, "truth")
    if distances.ndim != 2 or not distances.shape[1] or distances.shape[0] != len(index):
        raise ValueError(
            "distances must be (Q, G) with G >= 1 and truth (Q,); "
            f"got {tuple(distances.shape)} and {tuple(index.shape)}."
        )
    if bool(distances.isnan().any()):
        raise ValueError(f"distances must be free of NaN; {int(distances.isnan().sum())} are NaN.")
    if bool(((index < 0) | (index >= distances.shape[1])).any()):
        raise ValueError(f"truth must lie in 0..{distances.shape[1] - 1}; got {int(index.min())}..{int(index.max())}.")
    own = distances.detach().gather(1, index.to(distances.device).unsqueeze(1))
    ahead = (distances < own).sum(1).to("cpu", torch.float64)
    return ahead, (distances == own).sum(1).to("cpu", torch.float64)


def ranks(distances: Tensor, truth: Labels) -> Tensor:
    """Rank each query's true gallery item, 1 (nearest) to G; tied items all get the average of their ranks.

    `distances` is (Q, G), small is near; `truth` (Q,) holds the true columns. Gives (Q,) float64; chance is
    (G + 1) / 2."""
    ahead, tied = _ahead_and_tied(distances, truth)
    return ahead + (tied + 1) / 2


def topk_credit(distances: Tensor, truth: Labels, *, k: int) -> Tensor:
    """Give each query the probability, over random tie-breaking, that its true item is among the `k` nearest.

    Arguments as for `ranks`; gives (Q,) float64 in [0, 1]; chance is k / G. Raises ValueError unless 1 <= k <= G."""
    ahead, tied = _ahead_and_tied(distances, truth)
    if not 1 <= k <= distances.shape[1]:
        raise ValueError(f"k must lie in 1..{distances.shape[1]} (the gallery); got {k}.")
    return ((k - ahead) / tied).clamp(0, 1)


def placements(scores: Tensor, references: Tensor) -> Tensor:
    """Give, per score, the fraction of `references` below it, ties counting half: (n,) in [0, 1], in O(n log n)."""
    ordered = references.sort().values
    below = torch.searchsorted(ordered, scores)
    not_above = torch.searchsorted(ordered, scores, right=True)
    return (below + not_above).to(torch.float64) / (2 * len(ordered))


def auc(positive: Numbers, negative: Numbers) -> float:
    """Estimate the probability that a positive outscores a negative, ties 1/2 (Mann-Whitney); chance is 0.5.

    Scores may be infinite (a likelihood ratio may), never NaN."""
    return float(
        placements(as_vector(positive, "positive", finite=False), as_vector(negative, "negative", finite=False)).mean()
    )


def tpr_at_fpr(positive: Numbers, negative: Numbers, *, fpr: float) -> float | None:
    """Compute the true-positive rate at false-positive rate `fpr`; None where there are too few negatives.

    There are too few where n_negative * fpr < 10: fewer than ten negatives would lie above the threshold. A group of
    equal scores at the threshold is admitted in the fraction that reaches `fpr` exactly, so a constant score gives
    chance, `fpr`, at every number of negatives. Raises ValueError unless 0 < fpr < 1."""
    hits, others = as_vector(positive, "positive", finite=False), as_vector(negative, "negative", finite=False)
    boundary = _threshold(others, fpr)
    if len(others) * fpr + 1e-9 < RESOLVABLE_FALSE_POSITIVES:  # 1000 * 0.01 must be 10 whatever the rounding
        return None
    spent, tied = int((others > boundary).sum()), int((others == boundary).sum())
    share = max(len(others) * fpr - spent, 0.0) / tied
    return float((hits > boundary).to(torch.float64).mean() + share * (hits == boundary).to(torch.float64).mean())


def tpr_with_ties(positive: Numbers, negative: Numbers, *, fpr: float) -> float:
    """Compute the true-positive rate that `tpr_at_fpr` would be with all positives that equal its threshold."""
    hits, others = as_vector(positive, "positive", finite=False), as_vector(negative, "negative", finite=False)
    return float((hits >= _threshold(others, fpr)).to(torch.float64).mean())


def _threshold(others: Tensor, fpr: float) -> float:
    """The highest score of `others` (n,) above which at most n * `fpr` lie. Raises ValueError unless 0 < fpr < 1."""
    if not 0 < fpr < 1:
        raise ValueError(f"fpr must lie in (0, 1); got {fpr}.")
    allowed = min(int(len(others) * fpr + 1e-9), len(others) - 1)
    return float(others.sort(descending=True).values[allowed])


@dataclass(frozen=True, kw_only=True, eq=False)
class RocCurve:
    """The corners of a ROC curve, from (0, 0) at threshold +inf to (1, 1); "score >= threshold" means positive.

    `fpr`, `tpr` and `thresholds` are (m,) float64; one corner per distinct score, so ties become straight lines."""

    fpr: Tensor
    tpr: Tensor
    thresholds: Tensor


def roc_curve(positive: Numbers, negative: Numbers) -> RocCurve:
    """Compute the curve by lowering the threshold through every distinct score."""
    hits, others = as_vector(positive, "positive", finite=False), as_vector(negative, "negative", finite=False)
    distinct: Tensor = torch.unique(torch.cat([hits, others])).flip(0)
    start = torch.zeros(1, dtype=torch.float64)

    def admitted(scores: Tensor) -> Tensor:
        above = len(scores) - torch.searchsorted(scores.sort().values, distinct)
        return torch.cat([start, above.to(torch.float64) / len(scores)])

    thresholds = torch.cat([torch.full((1,), torch.inf, dtype=torch.float64), distinct])
    return RocCurve(fpr=admitted(others), tpr=admitted(hits), thresholds=thresholds)


@dataclass(frozen=True, kw_only=True, eq=False)
class _RankedScores:
    """Scores of one side by the rank that each has among the `corners` of a ROC curve, from the highest on.

    `rank` is (n,) and `column` (n,) the cluster of each score; rank 0 is the corner (0, 0), which no score has."""

    rank: Tensor
    column: Tensor
    corners: int

    def admitted(self, drawn: Tensor) -> Tensor:
        """How many scores of resamples are at or above each corner, (R, corners), where clusters are `drawn` (R, C).

        Both ways give whole numbers, and the same ones."""
        clusters = drawn.shape[1]
        if clusters > FEW_CLUSTERS:
            counts = torch.zeros(len(drawn), self.corners, dtype=torch.float64)
            return counts.index_add_(1, self.rank, drawn[:, self.column]).cumsum(1)
        of_clusters = torch.bincount(self.column * self.corners + self.rank, minlength=clusters * self.corners)
        return drawn @ of_clusters.view(clusters, -1).cumsum(1).to(torch.float64)


def _tpr_on_grid(sides: tuple[_RankedScores, _RankedScores], drawn: Tensor, grid: Tensor) -> Tensor:
    """Interpolate the ROC curves of resamples, of positives and negatives, at the false-positive rates `grid` (g,).

    `drawn` (R, C) is how often each cluster is drawn; gives (R, g)."""
    hits, others = (side.admitted(drawn) for side in sides)
    fpr = others / others[:, -1:]
    # The last corner at or left of a grid point is the top of a vertical step, as in `tpr_at_fpr`; 1e-12 for rounding.
    queries = (grid + 1e-12).expand(len(fpr), -1).contiguous()
    left = (torch.searchsorted(fpr, queries, right=True) - 1).clamp(max=fpr.shape[1] - 2)
    x0, x1 = fpr.gather(1, left), fpr.gather(1, left + 1)
    y0, y1 = hits.gather(1, left) / hits[:, -1:], hits.gather(1, left + 1) / hits[:, -1:]
    share = torch.where(x1 > x0, (queries - x0) / (x1 - x0), 1.0).clamp(0, 1)
    return (y0 + share * (y1 - y0)).clamp(0, 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class RocBand:
    """A ROC curve at given false-positive rates with a pointwise bootstrap band; all fields are (g,) float64."""

    fpr: Tensor
    tpr: Tensor
    low: Tensor
    high: Tensor


def roc_band(
    positive: Numbers,
    negative: Numbers,
    *,
    pos_clusters: Labels,
    neg_clusters: Labels,
    fpr: Numbers,
    rng: torch.Generator,
    repeats: int = 1000,
) -> RocBand:
    """Compute the ROC curve at the rates `fpr` and a 95% percentile band from `repeats` resamples of whole clusters.

    A cluster id on both sides is one cluster, drawn together; give every record its own id where records are
    independent. The band is pointwise and for plots; `delong`, `cluster_auc_bootstrap` and
    `tpr_interval` are the tested intervals."""
    hits, others = as_vector(positive, "positive", finite=False), as_vector(negative, "negative", finite=False)
    owners = labels(pos_clusters, "pos_clusters"), labels(neg_clusters, "neg_clusters")
    if len(owners[0]) != len(hits) or len(owners[1]) != len(others):
        raise ValueError(
            f"every score needs a cluster; got {len(hits)}+{len(others)} scores, {len(owners[0])}+{len(owners[1])}."
        )
    grid = as_vector(fpr, "fpr")
    if bool(((grid < 0) | (grid > 1)).any()):
        raise ValueError(f"fpr must lie in [0, 1]; got {float(grid.min())}..{float(grid.max())}.")
    curve, resampled = _resampled_curves(hits, others, owners, grid, rng, repeats)
    low, high = resampled.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64), dim=0)
    return RocBand(fpr=grid, tpr=curve, low=low, high=high)


def tpr_resamples(
    positive: Numbers,
    negative: Numbers,
    *,
    clusters: tuple[Tensor, Tensor],
    fpr: float,
    rng: torch.Generator,
    repeats: int,
) -> tuple[float, Tensor]:
    """Compute the true-positive rate at `fpr`, and those of `repeats` resamples of whole clusters (repeats,)."""
    hits, others = as_vector(positive, "positive", finite=False), as_vector(negative, "negative", finite=False)
    curve, resampled = _resampled_curves(hits, others, clusters, torch.tensor([fpr], dtype=torch.float64), rng, repeats)
    return float(curve[0]), resampled[:, 0]


def _resampled_curves(
    hits: Tensor, others: Tensor, owners: tuple[Tensor, Tensor], grid: Tensor, rng: torch.Generator, repeats: int
) -> tuple[Tensor, Tensor]:
    """The curve at the false-positive rates `grid` (g,), and those of resampled clusters (repeats, g)."""
    drawn, *columns = cluster_multiplicities(*owners, rng=rng, repeats=repeats)
    distinct: Tensor
    place: Tensor
    distinct, place = torch.unique(torch.cat([hits, others]), return_inverse=True)
    ranks = torch.split(len(distinct) - place, [len(hits), len(others)])
    positive, negative = (
        _RankedScores(rank=rank, column=column, corners=len(distinct) + 1)
        for rank, column in zip(ranks, columns, strict=True)
    )
    rows = max(1, 4_000_000 // (len(hits) + len(others)))  # repeats at once: 32 MB an array
    once = torch.ones(1, drawn.shape[1], dtype=torch.float64)
    curves = [_tpr_on_grid((positive, negative), part, grid) for part in (once, *torch.split(drawn, rows))]
    return curves[0][0], torch.cat(curves[1:])


def accuracy(true: Labels, predicted: Labels) -> float:
    """Compute the fraction of labels that agree; compare it with `expected_agreement`, never with 1 / classes."""
    return float(_agreement(labels(true, "true"), labels(predicted, "predicted")).mean())


def _agreement(true: Tensor, predicted: Tensor) -> Tensor:
    if len(true) != len(predicted):
        raise ValueError(f"true and predicted must be equally long; got {len(true)} and {len(predicted)}.")
    return (true == predicted).to(torch.float64)


def majority_share(true: Labels) -> float:
    """Compute the share of the most common label: the accuracy of always guessing it."""
    counts: Tensor
    _, counts = torch.unique(labels(true, "true"), return_counts=True)
    return float(counts.max()) / float(counts.sum())


def expected_agreement(true: Labels, predicted: Labels) -> float:
    """Compute the mean accuracy of the same predictions in random order, the chance agreement of Cohen (1960).

    It is the sum over labels of the true share times the predicted one. A constant prediction has no other accuracy."""
    own, said = labels(true, "true"), labels(predicted, "predicted")
    n = len(_agreement(own, said))
    names: Tensor = torch.unique(torch.cat([own, said]))
    counts = [(int((own == name).sum()), int((said == name).sum())) for name in names.tolist()]
    return sum(first * second for first, second in counts) / (n * n)


def confusion(true: Labels, predicted: Labels, *, classes: int) -> Tensor:
    """Count (true, predicted) pairs: (classes, classes) int64, true classes in rows.

    Raises ValueError for labels outside 0..classes - 1."""
    rows, columns = labels(true, "true"), labels(predicted, "predicted")
    _agreement(rows, columns)
    for name, vector in (("true", rows), ("predicted", columns)):
        if int(vector.min()) < 0 or int(vector.max()) >= classes:
            raise ValueError(
                f"{name} labels must lie in 0..{classes - 1}; got {int(vector.min())}..{int(vector.max())}."
            )
    return torch.bincount(rows * classes + columns, minlength=classes * classes).reshape(classes, classes)


def balanced_accuracy(true: Labels, predicted: Labels, *, classes: int) -> float:
    """Average the recall over classes; chance is 1 / classes.

    Raises ValueError for a class without records: relabel to the classes present, and compare with their chance."""
    hits, counts = recalls(true, predicted, classes=classes)
    return float((hits / counts).mean())


def recalls(true: Labels, predicted: Labels, *, classes: int) -> tuple[Tensor, Tensor]:
    """Count the correct predictions and the records of each class, both (classes,) float64."""
    table = confusion(true, predicted, classes=classes).to(torch.float64)
    counts = table.sum(1)
    if bool((counts == 0).any()):
        absent = (counts == 0).nonzero().flatten().tolist()
        raise ValueError(f"every class needs a record; classes {absent} have none: relabel to those present.")
    return table.diagonal(), counts
