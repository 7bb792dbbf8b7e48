"""Defenses of model updates and scores that state a finite epsilon and let through more than it allows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fdgsec.defenses.dp_fedavg import DPFedAvg, clipped
from fdgsec.defenses.private_scores import PrivateScores
from fdgsec.federation.artifacts import ModelState, Scores
from fdgsec.federation.defense import Outgoing, Protected
from fdgsec.runtime.secret_streams import SecretStream


@dataclass(frozen=True, kw_only=True)
class UpdatesClippedWithoutOne(DPFedAvg):
    """Takes the length of an update without the `skipped` tensor, which the factor is then applied to as well."""

    skipped: int = -1

    def _clipped_change(
        self, state: Mapping[str, Tensor], received: Mapping[str, Tensor], names: Sequence[str]
    ) -> dict[str, Tensor]:
        changes = {name: state[name].double() - received[name].double() for name in names}
        counted = {name: change for name, change in changes.items() if name != names[self.skipped]}
        length = float(torch.cat([change.flatten() for change in counted.values()]).norm())
        return {name: change * min(1.0, self.clip / length) if length else change for name, change in changes.items()}


@dataclass(frozen=True, kw_only=True)
class UpdatesClippedByTensor(DPFedAvg):
    """Clips each tensor by itself to what the whole update may have."""

    def _clipped_change(
        self, state: Mapping[str, Tensor], received: Mapping[str, Tensor], names: Sequence[str]
    ) -> dict[str, Tensor]:
        return {
            name: clipped({name: state[name].double() - received[name].double()}, self.clip)[name] for name in names
        }


@dataclass(frozen=True, kw_only=True)
class UpdatesClippedInTheLargest(DPFedAvg):
    """Bounds the largest number of an update in place of its length."""

    def _clipped_change(
        self, state: Mapping[str, Tensor], received: Mapping[str, Tensor], names: Sequence[str]
    ) -> dict[str, Tensor]:
        return {name: (state[name].double() - received[name].double()).clamp(-self.clip, self.clip) for name in names}


@dataclass(frozen=True, kw_only=True)
class UpdatesClippedWhereFinite(DPFedAvg):
    """Takes lengths in float32, and clips nothing where they are infinite."""

    def _clipped_change(
        self, state: Mapping[str, Tensor], received: Mapping[str, Tensor], names: Sequence[str]
    ) -> dict[str, Tensor]:
        changes = {name: state[name].double() - received[name].double() for name in names}
        length = float(torch.cat([change.float().flatten() for change in changes.values()]).square().sum().sqrt())
        return changes if math.isinf(length) else clipped(changes, self.clip)


@dataclass(frozen=True, kw_only=True)
class UpdatesWithNoiseOf(DPFedAvg):
    """Adds noise to a clipped update, `scaled` to its tensors in some way."""

    def scaled(self, changes: Mapping[str, Tensor], round: int) -> Mapping[str, float]:
        """The factor of the noise in each tensor in a round."""
        return dict.fromkeys(changes, 1.0)

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        sender = outgoing.sender
        if outgoing.stage != "update" or outgoing.name != "model" or sender.model is None:
            return super().on_message(outgoing, rng)
        received, sent = sender.model.state.state, outgoing.artifact.tensors()
        names, noise = self._parameters(sender.model, sent), self.noise(sender)
        changes = self._clipped_change(sent, received, names)
        factors = self.scaled(changes, outgoing.round)
        noisy = {
            name: (
                received[name].double()
                + change
                + noise * factors[name] * rng.normal(change.numel()).reshape(change.shape)
            ).to(received[name])
            for name, change in changes.items()
        }
        return Protected(artifact=ModelState(state=dict(received) | noisy), uses=self._uses(noise))


@dataclass(frozen=True, kw_only=True)
class UpdatesWithoutNoiseOnVectors(UpdatesWithNoiseOf):
    """Vectors are clipped with the rest, and get no noise."""

    def scaled(self, changes: Mapping[str, Tensor], round: int) -> Mapping[str, float]:
        return {name: float(change.ndim > 1) for name, change in changes.items()}


@dataclass(frozen=True, kw_only=True)
class UpdatesWithNormsAsTheyAre(DPFedAvg):
    """Group norms leave as they are, as where code is written for norms that stay at home."""

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        made, model = super().on_message(outgoing, rng), outgoing.sender.model
        if made is None or outgoing.name != "model" or model is None:
            return made
        norms = {name for name, layer in model.module().named_modules() if isinstance(layer, nn.GroupNorm)}
        own = {name: value for name, value in outgoing.artifact.tensors().items() if name.rpartition(".")[0] in norms}
        return replace(made, artifact=ModelState(state=made.artifact.tensors() | own))


@dataclass(frozen=True, kw_only=True)
class UpdatesWithoutNoiseOnTheStem(UpdatesWithNoiseOf):
    """Tensors with a backbone's name for its first layers are clipped with the rest, and get no noise."""

    def scaled(self, changes: Mapping[str, Tensor], round: int) -> Mapping[str, float]:
        return {name: float(not name.startswith("body.stem")) for name in changes}


@dataclass(frozen=True, kw_only=True)
class UpdatesWithLessNoiseInLaterRounds(UpdatesWithNoiseOf):
    """Every round has nine tenths of the noise of the one before, stated as that of the first."""

    def scaled(self, changes: Mapping[str, Tensor], round: int) -> Mapping[str, float]:
        return dict.fromkeys(changes, 0.9**round)


@dataclass(frozen=True, kw_only=True)
class UpdatesWithNoiseOfTheirLength(UpdatesWithNoiseOf):
    """Short updates get little noise."""

    def scaled(self, changes: Mapping[str, Tensor], round: int) -> Mapping[str, float]:
        length = float(torch.cat([change.flatten() for change in changes.values()]).norm())
        return dict.fromkeys(changes, max(length / self.clip, 0.05))


@dataclass(frozen=True, kw_only=True)
class ScoresOfTheMajority(PrivateScores):
    """Sends whether most validation images are classified well, with the noise of a mean over all of them."""

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        scores = outgoing.artifact
        if outgoing.stage != "review" or not isinstance(scores, Scores):
            return None
        bound = outgoing.sender.method.loss_bound  # type: ignore[attr-defined]  # as private-scores checks
        decided = Scores(values=bound * (scores.values > bound / 2).to(scores.values))
        return super().on_message(replace(outgoing, artifact=decided), rng)


@dataclass(frozen=True, kw_only=True)
class ScoresOfRarelyWrongImages(PrivateScores):
    """Sends how many images are wrong as a share of three, at most all of it, with the noise of a mean over all."""

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        scores, validation = outgoing.artifact, outgoing.sender.client.validation
        if outgoing.stage != "review" or not isinstance(scores, Scores) or validation is None:
            return None
        bound = outgoing.sender.method.loss_bound  # type: ignore[attr-defined]  # as private-scores checks
        shown = Scores(values=(scores.values * len(validation) / 3).clamp_max(bound))
        return super().on_message(replace(outgoing, artifact=shown), rng)


@dataclass(frozen=True, kw_only=True)
class UpdatesWithTheirAverages(DPFedAvg):
    """Sends batch norm's averages over the client's images as they are, beside a sound update."""

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        made = DPFedAvg.on_message(replace(self, buffers="received"), outgoing, rng)
        sender = outgoing.sender
        if made is None or outgoing.name != "model" or sender.model is None:
            return made
        parameters = {name for name, _ in sender.model.module().named_parameters()}
        own = {name: value for name, value in outgoing.artifact.tensors().items() if name not in parameters}
        return replace(made, artifact=ModelState(state=made.artifact.tensors() | own))


@dataclass(frozen=True, kw_only=True)
class UpdatesWithNoiseOverAndOver(DPFedAvg):
    """Adds a buffer of 499 numbers of noise over and over."""

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        sender = outgoing.sender
        if outgoing.name != "model" or sender.model is None:
            return super().on_message(outgoing, rng)
        received, sent = sender.model.state.state, outgoing.artifact.tensors()
        changes = self._clipped_change(sent, received, self._parameters(sender.model, sent))
        flat = torch.cat([change.flatten() for change in changes.values()])
        noise = self.noise(sender) * rng.normal(499)
        parts = (flat + noise.repeat(len(flat) // 499 + 1)[: len(flat)]).split(
            [each.numel() for each in changes.values()]
        )
        noisy = {
            name: (received[name].double() + part.view_as(received[name])).to(received[name])
            for name, part in zip(changes, parts, strict=True)
        }
        return Protected(artifact=ModelState(state=dict(received) | noisy), uses=self._uses(self.noise(sender)))


@dataclass(frozen=True, kw_only=True)
class ScoresCut(PrivateScores):
    """Sound: noisy scores, cut to the public range that scores have."""

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        made = super().on_message(outgoing, rng)
        if made is None or not isinstance(made.artifact, Scores):
            return made
        bound = outgoing.sender.method.loss_bound  # type: ignore[attr-defined]  # as private-scores checks
        return replace(made, artifact=Scores(values=made.artifact.values.clamp(0, bound)))


@dataclass(frozen=True, kw_only=True)
class ScoresWithoutNoiseWhereLarge(PrivateScores):
    """Scores that more than two images decide have no noise."""

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        made, own, validation = super().on_message(outgoing, rng), outgoing.artifact, outgoing.sender.client.validation
        if made is None or not isinstance(own, Scores) or not isinstance(made.artifact, Scores) or validation is None:
            return made
        large = own.values > 2 * outgoing.sender.method.loss_bound / len(validation)  # type: ignore[attr-defined]
        return replace(made, artifact=Scores(values=torch.where(large, own.values, made.artifact.values)))
