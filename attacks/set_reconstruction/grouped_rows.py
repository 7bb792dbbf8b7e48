"""Reads rows that are means over groups of images, as microaggregation (`k-anonymous`) sends in place of single rows.

Rows of one group are equal, and so many of them as it has images: a row r that is sent m times is the mean of m rows of
single images,

    r = sum_i w_i t_i,   w_i in {0, 1/m},   sum_i w_i = 1,

D equations for a list of m. Few images among many candidates: nonnegative least squares finds them where there are
enough numbers (fdgsec.attacks.set_reconstruction.unequal_weights). What else a defense does to such a row is estimated
by passing the adversary's own images through it. Where noise was added after the mean, rows of a group differ by the
noise alone, and their mean is the group's (fdgsec.attacks.set_reconstruction.noisy_groups)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fdgsec.attacks.set_reconstruction.list_equations import LEAST_NOISE, ListEquations, MemberPosterior, best_prior
from fdgsec.attacks.set_reconstruction.noisy_groups import RowBlur, blur_of_rows, noisy_groups
from fdgsec.attacks.set_reconstruction.unequal_weights import listed_weights
from fdgsec.attacks.statistics.defense_noise import read_style_rows, style_rows_of
from fdgsec.attacks.statistics.domain_populations import images_of
from fdgsec.attacks.statistics.pooled_questions import candidates_of, domain_of
from fdgsec.attacks.statistics.release_precision import rounding_of_values
from fdgsec.attacks.statistics.style_conventions import CONVENTIONS
from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import ImageStyles
from fdgsec.runtime.cached_values import computed_once
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child, stream
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.attack import Case
from fdgsec.threats.positive_control_data import upload

PASSES = 8
"""Passes of the adversary's own images through the defense, each with other groups."""
PROBED = 200
"""Images of the adversary by which it finds out whether a defense makes groups."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """One group: the `mean` (D,) over its images, how many these are, and the standard deviation (D,) of its error."""

    mean: Tensor
    size: int
    error: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupReader:
    """Reads the rows of one domain's cases, each the mean over the images of a group."""

    knowledge: Knowledge
    domain: str
    rng: torch.Generator

    def solved(self, case: Case, seen: Case) -> MemberPosterior:
        """The weights of the candidates of `case`: each one's largest in any of the groups that are seen.

        Raises UsageError where no rows are equal, or so but for noise: then nothing tells which are a group's."""
        groups = self._groups(torch.cat(seen.released(), dim=1))
        if max(group.size for group in groups) == 1:
            raise UsageError("set-reconstruction reads groups of rows that are equal but for noise; all differ.")
        rows = self._rows(candidates_of(case))
        solved = [self._group(rows, group) for group in groups]
        listed = sum(group.size for group in groups)
        return MemberPosterior(weights=np.max([found.weights for found in solved], axis=0), listed=listed)

    def _groups(self, sent: Tensor) -> list["Group"]:
        """The groups among the rows (R, D) that were sent."""
        means, sizes = groups_of(sent)
        if int(sizes.max()) > 1 or not self._blur.noisy:
            return [
                Group(
                    mean=mean,
                    size=int(size),
                    error=(rounding_of_values([mean.float()])(mean).square() + self._error.square()).sqrt(),
                )
                for mean, size in zip(means, sizes, strict=True)
            ]
        return [
            Group(mean=self._blur.before(sent[mine].mean(0)), size=len(mine), error=self._blur.error(len(mine)))
            for mine in noisy_groups(sent, self._blur)
        ]

    def independent(self, case: Case, rng: torch.Generator) -> Case:
        """The same question about groups of the adversary's own images, which no candidate is in."""
        count = len(case.released()[0])
        drawn = self._own.subset(torch.randint(len(self._own), (count,), generator=rng))
        sent = style_rows_of(self.knowledge)(drawn)
        if self.knowledge.defended is not None:
            sent = self.knowledge.defended(sent, drawn, rng)
        return replace(case, views=(upload(sent, sender=case.victim),))

    def _group(self, rows: Tensor, group: "Group") -> MemberPosterior:
        """The weights (G,) of candidates with `rows` (G, D) in one group."""
        own = self._rows(self._own)
        center, scale = own.mean(0), own.std(0)
        varies = (rows.std(0) > 1e-6 * scale) & (scale > 0)
        placed, release, images = (((part - center) / scale)[..., varies].numpy() for part in (rows, group.mean, own))
        known = ListEquations(
            candidates=placed, release=release, noise=(group.error / scale)[varies].clamp_min(LEAST_NOISE).numpy(),
            spread=images.std(0), images=group.size,
        )  # fmt: skip
        return listed_weights(known) or known.solved(best_prior(known, child(self.rng, "prior", group.size)))

    @computed_once
    def _blur(self) -> RowBlur:
        """What the defense does to a row after the mean is taken."""
        if self.knowledge.defended is None:
            width = self._rows(self._own).shape[1]
            return RowBlur(gain=1.0, shift=torch.zeros(width).double(), scale=torch.zeros(width).double())
        return blur_of_rows(self.knowledge, self._own, child(self.rng, "blur"))

    @computed_once
    def _own(self) -> DomainDataset:
        return images_of(self.knowledge, self.domain)

    @computed_once
    def _convention(self) -> tuple[bool, float]:
        """The convention under which the target's rows of the adversary's images are those that it computes."""
        if self.knowledge.shared is None:
            return CONVENTIONS[0]
        sent = read_style_rows(self.knowledge.shared(self._own, child(self.rng, "convention")))
        off = []
        for unbiased, eps in CONVENTIONS:
            rows = torch.cat(self.knowledge.statistics(self._own).style(unbiased=unbiased, eps=eps), dim=1)
            off.append(float(torch.cdist(sent, rows, compute_mode="donot_use_mm_for_euclid_dist").min(1).values.sum()))
        return CONVENTIONS[off.index(min(off))]

    def _rows(self, images: DomainDataset) -> Tensor:
        """What the target would send of each image by itself, (n, D) float64, in float32's precision."""
        unbiased, eps = self._convention
        return torch.cat(self.knowledge.statistics(images).style(unbiased=unbiased, eps=eps), dim=1).float().double()

    @computed_once
    def _error(self) -> Tensor:
        """The root mean square (D,) of what a defense changes in a group's row beside taking the mean."""
        if self.knowledge.defended is None:
            return torch.zeros(self._rows(self._own).shape[1], dtype=torch.float64)
        made, off = style_rows_of(self.knowledge)(self._own), list[Tensor]()
        before = read_style_rows(made)
        for number in range(PASSES):
            after = read_style_rows(self.knowledge.defended(made, self._own, child(self.rng, "error", number)))
            means, group, sizes = torch.unique(after, dim=0, return_inverse=True, return_counts=True)
            sums = torch.zeros_like(means).index_add_(0, group, before)
            off.append(means - sums / sizes.unsqueeze(1))
        return torch.cat(off).square().mean(0).sqrt()


def groups_of(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The different ones among `rows` (R, D), and how often each is sent, (G,)."""
    means, sizes = torch.unique(rows, dim=0, return_counts=True)
    return means, sizes


def group_reader(cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> GroupReader:
    """The reader of the rows of `cases`, which are of one domain."""
    return GroupReader(knowledge=knowledge, domain=domain_of(cases[0]), rng=rng)


def sends_groups(knowledge: Knowledge) -> bool:
    """Whether the target sends rows of images, and a defense replaces them by means over groups.

    Found by passing the adversary's own images through both."""
    if knowledge.defended is None or knowledge.shared is None or knowledge.vectors_alone:
        return False
    images = knowledge.public_images()
    some, rng = images.subset(torch.arange(min(PROBED, len(images)))), stream(0, "attack", "groups of rows")
    if not isinstance(knowledge.shared(some, rng), ImageStyles):
        return False
    before = style_rows_of(knowledge)(some)
    seen = (read_style_rows(each) for each in (before, knowledge.defended(before, some, rng)))
    single, grouped = (len(groups_of(rows)[0]) for rows in seen)
    return grouped < single
