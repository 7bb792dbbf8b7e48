"""Channel statistics of feature maps, their exact pooling, and AdaIN: pure functions in the papers' symbols.

A *style* is a pair (mean, std) of per-channel statistics. Per image it is eq. (6) of CCST, over all pixels of all
images eq. (8). Sums are kept as (count, mean, m2) in float64 and merged as in Chan, Golub & LeVeque (1983), so that a
pooled style does not depend on batch size or order and never needs all feature maps at once."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

EPS = 1e-5


@dataclass(frozen=True, kw_only=True, eq=False)
class Moments:
    """Mergeable first and second moments, one row per image (or per group of images).

    `count` is (n,) float64 pixels, `mean` and `m2` (the sum of squared deviations) are (n, C) float64."""

    count: Tensor
    mean: Tensor
    m2: Tensor

    def __post_init__(self) -> None:
        if self.mean.ndim != 2 or self.m2.shape != self.mean.shape or self.count.shape != self.mean.shape[:1]:
            raise ValueError(
                f"expected count (n,), mean (n, C), m2 (n, C); got {tuple(self.count.shape)}, "
                f"{tuple(self.mean.shape)}, {tuple(self.m2.shape)}."
            )

    def __len__(self) -> int:
        return int(self.count.shape[0])

    @property
    def channels(self) -> int:
        """C."""
        return int(self.mean.shape[1])

    def rows(self, positions: Tensor) -> "Moments":
        """Keep the rows at `positions`, in that order."""
        return Moments(count=self.count[positions], mean=self.mean[positions], m2=self.m2[positions])

    def pooled(self) -> "Moments":
        """Merge all rows into one, as if their pixels had been stacked (CCST eq. 8). Raises ValueError when empty."""
        if not len(self):
            raise ValueError("cannot pool the statistics of no images.")
        total = self.count.sum()
        weight = (self.count / total).unsqueeze(1)
        mean = (weight * self.mean).sum(0)
        m2 = self.m2.sum(0) + (self.count.unsqueeze(1) * (self.mean - mean).square()).sum(0)
        return Moments(count=total.reshape(1), mean=mean.unsqueeze(0), m2=m2.unsqueeze(0))

    def pooled_within(self, labels: Tensor) -> "Moments":
        """Merge the rows of each group into one, in the order of the `labels` (n,) int64, which need not be dense."""
        places = labels.unique(return_inverse=True)[1]
        groups = one_hot(places).T.to(self.mean)
        total = groups @ self.count
        mean = groups @ (self.count.unsqueeze(1) * self.mean) / total.unsqueeze(1)
        between = self.count.unsqueeze(1) * (self.mean - mean[places]).square()
        return Moments(count=total, mean=mean, m2=groups @ (self.m2 + between))

    def linear(self) -> Tensor:
        """Compute t = (mu, sigma^2 + mu^2), (n, 2C) float64: the statistic whose mean over images is a pooled style."""
        return torch.cat([self.mean, self.m2 / self.count.unsqueeze(1) + self.mean.square()], dim=1)

    def style(self, *, unbiased: bool, eps: float = EPS) -> tuple[Tensor, Tensor]:
        """Compute (mean, std), each (n, C) float64, with `eps` inside the root.

        `unbiased` divides by count - 1 (per-image styles of every released code), otherwise by count (pooled ones)."""
        divisor = (self.count - 1).clamp_min(1) if unbiased else self.count
        return self.mean, (self.m2 / divisor.unsqueeze(1) + eps).sqrt()


def moments(features: Tensor) -> Moments:
    """Reduce feature maps (N, C, H, W) to per-image moments, in float64 whatever the input precision."""
    if features.ndim != 4:
        raise ValueError(f"features must be (N, C, H, W); got {tuple(features.shape)}.")
    flat = features.flatten(2).to(torch.float64)
    mean = flat.mean(2)
    m2 = (flat - mean.unsqueeze(2)).square().sum(2)
    count = torch.full((flat.shape[0],), float(flat.shape[2]), dtype=torch.float64, device=features.device)
    return Moments(count=count, mean=mean, m2=m2)


def concatenated(parts: list[Moments]) -> Moments:
    """Stack the rows of several moments."""
    return Moments(
        count=torch.cat([part.count for part in parts]),
        mean=torch.cat([part.mean for part in parts]),
        m2=torch.cat([part.m2 for part in parts]),
    )


def style_of(features: Tensor, *, unbiased: bool = True, eps: float = EPS) -> tuple[Tensor, Tensor]:
    """Compute each image's (mean, std), (N, C), in the dtype of `features` and differentiably (CCST eq. 6)."""
    flat = features.flatten(2)
    variance = flat.var(2, correction=1 if unbiased and flat.shape[2] > 1 else 0)
    return flat.mean(2), (variance + eps).sqrt()


def adain(content: Tensor, mean: Tensor, std: Tensor, *, unbiased: bool = True, eps: float = EPS) -> Tensor:
    """Give `content` the channel statistics `mean`, `std` (Huang & Belongie 2017, eq. 8; CCST eq. 2).

    `content` is (N, C, H, W); `mean` and `std` are (N, C) or (C,). A constant channel becomes `mean`, never NaN.
    Raises ValueError where the channels differ."""
    if mean.shape != std.shape or mean.shape[-1] != content.shape[1] or mean.ndim > 2:
        raise ValueError(
            f"mean and std must both be (C,) or (N, C) with C = {content.shape[1]}; "
            f"got {tuple(mean.shape)} and {tuple(std.shape)}."
        )
    own_mean, own_std = style_of(content, unbiased=unbiased, eps=eps)
    target_mean = mean.expand_as(own_mean)[..., None, None]
    target_std = std.expand_as(own_std)[..., None, None]
    return (content - own_mean[..., None, None]) / own_std[..., None, None] * target_std + target_mean


def linear_statistic(mean: Tensor, std: Tensor, *, eps: float = EPS) -> Tensor:
    """Convert a style to the statistic that averages: (mu, sigma^2 - eps + mu^2), (..., 2C).

    A pooled biased style of equally large images is exactly the mean of the images' own statistics (each with its
    biased variance); see `unbiased_to_biased` for per-image styles that divided by HW - 1."""
    return torch.cat([mean, std.square() - eps + mean.square()], dim=-1)


def recentered(statistic: Tensor, mean: Tensor) -> Tensor:
    """Take the second half of t (..., 2C) about `mean` (C,) rather than 0: (mu, sigma^2 + (mu - mean)^2), linear in t.

    No test changes under a known covariance, but a shrunk one is estimated better: t's halves are nearly collinear
    where a channel's mean is large against its spread."""
    first, second = statistic.chunk(2, dim=-1)
    return torch.cat([first, second - 2 * mean * first + mean.square()], dim=-1)


def uncentered(statistic: Tensor, mean: Tensor) -> Tensor:
    """Invert `recentered`: from (mu, sigma^2 + (mu - mean)^2) to (mu, sigma^2 + mu^2), (..., 2C)."""
    first, second = statistic.chunk(2, dim=-1)
    return torch.cat([first, second + 2 * mean * first - mean.square()], dim=-1)


def unbiased_to_biased(std: Tensor, *, pixels: int, eps: float = EPS) -> Tensor:
    """Convert a std that divides by `pixels` - 1 to one that divides by `pixels`, `eps` inside the root in both."""
    return ((std.square() - eps).clamp_min(0) * ((pixels - 1) / pixels) + eps).sqrt()
