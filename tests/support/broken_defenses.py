"""Defenses with the faults that an audit must find: they promise what the sound ones promise, and do not keep it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar, cast

import torch
from torch import Tensor

from fdgsec.defenses.dp_sgd import DPSGD
from fdgsec.defenses.private_styles import PrivateStyles
from fdgsec.federation.defense import Outgoing, Protected
from fdgsec.federation.method import Client, Clock, Method
from fdgsec.federation.public_clip_bounds import Frame
from fdgsec.privacy.accounting import Relation, Use
from fdgsec.privacy.clipping import Ball, Region
from fdgsec.privacy.dp_sgd import PrivateTrainer
from fdgsec.runtime.secret_streams import SecretStream, simulated_stream

T = TypeVar("T")


def same_again() -> SecretStream:
    return simulated_stream(0, "the same every time")


@dataclass(frozen=True, kw_only=True)
class StylesWithATenthOfTheNoise(PrivateStyles):
    """Adds a tenth of the noise that it states."""

    def _calibrated_noise(
        self, outgoing: Outgoing, sensitivity: Mapping[Relation, float]
    ) -> tuple[float, tuple[Use, ...] | None]:
        noise, uses = super()._calibrated_noise(outgoing, sensitivity)
        return noise / 10, uses


@dataclass(frozen=True, kw_only=True, eq=False)
class Loose:
    """A region that says how large it is and lets everything through."""

    ball: Ball

    @property
    def radius(self) -> float:
        return self.ball.radius

    @property
    def diameter(self) -> float:
        return self.ball.diameter

    def inside(self, values: Tensor) -> Tensor:
        return (values.to(torch.float64) - self.ball.center) / self.ball.scale

    def values(self, coordinates: Tensor) -> Tensor:
        return self.ball.values(coordinates)


@dataclass(frozen=True, kw_only=True)
class StylesWithoutClip(PrivateStyles):
    """Leaves the clip out."""

    def _cached(self, outgoing: Outgoing, kind: str, make: Callable[[], T]) -> T:
        made = super()._cached(outgoing, kind, make)
        if isinstance(made, Frame):
            return cast(T, replace(made, region=_loosened(made.region)))
        return cast(T, _loosened(cast(Region, made)))


def _loosened(region: Region) -> Region:
    assert isinstance(region, Ball)
    return Loose(ball=region)


@dataclass(frozen=True, kw_only=True)
class StylesWithOneNoise(PrivateStyles):
    """Draws its noise once and for all."""

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        return super().on_message(outgoing, same_again())


@dataclass(frozen=True, kw_only=True)
class StylesWithOneNoisePerRun(PrivateStyles):
    """Draws its noise in the first round and adds it in every one."""

    kept: ClassVar[dict[str, SecretStream]] = {}

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        if outgoing.round == 0:
            self.kept["stream"] = rng
        return super().on_message(outgoing, self.kept["stream"].child("again"))


@dataclass(frozen=True, kw_only=True, eq=False)
class Lying(PrivateTrainer):
    """Trains with other numbers than it states: `noise_stated` and `norm_stated` times those that it trains with."""

    noise_stated: float = 1.0
    norm_stated: float = 1.0

    def spend(self, use: Use) -> None:
        bounds = {relation: bound * self.norm_stated for relation, bound in use.sensitivity.items()}
        super().spend(replace(use, noise=use.noise * self.noise_stated, sensitivity=bounds))


@dataclass(frozen=True, kw_only=True)
class DPSGDWithATenthOfTheNoise(DPSGD):
    """Adds a tenth of the noise that it states."""

    def trainer(self, client: Client, method: Method, clock: Clock, rng: SecretStream) -> PrivateTrainer:
        sound = super().trainer(client, method, clock, rng)
        return Lying(
            noise_multiplier=sound.noise_multiplier / 10, max_grad_norm=sound.max_grad_norm, secret=rng, noise_stated=10.0
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DPSGDWithoutClip(DPSGD):
    """Clips a thousand times farther out than it states, with the noise that it states."""

    def trainer(self, client: Client, method: Method, clock: Clock, rng: SecretStream) -> PrivateTrainer:
        sound = super().trainer(client, method, clock, rng)
        return Lying(
            noise_multiplier=sound.noise_multiplier / 1000, max_grad_norm=sound.max_grad_norm * 1000, secret=rng,
            norm_stated=1e-3,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DPSGDWithOneNoise(DPSGD):
    """Draws its noise, and whom it samples, once and for all."""

    def trainer(self, client: Client, method: Method, clock: Clock, rng: SecretStream) -> PrivateTrainer:
        return super().trainer(client, method, clock, same_again())
