"""Judge rankings: how often the true candidate comes first, and its median rank."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fdgsec.metrics.measurement import Measurement, Slice
from fdgsec.metrics.proportion_intervals import clustered_proportion, matching_rate
from fdgsec.metrics.roc import ranks, topk_credit
from fdgsec.threats.answers import Ranking
from fdgsec.threats.judging.groups import Entry, Group, Scale, described, median_row, row, unavailable
from fdgsec.threats.judging.permutation_tests import PermutationTest, Scores, exchangeable

MATCHINGS = 8
"""Random orders over which an assignment is averaged, so that equal distances share their credit."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranked:
    """Rows whose candidates were ranked: `distances` (R, G) and the column `truth` (R,) of the true one."""

    distances: Tensor
    truth: Tensor


def ranked(entries: Sequence[Entry[Ranking]]) -> list[Ranked] | str:
    """Pair every ranking with the columns of the truth; a reason where one is missing or not a number."""
    found = []
    for entry in entries:
        truth, distances = entry.truth, entry.answer.distances.detach().cpu()
        if distances.ndim != 2:
            raise ValueError(f"a ranking's distances must be (R, G); got {tuple(distances.shape)}.")
        if bool(distances.isnan().any()):
            return f"{int(distances.isnan().sum())} of {distances.numel()} distances are NaN"
        if entry.answer.of == "partner":
            columns = None if truth.partner is None else torch.tensor([truth.partner])
        else:
            columns = truth.rows
        if columns is None:
            return f"there is no true candidate for {entry.case.victim} in the {entry.case.question} run"
        if distances.shape[0] != len(columns):
            raise ValueError(f"a ranking has {distances.shape[0]} rows for {len(columns)} released ones.")
        found.append(Ranked(distances=distances, truth=columns.cpu()))
    return found


def measure_rows(blocks: Sequence[Ranked], where: Slice, *, prefix: str = "") -> list[Measurement]:
    """Give top1, top5 and the median rank over all rows; chance is exact: k/G and (G + 1)/2, averaged over rows."""
    galleries = torch.cat([torch.full((len(block.truth),), block.distances.shape[1]) for block in blocks])
    n, rows, sizes = len(galleries), list[Measurement](), [len(block.truth) for block in blocks]
    for k in (1, 5):
        name = f"{prefix}top{k}"
        if int(galleries.min()) < k:
            rows += unavailable([name], where, f"a gallery of {int(galleries.min())} has no {k} nearest", n=n)
            continue
        # exactly rounded sums: a constant ranking scores chance to the last bit
        credits = [math.fsum(topk_credit(block.distances, block.truth, k=k).tolist()) for block in blocks]
        chance = math.fsum(k / gallery for gallery in galleries.tolist()) / n
        matched = k == 1 and len(blocks) == 1 and _all_candidates(blocks[0])
        interval = matching_rate(min(credits[0], float(n)), n) if matched else clustered_proportion(credits, sizes)
        rows.append(row(name, where, math.fsum(credits) / n, interval, n, Scale(chance=chance)))
    places = torch.cat([ranks(block.distances, block.truth) for block in blocks])
    scale = Scale(chance=float((galleries + 1).to(torch.float64).mean()) / 2, higher_is="safe", unit="rank")
    bounds = (1.0, float(galleries.max()))
    return [*rows, median_row("median_rank", where, places, scale, bounds=bounds, sizes=sizes)]


def _all_candidates(block: Ranked) -> bool:
    """Whether the rows are of all candidates, each once: guesses that differ then are a permutation of the truth."""
    return len(block.truth) == block.distances.shape[1] == len(block.truth.unique())


def measure_ranking(group: Group, rng: torch.Generator) -> list[Measurement]:
    """Judge one group of rankings, of images or of clients; descriptive answers get no verdict."""
    entries = group.of(Ranking)
    blocks = ranked(entries)
    linking = entries[0].answer.of == "partner"
    if isinstance(blocks, str):
        names = ["top1", "median_rank"] if linking else ["top1", "top5", "median_rank"]
        return unavailable(names, group.slice, blocks, n=len(entries))
    rows = _measure_links(blocks, group, rng) if linking else measure_rows(blocks, group.slice)
    return described(rows) if any(entry.answer.descriptive for entry in entries) else rows


def _measure_links(blocks: Sequence[Ranked], group: Group, rng: torch.Generator) -> list[Measurement]:
    """Give top1 of the nearest client, its median rank, and top1 of the assignment of least total distance.

    Chance is 1/N, and (N + 1)/2 for the rank, which shows weak links where thirty clients give too few hits."""
    widths = {block.distances.shape[1] for block in blocks}
    if len(widths) > 1:
        raise ValueError(f"clients of one slice must be linked to equally many; got {sorted(widths)}.")
    distances = torch.cat([block.distances for block in blocks])
    truth = torch.cat([block.truth for block in blocks])
    credits = {"": topk_credit(distances, truth, k=1), "hungarian": _matched(distances, truth, rng)}
    rows = []
    for matching, credit in credits.items():
        where = {**group.slice, "matching": matching} if matching else group.slice
        interval = matching_rate(min(float(credit.sum()), float(len(credit))), len(credit))
        rows.append(
            row("top1", where, float(credit.mean()), interval, len(credit), Scale(chance=1 / distances.shape[1]))
        )
    scale = Scale(chance=(distances.shape[1] + 1) / 2, higher_is="safe", unit="rank")
    bounds = (1.0, float(distances.shape[1]))
    return [*rows, median_row("median_rank", group.slice, ranks(distances, truth), scale, bounds=bounds)]


def _matched(distances: Tensor, truth: Tensor, rng: torch.Generator) -> Tensor:
    """Credit each row for getting its true column in the cheapest one-to-one assignment (the Hungarian method).

    Rows and columns are put in random order first: among equal distances the solver would prefer the diagonal."""
    credit = torch.zeros(len(truth), dtype=torch.float64)
    cost = distances.to(torch.float64)
    finite = cost[torch.isfinite(cost)]
    cost = cost.clamp(max=2 * float(finite.max()) + 1 if len(finite) else 1.0)  # the solver refuses infinities
    for _ in range(MATCHINGS):
        down, across = (torch.randperm(size, generator=rng) for size in cost.shape)
        solved = linear_sum_assignment(cost[down][:, across].numpy())
        at, to = (torch.from_numpy(np.asarray(part)) for part in cast(tuple[npt.NDArray[np.int64], ...], solved))
        credit[down[at]] += (across[to] == truth[down[at]]).to(torch.float64)
    return credit / MATCHINGS


def _ranking_scores(group: Group) -> Scores | None:
    entries = group.of(Ranking)
    blocks = ranked(entries)
    if isinstance(blocks, str):
        return None
    galleries: list[object] = [
        None if entry.case.candidates is None else tuple(entry.case.candidates.ids) for entry in entries
    ]
    parts = exchangeable([len(block.truth) for block in blocks], galleries)
    return [
        _percentiles(
            Ranked(
                distances=torch.cat([blocks[i].distances for i in part]),
                truth=torch.cat([blocks[i].truth for i in part]),
            )
        )
        for part in parts
    ]


def _percentiles(block: Ranked) -> Tensor:
    """Place, for each row, every row's true candidate: 1 first, 0 last, ties in the middle of their places."""
    gallery = block.distances.shape[1]
    if gallery < 2:
        return torch.full((len(block.truth), len(block.truth)), 0.5, dtype=torch.float64)
    ordered = block.distances.sort(1).values
    asked = block.distances[:, block.truth].contiguous()
    ahead = torch.searchsorted(ordered, asked)
    last = torch.searchsorted(ordered, asked, right=True)
    rank = (ahead + last + 1).to(torch.float64) / 2
    return 1 - (rank - 1) / (gallery - 1)


RANKING_TEST = PermutationTest(name="rank_percentile", scores=_ranking_scores)
