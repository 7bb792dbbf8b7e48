"""The artifacts of all clients in one slot of a stage, side by side for comparison."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fdgsec.federation.artifacts import Amplitudes, Artifact, ImageStyles, ModelState, Prototypes, Scores, StyleBank
from fdgsec.runtime.errors import ArtifactError

ROWS = (ImageStyles, StyleBank, Amplitudes, Prototypes)
"""Kinds with a row per image or class: the sender chooses the number of rows."""

Signature = tuple[str, tuple[tuple[str, tuple[int, ...], str], ...]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Slot:
    """One slot: its senders and artifacts, and the model that the entries belong to, where they are a model's."""

    name: str
    senders: Sequence[str]
    artifacts: Sequence[Artifact]
    model: ModelState | None = None

    def compare(self) -> None:
        """Raise ArtifactError, with sender, kind and entry, where one differs from most, or does not fit the model.

        Kinds, entries, dtypes and shapes are compared; numbers of rows and of scores may differ."""
        for sender, artifact in zip(self.senders, self.artifacts, strict=True):
            self._fits_model(sender, artifact)
        signatures = [_signature(artifact) for artifact in self.artifacts]
        usual, count = Counter(signatures).most_common(1)[0]
        if count == len(signatures):
            return
        place = next(i for i, signature in enumerate(signatures) if signature != usual)
        other = self.senders[signatures.index(usual)]
        raise ArtifactError(
            f"{self.senders[place]} sent a bad {self.artifacts[place].kind} in {self.name!r}: "
            f"{_difference(signatures[place], usual)}, "
            f"as from {count} of {len(signatures)} clients ({other}, ...)."
        )

    def _fits_model(self, sender: str, artifact: Artifact) -> None:
        if self.model is None:
            return
        known = self.model.state
        for name, value in artifact.tensors().items():
            expected = known.get(name)
            if expected is None or expected.shape != value.shape or expected.dtype != value.dtype:
                wanted = "no such entry" if expected is None else f"{tuple(expected.shape)} {expected.dtype}"
                raise ArtifactError(
                    f"{sender} sent a bad {artifact.kind} in {self.name!r}: {name} is {tuple(value.shape)} "
                    f"{value.dtype}; the model has {wanted}."
                )

    @cached_property
    def rows(self) -> Tensor:
        """Give all floats, (rows, D) float64: one row per client, or per image or class for kinds with such rows."""
        return torch.cat([_rows(artifact) for artifact in self.artifacts])

    @cached_property
    def owners(self) -> Sequence[int]:
        """Give the owner of each row: positions in `senders`."""
        return [place for place, artifact in enumerate(self.artifacts) for _ in range(_count(artifact))]

    @cached_property
    def origin(self) -> Tensor:
        """Give the point from which rows moved, (D,): the model that clients received, or zero."""
        width = self.rows.shape[1]
        if self.model is None:
            return torch.zeros(width, dtype=torch.float64)
        sent = self.artifacts[0].tensors()
        return _rows(ModelState(state={name: self.model.state[name] for name in sent})).squeeze(0)

    def refilled(self, rows: Tensor) -> "Slot":
        """Replace the numbers by `rows` (rows, D); integers and dtypes stay."""
        made = []
        for place, artifact in enumerate(self.artifacts):
            own = [row for row, owner in enumerate(self.owners) if owner == place]
            made.append(_refilled(artifact, rows[own]))
        return Slot(name=self.name, senders=self.senders, artifacts=made, model=self.model)


def remade(artifact: Artifact, tensors: dict[str, Tensor]) -> Artifact:
    """Make an artifact of the same kind with other tensors. Raises ArtifactError where they break its schema."""
    return type(artifact)(state=tensors) if isinstance(artifact, ModelState) else artifact.with_tensors(tensors)


def _signature(artifact: Artifact) -> Signature:
    free = 1 if isinstance(artifact, ROWS) else 0
    entries = () if isinstance(artifact, Scores) else artifact.tensors().items()
    return artifact.kind, tuple((name, tuple(value.shape[free:]), str(value.dtype)) for name, value in entries)


def _difference(found: Signature, usual: Signature) -> str:
    if found[0] != usual[0]:
        return f"{usual[0]} is expected"
    for name, *form in usual[1]:
        forms = [list(other[1:]) for other in found[1] if other[0] == name]
        if not forms:
            return f"entry {name} is missing"
        if forms[0] != form:
            return f"{name} is {forms[0][0]} {forms[0][1]}; {form[0]} {form[1]} is expected"
    extra = sorted({name for name, *_ in found[1]} - {name for name, *_ in usual[1]})
    return f"entry {extra[0]} is not expected" if extra else "the entries are in another order than expected"


def _floats(artifact: Artifact) -> dict[str, Tensor]:
    return {name: value for name, value in sorted(artifact.tensors().items()) if value.is_floating_point()}


def _count(artifact: Artifact) -> int:
    return next(iter(_floats(artifact).values())).shape[0] if isinstance(artifact, ROWS) else 1


def _rows(artifact: Artifact) -> Tensor:
    count = _count(artifact)
    return torch.cat([value.double().reshape(count, -1) for value in _floats(artifact).values()], 1)


def _refilled(artifact: Artifact, rows: Tensor) -> Artifact:
    tensors, start = artifact.tensors(), 0
    for name, value in _floats(artifact).items():
        width = value[0].numel() if isinstance(artifact, ROWS) else value.numel()
        tensors[name] = rows[:, start : start + width].reshape(value.shape).to(value.dtype)
        start += width
    return remade(artifact, tensors)
