"""Defenses with the faults that an audit must find: they promise what the sound ones promise, and do not keep it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor

from fdgsec.defenses.dp_fedavg import DPFedAvg, clipped
from fdgsec.defenses.dp_sgd import DPSGD
from fdgsec.defenses.private_scores import BoundsLosses, PrivateScores, sensitivity_of_scores
from fdgsec.defenses.private_styles import PrivateStyles
from fdgsec.federation.artifacts import ModelState, Scores
from fdgsec.federation.defense import Outgoing, Protected
from fdgsec.federation.method import Client, Clock, Method
from fdgsec.federation.public_clip_bounds import Frame, rows_of, with_rows
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.batches import TrainingSet
from fdgsec.privacy.accounting import Relation, Use
from fdgsec.privacy.clipping import Ball, Region, clip_rows, sensitivity_of_mean
from fdgsec.privacy.dp_sgd import PrivateTrainer
from fdgsec.privacy.mechanisms import noise_multiplier
from fdgsec.runtime.secret_streams import SecretStream, simulated_stream

T = TypeVar("T")
BOTH: tuple[Relation, ...] = ("zero-out", "add-remove")
LONGEST = 2**17
"""More numbers than any audited release has."""


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


@dataclass(frozen=True, kw_only=True, eq=False)
class PartlyLoose(Loose):
    """A region that leaves the numbers from `bounded` on as they are."""

    bounded: int

    def inside(self, values: Tensor) -> Tensor:
        free = super().inside(values)
        return torch.cat([clip_rows(free[..., : self.bounded], self.ball.bound), free[..., self.bounded :]], dim=-1)


@dataclass(frozen=True, kw_only=True)
class StylesClippedInPart(PrivateStyles):
    """Clips a part of the numbers alone."""

    def _cached(self, outgoing: Outgoing, kind: str, make: Callable[[], T]) -> T:
        made = super()._cached(outgoing, kind, make)
        if isinstance(made, Frame):
            return cast(T, replace(made, region=self._in_part(made.region)))
        return cast(T, self._in_part(cast(Region, made)))

    def _in_part(self, region: Region) -> Region:
        assert isinstance(region, Ball)
        return PartlyLoose(ball=region, bounded=self._bounded(len(region.center)))

    def _bounded(self, count: int) -> int:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class StylesWithMeansClippedAlone(StylesClippedInPart):
    """Clips means and not second moments."""

    def _bounded(self, count: int) -> int:
        return count // 2


@dataclass(frozen=True, kw_only=True)
class StylesWithOneNumberUnclipped(StylesClippedInPart):
    """Clips all numbers but the last."""

    def _bounded(self, count: int) -> int:
        return count - 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Boxed(Loose):
    """A region that bounds each number by itself."""

    def inside(self, values: Tensor) -> Tensor:
        return super().inside(values).clamp(-self.ball.bound, self.ball.bound)


@dataclass(frozen=True, kw_only=True)
class StylesClippedNumberByNumber(StylesClippedInPart):
    """Clips each number by itself to what the whole is said to be clipped to."""

    def _in_part(self, region: Region) -> Region:
        assert isinstance(region, Ball)
        return Boxed(ball=region)


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
class DPSGDWithTwoFifthsOfTheNoise(DPSGD):
    """Adds two fifths of the noise that it states."""

    def trainer(self, client: Client, method: Method, clock: Clock, rng: SecretStream) -> PrivateTrainer:
        sound = super().trainer(client, method, clock, rng)
        return Lying(
            noise_multiplier=sound.noise_multiplier / 2.5, max_grad_norm=sound.max_grad_norm, secret=rng, noise_stated=2.5
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


@dataclass(frozen=True, kw_only=True)
class DPSGDWithAPrivateDivisor(DPSGD):
    """States add-remove, and divides by the expected batch of a private number of records (pytorch/opacus issue 819)."""

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        found = super().on_message(outgoing, rng)
        if found is None or not found.uses:
            return found
        bounds: dict[Relation, float] = {relation: found.uses[0].sensitivity["zero-out"] for relation in BOTH}
        return replace(found, uses=tuple(replace(use, sensitivity=bounds) for use in found.uses))


@dataclass(frozen=True, kw_only=True, eq=False)
class AmongContributors(PrivateTrainer):
    """Leaves black images out before it counts its records, and so divides by a private number."""

    def __call__(self, model: Classifier, data: TrainingSet, *given: Any, **named: Any) -> dict[str, float]:
        lit = (data.images != 0).flatten(1).any(1)
        kept = replace(data, images=data.images[lit], labels=data.labels[lit]) if bool(lit.any()) else data
        return super().__call__(model, kept, *given, **named)


@dataclass(frozen=True, kw_only=True)
class DPSGDAmongContributors(DPSGD):
    """Divides by the expected batch of the records that contribute, under zero-out."""

    def trainer(self, client: Client, method: Method, clock: Clock, rng: SecretStream) -> PrivateTrainer:
        sound = super().trainer(client, method, clock, rng)
        return AmongContributors(
            noise_multiplier=sound.noise_multiplier, max_grad_norm=sound.max_grad_norm, secret=rng, method=sound.method
        )


def seeded_noise(like: Tensor, sd: float, rng: SecretStream, bits: int = 63) -> Tensor:
    """Noise of the right size from a seed of `bits` bits, of which torch keeps 32."""
    seed = int.from_bytes(rng.random_bytes(8), "little") >> (64 - bits)
    return sd * torch.randn(like.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class StylesFromA32BitSeed(PrivateStyles):
    """Seeds torch's generator, which keeps 32 bits."""

    bits: ClassVar[int] = 63

    def _mean(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        return self._with(outgoing, frame, lambda like, sd: seeded_noise(like, sd, rng, self.bits))

    def _with(self, outgoing: Outgoing, frame: Frame, noise_of: Callable[[Tensor, float], Tensor]) -> Protected:
        rows = frame.coordinates(outgoing.sender.records)
        noise, uses = self._calibrated_noise(outgoing, sensitivity_of_mean(frame.region, len(rows)))
        mean = rows.mean(0) + noise_of(rows[0], noise)
        return Protected(artifact=frame.artifact(mean, like=outgoing.artifact, images=len(rows)), uses=uses)


@dataclass(frozen=True, kw_only=True)
class StylesWithOneNumberOfNoise(StylesFromA32BitSeed):
    """Adds one number's noise to all of them."""

    def _mean(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        return self._with(outgoing, frame, lambda like, sd: sd * rng.normal(1).expand(len(like)))


@dataclass(frozen=True, kw_only=True)
class StylesWithOneNoiseForMeansAndSquares(StylesFromA32BitSeed):
    """Draws half as many numbers as it sends, and adds them to means and to second moments."""

    def _mean(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        return self._with(outgoing, frame, lambda like, sd: sd * rng.normal(len(like) // 2).repeat(2))


@dataclass(frozen=True, kw_only=True)
class StylesWithOneQuietNumber(StylesFromA32BitSeed):
    """Adds a hundredth of the noise to one number, the sixth."""

    def _mean(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        return self._with(outgoing, frame, lambda like, sd: sd * _all_but_the_sixth(rng.normal(len(like))))


def _all_but_the_sixth(noise: Tensor) -> Tensor:
    return torch.where(torch.arange(len(noise)) == 5, 0.01 * noise, noise)


@dataclass(frozen=True, kw_only=True)
class StylesWithoutNoiseInOneDirection(StylesFromA32BitSeed):
    """Adds noise that is zero along one direction, to which every mean contributes; each number has the variance that
    it states."""

    def _mean(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        def flat(like: Tensor, sd: float) -> Tensor:
            means, squares = rng.normal(len(like)).chunk(2)
            return sd * torch.cat([(means - means.mean()) / math.sqrt(1 - 1 / len(means)), squares])

        return self._with(outgoing, frame, flat)


@dataclass(frozen=True, kw_only=True)
class StylesInAPublicSubspace(StylesFromA32BitSeed):
    """No fault: projects the noisy mean onto public directions, fewer than it has numbers."""

    def _mean(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        coordinates = frame.coordinates(outgoing.sender.records)
        noise, uses = self._calibrated_noise(outgoing, sensitivity_of_mean(frame.region, len(coordinates)))
        mean = coordinates.mean(0)
        noisy, kept = mean + noise * rng.normal(len(mean)), _public_directions(len(mean))
        kind = frame.artifact(kept @ (kept.T @ noisy), like=outgoing.artifact, images=len(coordinates))
        return Protected(artifact=kind, uses=uses)


@cache
def _public_directions(count: int) -> Tensor:
    """Four fifths of so many directions, (count, 4/5 count), the same ones always."""
    full = torch.randn(count, count, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return torch.linalg.qr(full)[0][:, : count * 4 // 5]


@dataclass(frozen=True, kw_only=True)
class StylesClippedAtTheirMedian(StylesFromA32BitSeed):
    """Clips at the median length of the client's own images, without noise on the median."""

    def _mean(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        assert isinstance(frame.region, Ball)
        rows = frame.released_statistic.about(outgoing.sender.records, frame.about)
        lengths = ((rows - frame.region.center) / frame.region.scale).norm(dim=1)
        region = replace(frame.region, bound=float(lengths.median()))
        return super()._mean(outgoing, replace(frame, region=region), rng)


@dataclass(frozen=True, kw_only=True)
class StylesClippedAboutTheirMedian(StylesFromA32BitSeed):
    """Clips about the median of the client's own images, number by number, and adds it again without noise on it."""

    def _mean(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        assert isinstance(frame.region, Ball)
        rows = frame.released_statistic.about(outgoing.sender.records, frame.about)
        rows = (rows - frame.region.center) / frame.region.scale
        noise, uses = self._calibrated_noise(outgoing, sensitivity_of_mean(frame.region, len(rows)))
        middle = rows.median(0).values
        mean = middle + clip_rows(rows - middle, frame.region.bound).mean(0) + noise * rng.normal(rows.shape[1])
        sent = frame.artifact(self.fitted(mean, noise), like=outgoing.artifact, images=len(rows))
        return Protected(artifact=sent, uses=uses)

    def fitted(self, mean: Tensor, noise: float) -> Tensor:
        """What is sent of the mean with noise (D,)."""
        return mean


@dataclass(frozen=True, kw_only=True)
class StylesOfTheMostFrequentClass(StylesFromA32BitSeed):
    """Sends the mean over the images of the most frequent class, with the noise of a mean over all images."""

    def _mean(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        coordinates = frame.coordinates(outgoing.sender.records)
        noise, uses = self._calibrated_noise(outgoing, sensitivity_of_mean(frame.region, len(coordinates)))
        labels = outgoing.sender.client.data.labels
        mean = coordinates[labels == labels.mode().values].mean(0) + noise * rng.normal(coordinates.shape[1])
        return Protected(artifact=frame.artifact(mean, like=outgoing.artifact, images=len(coordinates)), uses=uses)


@dataclass(frozen=True, kw_only=True)
class StylesWithNoiseOfTheirOwnSpread(StylesFromA32BitSeed):
    """Adds noise that is larger where the client's images differ more, and states the same cost for all."""

    def _mean(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        spread = float(outgoing.sender.records.std(0).mean())
        return self._with(outgoing, frame, lambda like, sd: sd * (1 + spread) * rng.normal(len(like)))


@dataclass(frozen=True, kw_only=True)
class StylesWithSpikyNoise(StylesFromA32BitSeed):
    """Adds to each number but the first a thousandth of the noise or the root of 2 of it, which is the variance that it
    states."""

    def _mean(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        def spiky(like: Tensor, sd: float) -> Tensor:
            size = torch.where(rng.integers(2, len(like)) == 1, 0.001, math.sqrt(2))
            size[0] = 1
            return sd * size * rng.normal(len(like))

        return self._with(outgoing, frame, spiky)


@dataclass(frozen=True, kw_only=True)
class StylesThatMayGoWithoutNoise(StylesFromA32BitSeed):
    """Adds a millionth of the noise to one release in ten."""

    def _mean(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        size = 1e-6 if int(rng.integers(10, 1)) == 0 else 1.0
        return self._with(outgoing, frame, lambda like, sd: sd * size * rng.normal(len(like)))


@dataclass(frozen=True, kw_only=True)
class StylesWithOneNoiseForAllClients(StylesFromA32BitSeed):
    """Draws its noise once for all clients of an exchange, and anew for a client that comes again."""

    served: ClassVar[set[str]] = set()
    noise: ClassVar[list[Tensor]] = []

    def _mean(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        def shared(like: Tensor, sd: float) -> Tensor:
            if outgoing.sender.name in self.served or not self.noise:
                self.served.clear()
                self.noise[:] = [rng.normal(len(like))]
            self.served.add(outgoing.sender.name)
            return sd * self.noise[0]

        return self._with(outgoing, frame, shared)


@dataclass(frozen=True, kw_only=True)
class RowsWithOneNoise(PrivateStyles):
    """Adds one row of noise to all rows."""

    def _rows(
        self, outgoing: Outgoing, region: Region, sensitivity: Mapping[Relation, float], rng: SecretStream
    ) -> Protected:
        noise, uses = self._calibrated_noise(outgoing, sensitivity)
        rows = region.inside(rows_of(outgoing.artifact))
        noisy = region.values(rows + noise * rng.normal(rows.shape[1]))
        return Protected(artifact=with_rows(outgoing.artifact, noisy), uses=uses)


@dataclass(frozen=True, kw_only=True)
class ScoresFromA32BitSeed(PrivateScores):
    """Seeds torch's generator, which keeps 32 bits."""

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        scores, method, validation = outgoing.artifact, outgoing.sender.method, outgoing.sender.client.validation
        if outgoing.stage != "review" or not isinstance(scores, Scores) or not isinstance(method, BoundsLosses):
            return None
        if validation is None:
            return None
        values = scores.values
        bound = sensitivity_of_scores(scores=values.numel(), images=len(validation), bound=method.loss_bound)
        sd = noise_multiplier(self.epsilon, self.delta) * bound
        known = Use(mechanism="gaussian", noise=sd, sensitivity={"replace-one": bound, "zero-out": bound})
        return Protected(artifact=Scores(values=values + seeded_noise(values, sd, rng)), uses=(known,))


@dataclass(frozen=True, kw_only=True)
class StylesFromA12BitSeed(StylesFromA32BitSeed):
    """Seeds with 12 bits."""

    bits: ClassVar[int] = 12


@dataclass(frozen=True, kw_only=True)
class StylesAndModelsWithOneNoise(StylesFromA32BitSeed):
    """Adds one noise vector to the style and the model of a round: its stream leaves the stage out."""

    @property
    def mechanism_on(self) -> frozenset[str]:
        return frozenset({"share", "update"})

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        if outgoing.stage == "share":
            return super().on_message(outgoing, rng)
        if not isinstance(outgoing.artifact, ModelState) or outgoing.sender.model is None:
            return None
        received, sound = outgoing.sender.model.state.state, DPFedAvg(epsilon=self.epsilon, delta=self.delta)
        changes = clipped({name: value - received[name] for name, value in outgoing.artifact.state.items()}, sound.clip)
        sd = sound.noise(outgoing.sender)
        noisy = {name: received[name] + value + self._one(value, sd, rng).float() for name, value in changes.items()}
        use = Use(mechanism="gaussian", noise=sd, sensitivity={"zero-out": sound.clip})
        return Protected(artifact=ModelState(state=noisy), uses=(use,))

    def _mean(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        return self._with(outgoing, frame, lambda like, sd: self._one(like, sd, rng))

    def _one(self, like: Tensor, sd: float, rng: SecretStream) -> Tensor:
        run, client = rng._names[1], rng._names[5]
        whole = SecretStream(rng._key, "noise", run, client).normal(LONGEST)
        return sd * whole[: like.numel()].reshape(like.shape)


@dataclass(frozen=True, kw_only=True)
class ModelsClippedTensorByTensor(DPFedAvg):
    """Clips each tensor to what the whole change is said to be clipped to."""

    def _clipped_change(
        self, state: Mapping[str, Tensor], received: Mapping[str, Tensor], names: Sequence[str]
    ) -> dict[str, Tensor]:
        change = dict[str, Tensor]()
        for name in names:
            change |= clipped({name: state[name].double() - received[name].double()}, self.clip)
        return change


@dataclass(frozen=True, kw_only=True)
class ModelsWithOneNoisePerTensor(DPFedAvg):
    """Draws the noise of each tensor from the beginning of one stream."""

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        if not isinstance(outgoing.artifact, ModelState) or outgoing.sender.model is None or outgoing.stage != "update":
            return None
        received, sd = outgoing.sender.model.state.state, self.noise(outgoing.sender)
        changes = clipped({name: value - received[name] for name, value in outgoing.artifact.state.items()}, self.clip)
        noisy = {
            name: received[name] + (change + sd * rng.child("noise").normal(*change.shape)).to(received[name])
            for name, change in changes.items()
        }
        return Protected(artifact=ModelState(state=noisy), uses=self._uses(sd))


@dataclass(frozen=True, kw_only=True)
class ModelsWithNoiseWhereTheyChanged(DPFedAvg):
    """Adds noise to the parameters that changed only; the others go out exactly as they came."""

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        return self._partly(outgoing, rng, lambda change: change != 0)

    def _partly(self, outgoing: Outgoing, rng: SecretStream, chosen: Callable[[Tensor], Tensor]) -> Protected | None:
        """The clipped model with noise in the numbers that `chosen` names by their changes."""
        if not isinstance(outgoing.artifact, ModelState) or outgoing.sender.model is None:
            return None
        received, sd = outgoing.sender.model.state.state, self.noise(outgoing.sender)
        changes = clipped({name: value - received[name] for name, value in outgoing.artifact.state.items()}, self.clip)
        flat = torch.cat([change.flatten() for change in changes.values()])
        noise = torch.where(chosen(flat), sd * rng.normal(len(flat)), 0.0).to(flat)
        parts = (flat + noise).split([change.numel() for change in changes.values()])
        state = {
            name: received[name] + part.reshape(change.shape)
            for (name, change), part in zip(changes.items(), parts, strict=True)
        }
        return Protected(artifact=ModelState(state=state), uses=self._uses(sd))


@dataclass(frozen=True, kw_only=True)
class ModelsWithNoiseOnAFifth(ModelsWithNoiseWhereTheyChanged):
    """Draws a fifth of the parameters, and adds noise to these; the others are clipped only (NVIDIA/NVFlare issue 343)."""

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        drawn = rng.child("chosen")
        return self._partly(outgoing, rng, lambda change: drawn.uniform(len(change)) < 0.2)
