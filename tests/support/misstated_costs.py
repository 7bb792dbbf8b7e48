"""Defenses that state a finite epsilon and move further with one image, or one client, than it allows.

Each shows one place in which that was not looked for: behind a release that is cut or rounded, at the edge of the
clipping region, between whole clients, beside a second kind of noise, between clients with and without an image, and
in more tensors than one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from fdgsec.defenses.dp_sgd import DPSGD
from fdgsec.federation.artifacts import ImageStyles
from fdgsec.federation.defense import Outgoing, Protected
from fdgsec.federation.method import Client, Clock, Method
from fdgsec.federation.public_clip_bounds import Frame, rows_of
from fdgsec.nn.training.per_sample_gradients import clipped_sum
from fdgsec.privacy import dp_sgd
from fdgsec.privacy.accounting import Relation, Use
from fdgsec.privacy.clipping import Ball, Region, clip_rows
from fdgsec.privacy.dp_sgd import PrivateTrainer, noisy
from fdgsec.privacy.guarantees import PlannedGuarantee
from fdgsec.privacy.mechanisms import noise_multiplier
from fdgsec.runtime.secret_streams import SecretStream
from tests.support.broken_defenses import StylesClippedAboutTheirMedian, StylesFromA32BitSeed
from tests.support.misstated_noise import MeanStyles, laplace, laplace_use

Clip = Callable[[Sequence[Tensor], float], list[Tensor]]
Noise = Callable[[Tensor, float, SecretStream], Tensor]
Made = Callable[..., PrivateTrainer]


@dataclass(frozen=True, kw_only=True)
class StylesAboutTheirMedianCut(StylesClippedAboutTheirMedian):
    """The release is cut to public bounds of one standard deviation."""

    def fitted(self, mean: Tensor, noise: float) -> Tensor:
        return mean.clamp(-noise, noise)


@dataclass(frozen=True, kw_only=True)
class StylesAboutTheirMedianRounded(StylesClippedAboutTheirMedian):
    """The release is rounded to a public grid of three standard deviations."""

    def fitted(self, mean: Tensor, noise: float) -> Tensor:
        return (mean / (3 * noise)).round() * 3 * noise


@dataclass(frozen=True, kw_only=True)
class ClientsWithTheNoiseOfAnImage(StylesFromA32BitSeed):
    """States a guarantee for whole clients, with the sensitivity of one image."""

    @property
    def promise(self) -> PlannedGuarantee:
        return PlannedGuarantee(
            by="private-styles", stage="share", unit="client", relations=frozenset({"replace-one", "zero-out"})
        )

    def _calibrated_noise(
        self, outgoing: Outgoing, sensitivity: Mapping[Relation, float]
    ) -> tuple[float, tuple[Use, ...] | None]:
        noise, uses = super()._calibrated_noise(outgoing, sensitivity)
        return noise, tuple(replace(use, unit="client") for use in uses or ())


@dataclass(frozen=True, kw_only=True)
class StylesWithTwoKindsOfNoise(StylesFromA32BitSeed):
    """Laplace noise for the L2 distance on means, which is too little, and Gaussian noise on second moments."""

    def _mean(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        assert isinstance(frame.region, Ball)
        rows = frame.coordinates(outgoing.sender.records)
        distance, half, epsilon = 2 * frame.region.bound / len(rows), rows.shape[1] // 2, self.epsilon / 2
        size = noise_multiplier(epsilon, self.delta) * distance
        noise = torch.cat([laplace(half, distance / epsilon, rng), size * rng.normal(rows.shape[1] - half)])
        sensitivity: Mapping[Relation, float] = {"replace-one": distance, "zero-out": distance / 2}
        uses = (laplace_use(distance, epsilon), Use(mechanism="gaussian", noise=size, sensitivity=sensitivity))
        sent = frame.artifact(rows.mean(0) + noise, like=outgoing.artifact, images=len(rows))
        return Protected(artifact=sent, uses=uses)


@dataclass(frozen=True, kw_only=True)
class StylesClippedAtTheirMedianLength(MeanStyles):
    """Clips at the median length of the client's own rows, with noise for the public bound: between clients with half
    of their rows at the center and half at the bound, one decides whether anything is left."""

    def middle(self, rows: Tensor, frame: Frame) -> Tensor:
        assert isinstance(frame.region, Ball)
        return clip_rows(rows, min(float(rows.norm(dim=1).median()), frame.region.bound)).mean(0)


@dataclass(frozen=True, kw_only=True)
class StylesOfTheMiddleHalf(MeanStyles):
    """A trimmed mean with the noise of a mean: one image moves it twice as far."""

    def middle(self, rows: Tensor, frame: Frame) -> Tensor:
        cut = len(rows) // 4
        return rows.sort(0).values[cut : len(rows) - cut].mean(0)


@dataclass(frozen=True, kw_only=True)
class StylesWhoseNoiseTellsTheirNumber(StylesFromA32BitSeed):
    """States that an image less is a neighbor, with noise for one over the number of images."""

    def _sum_and_count(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        assert isinstance(frame.region, Ball)
        rows = frame.coordinates(outgoing.sender.records)
        noise, uses = self._calibrated_noise(outgoing, {"add-remove": 2 * frame.region.bound / len(rows)})
        mean = rows.mean(0) + noise * rng.normal(rows.shape[1])
        return Protected(artifact=frame.artifact(mean, like=outgoing.artifact, images=len(rows)), uses=uses)


@dataclass(frozen=True, kw_only=True)
class StylesWithLogarithms(StylesFromA32BitSeed):
    """Sound: Gaussian noise on clipped means and logarithms of stds; what is sent has other second moments."""

    def _mean(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        means, squares = outgoing.sender.records.chunk(2, dim=1)
        rows = clip_rows(torch.cat([means, (squares - means**2).clamp_min(1e-6).sqrt().log()], 1), 4.0)
        distance = 8.0 / len(rows)
        size = noise_multiplier(self.epsilon, self.delta) * distance
        mean, logarithm = (rows.mean(0) + size * rng.normal(rows.shape[1])).chunk(2)
        std = logarithm.exp()
        about = frame.released_statistic.about(torch.cat([mean, mean**2 + std**2]), frame.about)
        sent = frame.artifact(frame.region.inside(about), like=outgoing.artifact, images=len(rows))
        sensitivity: Mapping[Relation, float] = {"replace-one": distance, "zero-out": distance / 2}
        return Protected(artifact=sent, uses=(Use(mechanism="gaussian", noise=size, sensitivity=sensitivity),))


@dataclass(frozen=True, kw_only=True)
class StylesRoundedCoarsely(MeanStyles):
    """Sound: the mean with noise, rounded to a public grid of three standard deviations."""

    def made(self, mean: Tensor, noise: float, rng: SecretStream) -> Tensor:
        return (super().made(mean, noise, rng) / (3 * noise)).round() * 3 * noise


def length(rows: Sequence[Tensor]) -> Tensor:
    """The length of each record's gradient (B,) in tensors (B, ...)."""
    return torch.stack([part.flatten(1).double().norm(dim=1) for part in rows]).norm(dim=0)


def summed(rows: Sequence[Tensor], factor: Tensor) -> list[Tensor]:
    """The sums of records' gradients, each by its factor (B,)."""
    return [torch.einsum("b,b...->...", factor.to(part), part) for part in rows]


def tensor_by_tensor(rows: Sequence[Tensor], bound: float) -> list[Tensor]:
    """Each tensor's gradient is clipped by itself at the bound that is stated for all of them together."""
    return [clipped_sum([part], bound)[0] for part in rows]


def as_a_batch(rows: Sequence[Tensor], bound: float) -> list[Tensor]:
    """The sum of a batch is clipped, and not each record's gradient."""
    whole = [part.sum(0, keepdim=True) for part in rows]
    return summed(whole, (bound / length(whole).clamp_min(1e-12)).clamp_max(1))


def without_the_last(rows: Sequence[Tensor], bound: float) -> list[Tensor]:
    """Lengths are measured without the last tensor."""
    return summed(rows, (bound / length(rows[:-1]).clamp_min(1e-12)).clamp_max(1))


def without_vectors(rows: Sequence[Tensor], bound: float) -> list[Tensor]:
    """Lengths are measured in matrices alone."""
    return summed(rows, (bound / length([part for part in rows if part.ndim > 2]).clamp_min(1e-12)).clamp_max(1))


def noisy_tensor(total: Tensor, noise: float, secret: SecretStream) -> Tensor:
    """The noise of a sound trainer in one tensor."""
    return next(noisy([total], noise, secret))


def in_each(added: "Noise") -> Callable[[Sequence[Tensor], float, SecretStream], Iterable[Tensor]]:
    """Noise that is added to one tensor after the other."""
    return lambda totals, noise, secret: [added(total, noise, secret) for total in totals]


def on_matrices(total: Tensor, noise: float, secret: SecretStream) -> Tensor:
    """Vectors have no noise."""
    return noisy_tensor(total, noise if total.ndim > 1 else 0.0, secret)


def the_same_noise(total: Tensor, noise: float, secret: SecretStream) -> Tensor:
    """Every tensor has the same noise, of a generator that is begun anew for each."""
    rng = torch.Generator().manual_seed(int.from_bytes(secret.child("seed").random_bytes(7), "little"))
    return (total.double() + noise * torch.randn(total.numel(), generator=rng).view_as(total)).to(total)


@dataclass(frozen=True, kw_only=True, eq=False)
class Patched(PrivateTrainer):
    """Trains with another clip, or other noise."""

    clip: Clip = clipped_sum
    noise: Noise | None = None

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        added = noisy if self.noise is None else in_each(self.noise)
        with patch.object(dp_sgd, "clipped_sum", self.clip), patch.object(dp_sgd, "noisy", added):
            return super().__call__(*given, **named)


@dataclass(frozen=True, kw_only=True, eq=False)
class AtTheMedian(PrivateTrainer):
    """Clips at the median length of a batch, with noise in proportion to it, and pays for no median."""

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        bounds = [self.max_grad_norm]

        def clipped(rows: Sequence[Tensor], bound: float) -> list[Tensor]:
            bounds[0] = float(length(rows).median())
            return clipped_sum(rows, bounds[0])

        def follows(total: Tensor, noise: float, secret: SecretStream) -> Tensor:
            return noisy_tensor(total, noise * bounds[0] / self.max_grad_norm, secret)

        with patch.object(dp_sgd, "clipped_sum", clipped), patch.object(dp_sgd, "noisy", in_each(follows)):
            return super().__call__(*given, **named)


@dataclass(frozen=True, kw_only=True)
class DPSGDWith(DPSGD):
    """Trains with another trainer than it states the cost of."""

    made: Made = Patched

    def trainer(self, client: Client, method: Method, clock: Clock, rng: SecretStream) -> PrivateTrainer:
        sound = super().trainer(client, method, clock, rng)
        return self.made(
            noise_multiplier=sound.noise_multiplier, max_grad_norm=sound.max_grad_norm, secret=rng, method=sound.method
        )


TRAINERS: Mapping[str, Made] = {
    "tensor by tensor": partial(Patched, clip=tensor_by_tensor),
    "as a batch": partial(Patched, clip=as_a_batch),
    "without the last": partial(Patched, clip=without_the_last),
    "without vectors": partial(Patched, clip=without_vectors),
    "no noise on vectors": partial(Patched, noise=on_matrices),
    "the same noise": partial(Patched, noise=the_same_noise),
    "at the median": AtTheMedian,
}
"""Trainers that move further than a step's cost allows, by what they do."""


@dataclass(frozen=True, kw_only=True)
class StylesSampled(StylesFromA32BitSeed):
    """Sound: rows of single images with noise, each of which is sent by a secret coin, for which nothing is claimed."""

    def _rows(
        self, outgoing: Outgoing, region: Region, sensitivity: Mapping[Relation, float], rng: SecretStream
    ) -> Protected:
        noise, uses = self._calibrated_noise(outgoing, sensitivity)
        rows = region.inside(rows_of(outgoing.artifact))
        kept = torch.as_tensor(rng.uniform(len(rows))) < 0.75
        kept[0] = True
        sent = region.values(rows + noise * rng.normal(*rows.shape))[kept]
        mean, std = sent.float().chunk(2, dim=1)
        return Protected(artifact=ImageStyles(mean=mean, std=std.clamp_min(0)), uses=uses)
