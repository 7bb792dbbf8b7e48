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
from fdgsec.metrics.rank_medians import low_ranks_pvalue, median_of_uniform_ranks
from fdgsec.metrics.roc import ranks, topk_credit
from fdgsec.threats.answers import Ranking
from fdgsec.threats.judging.groups import Entry, Group, Scale, described, median_row, row, unavailable
from fdgsec.threats.judging.permutation_tests import PermutationTest, Scores, exchangeable

MATCHINGS = 8
"""Random orders over which an assignment is averaged, so that equal distances share their credit."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranked:
    """Rows whose candidates were ranked: `distances` (R, G) and the column `truth` (R,) of the true one.

    `among` are the numbers of the clients that the columns are of; None of all clients, or of images."""

    distances: Tensor
    truth: Tensor
    among: tuple[int, ...] | None = None


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
        block = Ranked(distances=distances, truth=columns.cpu())
        found.append(block if entry.answer.of == "rows" or truth.alike is None else _within(block, truth.alike))
    return found


def _within(block: Ranked, alike: Sequence[int]) -> Ranked:
    """Leave the clients that are `alike` in what is no link, which is their domain."""
    places = torch.tensor([list(alike).index(column) for column in block.truth.tolist()])
    return Ranked(distances=block.distances[:, list(alike)], truth=places, among=tuple(alike))


def measure_rows(blocks: Sequence[Ranked], where: Slice, *, prefix: str = "") -> list[Measurement]:
    """Give top1, top5 and the median rank over all rows; chance is exact: k/G, averaged over rows, and the median of
    ranks that are uniform in each row's gallery."""
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
    return [*rows, _median_rank(blocks, where, sizes=sizes)]


def _median_rank(blocks: Sequence[Ranked], where: Slice, *, sizes: Sequence[int] = ()) -> Measurement:
    """Give the median rank over all rows, which come in clusters of `sizes`, beside the median that it has by chance.

    It is below chance only where also so many ranks below chance are rare, given which distances are equal and which
    rows have the same candidates (fdgsec.metrics.rank_medians)."""
    places = torch.cat([ranks(block.distances, block.truth) for block in blocks])
    galleries = [block.distances.shape[1] for block in blocks for _ in block.truth]
    chance = median_of_uniform_ranks(galleries)
    return median_row(
        "median_rank", where, places, Scale(chance=chance, higher_is="safe", unit="rank"),
        bounds=(1.0, float(max(galleries))), sizes=sizes,
        p_value=low_ranks_pvalue([(block.distances, block.truth) for block in blocks], chance),
    )  # fmt: skip


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

    Clients are ranked among the N of their domain, for whoever tells domains has linked nobody; those alone in theirs
    are left out, for there is nobody to confuse them with. Chance is 1/N, averaged over clients, and the median of
    ranks that are uniform on 1..N, which shows weak links where thirty clients give too few hits."""
    joined = [block for block in _joined(blocks) if block.distances.shape[1] > 1]
    if not joined:
        return unavailable(["top1", "median_rank"], group.slice, "every client is the only one of its domain", n=0)
    sizes = torch.tensor([block.distances.shape[1] for block in joined for _ in block.truth], dtype=torch.float64)
    nearest = torch.cat([topk_credit(block.distances, block.truth, k=1) for block in joined])
    assigned = torch.cat([_matched(block.distances, block.truth, rng) for block in joined])
    rows, n = [], len(sizes)
    for matching, credit in {"": nearest, "hungarian": assigned}.items():
        where = {**group.slice, "matching": matching} if matching else group.slice
        hits = min(float(credit.sum()), float(n))
        interval = matching_rate(hits, *(len(block.truth) for block in joined))
        rows.append(row("top1", where, hits / n, interval, n, Scale(chance=float((1 / sizes).mean()))))
    return [*rows, _median_rank(joined, group.slice)]


def _joined(blocks: Sequence[Ranked]) -> list[Ranked]:
    """One block for all rows that were ranked among the same clients.

    Raises ValueError where those of one slice are ranked among all clients, and these are of unequal number."""
    found: dict[tuple[int, ...] | None, list[Ranked]] = {}
    for block in blocks:
        found.setdefault(block.among, []).append(block)
    widths = {block.distances.shape[1] for block in found.get(None, [])}
    if len(widths) > 1:
        raise ValueError(f"clients of one slice must be linked to equally many; got {sorted(widths)}.")
    return [
        Ranked(
            distances=torch.cat([block.distances for block in same]),
            truth=torch.cat([block.truth for block in same]), among=among,
        )
        for among, same in found.items()
    ]  # fmt: skip


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
        block.among if entry.case.candidates is None else tuple(entry.case.candidates.ids)
        for entry, block in zip(entries, blocks, strict=True)
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
