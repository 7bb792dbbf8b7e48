"""Whether a guess has to do with the truth at all: permutation tests for negative controls.

The truth is permuted among the rows of one case (one client's released rows share their domain), or, where every case
has one row, among the cases of a slice that could be mistaken for each other. Nothing about the gallery need be
uniform: a style that gives its domain away is no evidence here, because permuted truths have the same domains."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fdgsec.data.domains import shrunk
from fdgsec.metrics.measurement import Slice
from fdgsec.metrics.roc import placements
from fdgsec.metrics.significance import permutation_pvalue
from fdgsec.runtime.random_streams import child
from fdgsec.threats.answers import Harmed
from fdgsec.threats.attack import Labels, Membership, Presence, Proportions, Ranking, Reconstructions, Recovered
from fdgsec.threats.judging.galleries import squared_distances
from fdgsec.threats.judging.groups import Group, finite
from fdgsec.threats.judging.properties import presence_scores, proportion_scores
from fdgsec.threats.judging.rankings import Ranked, ranked
from fdgsec.threats.judging.unordered_images import matched_psnr

REPEATED = 10
"""By how much more permutations are drawn where the first ones leave a p-value that cannot be told from zero."""
SCARCE = 5
_ELEMENTS = 2_000_000  # of a block of permutations: 16 MB


@dataclass(frozen=True, kw_only=True)
class NullRow:
    """The permutation test of one slice: the statistic `value`, its one-sided `p_value`, over `n` rows.

    Names: `rank_percentile` (1 where the true candidate is always first, .5 by chance), `auc`, `balanced_accuracy`,
    `relative_error` (geometric mean; here small is suspicious), `mae` (small is suspicious too), `psnr`, `differing_runs`."""

    name: str
    value: float
    p_value: float
    n: int
    slice: Slice = field(default_factory=dict)
    permutations: int = 999


Scores = Sequence[Tensor]
"""Per block a matrix (R, R): what row i scores when its truth is that of row j; the statistic is the diagonals' mean."""


def null_row(group: Group, rng: torch.Generator, *, permutations: int) -> NullRow | None:
    """Test one group; None for predictions, and where the truth or a number is missing (`measure` says which)."""
    answer = group.entries[0].answer
    if isinstance(answer, Membership):
        return _membership_null(group, rng, permutations)
    if isinstance(answer, Harmed):
        return _harm_null(group, permutations)
    named = _scored(group)
    if named is None:
        return None
    name, blocks, value_of = named
    n = sum(len(block) for block in blocks)
    observed = sum(float(block.diagonal().sum()) for block in blocks) / n
    p_value, drawn = _tested(observed, lambda count, coins: _permuted(blocks, count, coins), rng, permutations)
    return NullRow(name=name, value=value_of(observed), p_value=p_value, n=n, slice=group.slice, permutations=drawn)


def _harm_null(group: Group, permutations: int) -> NullRow | None:
    """Compare runs with forgeries that change nothing: p is 1 where every pair is the same to the byte, else the least.

    Nothing is left to chance between two such runs, so one that differs is a fault, however little it does."""
    found = [entry.truth.harm for entry in group.of(Harmed)]
    harms = [harm for harm in found if harm is not None]
    if not harms or len(harms) < len(found):
        return None
    same = sum(harm.none for harm in harms)
    p_value = 1.0 if same == len(harms) else 1 / (permutations + 1)
    return NullRow(
        name="differing_runs", value=1 - same / len(harms), p_value=p_value, n=len(harms), slice=group.slice,
        permutations=permutations,
    )  # fmt: skip


def _tested(
    observed: float, null: Callable[[int, torch.Generator], Tensor], rng: torch.Generator, permutations: int
) -> tuple[float, int]:
    """Give the p-value and the permutations behind it.

    Drawing afresh where the first p-value is scarce keeps the test valid: to end below a level it must pass both."""
    p_value = permutation_pvalue(observed, null(permutations, child(rng, "first")))
    if p_value > SCARCE / (permutations + 1):
        return p_value, permutations
    more = REPEATED * (permutations + 1) - 1
    return permutation_pvalue(observed, null(more, child(rng, "more"))), more


def _permuted(blocks: Scores, count: int, rng: torch.Generator) -> Tensor:
    total = torch.zeros(count, dtype=torch.float64)
    for block in blocks:
        size = len(block)
        rows = max(1, _ELEMENTS // size)
        for start in range(0, count, rows):
            drawn = torch.rand(min(rows, count - start), size, generator=rng).argsort(1)
            total[start : start + len(drawn)] += block[torch.arange(size), drawn].sum(1)
    return total / sum(len(block) for block in blocks)


def _scored(group: Group) -> tuple[str, Scores, Callable[[float], float]] | None:
    answer = group.entries[0].answer
    if isinstance(answer, Ranking):
        blocks = _ranking_scores(group)
        return None if blocks is None else ("rank_percentile", blocks, float)
    if isinstance(answer, Labels):
        blocks = _label_scores(group)
        return None if blocks is None else ("balanced_accuracy", blocks, float)
    if isinstance(answer, Proportions):
        blocks = proportion_scores(group)
        return None if blocks is None else ("mae", blocks, lambda mean: -mean)
    if isinstance(answer, Presence):
        blocks = presence_scores(group)
        return None if blocks is None else ("auc", blocks, float)
    if isinstance(answer, Recovered):
        blocks = _recovery_scores(group)
        return None if blocks is None else ("relative_error", blocks, lambda mean: math.exp(-mean))
    if isinstance(answer, Reconstructions):
        blocks = _reconstruction_scores(group)
        return None if blocks is None else ("psnr", blocks, float)
    return None


def _parts(sizes: Sequence[int], keys: Sequence[object]) -> list[list[int]]:
    """Say which entries to permute together: alone those of several rows, by `keys` those of one."""
    found: dict[object, list[int]] = {}
    for number, (size, key) in enumerate(zip(sizes, keys, strict=True)):
        found.setdefault(("one row", key) if size == 1 else number, []).append(number)
    return list(found.values())


def _ranking_scores(group: Group) -> Scores | None:
    entries = group.of(Ranking)
    blocks = ranked(entries)
    if isinstance(blocks, str):
        return None
    galleries: list[object] = [
        None if entry.case.candidates is None else tuple(entry.case.candidates.ids) for entry in entries
    ]
    parts = _parts([len(block.truth) for block in blocks], galleries)
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


def _label_scores(group: Group) -> Scores | None:
    true, predicted = [], []
    for entry in group.of(Labels):
        values = entry.truth.labels if entry.answer.of == "labels" else entry.truth.domains
        if values is None:
            return None
        true.append(values.cpu())
        predicted.append(entry.answer.predicted.detach().cpu())
    present: Tensor
    counts: Tensor
    present, counts = torch.unique(torch.cat(true), return_counts=True)
    n = sum(len(values) for values in true)
    across = group.of(Labels)[0].answer.of == "domains"  # within a case the domain is the same and nothing would move
    parts = [list(range(len(true)))] if across else _parts([len(values) for values in true], [None] * len(true))
    blocks = []
    for part in parts:
        own, guess = torch.cat([true[i] for i in part]), torch.cat([predicted[i] for i in part])
        worth = n / (len(present) * counts[torch.searchsorted(present, own)].to(torch.float64))
        blocks.append((guess.unsqueeze(1) == own).to(torch.float64) * worth)
    return blocks


def _recovery_scores(group: Group) -> Scores | None:
    entries = group.of(Recovered)
    truths = [entry.truth.statistic for entry in entries]
    known = [true.to(torch.float64) for true in truths if true is not None]
    guessed = [entry.answer.statistic.to(torch.float64) for entry in entries]
    if len(known) < len(entries) or finite({str(i): part for i, part in enumerate(guessed)}):
        return None
    blocks = []
    for part in _parts([len(true) for true in known], [None] * len(known)):
        own, guess = torch.cat([known[i] for i in part]), torch.cat([guessed[i] for i in part])
        error = torch.cdist(guess, own, compute_mode="donot_use_mm_for_euclid_dist") / own.norm(dim=1)
        blocks.append(-error.clamp_min(1e-15).log())
    return blocks


def _reconstruction_scores(group: Group) -> Scores | None:
    entries = group.of(Reconstructions)
    images = [entry.truth.images for entry in entries]
    known = [picture for picture in images if picture is not None]
    guessed = [entry.answer.images.float() for entry in entries]
    if len(known) < len(entries) or finite({str(i): part for i, part in enumerate(guessed)}):
        return None
    if not entries[0].answer.ordered:  # the pictures of an answer are matched together: answers are exchanged
        sizes = [(guess.shape[2], guess.shape[3]) for guess in guessed]
        sets = [shrunk(true, size) for true, size in zip(known, sizes, strict=True)]
        return [torch.tensor([[matched_psnr(guess, true) for true in sets] for guess in guessed], dtype=torch.float64)]
    blocks = []
    for part in _parts([len(guess) for guess in guessed], [None] * len(guessed)):
        guess = torch.cat([guessed[i] for i in part])
        true = torch.cat([shrunk(known[i], (guess.shape[2], guess.shape[3])) for i in part])
        error = squared_distances(guess, true).to(torch.float64) / guess[0].numel()
        blocks.append(-10 * error.clamp_min(1e-10).log10())
    return blocks if sum(len(block) for block in blocks) else None


def _membership_null(group: Group, rng: torch.Generator, permutations: int) -> NullRow | None:
    """Exchange which *images* are called members, the same for all clients that were asked about them.

    Clients re-drawn from one pool share candidates, so exchanging labels client by client would call a pool of easy
    images a leak. Where an image is a member of one client and not of another, labels are exchanged within clients."""
    entries = group.of(Membership)
    members = [entry.truth.members for entry in entries]
    known = [flags.cpu() for flags in members if flags is not None]
    scores = [entry.answer.scores.detach().cpu().to(torch.float64) for entry in entries]
    if len(known) < len(entries) or any(bool(part.isnan().any()) for part in scores):
        return None
    if any(not 0 < int(flags.sum()) < len(flags) for flags in known):
        return None
    images, called, owner = _images(group, known)
    # the share of a client's candidates that a candidate beats, itself counted half: AUC is linear in it
    beaten = [placements(part, part) for part in scores]

    def areas(flags: Tensor) -> Tensor:
        total = torch.zeros(len(flags), dtype=torch.float64)
        counted = torch.zeros(len(flags), dtype=torch.float64)
        for place, where in zip(beaten, images, strict=True):
            mine = flags[:, where].to(torch.float64)
            inside = mine.sum(1)
            outside, count = len(where) - inside, len(where)
            area = (mine @ place * count - inside * inside / 2) / (inside * outside).clamp_min(1)
            usable = (inside > 0) & (outside > 0)
            total += torch.where(usable, area, 0.0)
            counted += usable
        return total / counted.clamp_min(1)

    def null(count: int, coins: torch.Generator) -> Tensor:
        rows = max(1, _ELEMENTS // len(called))
        blocks = [min(rows, count - start) for start in range(0, count, rows)]
        return torch.cat([areas(called[_orders(block, owner, coins)]) for block in blocks])

    observed = float(areas(called.unsqueeze(0)))
    p_value, drawn = _tested(observed, null, rng, permutations)
    n = sum(len(part) for part in scores)
    return NullRow(name="auc", value=observed, p_value=p_value, n=n, slice=group.slice, permutations=drawn)


def _images(group: Group, members: Sequence[Tensor]) -> tuple[list[Tensor], Tensor, Tensor]:
    """Number the images behind the candidates.

    Gives per client their numbers (G,), which of all (U,) are members, and (U,) among which of each other they may be
    exchanged: among all, or within the client where no image was asked about twice or one is member here and not there."""
    numbers: dict[str, int] = {}
    sets = [entry.case.candidates for entry in group.entries if entry.case.groups is None]
    ids = [tuple(candidates.ids) for candidates in sets if candidates is not None]
    if len(ids) == len(members):
        where = [torch.tensor([numbers.setdefault(name, len(numbers)) for name in part]) for part in ids]
        called = torch.zeros(len(numbers), dtype=torch.bool)
        for part, mine in zip(where, members, strict=True):
            called[part] |= mine
        agreed = all(torch.equal(called[part], mine) for part, mine in zip(where, members, strict=True))
        if agreed and len(numbers) < sum(len(part) for part in where):
            return where, called, torch.zeros(len(numbers))
    sizes = [len(mine) for mine in members]
    owner = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return list(torch.arange(sum(sizes)).split(sizes)), torch.cat(list(members)), owner.to(torch.float32)


def _orders(count: int, owner: Tensor, rng: torch.Generator) -> Tensor:
    """Draw `count` permutations of the images (count, U), each keeping the owner of every place."""
    keys = owner.to(torch.float64) + torch.rand(count, len(owner), generator=rng, dtype=torch.float64)
    order = torch.empty(count, len(owner), dtype=torch.int64)
    order[:, owner.argsort(stable=True)] = keys.argsort(1)
    return order
