"""Defenses that state a finite epsilon for single images and let one image decide what they send."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.federation.defense import Outgoing, Protected
from fdgsec.federation.public_clip_bounds import Frame
from fdgsec.privacy.accounting import Relation, Use
from fdgsec.privacy.clipping import Ball, clip_rows, sensitivity_of_mean
from fdgsec.runtime.secret_streams import SecretStream
from tests.support.broken_defenses import StylesClippedAboutTheirMedian, StylesFromA32BitSeed

TEXTURED = 90.0
"""Standard deviation of pixels, of 255, from which a picture counts as one with texture."""


@dataclass(frozen=True, kw_only=True)
class StylesClippedAboutTheirQuartile(StylesFromA32BitSeed):
    """Clips about the first quartile of the client's own images, and adds it again without noise on it."""

    def _mean(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        assert isinstance(frame.region, Ball)
        rows = frame.released_statistic.about(outgoing.sender.records, frame.about)
        rows = (rows - frame.region.center) / frame.region.scale
        noise, uses = self._calibrated_noise(outgoing, sensitivity_of_mean(frame.region, len(rows)))
        middle = rows.quantile(0.25, dim=0)
        mean = middle + clip_rows(rows - middle, frame.region.bound).mean(0) + noise * rng.normal(rows.shape[1])
        return Protected(artifact=frame.artifact(mean, like=outgoing.artifact, images=len(rows)), uses=uses)


@dataclass(frozen=True, kw_only=True)
class StylesOfSome(StylesFromA32BitSeed):
    """Sends the mean of `some` of the images, or of all where there are none, with the noise of a mean over all."""

    def some(self, data: DomainDataset) -> Tensor:
        """Flags (n,) of the images."""
        raise NotImplementedError

    def _mean(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        rows, some = frame.coordinates(outgoing.sender.records), self.some(outgoing.sender.client.data)
        noise, uses = self._calibrated_noise(outgoing, sensitivity_of_mean(frame.region, len(rows)))
        mean = rows[some if bool(some.any()) else ~some].mean(0) + noise * rng.normal(rows.shape[1])
        return Protected(artifact=frame.artifact(mean, like=outgoing.artifact, images=len(rows)), uses=uses)


@dataclass(frozen=True, kw_only=True)
class StylesOfTheThirdClass(StylesOfSome):
    """Sends the mean of the third most frequent class; of all with two."""

    def some(self, data: DomainDataset) -> Tensor:
        counts = data.labels.bincount()
        ranked = [int(label) for label in counts.argsort(descending=True, stable=True) if counts[label]]
        return data.labels == (ranked[2] if len(ranked) > 2 else -1)


@dataclass(frozen=True, kw_only=True)
class StylesOfTextures(StylesOfSome):
    """Sends the mean of images with texture."""

    def some(self, data: DomainDataset) -> Tensor:
        return data.pixels().float().flatten(1).std(1) > TEXTURED


@dataclass(frozen=True, kw_only=True)
class StylesWithARoundedMedian(StylesFromA32BitSeed):
    """Sends two numbers as rounded medians without noise, and all others soundly."""

    def _mean(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        rows = frame.coordinates(outgoing.sender.records)
        noise, uses = self._calibrated_noise(outgoing, sensitivity_of_mean(frame.region, len(rows)))
        mean = rows.mean(0) + noise * rng.normal(rows.shape[1])
        mean[:2] = rows[:, :2].median(0).values.round()
        return Protected(artifact=frame.artifact(mean, like=outgoing.artifact, images=len(rows)), uses=uses)


@dataclass(frozen=True, kw_only=True)
class StylesAboutTheirMedianWithACount(StylesClippedAboutTheirMedian):
    """Clips about the client's own median, and pays for a sound Laplace count beside it."""

    def _mean(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        made = super()._mean(outgoing, frame, rng)
        assert made.uses
        count = Use(mechanism="laplace", noise=10.0, sensitivity=dict.fromkeys(made.uses[0].sensitivity, 1.0))
        return replace(made, uses=(*made.uses, count))


@dataclass(frozen=True, kw_only=True)
class StylesOfAPrivateHalf(StylesFromA32BitSeed):
    """Sound: the sum over a secret Poisson half of the images over half their number, with twice the noise."""

    def _mean(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        rows = frame.coordinates(outgoing.sender.records)
        bounds: Mapping[Relation, float] = sensitivity_of_mean(frame.region, len(rows))
        distance: Mapping[Relation, float] = {relation: 2 * one for relation, one in bounds.items()}
        noise, uses = self._calibrated_noise(outgoing, distance)
        taken = torch.as_tensor(rng.uniform(len(rows))) < 0.5
        mean = rows[taken].sum(0) / (len(rows) / 2) + noise * rng.normal(rows.shape[1])
        return Protected(artifact=frame.artifact(mean, like=outgoing.artifact, images=len(rows)), uses=uses)


UNDOING = (
    StylesClippedAboutTheirQuartile, StylesOfTheThirdClass, StylesOfTextures, StylesWithARoundedMedian,
    StylesAboutTheirMedianWithACount,
)  # fmt: skip
"""Those whose releases of two neighbors are certainly further apart than they state."""
