"""The whitening of a test of one candidate at a time, from all images that the adversary holds.

The candidates themselves, whose labels nobody knows, are most of these images. Members are among them, so that a
release lies in their span: a whitening that is hardly shrunk then tells members better than one with the shrinkage that
is optimal for the covariance of images not seen (Ledoit & Wolf 2004 minimize a squared error). The shrinkage is
therefore chosen by the power that the test has in rehearsals: the adversary draws clients from all its images, adds the
errors that their releases would have, and scores their members."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fdgsec.attacks.statistics.tracing import TracingTest, Whitening, correlations_of
from fdgsec.metrics.roc import auc
from fdgsec.runtime.random_streams import child

SHARES = (1e-4, 1e-8)
"""Shares of the identity that are tried with the domain's own images, beside Ledoit and Wolf's with all domains'."""
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
    images: Tensor,
    others: Sequence[Tensor],
    *,
    records: int,
    variance: Tensor,
    test: TracingTest,
    rng: torch.Generator,
) -> GalleryWhitening:
    """Choose the whitening with which a test finds most members of clients of `records` of the `images` (n, D).

    `others` are records of other domains; `variance` (D,) is that of a release's error (rounding, defenses). Raises
    ValueError for fewer than two images."""
    drawn = list(_rehearsals(images, records, variance, rng))
    best: GalleryWhitening | None = None
    for whiten in _whitenings(images, others, records, variance):
        areas = [
            auc(scores[: len(scores) // 2], scores[len(scores) // 2 :])
            for release, scored, size in drawn
            for scores in (test(whiten(release), whiten(scored), records=size, reference=len(images)),)
        ]
        rehearsed = sum(areas) / len(areas) if areas else 0.5
        if best is None or rehearsed > best.rehearsed:
            best = GalleryWhitening(whiten=whiten, images=len(images), rehearsed=rehearsed)
    assert best is not None
    return best


def _whitenings(images: Tensor, others: Sequence[Tensor], records: int, variance: Tensor) -> Iterator[Whitening]:
    """The choices, with the error of a release included where it matters."""
    own = correlations_of(images)
    spread = variance / (1 / records + 1 / (len(images) + 1))
    coarse = bool((spread > COARSE * own.scale.square()).any())
    for plain in (correlations_of(images, others=others).shrunk(), *(own.shrunk(share) for share in SHARES)):
        yield plain.blurred(spread) if coarse else plain


def _rehearsals(
    images: Tensor, records: int, variance: Tensor, rng: torch.Generator
) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Releases (D,) of clients that are drawn from `images`; members and as many others of them, (2 k, D); their
    sizes, at most half of the images."""
    size = min(records, len(images) // 2)
    if size < 2:
        return
    for number in range(REHEARSALS):
        child_rng = child(rng, number)
        order = torch.randperm(len(images), generator=child_rng)
        error = variance.sqrt() * torch.randn(len(variance), generator=child_rng, dtype=torch.float64)
        k = min(size, SCORED)
        scored = torch.cat([order[:k], order[size : size + k]])
        yield images[order[:size]].mean(0) + error, images[scored], size
