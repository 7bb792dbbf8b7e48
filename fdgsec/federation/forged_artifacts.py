"""Forged artifacts of malicious clients: invalid ones that no constructor would make, and valid ones with false values.

fdgsec.attacks.poisoning.attack measures their effect. A forged artifact skips the checks of its kind, because a
malicious client writes its own bytes; the receiver decides whether to accept it."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fdgsec.federation.artifacts import Artifact, ModelState, Scores
from fdgsec.federation.malicious_client_protocol import Leaving
from fdgsec.federation.method import NUMBERS, StepRequest

MODEL = "model"
"""The slot of the model that is aggregated; others of its kind (FedDAG's perturbed one) are not forged."""
WEIGHT = "Scores, weight"
"""The name of an update's weight in reports."""
OWN_LOSS = "own_loss"
"""The metric by which a client scores its own model (FedDAG eq. 5)."""

Flaw = Literal["nan", "infinity", "negative", "another shape", "missing"]


def unchecked(artifact: Artifact, tensors: Mapping[str, Tensor]) -> Artifact:
    """Make an artifact of the same kind with `tensors`, without the checks of its constructor."""
    made: Artifact = object.__new__(type(artifact))
    values = {"state": dict(tensors)} if isinstance(artifact, ModelState) else tensors
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def change_floats(artifact: Artifact, change: Callable[[str, Tensor], Tensor]) -> Artifact:
    """Apply `change(name, tensor)` to each floating-point tensor of an artifact, without the checks of its kind."""
    return unchecked(
        artifact,
        {
            name: change(name, value.detach().clone()) if value.is_floating_point() else value
            for name, value in artifact.tensors().items()
        },
    )


@dataclass(frozen=True, kw_only=True)
class Honest:
    """Sends a copy of the true artifact: a negative control."""

    name: str = "honest"
    kind: str = "everything"
    once: bool = True

    def forge(self, leaving: Leaving, _seen: StepRequest, _rng: torch.Generator, /) -> Artifact | None:
        """Copy the artifact."""
        return change_floats(leaving.artifact, lambda _, value: value)


@dataclass(frozen=True, kw_only=True)
class OfKind(ABC):
    """Base of the forgeries of one kind of artifact; of models only the one in slot "model" is forged."""

    kind: str
    once: bool = False

    def forge(self, leaving: Leaving, seen: StepRequest, _rng: torch.Generator, /) -> Artifact | None:
        """Forge the artifacts of the kind, and leave all others as they are."""
        other = leaving.artifact.kind != self.kind or leaving.slot == NUMBERS
        if other or (self.kind == ModelState.kind and leaving.slot != MODEL):
            return leaving.artifact
        return self.forged(leaving, seen)

    @abstractmethod
    def forged(self, leaving: Leaving, seen: StepRequest, /) -> Artifact | None:
        """Give the replacement of an artifact of the kind."""


@dataclass(frozen=True, kw_only=True)
class Flawed(OfKind):
    """Violates the checks of every artifact.

    `nan`, `infinity`, `negative` set one value (a std, an amplitude, a score: what must not be negative); `another
    shape` cuts the last column off every tensor; `missing` leaves out a model's last entry, or another kind's whole
    artifact."""

    flaw: Flaw
    once: bool = True

    @property
    def name(self) -> str:
        """Name as "nan"."""
        return self.flaw

    def forged(self, leaving: Leaving, _seen: StepRequest, /) -> Artifact | None:
        """Apply the flaw."""
        artifact = leaving.artifact
        if self.flaw == "missing":
            if not isinstance(artifact, ModelState):
                return None
            return unchecked(artifact, dict(list(artifact.tensors().items())[:-1]))
        if self.flaw == "another shape":
            return change_floats(artifact, lambda _, value: value[..., :-1] if value.ndim else value)
        floats = [name for name, value in artifact.tensors().items() if value.is_floating_point() and value.numel()]
        place = floats[0] if self.flaw != "negative" or "std" not in floats else "std"
        number = {"nan": math.nan, "infinity": math.inf, "negative": -1.0}[self.flaw]
        return change_floats(artifact, lambda name, value: _first_is(number, value) if name == place else value)


@dataclass(frozen=True, kw_only=True)
class Scaled(OfKind):
    """Multiplies floats by `factor`: all, or those of `entries`; only those of the first `rows` rows where given."""

    factor: float
    entries: tuple[str, ...] = ()
    rows: int | None = None

    @property
    def name(self) -> str:
        """Name as "x100", "std x100", "1 row's std x100"."""
        what = " and ".join(self.entries)
        scaled = f"{what} x{self.factor:g}".strip()
        return scaled if self.rows is None else f"{self.rows} row's {scaled}"

    def forged(self, leaving: Leaving, _seen: StepRequest, /) -> Artifact | None:
        """Scale."""

        def scale(name: str, value: Tensor) -> Tensor:
            if not self.entries or name in self.entries:
                (value if self.rows is None else value[: self.rows]).mul_(self.factor)
            return value

        return change_floats(leaving.artifact, scale)


@dataclass(frozen=True, kw_only=True)
class ScaledUpdate(OfKind):
    """Sends received + `factor` (trained - received) in place of the trained model; -1 flips the sign of the update."""

    factor: float
    kind: str = ModelState.kind

    @property
    def name(self) -> str:
        """Name as "update x10"."""
        return f"update x{self.factor:g}"

    def forged(self, leaving: Leaving, seen: StepRequest, /) -> Artifact | None:
        """Scale the update entry by entry; entries that the received model lacks are scaled from zero."""
        received: Mapping[str, Tensor] = {} if seen.model is None else seen.model.state.state

        def move(name: str, value: Tensor) -> Tensor:
            start = received[name].to(value) if name in received else torch.zeros_like(value)
            return start + self.factor * (value - start)

        return change_floats(leaving.artifact, move)


@dataclass(frozen=True, kw_only=True)
class Heavy:
    """Claims `weight` images for its update, where weights are numbers of images."""

    weight: float
    kind: str = WEIGHT
    once: bool = True

    @property
    def name(self) -> str:
        """Name as "weight 1e+12"."""
        return f"weight {self.weight:g}"

    def forge(self, leaving: Leaving, _seen: StepRequest, _rng: torch.Generator, /) -> Artifact | None:
        """Replace the weight, the first of an update's numbers."""
        if leaving.slot != NUMBERS:
            return leaving.artifact
        return change_floats(leaving.artifact, lambda _, value: _first_is(self.weight, value))


@dataclass(frozen=True, kw_only=True)
class Judging:
    """Reports the mean validation loss `peers` for every other client's model, and `own`, where given, for its own.

    Scores are 1 / sum of losses (FedDAG eq. 5): huge losses lower the weight of the others, zeros raise it."""

    peers: float
    own: float | None = None
    kind: str = Scores.kind
    once: bool = False

    @property
    def name(self) -> str:
        """Name as "peers' losses 1e+09, own 0"."""
        return f"peers' losses {self.peers:g}" + ("" if self.own is None else f", own {self.own:g}")

    def forge(self, leaving: Leaving, _seen: StepRequest, _rng: torch.Generator, /) -> Artifact | None:
        """Replace the losses."""
        if leaving.step == "review":
            return change_floats(leaving.artifact, lambda _, value: torch.full_like(value, self.peers))
        own = self.own
        if leaving.slot != NUMBERS or own is None or OWN_LOSS not in leaving.metrics:
            return leaving.artifact
        place = 1 + leaving.metrics.index(OWN_LOSS)  # after the weight

        def set_own(_: str, value: Tensor) -> Tensor:
            value[place] = own
            return value

        return change_floats(leaving.artifact, set_own)


def _first_is(number: float, value: Tensor) -> Tensor:
    value[(0,) * value.ndim] = number
    return value
