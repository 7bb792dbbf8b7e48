"""Artifacts, the messages of a federation: frozen records of tensors, checked on construction and again on load.

On disk and on the network an artifact is a safetensors file whose header carries one JSON record (kind, schema, text
fields). Nothing here can execute code on load."""

import builtins
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from fdgsec.federation.artifact_checks import (
    FLOATS,
    INTEGERS,
    LARGEST,
    LARGEST_WEIGHT,
    MOST_PARTIES,
    check_integers,
    check_names,
    check_size,
    expect,
    expect_dtype,
    expect_not_negative,
)
from fdgsec.runtime.errors import ArtifactError
from fdgsec.runtime.registry import plugins, resolve
from fdgsec.runtime.tensor_files import read_safetensors, safetensors_parts
from fdgsec.runtime.untrusted_text import parse_json_object

SCHEMA = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Artifact:
    """Named tensors of one kind; a subclass defines the legal shapes and ranges.

    Tensors hold floats unless `integers` names them: int64 from `least` on. Raises ArtifactError when a float is not
    finite or above `largest`, or a dtype, shape or range is wrong."""

    kind: ClassVar[str] = "artifact"
    integers: ClassVar[Mapping[str, int]] = {}
    largest: ClassVar[float] = LARGEST

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name, in a fixed order."""
        return {spec.name: value for spec in fields(self) if isinstance(value := getattr(self, spec.name), Tensor)}

    def __post_init__(self) -> None:
        for name, value in self.tensors().items():
            self._check_dtype(name, value)
            if value.is_floating_point():
                check_size(self.kind, name, value, largest=self.largest)
            elif name in self.integers:
                check_integers(self.kind, name, value, least=self.integers[name])

    def _check_dtype(self, name: str, value: Tensor) -> None:
        legal: Sequence[torch.dtype] = (torch.int64,) if name in self.integers else FLOATS
        expect_dtype(self.kind, name, value, legal)

    @property
    def bytes(self) -> int:
        """The size of the tensors in bytes, without the header."""
        return sum(value.numel() * value.element_size() for value in self.tensors().values())

    def encode(self) -> "builtins.bytes":
        """Serialize to safetensors with a JSON header; equal artifacts give equal bytes."""
        return b"".join(self.encoded_parts())

    def encoded_parts(self) -> "Iterator[builtins.bytes | memoryview]":
        """Yield the bytes of `encode` in pieces, tensors as they are in memory."""
        header = {"fdgsec": json.dumps({"kind": self.kind, "schema": SCHEMA}, sort_keys=True)}
        return safetensors_parts(self.tensors(), header)

    @property
    def sha256(self) -> str:
        """The hash of the encoded bytes, computed anew each time: tensors can be changed in ways that nothing counts.

        What goes to many receivers is hashed once per delivery (`Transcript.append_all`)."""
        digest = hashlib.sha256()
        for part in self.encoded_parts():
            digest.update(part)
        return digest.hexdigest()

    def stored(self) -> "tuple[Artifact, int | None]":
        """Give the artifact whose payload a transcript stores, and the client whose rows are left out of it, if any."""
        return self, None

    def without_rows_of(self, owner: int) -> "Artifact":
        """Leave out the rows of client number `owner`. Raises ArtifactError for a kind whose rows have no owners."""
        raise ArtifactError(f"{self.kind} has no rows of client {owner} that could be left out.")

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "Artifact":
        """Replace the tensors that are named."""
        return replace(self, **tensors)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Style(Artifact):
    """Channel means and stds of the same shape with `rank` axes; stds are at least 0."""

    rank: ClassVar[int] = 1
    mean: Tensor
    std: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        shape = "(C,)" if self.rank == 1 else "(rows, C)"
        legal = self.mean.ndim == self.rank and self.mean.shape == self.std.shape
        expect(legal, self.kind, f"mean {shape}, std {shape}", self.mean, self.std)
        expect_not_negative(self.kind, "std", self.std)


@dataclass(frozen=True, kw_only=True, eq=False)
class StyleStatistics(_Style):
    """One client's pooled style: `mean` (C,) and `std` (C,) (CCST eq. 8)."""

    kind: ClassVar[str] = "StyleStatistics"


@dataclass(frozen=True, kw_only=True, eq=False)
class StyleDistribution(_Style):
    """A client's distribution of image styles: center and spread of means and stds, four (C,) vectors (StableFDG)."""

    kind: ClassVar[str] = "StyleDistribution"
    mean_spread: Tensor
    std_spread: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        parts = (self.mean, self.std, self.mean_spread, self.std_spread)
        expect(len({part.shape for part in parts}) == 1, self.kind, "four vectors (C,)", *parts)
        expect_not_negative(self.kind, "mean_spread", self.mean_spread)
        expect_not_negative(self.kind, "std_spread", self.std_spread)


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageStyles(_Style):
    """One style per image: `mean` (J, C) and `std` (J, C) (CCST eq. 7; FedAlign's pool)."""

    kind: ClassVar[str] = "ImageStyles"
    rank: ClassVar[int] = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class StyleBank(_Style):
    """The styles of all clients: rows `mean`, `std` (R, C), and the owner of each row (CCST eqs. 9, 10).

    `owner` (R,) int64 holds client numbers."""

    kind: ClassVar[str] = "StyleBank"
    integers: ClassVar[Mapping[str, int]] = {"owner": -MOST_PARTIES}  # senders without a name have negative numbers
    rank: ClassVar[int] = 2
    owner: Tensor

    @cached_property
    def rows_by_owner(self) -> Mapping[int, Tensor]:
        """The places of the rows of each owner, in order."""
        owners, counts = torch.unique(self.owner, return_counts=True)
        places = torch.argsort(self.owner, stable=True).split(counts.tolist())
        return dict(zip(owners.tolist(), places, strict=True))

    def styles_of(self, owner: int) -> tuple[Tensor, Tensor] | None:
        """Give mean and std of the rows of client number `owner`; None if it has none."""
        rows = self.rows_by_owner.get(owner)
        return None if rows is None else (self.mean[rows], self.std[rows])

    def __post_init__(self) -> None:
        super().__post_init__()
        legal = self.owner.shape == self.mean.shape[:1]
        expect(legal, self.kind, "mean (R, C), std (R, C), owner (R,)", self.mean, self.std, self.owner)

    def without_rows_of(self, owner: int) -> "StyleBank":
        """Leave out the rows of client number `owner`, without a copy of the others."""
        return BankOfOthers(self, owner)


class BankOfOthers(StyleBank):
    """The bank `whole` without the rows of client number `own`: rows are selected when they are read.

    The receivers of one pool without their own rows would hold, and a transcript would store, a copy for each of them.
    Its bytes, hash and tensors are those of the StyleBank of these rows."""

    whole: StyleBank
    own: int

    def __init__(self, whole: StyleBank, own: int) -> None:
        self.whole = whole
        self.own = own

    def __getattr__(self, name: str) -> Tensor:
        """Select the rows of the others. `whole` was checked, and so they need not be."""
        if name not in ("mean", "std", "owner"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}.")
        value: Tensor = getattr(self.whole, name)
        return value[self.whole.owner != self.own]

    @property
    def bytes(self) -> int:
        """The size of the rows of the others."""
        rows = len(self.whole.owner)
        left_out = len(self.whole.rows_by_owner.get(self.own, ()))
        return self.whole.bytes // rows * (rows - left_out) if rows else 0

    def styles_of(self, owner: int) -> tuple[Tensor, Tensor] | None:
        """Give those of another client; its own are none of these."""
        return None if owner == self.own else self.whole.styles_of(owner)

    @property
    def sha256(self) -> str:
        """The hash of the encoded bytes of these rows."""
        return StyleBank(**self.tensors()).sha256

    def stored(self) -> tuple[Artifact, int | None]:
        """Give the whole bank, without the client's own rows."""
        return self.whole, self.own

    def without_rows_of(self, owner: int) -> StyleBank:
        """Leave out the rows of another client, too."""
        return StyleBank(**self.tensors()).without_rows_of(owner)

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> StyleBank:
        """Make a bank of its own of these tensors."""
        return StyleBank(**{**self.tensors(), **tensors})


@dataclass(frozen=True, kw_only=True, eq=False)
class InterpolationStyle(_Style):
    """The style that every client receives: `mean` (C,), `std` (C,) (FISC)."""

    kind: ClassVar[str] = "InterpolationStyle"


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelState(Artifact):
    """Network parameters and buffers by name, floats and integers; also the type of the global model."""

    kind: ClassVar[str] = "ModelState"
    largest: ClassVar[float] = LARGEST_WEIGHT
    state: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        check_names(self.kind, self.state)
        super().__post_init__()

    def _check_dtype(self, name: str, value: Tensor) -> None:
        expect_dtype(self.kind, name, value, (*FLOATS, *INTEGERS))

    def tensors(self) -> dict[str, Tensor]:
        """The state dict."""
        return dict(self.state)


@dataclass(frozen=True, kw_only=True, eq=False)
class GeneratorState(ModelState):
    """A generator's parameters (FedDAG)."""

    kind: ClassVar[str] = "GeneratorState"


@dataclass(frozen=True, kw_only=True, eq=False)
class Amplitudes(Artifact):
    """Amplitude spectra |FFT| of images, one per row: `values` (J, channels, H, W // 2 + 1), as of a real FFT.

    FedDG sends spectra of images; CCST's appendix E uses them as styles. `owner` (J,) int64 holds client numbers."""

    kind: ClassVar[str] = "Amplitudes"
    integers: ClassVar[Mapping[str, int]] = {"owner": -MOST_PARTIES}
    values: Tensor
    owner: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        legal = self.values.ndim == 4 and self.owner.shape == self.values.shape[:1]
        expect(legal, self.kind, "values (J, channels, H, W // 2 + 1), owner (J,)", self.values, self.owner)
        expect_not_negative(self.kind, "values", self.values)


@dataclass(frozen=True, kw_only=True, eq=False)
class Prototypes(Artifact):
    """Mean features per class: `features` (rows, d), `classes` (rows,) int64 (FPL)."""

    kind: ClassVar[str] = "Prototypes"
    integers: ClassVar[Mapping[str, int]] = {"classes": 0}
    features: Tensor
    classes: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        legal = self.features.ndim == 2 and self.classes.shape == self.features.shape[:1]
        expect(legal, self.kind, "features (rows, d), classes (rows,)", self.features, self.classes)


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadGradient(Artifact):
    """The gradient of the loss with respect to the linear head: `weight` (classes, d), `bias` (classes,) (FedIIR)."""

    kind: ClassVar[str] = "HeadGradient"
    weight: Tensor
    bias: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        legal = self.weight.ndim == 2 and self.bias.shape == self.weight.shape[:1]
        expect(legal, self.kind, "weight (classes, d), bias (classes,)", self.weight, self.bias)


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores(Artifact):
    """Numbers that clients report about each other's models or their own: `values` (n,)."""

    kind: ClassVar[str] = "Scores"
    values: Tensor


KINDS: Mapping[str, type[Artifact]] = {
    cls.kind: cls
    for cls in (
        StyleStatistics, StyleDistribution, ImageStyles, StyleBank, InterpolationStyle, ModelState, GeneratorState,
        Amplitudes, Prototypes, HeadGradient, Scores,
    )
}  # fmt: skip


def kind_named(kind: str) -> type[Artifact] | None:
    """The class of a kind: bundled, from a plug-in, or defined in this process; None if unknown."""
    if kind in KINDS:
        return KINDS[kind]
    if kind in plugins("artifacts"):
        found: type[Artifact] = resolve("artifacts", kind)
        return found
    return next((cls for cls in _below(Artifact) if vars(cls).get("kind") == kind), None)


def _below(cls: type[Artifact]) -> Iterator[type[Artifact]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from _below(sub)


def decode(content: bytes, *, source: str = "artifact") -> Artifact:
    """Rebuild an artifact from its bytes; `source` names it in errors.

    Raises ArtifactError for anything that is not a legal artifact: foreign files, unknown kinds, missing tensors."""
    try:
        tensors, metadata = read_safetensors(content, source="it", error=ArtifactError)
        record = parse_json_object(metadata["fdgsec"], source="its record", error=ArtifactError)
        kind = str(record["kind"])
    except (ArtifactError, KeyError) as error:
        raise ArtifactError(
            f"{source} is not an fdgsec artifact (safetensors with its JSON header): {error}"
        ) from error
    cls = kind_named(kind)
    if record.get("schema") != SCHEMA or cls is None:
        raise ArtifactError(
            f"{source} has kind {kind!r}, schema {record.get('schema')!r}; "
            f"known kinds: {', '.join([*KINDS, *plugins('artifacts')])}."
        )
    if issubclass(cls, ModelState):
        return cls(state=tensors)
    expected = {spec.name for spec in fields(cls)}
    if set(tensors) != expected:
        raise ArtifactError(f"{source} ({kind}) must hold {sorted(expected)}; got {sorted(tensors)}.")
    return cls(**tensors)


def released_numbers(artifact: Artifact) -> Mapping[str, Tensor]:
    """The numbers of styles or spectra by name, each (R, numbers) float64; owners are not included."""
    if isinstance(artifact, Amplitudes):
        return {"values": artifact.values.double().flatten(1)}
    return {name: tensor.double().reshape(-1, tensor.shape[-1]) for name, tensor in artifact.tensors().items()}


def renumbered(artifact: Artifact, change: Callable[[str, Tensor], Tensor]) -> Artifact:
    """A copy of the artifact with `change(name, tensor)` applied to each float tensor; owners stay."""
    floats = {name: value for name, value in artifact.tensors().items() if value.is_floating_point()}
    return artifact.with_tensors({name: change(name, value) for name, value in floats.items()})
