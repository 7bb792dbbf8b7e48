"""The whitening of a test of one candidate at a time, from all images that the adversary holds.

The candidates themselves, whose labels nobody knows, are most of these images. Members are among them, so that a
release lies in their span: a whitening that is hardly shrunk then tells members better than one with the shrinkage that
is optimal for the covariance of images not seen (Ledoit & Wolf 2004 minimize a squared error). The shrinkage is
therefore chosen by the power that the test has in rehearsals: the adversary draws clients from the candidates, adds the
errors that their releases would have, and scores their members. So is whether auxiliary images take part, which are
nobody's: they tell what images are like, and widen the span in which members are looked for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fdgsec.attacks.statistics.tracing import TracingTest, Whitening, correlations_of
from fdgsec.metrics.roc import auc
from fdgsec.runtime.random_streams import child

SHARES = (1e-4, 1e-8)
"""Shares of the identity that are tried with and without the auxiliary images, beside Ledoit and Wolf's with all."""
REHEARSALS = 8
"""Clients that are drawn for each choice."""
SCORED = 150
"""Members, and as many others, that are scored of each."""
COARSE = 1e-6
"""Variance of a release's error, in units of that of its sampling, from which a whitening has to include it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class GalleryWhitening:
    """A whitening, the number of images behind its center, and the AUC that the test had in rehearsals."""

    whiten: Whitening
    images: int
    rehearsed: float


def gallery_whitening(
    candidates: Tensor,
    auxiliary: Tensor,
    others: Sequence[Tensor],
    *,
    records: int,
    variance: Tensor,
    test: TracingTest,
    rng: torch.Generator,
) -> GalleryWhitening:
    """Choose the whitening with which a test finds most members of clients of `records` of the `candidates` (G, D).

    `auxiliary` (n, D) are images of their domain and `others` of other ones, of which none is a member; `variance` (D,)
    is that of a release's error (rounding, defenses). Raises ValueError for fewer than two images."""
    drawn = list(_rehearsals(candidates, records, variance, rng))
    best: GalleryWhitening | None = None
    for whiten, images in _whitenings(candidates, auxiliary, others, records, variance):
        whitened = whiten(candidates) if drawn else candidates
        areas = [
            auc(scores[: len(scores) // 2], scores[len(scores) // 2 :])
            for release, scored, size in drawn
            for scores in (test(whiten(release), whitened[scored], records=size, reference=images),)
        ]
        rehearsed = sum(areas) / len(areas) if areas else 0.5
        if best is None or rehearsed > best.rehearsed:
            best = GalleryWhitening(whiten=whiten, images=images, rehearsed=rehearsed)
    assert best is not None
    return best


def _whitenings(
    candidates: Tensor, auxiliary: Tensor, others: Sequence[Tensor], records: int, variance: Tensor
) -> Iterator[tuple[Whitening, int]]:
    """The choices and their numbers of images, with the error of a release included where it matters."""
    images = torch.cat([auxiliary, candidates])
    every, alone = correlations_of(images), correlations_of(candidates) if len(candidates) > 1 else None
    choices = [(correlations_of(images, others=others).shrunk(), len(images))]
    choices += [(every.shrunk(share), len(images)) for share in SHARES]
    if alone is not None and len(auxiliary):
        choices += [(alone.shrunk(share), len(candidates)) for share in SHARES]
    for plain, count in choices:
        spread = variance / (1 / records + 1 / (count + 1))
        coarse = bool((spread > COARSE * every.scale.square()).any())
        yield (plain.blurred(spread) if coarse else plain), count


def _rehearsals(
    images: Tensor, records: int, variance: Tensor, rng: torch.Generator
) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Releases (D,) of clients that are drawn from `images`; the places of members and as many others, (2 k,); sizes.

    A size is `records`, as far as enough others are left to score."""
    size = min(records, len(images) - min(SCORED, len(images) // 2))
    if size < 2:
        return
    for number in range(REHEARSALS):
        child_rng = child(rng, number)
        order = torch.randperm(len(images), generator=child_rng)
        error = variance.sqrt() * torch.randn(len(variance), generator=child_rng, dtype=torch.float64)
        k = min(size, len(images) - size, SCORED)
        scored = torch.cat([order[:k], order[size : size + k]])
        yield images[order[:size]].mean(0) + error, scored, size
