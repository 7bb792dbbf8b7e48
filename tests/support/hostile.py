"""Clients that do not keep to the rules: artifacts that no constructor would make, sent in place of honest ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from fdgsec.federation.artifacts import Artifact, ModelState
from fdgsec.federation.defense import Outgoing, Protected
from fdgsec.federation.method import Method
from fdgsec.runtime.secret_streams import SecretStream

T = TypeVar("T", bound=Artifact)
Forgery = Callable[[Artifact], Artifact]


def forged(kind: type[T], **values: object) -> T:
    """An artifact that was never checked, as whoever writes its own bytes can make it."""
    made = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def altered(entry: str, change: Callable[[Tensor], Tensor]) -> Forgery:
    """Change one entry of a style or model, unchecked."""

    def forge(artifact: Artifact) -> Artifact:
        tensors = artifact.tensors()
        tensors[entry] = change(tensors[entry].clone())
        return (
            forged(ModelState, state=tensors) if isinstance(artifact, ModelState) else forged(type(artifact), **tensors)
        )

    return forge


def scaled(factor: float) -> Forgery:
    """Multiply every float by `factor`, unchecked."""

    def forge(artifact: Artifact) -> Artifact:
        tensors = {
            name: value * factor if value.is_floating_point() else value for name, value in artifact.tensors().items()
        }
        return (
            forged(ModelState, state=tensors) if isinstance(artifact, ModelState) else forged(type(artifact), **tensors)
        )

    return forge


def first_is(number: float) -> Callable[[Tensor], Tensor]:
    """Put `number` in the first place."""

    def change(value: Tensor) -> Tensor:
        value.view(-1)[0] = number
        return value

    return change


@dataclass(frozen=True, kw_only=True)
class Hostile:
    """Sends what `forge` makes of the honest artifact of `slot`, from the clients named in `parties`."""

    slot: str
    forge: Forgery
    parties: Sequence[str] = ("client:1",)
    assumptions: Sequence[str] = ()

    def check(self, method: Method) -> None:
        """Every method can be attacked."""

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        """Forge."""
        if outgoing.name != self.slot or outgoing.sender.name not in self.parties:
            return None
        return Protected(artifact=self.forge(outgoing.artifact))
