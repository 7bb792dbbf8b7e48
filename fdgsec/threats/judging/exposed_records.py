"""Membership of the records that are most exposed, where averages over records hide them.

Clients that are drawn from one pool share images: an image is a member of some and not of others. Half of the clients
choose the images that are told apart best, the other half measures them, so that the choice cannot flatter them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fdgsec.metrics.interval import Interval, union
from fdgsec.metrics.intervals import bootstrap, cluster_auc_bootstrap
from fdgsec.metrics.measurement import Measurement
from fdgsec.metrics.roc import auc
from fdgsec.runtime.random_streams import child
from fdgsec.threats.answers import Membership
from fdgsec.threats.judging.groups import Group, Scale, constant, row, unavailable

NAMES = ("exposed_auc", "exposed_tpr_at_1pct_fpr")
SHARE = 0.1
"""The share of the images, by how well half of the clients tells them apart, that counts as most exposed."""
LEAST_IMAGES, LEAST_CLIENTS = 50, 8
LOW_RATE = 0.01


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """All questions about images, (N,) each: the number of the image, of the client, its place, credit, and the truth.

    A place is the share of the client's other non-members that the image's score beats, and a credit the probability
    that it is in their highest 1% (`_places_and_credits`)."""

    images: Tensor
    clients: Tensor
    places: Tensor
    credits: Tensor
    members: Tensor

    def among(self, chosen: Tensor) -> "_Asked":
        """Those that `chosen` (N,) marks."""
        return _Asked(
            images=self.images[chosen], clients=self.clients[chosen], places=self.places[chosen],
            credits=self.credits[chosen], members=self.members[chosen],
        )  # fmt: skip

    def counts(self, size: int) -> tuple[Tensor, Tensor]:
        """How often each of `size` images is a member, and how often not."""
        return (
            torch.bincount(self.images[self.members], minlength=size),
            torch.bincount(self.images[~self.members], minlength=size),
        )

    def means(self, values: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Each image's mean of `values` (N,) as a member and as another, (size,) each; NaN where it is never one."""
        inside, outside = (
            torch.zeros(size, dtype=torch.float64).index_add_(0, self.images[mine], values[mine])
            for mine in (self.members, ~self.members)
        )
        first, second = self.counts(size)
        return inside / first, outside / second


def measure_exposed(group: Group, rng: torch.Generator, *, repeats: int) -> list[Measurement]:
    """Give AUC and TPR at 1% FPR of the tenth of the images that is told apart best, on clients that did not choose it.

    The threshold of the TPR is each client's own, and chance the rate of the same images as non-members: images whose
    scores vary more than others' exceed it more often, whether members or not. No rows where images are not asked about
    repeatedly; unavailable ones where fewer than 50 are members and non-members of clients in both halves, or clients
    are fewer than 8."""
    entries = group.of(Membership)
    candidates = [entry.case.candidates for entry in entries]
    truths = [entry.truth.members for entry in entries]
    ids = [tuple(known.ids) for known in candidates if known is not None]
    members = [flags.cpu() for flags in truths if flags is not None]
    if len(ids) < len(entries) or len(members) < len(entries) or not _repeated(ids):
        return []
    victims = _numbered([entry.case.victim for entry in entries])
    count = int(victims.max()) + 1
    if count < LEAST_CLIENTS:
        reason = f"{count} clients are too few to choose by half of them and measure by the other"
        return unavailable(NAMES, group.slice, reason, n=count)
    asked, size = _asked(ids, members, [entry.answer.scores.detach().cpu() for entry in entries], victims)
    choosing, measuring = asked.among(asked.clients % 2 == 0), asked.among(asked.clients % 2 == 1)
    often = [count > 0 for half in (choosing, measuring) for count in half.counts(size)]
    eligible = torch.stack(often).all(0)
    if int(eligible.sum()) < LEAST_IMAGES:
        reason = f"{int(eligible.sum())} images are members and non-members in both halves; {LEAST_IMAGES} are needed"
        return unavailable(NAMES, group.slice, reason, n=int(eligible.sum()))
    inside, outside = choosing.means(choosing.places, size)
    gaps = torch.where(eligible, inside - outside, -math.inf)
    most = torch.zeros(size, dtype=torch.bool)
    most[gaps.topk(math.ceil(SHARE * int(eligible.sum()))).indices] = True
    return _rows(group, measuring.among(most[measuring.images]), rng, repeats)


def _repeated(ids: Sequence[Sequence[str]]) -> bool:
    """Whether an image is asked about twice or more on average."""
    return sum(map(len, ids)) >= 2 * len(set().union(*ids))


def _numbered(names: Sequence[str]) -> Tensor:
    """The number of each name, by first occurrence."""
    numbers: dict[str, int] = {}
    return torch.tensor([numbers.setdefault(name, len(numbers)) for name in names])


def _asked(
    ids: Sequence[Sequence[str]], members: Sequence[Tensor], scores: Sequence[Tensor], victims: Tensor
) -> tuple[_Asked, int]:
    """All questions as one table, and the number of different images."""
    images = _numbered([name for part in ids for name in part])
    found = [_places_and_credits(part, mine) for part, mine in zip(scores, members, strict=True)]
    owners = victims.repeat_interleave(torch.tensor([len(part) for part in ids]))
    places, credits = (torch.cat(parts) for parts in zip(*found, strict=True))
    asked = _Asked(images=images, clients=owners, places=places, credits=credits, members=torch.cat(list(members)))
    return asked, int(images.max()) + 1


def _places_and_credits(scores: Tensor, members: Tensor) -> tuple[Tensor, Tensor]:
    """The place and the credit of each score (G,) of one client among its non-members, without itself.

    Ties are in random order. So that a member has as many rivals as another, its credit is the mean over all ways to
    leave one of them out: without information both have the same distribution."""
    others = scores[~members].sort().values
    below = torch.searchsorted(others, scores).to(torch.float64)
    tied = torch.searchsorted(others, scores, right=True) - below - (~members).to(torch.float64)
    rivals = len(others) - 1
    among = torch.where(members, rivals + 1, rivals)
    places = torch.where(among > 0, (below + tied / 2) / among.clamp_min(1), 0.5)
    alone = _credit(below, tied, rivals)
    less = below * _credit(below - 1, tied, rivals) + tied * _credit(below, tied - 1, rivals)
    left_out = (less + (rivals + 1 - below - tied) * alone) / (rivals + 1)
    return places, torch.where(members, left_out, alone)


def _credit(below: Tensor, tied: Tensor, rivals: int) -> Tensor:
    """The probability that a score is in the highest 1% of itself and its rivals, of which some are below or tied.

    One that is below k of m rivals has (.01 (m + 1) - k), within 0 and 1: of all m + 1 places, the mean is .01 at every
    m. Of ties, the mean over their orders."""
    top = (1 - LOW_RATE) * (rivals + 1)
    admitted = (below + tied + 1 - top).clamp_min(0) - (below - top).clamp_min(0)
    return admitted / (tied + 1).clamp_min(1)


def _both(owners: Tensor, members: Tensor) -> Tensor:
    """Which questions, (N,), are those of owners (clients or images) with members and others."""
    size = int(owners.max()) + 1 if len(owners) else 0
    kinds = [torch.bincount(owners[mine], minlength=size) > 0 for mine in (members, ~members)]
    return (kinds[0] & kinds[1])[owners]


def _rows(group: Group, asked: _Asked, rng: torch.Generator, repeats: int) -> list[Measurement]:
    """Measure the chosen images; intervals resample images, and clients, and contain both.

    Clients that were asked about members or others alone among the chosen images are left out, and images likewise:
    one such cannot be resampled among its like."""
    while not bool((kept := _both(asked.clients, asked.members) & _both(asked.images, asked.members)).all()):
        asked = asked.among(kept)
    own, others = asked.among(asked.members), asked.among(~asked.members)
    if len(own.clients.unique()) < LEAST_CLIENTS // 2:
        reason = "too few clients have members and others among the most exposed images"
        return unavailable(NAMES, group.slice, reason, n=len(own.clients.unique()))
    by_image = cluster_auc_bootstrap(
        own.places, others.places, pos_clusters=own.images, neg_clusters=others.images, rng=child(rng, "images"),
        repeats=repeats, within=False,
    )  # fmt: skip
    by_client = cluster_auc_bootstrap(
        own.places, others.places, pos_clusters=own.clients, neg_clusters=others.clients, rng=child(rng, "clients"),
        repeats=repeats, within=False,
    )  # fmt: skip
    area = auc(own.places, others.places)
    interval = union(by_image, by_client, by_image.method)
    count = len(own.images.unique())
    return [
        row(NAMES[0], group.slice, area, interval, count, Scale(chance=0.5)),
        _low_rate(group, asked, child(rng, "rate"), repeats),
    ]


def _low_rate(group: Group, asked: _Asked, rng: torch.Generator, repeats: int) -> Measurement:
    """The mean credit of the images as members, against that as non-members; every image counts alike.

    The interval is of the difference, over images and over the clients' parts of it, and contains both."""
    names: Tensor
    column: Tensor
    names, column = torch.unique(asked.images, return_inverse=True)
    numbered, size = replace(asked, images=column), len(names)
    inside, outside = numbered.means(asked.credits, size)
    value, chance = float(inside.mean()), float(outside.mean())
    apart = bootstrap(inside - outside, rng=child(rng, "images"), repeats=repeats, bounds=(-1.0, 1.0))
    own, other = numbered.counts(size)
    counts = torch.where(asked.members, own[column], other[column])
    parts = torch.where(asked.members, asked.credits - value, chance - asked.credits) / (size * counts)
    _, owners = torch.unique(asked.clients, return_inverse=True)
    clients = int(owners.max()) + 1
    shares = clients * torch.zeros(clients, dtype=torch.float64).index_add_(0, owners, parts)
    if not constant(shares):
        by_client = bootstrap(value - chance + shares, rng=child(rng, "clients"), repeats=repeats)
        apart = union(apart, by_client, "cluster-bootstrap")

    def ends(tail: float) -> tuple[float, float]:
        low, high = apart.ends(tail)
        return max(chance + low, 0.0), min(chance + high, 1.0)

    measured = Scale(chance=chance, chance_kind="measured")
    return row(NAMES[1], group.slice, value, Interval.of(ends, apart.method), size, measured)
