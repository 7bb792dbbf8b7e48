"""Style residuals: how far the styles of pictures are from given ones under the public encoder itself.

Pictures are encoded in 8 bits, as a client's images are, through the statistics that the adversary knows. Styles are
compared as (mu, sigma), each in units of its spread over a prior's images. Under a defense the target is the posterior
mean of the row before the noise."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.attacks.statistics.defense_noise import RowDefenseNoise, defense_noise_of_styles
from fdgsec.attacks.style_inversion.style_matching import mean_and_std, statistic_spread
from fdgsec.attacks.style_inversion.training_images import Prior
from fdgsec.data.domains import DomainDataset
from fdgsec.threats.adversary import Knowledge, Statistics


@dataclass(frozen=True, kw_only=True, eq=False)
class StyleResiduals:
    """Residuals in units of one prior, whose images are `public`; `styles` (n, 2C) are theirs, `spread` (2C,) the
    unit."""

    public: DomainDataset
    styles: Tensor
    spread: Tensor
    statistics: Statistics
    defense_noise: RowDefenseNoise | None

    def targets(self, features: Tensor) -> Tensor:
        """The styles (R, 2C), (mu, sigma), that pictures of the rows `features` shall have."""
        given = mean_and_std(features)
        if self.defense_noise is None:
            return given
        return self.defense_noise.likely(given, self.styles.mean(0), self.styles.var(0, correction=0))

    def __call__(self, made: Tensor, targets: Tensor) -> Tensor:
        """What the styles of `made` (R, d, 3, h, w) uint8 miss of `targets` (R, 2C): the root mean square, (R, d)."""
        stored = made.flatten(0, 1).contiguous()
        count = torch.arange(len(stored))
        pictures = replace(
            self.public, store=stored, rows=count, labels=0 * count, domains=0 * count,
            ids=tuple(f"drawn#{number}" for number in range(len(stored))), attributes={},
        )  # fmt: skip
        seen = torch.cat(self.statistics(pictures).style(unbiased=False), 1)
        gap: Tensor = (seen.reshape(*made.shape[:2], -1) - targets[:, None]) / self.spread
        return gap.square().mean(2).sqrt()

    def of_reconstructions(self, images: Tensor, features: Tensor) -> Tensor:
        """The same of one reconstruction (R, 3, S, S) in [0, 1] per row, enlarged to the public images' size, (R,)."""
        enlarged = functional.interpolate(images.cpu(), size=self.public.image_size, mode="bilinear")
        return self(as_bytes(enlarged)[:, None], self.targets(features.cpu()))[:, 0]


def residuals_of(prior: Prior, knowledge: Knowledge) -> StyleResiduals:
    """The residuals in units of `prior`."""
    styles = mean_and_std(prior.styles)
    return StyleResiduals(
        public=prior.images, styles=styles, spread=statistic_spread(styles), statistics=knowledge.statistics,
        defense_noise=defense_noise_of_styles(knowledge, prior.images) if prior.noisy else None,
    )  # fmt: skip


def as_bytes(images: Tensor) -> Tensor:
    """Images in [0, 1] as uint8."""
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)
