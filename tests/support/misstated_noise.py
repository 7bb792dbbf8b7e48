"""Defenses that state a finite epsilon for single images, and whose noise does not hide them: not its size, but its
kind, its grid, its tails, where it is, and when. And sound ones that look like them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fdgsec.federation.artifacts import renumbered
from fdgsec.federation.defense import Outgoing, Protected
from fdgsec.federation.public_clip_bounds import Frame
from fdgsec.privacy.accounting import Relation, Use, calibrated_noise
from fdgsec.privacy.clipping import Ball, clip_rows, sensitivity_of_mean
from fdgsec.privacy.guarantees import PlannedGuarantee
from fdgsec.runtime.secret_streams import SecretStream
from tests.support.broken_defenses import StylesFromA32BitSeed


@dataclass(frozen=True, kw_only=True)
class MeanStyles(StylesFromA32BitSeed):
    """Sends the mean of clipped images as `made` of it; in itself sound, with noise that is drawn in secret."""

    def made(self, mean: Tensor, noise: float, rng: SecretStream) -> Tensor:
        """The mean (D,) with noise."""
        return mean + noise * rng.normal(len(mean))

    def middle(self, rows: Tensor, frame: Frame) -> Tensor:
        """What is sent of clipped images (n, D), without noise."""
        return rows.mean(0)

    def _mean(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        rows = frame.coordinates(outgoing.sender.records)
        noise, uses = self._calibrated_noise(outgoing, sensitivity_of_mean(frame.region, len(rows)))
        mean = self.made(self.middle(rows, frame), noise, rng)
        return Protected(artifact=frame.artifact(mean, like=outgoing.artifact, images=len(rows)), uses=uses)


@dataclass(frozen=True, kw_only=True)
class StylesWithRoundedNoise(MeanStyles):
    """Rounds the noise and not what it is added to: whoever takes the release modulo the step has the value's rest."""

    def made(self, mean: Tensor, noise: float, rng: SecretStream) -> Tensor:
        return mean + (noise * rng.normal(len(mean))).round(decimals=2)


@dataclass(frozen=True, kw_only=True)
class StylesWithCutNoise(MeanStyles):
    """Cuts the noise at `most` deviations: a number further out belongs to other images."""

    most: float = 3.0

    def made(self, mean: Tensor, noise: float, rng: SecretStream) -> Tensor:
        return mean + noise * rng.normal(len(mean)).clamp(-self.most, self.most)


@dataclass(frozen=True, kw_only=True)
class StylesOfTheLargestNumbers(MeanStyles):
    """Puts noise on the larger half of the numbers and sends the public center for the others, which says which."""

    def made(self, mean: Tensor, noise: float, rng: SecretStream) -> Tensor:
        large = mean.abs() >= mean.abs().median()
        return torch.where(large, super().made(mean, noise, rng), torch.zeros_like(mean))


@dataclass(frozen=True, kw_only=True)
class StylesWithoutNoise(MeanStyles):
    """States a cost and adds no noise."""

    def made(self, mean: Tensor, noise: float, rng: SecretStream) -> Tensor:
        return mean


@dataclass(frozen=True, kw_only=True)
class StylesWithTheSameNoise(MeanStyles):
    """Draws the noise from a public seed, so that releases cannot be averaged."""

    def made(self, mean: Tensor, noise: float, rng: SecretStream) -> Tensor:
        return mean + noise * torch.randn(len(mean), generator=torch.Generator().manual_seed(7), dtype=mean.dtype)


@dataclass(frozen=True, kw_only=True)
class StylesWithLaplaceNoiseForL2(StylesFromA32BitSeed):
    """Calibrates Laplace noise with the L2 distance of neighbors; it hides their L1 distance."""

    def _mean(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        assert isinstance(frame.region, Ball)
        rows = frame.coordinates(outgoing.sender.records)
        distance = 2 * frame.region.bound / len(rows)
        mean = rows.mean(0) + laplace(rows.shape[1], distance / self.epsilon, rng)
        uses = (laplace_use(distance, self.epsilon),)
        return Protected(artifact=frame.artifact(mean, like=outgoing.artifact, images=len(rows)), uses=uses)


@dataclass(frozen=True, kw_only=True)
class StylesWithLaplaceNoise(StylesFromA32BitSeed):
    """Sound: clips each image in L1, and calibrates Laplace noise with that."""

    def _mean(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        assert isinstance(frame.region, Ball)
        rows = frame.coordinates(outgoing.sender.records)
        bound = frame.region.bound * math.sqrt(rows.shape[1]) / 4
        rows = rows * (bound / rows.abs().sum(1, keepdim=True).clamp_min(1e-12)).clamp_max(1)
        distance = 2 * bound / len(rows)
        mean = rows.mean(0) + laplace(rows.shape[1], distance / self.epsilon, rng)
        uses = (laplace_use(distance, self.epsilon),)
        return Protected(artifact=frame.artifact(mean, like=outgoing.artifact, images=len(rows)), uses=uses)


def laplace_use(distance: float, epsilon: float) -> Use:
    """The cost of Laplace noise where neighbors are so far apart."""
    sensitivity: Mapping[Relation, float] = {"replace-one": distance, "zero-out": distance / 2}
    return Use(mechanism="laplace", noise=distance / epsilon, sensitivity=sensitivity)


def laplace(count: int, scale: float, rng: SecretStream) -> Tensor:
    """Laplace noise of a scale, (count,)."""
    drawn = torch.as_tensor(rng.uniform(count)) - 0.5
    return -scale * drawn.sign() * torch.log1p(-2 * drawn.abs())


@dataclass(frozen=True, kw_only=True)
class StylesWithoutWhiteImages(StylesFromA32BitSeed):
    """Leaves white images out (empty slides), with the noise of a mean over the others: its size tells how many."""

    def _mean(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        rows = frame.coordinates(outgoing.sender.records)
        noise, uses = self._calibrated_noise(outgoing, sensitivity_of_mean(frame.region, len(rows)))
        kept = outgoing.sender.client.data.pixels().float().mean((1, 2, 3)) < 230
        some = rows[kept] if bool(kept.any()) else rows
        mean = some.mean(0) + noise * len(rows) / len(some) * rng.normal(rows.shape[1])
        return Protected(artifact=frame.artifact(mean, like=outgoing.artifact, images=len(rows)), uses=uses)


@dataclass(frozen=True, kw_only=True)
class StylesOfAPublicSample(StylesFromA32BitSeed):
    """Takes a quarter of the images by a public seed, and states the cost of a secret Poisson sample."""

    rate: float = 0.25

    @property
    def promise(self) -> PlannedGuarantee:
        planned = super().promise
        assert isinstance(planned, PlannedGuarantee)
        return replace(planned, relations=frozenset({"zero-out"}))

    def taken(self, count: int, rng: SecretStream) -> Tensor:
        """Flags (count,) of the images that take part."""
        return torch.rand(count, generator=torch.Generator().manual_seed(7)) < self.rate

    def _mean(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        assert isinstance(frame.region, Ball)
        rows, bound = frame.coordinates(outgoing.sender.records), frame.region.bound

        def uses_at(noise: float) -> tuple[Use, ...]:
            one = Use(
                mechanism="gaussian", noise=noise * bound, sensitivity={"zero-out": bound}, sampling_rate=self.rate
            )
            return (one,)

        noise = calibrated_noise(uses_at, epsilon=self.epsilon, delta=self.delta, relation="zero-out")
        total = rows[self.taken(len(rows), rng)].sum(0) + noise * bound * rng.normal(rows.shape[1])
        artifact = frame.artifact(total / (self.rate * len(rows)), like=outgoing.artifact, images=len(rows))
        return Protected(artifact=artifact, uses=uses_at(noise))


@dataclass(frozen=True, kw_only=True)
class StylesOfASecretSample(StylesOfAPublicSample):
    """Sound: the same with a secret Poisson sample."""

    def taken(self, count: int, rng: SecretStream) -> Tensor:
        return torch.as_tensor(rng.uniform(count)) < self.rate


@dataclass(frozen=True, kw_only=True)
class StylesAboutTheirMedianLater(StylesFromA32BitSeed):
    """Clips about the public center in the first round, and about the client's own median from then on."""

    def _mean(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        assert isinstance(frame.region, Ball)
        rows = frame.released_statistic.about(outgoing.sender.records, frame.about)
        rows = (rows - frame.region.center) / frame.region.scale
        noise, uses = self._calibrated_noise(outgoing, sensitivity_of_mean(frame.region, len(rows)))
        middle = rows.median(0).values if outgoing.round else torch.zeros_like(rows[0])
        mean = middle + clip_rows(rows - middle, frame.region.bound).mean(0) + noise * rng.normal(rows.shape[1])
        return Protected(artifact=frame.artifact(mean, like=outgoing.artifact, images=len(rows)), uses=uses)


@dataclass(frozen=True, kw_only=True)
class StylesPaidOnce(MeanStyles):
    """Draws new noise in every round, and pays in the first alone."""

    def _mean(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        made = super()._mean(outgoing, frame, rng)
        return replace(made, uses=()) if outgoing.round else made


@dataclass(frozen=True, kw_only=True)
class StylesRoundedAfterwards(MeanStyles):
    """Sound: what is sent is rounded, the noise with it."""

    def _mean(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        made = super()._mean(outgoing, frame, rng)
        return replace(made, artifact=renumbered(made.artifact, lambda _, values: (values / 0.05).round() * 0.05))


@dataclass(frozen=True, kw_only=True)
class StylesWithinPublicBounds(MeanStyles):
    """Sound: each number of what is sent is cut at public bounds, about three deviations of the noise apart."""

    def made(self, mean: Tensor, noise: float, rng: SecretStream) -> Tensor:
        return super().made(mean, noise, rng).clamp(-3 * noise, 3 * noise)


TOLD_APART = (
    StylesWithRoundedNoise, StylesOfTheLargestNumbers, StylesWithoutNoise, StylesWithTheSameNoise,
    StylesWithLaplaceNoiseForL2, StylesWithoutWhiteImages, StylesOfAPublicSample,
)  # fmt: skip
"""Those of whose releases neighbors are told apart beyond what they state."""
SOUND = (
    MeanStyles, StylesWithLaplaceNoise, StylesOfASecretSample, StylesRoundedAfterwards, StylesWithinPublicBounds,
)  # fmt: skip
