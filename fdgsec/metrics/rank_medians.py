"""The median of ranks among galleries of unequal size: its chance, and how often as many low ranks come by chance."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats
from torch import Tensor

from fdgsec.metrics.roc import ranks

MATCHED = 12
"""The most rows that are matched one to one whose permutations are counted; the ranks of more are taken for
independent, which makes the variance of a count too small by a twelfth at most."""

Shares = npt.NDArray[np.float64]


def median_of_uniform_ranks(galleries: Sequence[int]) -> float:
    """The median of ranks that are uniform on 1..G, where G is drawn from `galleries`, the sizes that rows have.

    It is (G + 1)/2 where all are equal. Otherwise the mean of (G + 1)/2 is another number: of ranks among 20 and, as
    often, among 3 the mean is 6.25 and the median 3. Raises ValueError without a size, or for one below 1."""
    if not galleries or min(galleries) < 1:
        raise ValueError(f"ranks need galleries of 1 candidate or more; got {list(galleries)}.")
    counts = {size: galleries.count(size) for size in set(galleries)}

    def up_to(rank: int) -> Fraction:
        return sum((Fraction(many * min(rank, size), size) for size, many in counts.items()), Fraction(0))

    half = Fraction(len(galleries), 2)
    low = next(rank for rank in range(1, max(galleries) + 1) if up_to(rank) >= half)
    return low + 0.5 if up_to(low) == half and low < max(galleries) else float(low)


def low_ranks_pvalue(blocks: Sequence[tuple[Tensor, Tensor]], limit: float) -> float:
    """The probability of at least as many ranks below `limit` as there are, if the truth is drawn at random.

    A block is its distances (R, G) and the true columns (R,). Where these are all G columns, each once, the truth of up
    to `MATCHED` rows is a random permutation: two rows that each have the first candidate nearer than the second are
    both right or both wrong if the candidates are exchanged. Other rows draw theirs one by one. Equal distances have
    the mean of their ranks, which need not be symmetric about (G + 1)/2: among ten candidates of which nine are
    equally near, nine ranks are 5, and below 5.5."""
    found, together, alone = 0, np.ones(1), list[float]()
    for distances, truth in blocks:
        found += int((ranks(distances, truth) < limit).sum())
        if len(truth) == distances.shape[1] == len(truth.unique()) <= MATCHED:
            low = torch.stack([ranks(distances, column.expand(len(truth))) < limit for column in truth], dim=1)
            together = np.convolve(together, _permuted_counts(low.numpy()))
        else:
            alone += _low_shares(distances, limit).tolist()
    for share, many in zip(*np.unique(np.array(alone), return_counts=True), strict=True):
        together = np.convolve(together, stats.binom.pmf(np.arange(many + 1), many, share))
    return min(float(together[found:].sum()), 1.0)


def _low_shares(distances: Tensor, limit: float) -> Tensor:
    """The share of each row's candidates (R, G) whose rank is below `limit`, at least 1: (R,)."""
    below = int(np.ceil(limit)) - 1  # so many ranks of unequal candidates are
    if below < 1:
        return torch.zeros(len(distances), dtype=torch.float64)
    last = distances.kthvalue(min(below, distances.shape[1]), dim=1, keepdim=True).values
    nearer, tied = (distances < last).sum(1), (distances == last).sum(1)
    return (nearer + tied * (nearer + (tied + 1) / 2 < limit)).to(torch.float64) / distances.shape[1]


def _permuted_counts(low: npt.NDArray[np.bool_]) -> Shares:
    """The distribution of the number of true `low[i, p(i)]` (n, n) over all permutations p: (n + 1,).

    Row by row, it counts the ways to give the rows so far each a column of a set, for all sets of as many columns."""
    n = len(low)
    sets, ways = np.arange(2**n), np.zeros((2**n, n + 1))
    members = sum((sets >> column) & 1 for column in range(n))
    ways[0, 0] = 1
    for row in range(n):
        for column in range(n):
            free = sets[(members == row) & ((sets >> column) & 1 == 0)]
            ways[free | 1 << column] += np.roll(ways[free], int(low[row, column]), axis=1)
    counted: Shares = ways[-1] / ways[-1].sum()
    return counted
