"""How rows of single images are compared with images by who knows what a defense does to rows."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fdgsec.adversaries import Knowledge
from fdgsec.data.domains import DomainDataset
from fdgsec.privacy.blur import RowBlur, blur_of_styles
from fdgsec.privacy.tracing import Whitening, fit_whitening


@dataclass(frozen=True, kw_only=True, eq=False)
class RowMetric:
    """The metric in which the image behind a row is the likeliest where it is the nearest.

    Without noise, whitening by how images differ; with noise, by that of the noise (fdgsec.privacy.blur)."""

    whiten: Whitening
    blur: RowBlur | None

    def seen(self, rows: Tensor) -> Tensor:
        """Received rows (R, D) in this metric."""
        return self.whiten(rows)

    def placed(self, rows: Tensor) -> Tensor:
        """The rows (G, D) of candidate images in this metric, where the defense would put them."""
        return self.whiten(rows if self.blur is None else self.blur.placed(rows))

    def likely(self, rows: Tensor, images: Tensor) -> Tensor:
        """What was behind received rows (R, D), drawn towards `images` (n, D) by the share of noise; without a
        defense the rows themselves."""
        if self.blur is None:
            return rows
        return self.blur.likely(rows, images.mean(0), images.var(0, correction=0))


def row_metric(knowledge: Knowledge, images: DomainDataset, whiten: Whitening | None = None) -> RowMetric:
    """Make the metric from the adversary's `images`; `whiten` (by how these differ within a domain) may be given."""
    blur = blur_of_styles(knowledge, images)
    if whiten is None:
        rows = torch.cat(knowledge.statistics(images).style(unbiased=True), dim=1)
        for domain in images.domains.unique():
            rows[images.domains == domain] -= rows[images.domains == domain].mean(0)
        whiten = fit_whitening(rows)
    return RowMetric(whiten=whiten if blur is None else blur.whitening(whiten), blur=blur)
