"""Ways to forge an artifact: ones that no constructor would make, and legal ones that lie.

What each does to a federation is measured by fdgsec.attacks.poisoning.attack. A forged artifact is made without its kind's checks,
as whoever writes its own bytes can make it; whether it gets through is the receiver's business."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fdgsec.federation.artifacts import Artifact, ModelState, Scores
from fdgsec.federation.malicious_client import Leaving
from fdgsec.federation.method import NUMBERS, StepRequest

MODEL = "model"
"""The slot of the model that is aggregated; others of its kind (FedDAG's perturbed one) are left alone."""
WEIGHT = "Scores, weight"
"""What reports call the weight that goes with an update."""
OWN_LOSS = "own_loss"
"""The metric by which a client judges its own model (FedDAG eq. 5)."""

Flaw = Literal["nan", "infinity", "negative", "another shape", "missing"]


def unchecked(artifact: Artifact, tensors: Mapping[str, Tensor]) -> Artifact:
    """Give an artifact of the same kind that holds `tensors`, whatever its constructor would say."""
    made: Artifact = object.__new__(type(artifact))
    values = {"state": dict(tensors)} if isinstance(artifact, ModelState) else tensors
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def changed(artifact: Artifact, change: Callable[[str, Tensor], Tensor]) -> Artifact:
    """Give the same kind of artifact after `change(name, tensor)` of each tensor of floats, unchecked."""
    return unchecked(
        artifact,
        {
            name: change(name, value.detach().clone()) if value.is_floating_point() else value
            for name, value in artifact.tensors().items()
        },
    )


@dataclass(frozen=True, kw_only=True)
class Honest:
    """Sends what would have been sent, made anew number by number: the forgery that must do nothing."""

    name: str = "honest"
    kind: str = "everything"
    once: bool = True

    def forge(self, leaving: Leaving, seen: StepRequest, rng: torch.Generator) -> Artifact | None:
        """Copy the artifact."""
        return changed(leaving.artifact, lambda name, value: value)


@dataclass(frozen=True, kw_only=True)
class OfKind(ABC):
    """What forgeries of one kind of artifact have in common; of models only the one in slot "model" is forged."""

    kind: str
    once: bool = False

    def forge(self, leaving: Leaving, seen: StepRequest, rng: torch.Generator) -> Artifact | None:
        """Forge the artifacts of the kind, and leave all others as they are."""
        other = leaving.artifact.kind != self.kind or leaving.slot == NUMBERS
        if other or (self.kind == ModelState.kind and leaving.slot != MODEL):
            return leaving.artifact
        return self.forged(leaving, seen)

    @abstractmethod
    def forged(self, leaving: Leaving, seen: StepRequest) -> Artifact | None:
        """Give what leaves in place of an artifact of the kind."""


@dataclass(frozen=True, kw_only=True)
class Flawed(OfKind):
    """Breaks the rules that every artifact obeys.

    `nan`, `infinity`, `negative` put such a value in one place (a std, an amplitude, a score: what must not be negative);
    `another shape` cuts the last column off every tensor; `missing` leaves out a model's last entry, of other kinds all."""

    flaw: Flaw
    once: bool = True

    @property
    def name(self) -> str:
        """As "nan"."""
        return self.flaw

    def forged(self, leaving: Leaving, seen: StepRequest) -> Artifact | None:
        """Break it."""
        artifact = leaving.artifact
        if self.flaw == "missing":
            if not isinstance(artifact, ModelState):
                return None
            return unchecked(artifact, dict(list(artifact.tensors().items())[:-1]))
        if self.flaw == "another shape":
            return changed(artifact, lambda name, value: value[..., :-1] if value.ndim else value)
        floats = [name for name, value in artifact.tensors().items() if value.is_floating_point() and value.numel()]
        place = floats[0] if self.flaw != "negative" or "std" not in floats else "std"
        number = {"nan": math.nan, "infinity": math.inf, "negative": -1.0}[self.flaw]
        return changed(artifact, lambda name, value: _first_is(number, value) if name == place else value)


@dataclass(frozen=True, kw_only=True)
class Scaled(OfKind):
    """Multiplies what is sent by `factor`: every float, or those of the entries named; of `rows` rows alone where given."""

    factor: float
    entries: tuple[str, ...] = ()
    rows: int | None = None

    @property
    def name(self) -> str:
        """As "x100", "std x100", "1 row's std x100"."""
        what = " and ".join(self.entries)
        scaled = f"{what} x{self.factor:g}".strip()
        return scaled if self.rows is None else f"{self.rows} row's {scaled}"

    def forged(self, leaving: Leaving, seen: StepRequest) -> Artifact | None:
        """Scale."""

        def scale(name: str, value: Tensor) -> Tensor:
            if not self.entries or name in self.entries:
                (value if self.rows is None else value[: self.rows]).mul_(self.factor)
            return value

        return changed(leaving.artifact, scale)


@dataclass(frozen=True, kw_only=True)
class ScaledUpdate(OfKind):
    """Sends received + `factor` (trained - received) in place of the trained model: -1 is the update with its sign flipped."""

    factor: float
    kind: str = ModelState.kind

    @property
    def name(self) -> str:
        """As "update x10"."""
        return f"update x{self.factor:g}"

    def forged(self, leaving: Leaving, seen: StepRequest) -> Artifact | None:
        """Move away from the received model, entry by entry; entries that it lacks are scaled from zero."""
        received: Mapping[str, Tensor] = {} if seen.model is None else seen.model.state.state

        def move(name: str, value: Tensor) -> Tensor:
            start = received[name].to(value) if name in received else torch.zeros_like(value)
            return start + self.factor * (value - start)

        return changed(leaving.artifact, move)


@dataclass(frozen=True, kw_only=True)
class Heavy:
    """Claims `weight` images behind its update, where weights are numbers of images."""

    weight: float
    kind: str = WEIGHT
    once: bool = True

    @property
    def name(self) -> str:
        """As "weight 1e+12"."""
        return f"weight {self.weight:g}"

    def forge(self, leaving: Leaving, seen: StepRequest, rng: torch.Generator) -> Artifact | None:
        """Put the weight in the first of an update's numbers."""
        if leaving.slot != NUMBERS:
            return leaving.artifact
        return changed(leaving.artifact, lambda name, value: _first_is(self.weight, value))


@dataclass(frozen=True, kw_only=True)
class Judging:
    """Reports the mean validation loss `peers` for every other client's model, and `own` for its own where that is given.

    Scores are 1 / sum of losses (FedDAG eq. 5): huge losses take the others' weight away, zeros raise it."""

    peers: float
    own: float | None = None
    kind: str = Scores.kind
    once: bool = False

    @property
    def name(self) -> str:
        """As "peers' losses 1e+09, own 0"."""
        return f"peers' losses {self.peers:g}" + ("" if self.own is None else f", own {self.own:g}")

    def forge(self, leaving: Leaving, seen: StepRequest, rng: torch.Generator) -> Artifact | None:
        """Judge as it pleases."""
        if leaving.step == "review":
            return changed(leaving.artifact, lambda name, value: torch.full_like(value, self.peers))
        own = self.own
        if leaving.slot != NUMBERS or own is None or OWN_LOSS not in leaving.metrics:
            return leaving.artifact
        place = 1 + leaving.metrics.index(OWN_LOSS)  # behind the weight

        def told(name: str, value: Tensor) -> Tensor:
            value[place] = own
            return value

        return changed(leaving.artifact, told)


def _first_is(number: float, value: Tensor) -> Tensor:
    value[(0,) * value.ndim] = number
    return value
