"""Membership by how much of a release a member makes up: FISC averages clusters, so that those of small ones weigh more."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fdgsec.metrics.intervals import cluster_auc_bootstrap
from fdgsec.metrics.measurement import Measurement, Slice
from fdgsec.metrics.roc import auc
from fdgsec.runtime.random_streams import child
from fdgsec.threats.judging.groups import Scale, row, unavailable

BANDS: Sequence[tuple[str, int, int]] = (("2-3", 2, 3), ("4-8", 4, 8), ("9-20", 9, 20), ("21+", 21, 1 << 62))
"""Numbers of images in a cluster that are reported together; FINCH leaves none alone."""


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

    Per client: `scores` (G,), `members` (G,) bool, and `sizes` (G,) int64, how many images are in the candidate's cluster
    (0 for non-members). Bands without members give no row, those of a single client one without a value.

    The rows are descriptive. Which cluster a member is in depends on what it looks like, and the non-members are all of
    theirs: without any information small clusters' members, unusual images, may score above one half and those of large ones
    below, which the rows of all members do not."""
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


def _owners(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([torch.full((len(part),), number) for number, part in enumerate(parts)])
