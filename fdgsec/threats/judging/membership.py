"""Judge membership: the AUC over clients, the TPR at low FPR, the most exposed images, and the AUC by cluster size."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from fdgsec.metrics.interval import Interval, averaged
from fdgsec.metrics.intervals import cluster_auc_bootstrap, delong, tpr_interval
from fdgsec.metrics.measurement import Measurement, Slice
from fdgsec.metrics.roc import auc, placements, tpr_at_fpr
from fdgsec.runtime.random_streams import child
from fdgsec.threats.answers import Membership
from fdgsec.threats.judging.exposed_records import measure_exposed
from fdgsec.threats.judging.groups import Group, Scale, row, unavailable
from fdgsec.threats.judging.permutation_tests import ELEMENTS, NullRow, pvalue_of

LOW_RATES = {"tpr_at_1pct_fpr": 0.01, "tpr_at_01pct_fpr": 0.001}
BANDS: Sequence[tuple[str, int, int]] = (("2-3", 2, 3), ("4-8", 4, 8), ("9-20", 9, 20), ("21+", 21, 1 << 62))
"""Numbers of images in a cluster that are reported together; FINCH leaves none alone."""


def measure_membership(group: Group, rng: torch.Generator, *, repeats: int) -> list[Measurement]:
    """Give the AUC averaged over clients, and the TPR at low FPR of all clients' scores under one threshold.

    Scores are likelihood ratios, whose threshold means the same for every client, so they are pooled as they are. With
    one client alone records are resampled, and the interval speaks about that client only; that of the AUC speaks about
    a few given vectors only, too."""
    entries, names = group.of(Membership), ["auc", *LOW_RATES]
    positive, negative = [], []
    for entry in entries:
        scores, members = entry.answer.scores.detach().cpu(), entry.truth.members
        if members is None:
            return unavailable(names, group.slice, f"nobody knows the members of {entry.case.victim}", n=len(entries))
        if scores.shape != members.shape:
            raise ValueError(f"scores must be {tuple(members.shape)}, one per candidate; got {tuple(scores.shape)}.")
        if bool(scores.isnan().any()):
            reason = f"{int(scores.isnan().sum())} of {len(scores)} scores of {entry.case.victim} are NaN"
            return unavailable(names, group.slice, reason, n=len(entries))
        if not 0 < int(members.sum()) < len(members):
            reason = (
                f"{entry.case.victim} was asked about {int(members.sum())} members and {int((~members).sum())} others"
            )
            return unavailable(names, group.slice, reason, n=len(entries))
        positive.append(scores[members])
        negative.append(scores[~members])
    n = sum(len(scores) for scores in (*positive, *negative))
    area = sum(auc(own, others) for own, others in zip(positive, negative, strict=True)) / len(entries)
    interval = auc_interval(positive, negative, child(rng, "auc"), repeats, apart=group.few_given)
    rows = [row("auc", group.slice, area, interval, n, Scale(chance=0.5))]
    rows += _low_rates(group, positive, negative, child(rng, "roc"), repeats)
    rows += measure_exposed(group, child(rng, "exposed"), repeats=repeats)
    return rows + _cluster_sizes(group, child(rng, "clusters"), repeats)


def _owners(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([torch.full((len(part),), number) for number, part in enumerate(parts)])


def auc_interval(
    positive: Sequence[Tensor],
    negative: Sequence[Tensor],
    rng: torch.Generator,
    repeats: int,
    *,
    apart: bool = False,
) -> Interval | None:
    """Bound the AUC averaged over clients, each with scores of members and of others.

    Clients are resampled where there are several, else scores; None for fewer than two scores on a side of one. With
    `apart` each client's scores are, and the interval is about these clients alone."""
    if len(positive) == 1 or apart:
        enough = all(min(len(own), len(others)) > 1 for own, others in zip(positive, negative, strict=True))
        each = [delong(own, others) for own, others in zip(positive, negative, strict=True)] if enough else []
        return averaged(each, [1.0] * len(each), "delong") if each else None
    return cluster_auc_bootstrap(
        torch.cat(list(positive)), torch.cat(list(negative)), pos_clusters=_owners(positive),
        neg_clusters=_owners(negative), rng=rng, repeats=repeats,
    )  # fmt: skip


def _low_rates(
    group: Group, positive: Sequence[Tensor], negative: Sequence[Tensor], rng: torch.Generator, repeats: int
) -> list[Measurement]:
    hits, others = torch.cat(list(positive)), torch.cat(list(negative))
    alone = len(positive) == 1
    own = torch.arange(len(hits)) if alone else _owners(positive)
    foreign = len(hits) + torch.arange(len(others)) if alone else _owners(negative)
    rows: list[Measurement] = []
    for name, rate in LOW_RATES.items():
        value = tpr_at_fpr(hits, others, fpr=rate)
        if value is None:
            reason = (
                f"unresolvable: {len(others)} non-members leave {len(others) * rate:g} false positives, 10 are needed"
            )
            rows += unavailable([name], group.slice, reason, n=len(others))
            continue
        interval = None
        if min(len(hits), len(others)) > 1:
            interval = tpr_interval(
                hits, others, pos_clusters=own, neg_clusters=foreign, fpr=rate, rng=child(rng, name), repeats=repeats
            )
        rows.append(row(name, group.slice, value, interval, len(hits) + len(others), Scale(chance=rate)))
    return rows


def _cluster_sizes(group: Group, rng: torch.Generator, repeats: int) -> list[Measurement]:
    """Split the AUC by the number of images in a member's cluster, where all clients' clusters are known."""
    entries = group.of(Membership)
    sizes = [entry.truth.cluster_sizes for entry in entries if entry.truth.cluster_sizes is not None]
    if len(sizes) < len(entries):
        return []
    scores, members = [entry.answer.scores.detach().cpu() for entry in entries], [size > 0 for size in sizes]
    return cluster_size_rows(scores, members, sizes, where=group.slice, rng=rng, repeats=repeats)


def cluster_size_rows(
    scores: Sequence[Tensor],
    members: Sequence[Tensor],
    sizes: Sequence[Tensor],
    *,
    where: Slice,
    rng: torch.Generator,
    repeats: int,
) -> list[Measurement]:
    """Measure the AUC of the members in clusters of each band against all non-members, averaged over clients.

    Per client: `scores` (G,), `members` (G,) bool, and `sizes` (G,) int64, how many images are in the candidate's
    cluster (0 for non-members). Bands without members give no row, those of a single client one without a value.

    The rows are descriptive. Which cluster a member is in depends on what it looks like, while the non-members are of
    all kinds: without any information the members of small clusters, unusual images, may score above one half and those
    of large ones below, unlike all members together."""
    rows: list[Measurement] = []
    for name, least, most in BANDS:
        inside, outside = [], []
        for score, member, size in zip(scores, members, sizes, strict=True):
            mine = member & (size >= least) & (size <= most)
            if bool(mine.any()) and not bool(member.all()):
                inside.append(score[mine])
                outside.append(score[~member])
        if not inside:
            continue
        slice_ = {**where, "cluster_size": name}
        n = sum(len(part) for part in (*inside, *outside))
        if len(inside) < 2:
            rows += unavailable(["auc"], slice_, "one client alone has members in such clusters", n=n)
            continue
        own, foreign = _owners(inside), _owners(outside)
        interval = cluster_auc_bootstrap(
            torch.cat(inside), torch.cat(outside), pos_clusters=own, neg_clusters=foreign, rng=child(rng, name),
            repeats=repeats,
        )  # fmt: skip
        value = sum(auc(a, b) for a, b in zip(inside, outside, strict=True)) / len(inside)
        rows.append(row("auc", slice_, value, interval, n, Scale(chance=0.5, higher_is="descriptive")))
    return rows


def membership_test(group: Group, rng: torch.Generator, permutations: int) -> NullRow | None:
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
    images, called, exchanged = _images(group, known)
    # the share of a client's candidates that a candidate beats, itself counted half: AUC is linear in it
    beaten = [placements(part, part) for part in scores]
    sums = _sums_apart(beaten) if sum(map(len, images)) == len(called) else _sums_of_shared(beaten, images, len(called))
    sizes = torch.tensor([len(part) for part in scores], dtype=torch.float64)

    def areas(labeled: Tensor) -> Tensor:
        placed, inside = sums(labeled.to(torch.float64))
        outside = sizes - inside
        area = (placed * sizes - inside * inside / 2) / (inside * outside).clamp_min(1)
        usable = (inside > 0) & (outside > 0)
        return torch.where(usable, area, 0.0).sum(1) / usable.sum(1).clamp_min(1)

    def null(count: int, draws: torch.Generator) -> Tensor:
        rows = max(1, ELEMENTS // len(called))
        blocks = [min(rows, count - start) for start in range(0, count, rows)]
        return torch.cat([areas(_exchanged(block, called, exchanged, draws)) for block in blocks])

    observed = float(areas(called.unsqueeze(0)))
    p_value, drawn = pvalue_of(observed, null, rng, permutations)
    n = sum(len(part) for part in scores)
    return NullRow(name="auc", value=observed, p_value=p_value, n=n, slice=group.slice, permutations=drawn)


def _sums_apart(beaten: Sequence[Tensor]) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """A function that takes labels (R, U) and gives two sums over each client's members, (R, clients): of `beaten`, and
    of ones. No client has an image of another one, and theirs follow each other."""
    together = [torch.stack([place, torch.ones_like(place)], 1) for place in beaten]
    sizes = [len(place) for place in beaten]

    def sums(labeled: Tensor) -> tuple[Tensor, Tensor]:
        parts = labeled.split(sizes, 1)
        found = torch.stack([part @ values for part, values in zip(parts, together, strict=True)], 1)
        return found[..., 0], found[..., 1]

    return sums


def _sums_of_shared(
    beaten: Sequence[Tensor], images: Sequence[Tensor], count: int
) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """The same function where clients share `count` images, of which they were asked about `images` (G,)."""
    placed, ones = (torch.zeros(count, len(beaten), dtype=torch.float64) for _ in range(2))
    for client, (place, where) in enumerate(zip(beaten, images, strict=True)):
        placed[:, client].index_add_(0, where, place)
        ones[:, client].index_add_(0, where, torch.ones_like(place))
    return lambda labeled: (labeled @ placed, labeled @ ones)


def _images(group: Group, members: Sequence[Tensor]) -> tuple[list[Tensor], Tensor, list[int]]:
    """Number the images behind the candidates.

    Gives per client their numbers (G,), which of all (U,) are members, and how many images in a row may be exchanged
    for each other: all of them, or each client's, where no image was asked about twice or one is member here and not
    there."""
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
            return where, called, [len(numbers)]
    sizes = [len(mine) for mine in members]
    return list(torch.arange(sum(sizes)).split(sizes)), torch.cat(list(members)), sizes


def _exchanged(count: int, called: Tensor, sizes: Sequence[int], rng: torch.Generator) -> Tensor:
    """Draw which images are called members, (count, U): of each `sizes` in a row as many as are, any as likely."""
    keys = torch.rand(count, len(called), generator=rng, dtype=torch.float64).split(list(sizes), 1)
    drawn = []
    for part, members in zip(keys, called.split(list(sizes)), strict=True):
        last = int(members.sum()) - 1
        drawn.append(part <= torch.from_numpy(np.partition(part.numpy(), last, axis=1)[:, last : last + 1]))
    return torch.cat(drawn, 1)
