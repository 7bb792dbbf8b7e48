"""The per-image statistics t(x) whose exact mean over images is a release, one for each kind of pooled artifact.

Tests of membership, linkage and differencing need such a mean. Where t has squares (x, x^2), they can be taken about
any center (`fdgsec.nn.styles.channel_statistics.recentered`), and stay linear in t."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fdgsec.federation.artifacts import Amplitudes, Artifact, ImageStyles, StyleDistribution, StyleStatistics
from fdgsec.nn.styles.amplitude_spectra import LOW_FREQUENCIES, low_frequencies
from fdgsec.nn.styles.channel_statistics import EPS, Moments, linear_statistic, recentered, uncentered
from fdgsec.runtime.errors import UsageError


class ReleasedStatistic(Protocol):
    """A per-image statistic (n, D), and the conversion between an artifact and its mean over images."""

    def records(self, found: Moments) -> Tensor:
        """Compute t(x) of each image, (n, D) float64."""
        ...

    def release(self, artifact: Artifact, *, images: int | None = None) -> Tensor:
        """Compute the mean of t over the images of each row of `artifact`, (R, D) float64.

        `images` is their number, where it is known. Raises UsageError for an artifact of another kind."""
        ...

    def about(self, statistics: Tensor, center: Tensor, /) -> Tensor:
        """Take the squares in `statistics` (..., D) about the first powers in `center` (D,), a t too; linear in t."""
        ...

    def from_about(self, statistics: Tensor, center: Tensor, /) -> Tensor:
        """Invert `about`."""
        ...

    def artifact(self, statistics: Tensor, *, like: Artifact, images: int) -> Artifact:
        """Invert `release`: make an artifact of the kind of `like` from a mean of t, (R, D), over so many `images`.

        Where noise has moved t out of the range of images, variances are set to 0. Raises UsageError for an artifact
        that cannot be made of t."""
        ...

    def truth(self, found: Moments) -> Tensor:
        """Compute the statistic of each image that a recovered one is compared with, (n, D')."""
        ...


@dataclass(frozen=True, kw_only=True)
class PooledStyles:
    """CCST's styles: a pooled style is the mean of t = (mu, sigma^2 + mu^2), 2C numbers (eq. 8)."""

    def records(self, found: Moments) -> Tensor:
        """Compute t(x), (n, 2C)."""
        return found.linear()

    def release(self, artifact: Artifact, *, images: int | None = None) -> Tensor:
        """Compute t of one pooled style, (1, 2C), or of rows of single styles, (R, 2C), which divided by HW - 1."""
        del images  # the mean of t does not depend on their number
        if isinstance(artifact, StyleStatistics):
            return linear_statistic(artifact.mean.double(), artifact.std.double()).unsqueeze(0)
        if isinstance(artifact, ImageStyles):
            return linear_statistic(artifact.mean.double(), artifact.std.double())
        raise UsageError(f"a pooled style is read from StyleStatistics or ImageStyles; got {artifact.kind}.")

    def about(self, statistics: Tensor, center: Tensor, /) -> Tensor:
        """Take sigma^2 + mu^2 about the means in `center`."""
        return recentered(statistics, center.chunk(2)[0])

    def from_about(self, statistics: Tensor, center: Tensor, /) -> Tensor:
        """Take it about 0 again."""
        return uncentered(statistics, center.chunk(2)[0])

    def artifact(self, statistics: Tensor, *, like: Artifact, images: int) -> Artifact:
        """Make one pooled style, or a row of styles for each row of t."""
        del images  # a pooled style does not depend on their number
        mean, squares = statistics.chunk(2, dim=-1)
        std = ((squares - mean.square()).clamp_min(0) + EPS).sqrt()
        if isinstance(like, StyleStatistics):
            return StyleStatistics(mean=mean[0].to(like.mean), std=std[0].to(like.std))
        if isinstance(like, ImageStyles):
            return ImageStyles(mean=mean.to(like.mean), std=std.to(like.std))
        raise UsageError(f"a pooled style makes StyleStatistics or ImageStyles; got {like.kind}.")

    def truth(self, found: Moments) -> Tensor:
        """Compute t itself, (n, 2C)."""
        return found.linear()


class _WithoutSquares:
    """A t that holds no squares, so that no center changes it."""

    def about(self, statistics: Tensor, _center: Tensor, /) -> Tensor:
        """Give `statistics` unchanged."""
        return statistics

    def from_about(self, statistics: Tensor, _center: Tensor, /) -> Tensor:
        """Give `statistics` unchanged."""
        return statistics


@dataclass(frozen=True, kw_only=True)
class MeanStyles(_WithoutSquares):
    """The mean of image styles, t = (mu, sigma), 2C numbers: of FISC's styles where every image is a cluster (eq. 2).

    `eps` is under the root of sigma(x), which divides by the number of pixels."""

    eps: float = EPS

    def records(self, found: Moments) -> Tensor:
        """Compute t(x), (n, 2C)."""
        return torch.cat(found.style(unbiased=False, eps=self.eps), dim=1)

    def release(self, artifact: Artifact, *, images: int | None = None) -> Tensor:
        """Compute t of one style, (1, 2C), or of rows of single styles, (R, 2C)."""
        del images  # the mean of t does not depend on their number
        if isinstance(artifact, StyleStatistics):
            return torch.cat([artifact.mean, artifact.std]).double().unsqueeze(0)
        if isinstance(artifact, ImageStyles):
            return torch.cat([artifact.mean, artifact.std], dim=1).double()
        raise UsageError(f"a mean of styles is read from StyleStatistics or ImageStyles; got {artifact.kind}.")

    def artifact(self, statistics: Tensor, *, like: Artifact, images: int) -> Artifact:
        """Make one style, or a row of styles for each row of t."""
        del images  # a style does not depend on their number
        mean, std = statistics.chunk(2, dim=-1)
        if isinstance(like, StyleStatistics):
            return StyleStatistics(mean=mean[0].to(like.mean), std=std[0].clamp_min(0).to(like.std))
        if isinstance(like, ImageStyles):
            return ImageStyles(mean=mean.to(like.mean), std=std.clamp_min(0).to(like.std))
        raise UsageError(f"a mean of styles makes StyleStatistics or ImageStyles; got {like.kind}.")

    def truth(self, found: Moments) -> Tensor:
        """Compute t itself, (n, 2C)."""
        return self.records(found)


@dataclass(frozen=True, kw_only=True)
class ChannelMeans(_WithoutSquares):
    """The means of a style without its stds, t = mu, C numbers: of FISC's styles over clusters, whose stds are means
    of the clusters' stds, which no t averages to."""

    def records(self, found: Moments) -> Tensor:
        """Compute t(x), (n, C)."""
        return found.mean

    def release(self, artifact: Artifact, *, images: int | None = None) -> Tensor:
        """Compute t of one style, (1, C)."""
        del images  # the mean of t does not depend on their number
        if not isinstance(artifact, StyleStatistics):
            raise UsageError(f"channel means are read from StyleStatistics; got {artifact.kind}.")
        return artifact.mean.double().unsqueeze(0)

    def artifact(self, statistics: Tensor, *, like: Artifact, images: int) -> Artifact:
        """Raise UsageError: the stds that t leaves out are missing."""
        del statistics, like, images
        raise UsageError("a style cannot be made of its means alone.")

    def truth(self, found: Moments) -> Tensor:
        """Compute (mu, sigma^2 + mu^2), (n, 2C), in which all styles are compared."""
        return found.linear()


@dataclass(frozen=True, kw_only=True)
class StyleDistributions:
    """StableFDG's center and spread of image styles (eq. 3): t = (mu, sigma, mu^2, sigma^2), 4C numbers.

    `unbiased` and `eps` are those of sigma(x). With `released` spreads are sqrt(variance + eps) with n - 1 in the
    denominator, as in the authors' code, instead of variances."""

    unbiased: bool = True
    eps: float = EPS
    released: bool = False

    def records(self, found: Moments) -> Tensor:
        """Compute t(x), (n, 4C)."""
        style = torch.cat(found.style(unbiased=self.unbiased, eps=self.eps), dim=1)
        return torch.cat([style, style.square()], dim=1)

    def release(self, artifact: Artifact, *, images: int | None = None) -> Tensor:
        """Compute the mean of t, (1, 4C). Spreads "as released" need the number of `images`."""
        if not isinstance(artifact, StyleDistribution):
            raise UsageError(f"a style distribution is read from StyleDistribution; got {artifact.kind}.")
        center = torch.cat([artifact.mean, artifact.std]).double()
        variance = torch.cat([artifact.mean_spread, artifact.std_spread]).double()
        if self.released:
            if images is None:
                raise UsageError(
                    "a spread that divides by n - 1 needs the number of images; the adversary does not know it."
                )
            variance = (variance.square() - self.eps) * max(images - 1, 1) / images
        return torch.cat([center, variance + center.square()]).unsqueeze(0)

    def about(self, statistics: Tensor, center: Tensor, /) -> Tensor:
        """Take mu^2 and sigma^2 about mu and sigma in `center`."""
        return recentered(statistics, center.chunk(2)[0])

    def from_about(self, statistics: Tensor, center: Tensor, /) -> Tensor:
        """Take them about 0 again."""
        return uncentered(statistics, center.chunk(2)[0])

    def artifact(self, statistics: Tensor, *, like: Artifact, images: int) -> Artifact:
        """Make center and spread, the latter as variances or (`released`) as their roots over `images` - 1."""
        if not isinstance(like, StyleDistribution):
            raise UsageError(f"a style distribution makes StyleDistribution; got {like.kind}.")
        center, squares = statistics[0].chunk(2)
        spread = (squares - center.square()).clamp_min(0)
        if self.released:
            spread = (spread * images / max(images - 1, 1) + self.eps).sqrt()
        mean, std = center.to(like.mean).chunk(2)
        mean_spread, std_spread = spread.to(like.mean).chunk(2)
        return StyleDistribution(mean=mean, std=std.clamp_min(0), mean_spread=mean_spread, std_spread=std_spread)

    def truth(self, found: Moments) -> Tensor:
        """Compute (mu, sigma^2 + mu^2), (n, 2C), with the biased sigma, in which all encoders' styles are compared."""
        return found.linear()


@dataclass(frozen=True, kw_only=True)
class MeanSpectra(_WithoutSquares):
    """Amplitude spectra and means of them (CCST's appendix E, its footnote 1): t = |F(x)| at frequencies -b..b, b = 16.

    A mean without some frequencies is still a mean. All of them are 3 x H x (W // 2 + 1) numbers, 24,960 at 128 px: in
    float64 200 KB per image, and a whitening learned from some hundred images; these are 1,683 at any size from 33 px
    on. The price is power: a test gains with the dimension, so its result is a lower bound on the leakage of whole
    spectra."""

    frequencies: int = LOW_FREQUENCIES

    def records(self, found: Moments) -> Tensor:
        """Compute t(x), (n, D): the means under `fdgsec.nn.styles.amplitude_spectra`, whose maps are one cell."""
        return found.mean

    def release(self, artifact: Artifact, *, images: int | None = None) -> Tensor:
        """Compute t of each row, (R, D): of one mean spectrum, or of rows of single images."""
        del images  # the mean of t does not depend on their number
        if not isinstance(artifact, Amplitudes):
            raise UsageError(f"a mean spectrum is read from Amplitudes; got {artifact.kind}.")
        return low_frequencies(artifact.values, self.frequencies)

    def artifact(self, statistics: Tensor, *, like: Artifact, images: int) -> Artifact:
        """Raise UsageError: the frequencies that t leaves out are missing."""
        del statistics, like, images
        raise UsageError(f"whole spectra cannot be made of frequencies up to {self.frequencies} alone.")

    def truth(self, found: Moments) -> Tensor:
        """Compute t itself, (n, D)."""
        return found.mean
