"""Permutation tests for negative controls: do the answers depend on the truth at all?

The truth is permuted among the rows of one case (one client's released rows share their domain), or, where every case
has one row, among the cases of a slice that could be mistaken for each other. The gallery need not be uniform: a style
that reveals its domain is no evidence here, because permuted truths have the same domains."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fdgsec.metrics.measurement import Slice
from fdgsec.metrics.significance import permutation_pvalue
from fdgsec.runtime.random_streams import child
from fdgsec.threats.judging.groups import Group

REPEATED = 10
"""How many times more permutations are drawn where the first ones leave a p-value that cannot be told from zero."""
SCARCE = 5
ELEMENTS = 2_000_000
"""Entries of a block of permutations: 16 MB."""


@dataclass(frozen=True, kw_only=True)
class NullRow:
    """The permutation test of one slice: the statistic `value`, its one-sided `p_value`, over `n` rows.

    Names: `rank_percentile` (1 where the true candidate is always first, .5 by chance), `auc`, `balanced_accuracy`,
    `relative_error` (geometric mean; here small is suspicious), `mae` (small is suspicious too), `psnr`,
    `differing_runs`."""

    name: str
    value: float
    p_value: float
    n: int
    slice: Slice = field(default_factory=dict)
    permutations: int = 999


NullTest = Callable[[Group, torch.Generator, int], NullRow | None]
"""Tests one group with that many permutations; None where the truth or a number is missing."""

Scores = Sequence[Tensor]
"""Per block a matrix (R, R): the score of row i with the truth of row j; the statistic is the mean of the diagonals."""


@dataclass(frozen=True, kw_only=True)
class PermutationTest:
    """A `NullTest` that permutes the rows of score matrices.

    `scores` makes them of a group, None where it cannot; `value` turns their mean into the statistic called `name`."""

    name: str
    scores: Callable[[Group], Scores | None]
    value: Callable[[float], float] = float

    def __call__(self, group: Group, rng: torch.Generator, permutations: int) -> NullRow | None:
        """Test one group."""
        blocks = self.scores(group)
        if blocks is None:
            return None
        n = sum(len(block) for block in blocks)
        observed = sum(float(block.diagonal().sum()) for block in blocks) / n
        p_value, drawn = pvalue_of(observed, lambda count, draws: _permuted(blocks, count, draws), rng, permutations)
        return NullRow(
            name=self.name, value=self.value(observed), p_value=p_value, n=n, slice=group.slice, permutations=drawn
        )


def pvalue_of(
    observed: float, null: Callable[[int, torch.Generator], Tensor], rng: torch.Generator, permutations: int
) -> tuple[float, int]:
    """Give the p-value and the number of permutations behind it.

    Drawing anew where few of the first permutations reach the statistic keeps the test valid: a p-value below a level
    must pass twice."""
    p_value = permutation_pvalue(observed, null(permutations, child(rng, "first")))
    if p_value > SCARCE / (permutations + 1):
        return p_value, permutations
    more = REPEATED * (permutations + 1) - 1
    return permutation_pvalue(observed, null(more, child(rng, "more"))), more


def _permuted(blocks: Scores, count: int, rng: torch.Generator) -> Tensor:
    total = torch.zeros(count, dtype=torch.float64)
    for block in blocks:
        size = len(block)
        rows = max(1, ELEMENTS // size)
        for start in range(0, count, rows):
            drawn = torch.rand(min(rows, count - start), size, generator=rng).argsort(1)
            total[start : start + len(drawn)] += block[torch.arange(size), drawn].sum(1)
    return total / sum(len(block) for block in blocks)


def exchangeable(sizes: Sequence[int], keys: Sequence[object]) -> list[list[int]]:
    """Say which entries to permute together: an entry of several rows alone, entries of one row by their `keys`."""
    found: dict[object, list[int]] = {}
    for number, (size, key) in enumerate(zip(sizes, keys, strict=True)):
        found.setdefault(("one row", key) if size == 1 else number, []).append(number)
    return list(found.values())
