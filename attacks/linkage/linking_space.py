"""Linking space: the coordinates in which releases are compared, whitened by image variance and defense noise."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fdgsec.attacks.statistics.defense_noise import defense_noise_of_mean, defense_noise_of_rows, style_rows_of
from fdgsec.attacks.statistics.tracing import Whitening, fit_whitening
from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import Artifact
from fdgsec.federation.released_statistics import ReleasedStatistic
from fdgsec.runtime.errors import UsageError
from fdgsec.threats.adversary import Knowledge


@dataclass(frozen=True, kw_only=True, eq=False)
class LinkingSpace:
    """The coordinates in which releases are compared: `whiten` applied to t (D,) with squares centered on `center`
    (D,).

    `directions` (D, k) are orthonormal in the whitened space; k may be 0. `records` (n, D) are those of public images.
    `row_whitening` whitens rows of single images, to find the same image again."""

    released_statistic: ReleasedStatistic
    center: Tensor
    whiten: Whitening
    directions: Tensor
    records: Tensor
    row_whitening: Whitening

    def under_noise(
        self, knowledge: Knowledge, records: int | None, *, single: bool, rng: torch.Generator
    ) -> "LinkingSpace":
        """The same space for releases of `records` images under a defense.

        Halves of one client differ by the image covariance S / n and by the defense's noise V, so S + n V is whitened.
        For rows of `single` images each row has the noise. A client that does not know how many images others have
        assumes its own number."""
        if knowledge.defended is None:
            return self
        images = knowledge.public_images()
        if single:
            rows = defense_noise_of_rows(knowledge, images, made=style_rows_of(knowledge), read=self.read, rng=rng)
            noise = None if rows is None else rows.variance
            row_whitening = self.whiten if rows is None else rows.whitening(self.whiten)
        else:
            size = len(images) if records is None else records
            mean = defense_noise_of_mean(knowledge, images, records=size, about=self.center, rng=rng)
            noise, row_whitening = None if mean is None else size * mean.variance, self.row_whitening
        if noise is None:
            return self
        whiten = self.whiten.blurred(noise)
        directions = _directions(whiten(self.records), images)
        return replace(self, whiten=whiten, directions=directions, row_whitening=row_whitening)

    def read(self, artifact: Artifact) -> Tensor:
        """Read t of each row of `artifact`, recentered."""
        return self.centered(self.released_statistic.release(artifact))

    def __call__(self, statistic: Tensor) -> Tensor:
        """Whiten statistics (..., D)."""
        return self.whiten(self.centered(statistic))

    def centered(self, statistic: Tensor) -> Tensor:
        """Center the squares in t (..., D) on the space's center, as in all that is fitted here."""
        return self.released_statistic.about(statistic, self.center)

    def rows(self, statistic: Tensor) -> Tensor:
        """Whiten t of rows of single images (..., D) so that the nearest row is most likely of the same image."""
        return self.row_whitening(self.centered(statistic))


def linking_space(knowledge: Knowledge) -> LinkingSpace:
    """Fit the whitening on how public images of one domain differ, with all domains' residuals together.

    Halves of one client differ as means of such images do, independently of the differences between domains. Raises
    UsageError for fewer than two images."""
    images, released_statistic = knowledge.public_images(), knowledge.released_statistic
    if len(images) < 2:
        raise UsageError(f"linkage learns how images differ: it needs 2 public ones or more; there are {len(images)}.")
    read = released_statistic.records(knowledge.statistics(images))
    records = released_statistic.about(read, center := read.mean(0))
    residuals = records.clone()
    for domain in images.domains.unique():
        mine = images.domains == domain
        residuals[mine] -= records[mine].mean(0)
    whiten = fit_whitening(residuals)
    return LinkingSpace(
        released_statistic=released_statistic, center=center, whiten=whiten,
        directions=_directions(whiten(records), images), records=records, row_whitening=whiten,
    )  # fmt: skip


def _directions(whitened: Tensor, images: DomainDataset) -> Tensor:
    """The directions in which the class means within domains, and the domains' means, vary: (D, k).

    As many as there are classes minus one, and domains minus one. Each mean is weighted by the root of its number of
    images, so that all have the same noise."""
    classes, domains = [], []
    center = whitened.mean(0)
    for domain in images.domains.unique():
        mine = images.domains == domain
        middle = whitened[mine].mean(0)
        domains.append((middle - center) * float(mine.sum()) ** 0.5)
        for label in images.labels[mine].unique():
            both = mine & (images.labels == label)
            classes.append((whitened[both].mean(0) - middle) * float(both.sum()) ** 0.5)
    wanted = (classes, int(images.labels.unique().numel()) - 1), (domains, len(domains) - 1)
    found = [torch.linalg.svd(torch.stack(means), full_matrices=False)[2][:count] for means, count in wanted]
    basis: Tensor = torch.linalg.qr(torch.cat(found).T)[0]
    return basis
