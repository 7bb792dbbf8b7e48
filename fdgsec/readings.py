"""How a release is read as a mean over images: which per-image statistic t(x) it averages, exactly.

A mean is what tests of membership, linkage and differencing need; each kind of pooled artifact has its own t. Both halves
of a t are (x, x^2): its second half can be taken about any centre (`fdgsec.styles.recentred`)."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fdgsec.artifacts import Artifact, ImageStyles, StyleDistribution, StyleStatistics
from fdgsec.errors import UsageError
from fdgsec.styles import EPS, Moments, linear_statistic


class Reading(Protocol):
    """A per-image statistic (n, D), and how an artifact gives its mean over the images behind it."""

    def records(self, found: Moments) -> Tensor:
        """Give t(x) of each image, (n, D) float64."""
        ...

    def release(self, artifact: Artifact, *, images: int | None = None) -> Tensor:
        """Give the mean of t over the images behind each row of `artifact`, (R, D) float64.

        `images` is how many there are, where that is known. Raises UsageError for an artifact that this does not read."""
        ...


@dataclass(frozen=True, kw_only=True)
class PooledStyles:
    """CCST's styles: t = (mu, sigma^2 + mu^2), 2C numbers, whose mean a pooled style is (eq. 8)."""

    def records(self, found: Moments) -> Tensor:
        """Give t(x), (n, 2C)."""
        return found.linear()

    def release(self, artifact: Artifact, *, images: int | None = None) -> Tensor:
        """Give t of one pooled style, (1, 2C), or of every row of single styles, (R, 2C), which divided by HW - 1."""
        if isinstance(artifact, StyleStatistics):
            return linear_statistic(artifact.mean.double(), artifact.std.double()).unsqueeze(0)
        if isinstance(artifact, ImageStyles):
            return linear_statistic(artifact.mean.double(), artifact.std.double())
        raise UsageError(f"a pooled style is read from StyleStatistics or ImageStyles; got {artifact.kind}.")


@dataclass(frozen=True, kw_only=True)
class StyleDistributions:
    """StableFDG's centre and spread of image styles (eq. 3): t = (mu, sigma, mu^2, sigma^2), 4C numbers.

    `unbiased` and `eps` are those of sigma(x); `released` says that spreads are sqrt(variance + eps) with n - 1 in the
    denominator, as the authors' code sends them, instead of variances."""

    unbiased: bool = True
    eps: float = EPS
    released: bool = False

    def records(self, found: Moments) -> Tensor:
        """Give t(x), (n, 4C)."""
        style = torch.cat(found.style(unbiased=self.unbiased, eps=self.eps), dim=1)
        return torch.cat([style, style.square()], dim=1)

    def release(self, artifact: Artifact, *, images: int | None = None) -> Tensor:
        """Give the mean of t, (1, 4C). Spreads "as released" need the number of `images`."""
        if not isinstance(artifact, StyleDistribution):
            raise UsageError(f"a style distribution is read from StyleDistribution; got {artifact.kind}.")
        centre = torch.cat([artifact.mean, artifact.std]).double()
        variance = torch.cat([artifact.mean_spread, artifact.std_spread]).double()
        if self.released:
            if images is None:
                raise UsageError(
                    "a spread that divides by n - 1 needs the number of images; the adversary does not know it."
                )
            variance = (variance.square() - self.eps) * max(images - 1, 1) / images
        return torch.cat([centre, variance + centre.square()]).unsqueeze(0)
