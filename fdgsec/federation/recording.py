"""Recordings of federations that are not fdgsec's: what parties sent each other, as a transcript to be attacked.

A recording is a folder with `transcript.jsonl` and `payloads/` as every run has them, and `recording.json` with the
parties' own names. Messages are appended one by one, by one process or several, so that a loop that is killed leaves
what it had sent."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fdgsec.federation.artifact_checks import FLOATS, INTEGERS, MOST_PARTIES
from fdgsec.federation.artifacts import (
    Amplitudes,
    Artifact,
    GeneratorState,
    HeadGradient,
    ImageStyles,
    ModelState,
    Prototypes,
    Scores,
    StyleStatistics,
)
from fdgsec.federation.wire import CLIENTS, SERVER, Message, append_saved
from fdgsec.runtime.cache_files import write_atomic
from fdgsec.runtime.checked_files import SUMS, write_sums
from fdgsec.runtime.errors import ArtifactError, UsageError, unknown_name
from fdgsec.runtime.file_locks import locked
from fdgsec.runtime.untrusted_text import read_json_object

RECORDING = "recording.json"
"""The file that marks a folder as a recording."""
SCHEMA = 1
LONGEST_NAME = 100
"""Characters of a party's name."""
Build = Callable[[object, int], Artifact]
"""Makes an artifact of what was sent, by a sender of this number."""
_writing = threading.Lock()
"""Threads of this process write one after the other; processes hold the lock of the folder."""


@dataclass(frozen=True, kw_only=True)
class SentKind:
    """A kind of message by the name that its senders use: the stage that it belongs to, and how it is checked.

    `rows` says that the first axis counts rows, which may differ between messages."""

    stage: str
    build: Build
    rows: bool = False


def tensor_sent(values: object, kind: str) -> Tensor:
    """A copy of an array or tensor of numbers, or of a list of these. Raises ArtifactError for anything else."""
    try:
        if isinstance(values, Tensor):
            found = _dense(values, kind).detach().cpu().clone()
        elif isinstance(values, list | tuple) and any(isinstance(value, Tensor) for value in values):
            found = torch.stack([tensor_sent(value, kind) for value in values])
        else:
            found = torch.from_numpy(np.array(values))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        if isinstance(error, ArtifactError):
            raise
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise ArtifactError(f"a message of kind {kind} must hold numbers, as a tensor or an array; {said}.") from error
    if found.dtype not in (*FLOATS, *INTEGERS):
        raise ArtifactError(
            f"a message of kind {kind} must hold real numbers of {_listed(FLOATS)} or {_listed(INTEGERS)}; got "
            f"{str(found.dtype).removeprefix('torch.')}: convert it first."
        )
    return found


def _dense(values: Tensor, kind: str) -> Tensor:
    """The tensor. Raises ArtifactError for one without its numbers in memory, one after the other."""
    if values.is_meta:
        raise ArtifactError(f"a message of kind {kind} is a tensor on the device meta, which has no numbers; fill it.")
    if values.is_quantized:
        raise ArtifactError(f"a message of kind {kind} must hold numbers; got a quantized tensor: .dequantize() it.")
    if values.is_nested or values.layout is not torch.strided:
        form = "nested" if values.is_nested else str(values.layout).removeprefix("torch.")
        raise ArtifactError(f"a message of kind {kind} must be a dense tensor; got a {form} one: make it dense.")
    return values


def _listed(dtypes: Sequence[torch.dtype]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def _floats(values: object, kind: str) -> Tensor:
    found = tensor_sent(values, kind)
    return found if found.is_floating_point() else found.double()


def _halves(content: object, kind: str, *, axes: int) -> tuple[Tensor, Tensor]:
    """Means and stds with `axes` axes each: a pair, or one tensor that has them one after the other.

    Raises ArtifactError for other shapes."""
    if isinstance(content, tuple | list) and len(content) == 2 and tensor_sent(content[0], kind).ndim == axes:
        return _floats(content[0], kind), _floats(content[1], kind)
    found = _floats(content, kind)
    if axes == 1 and found.ndim == 2 and len(found) == 2:
        return found[0].clone(), found[1].clone()
    if found.ndim != axes or not found.numel() or found.shape[-1] % 2:
        shape = "(2 C,), all channel means, then all stds, (2, C)" if axes == 1 else "(R, 2 C), a row for each image"
        raise ArtifactError(
            f"a message of kind {kind} must be {shape}, or a pair of means and stds; got {tuple(found.shape)}."
        )
    mean, std = found.chunk(2, dim=-1)
    return mean.clone(), std.clone()


def _style(content: object, _: int) -> Artifact:
    mean, std = _halves(content, "style", axes=1)
    return StyleStatistics(mean=mean, std=std)


def _image_styles(content: object, _: int) -> Artifact:
    mean, std = _halves(content, "image-styles", axes=2)
    return ImageStyles(mean=mean, std=std)


def _state(kind: str, cls: type[ModelState]) -> Build:
    def build(content: object, _: int) -> Artifact:
        if isinstance(content, Mapping):
            named = {str(name): tensor_sent(value, kind) for name, value in content.items()}
            if len(named) < len(content):
                raise ArtifactError(f"a message of kind {kind} has two entries of one name, as 1 and '1': rename one.")
        elif isinstance(content, list | tuple):
            named = {str(number): tensor_sent(value, kind) for number, value in enumerate(content)}
        else:
            named = {"values": tensor_sent(content, kind)}
        if not any(value.numel() for value in named.values()):
            raise ArtifactError(
                f"a message of kind {kind} must hold numbers: a mapping of names to tensors, or a list of arrays."
            )
        return cls(state=named)

    return build


def _gradient(content: object, number: int) -> Artifact:
    """That of a linear head where it has its two parts, else one of any network."""
    state = _state("gradient", ModelState)(content, number).tensors()
    if set(state) == {"weight", "bias"} and state["weight"].ndim == 2:
        return HeadGradient(weight=state["weight"], bias=state["bias"])
    return ModelState(state=state)


def _prototypes(content: object, _: int) -> Artifact:
    if isinstance(content, Mapping):
        rows = [_floats(value, "prototypes") for value in content.values()]
        if not rows or any(row.ndim != 1 or row.shape != rows[0].shape for row in rows):
            raise ArtifactError("prototypes by class must be vectors (d,) of one length.")
        numbers = [int(name) for name in content if isinstance(name, int | np.integer) and not isinstance(name, bool)]
        if len(numbers) < len(content) or not all(0 <= number < MOST_PARTIES for number in numbers):
            raise ArtifactError(
                f"prototypes are given by the number of their class, from 0 to {MOST_PARTIES - 1}; got "
                f"{', '.join(map(repr, content))[:100]}."
            )
        return Prototypes(features=torch.stack(rows), classes=torch.tensor(numbers))
    features = _floats(content, "prototypes")
    return Prototypes(features=features, classes=torch.arange(len(features) if features.ndim else 0))


def _spectra(content: object, number: int) -> Artifact:
    values = _floats(content, "spectra")
    return Amplitudes(values=values, owner=torch.full(values.shape[:1], number, dtype=torch.int64))


def _scores(content: object, _: int) -> Artifact:
    return Scores(values=_floats(content, "scores"))


KINDS: Mapping[str, SentKind] = {
    "style": SentKind(stage="share", build=_style),
    "image-styles": SentKind(stage="share", build=_image_styles, rows=True),
    "spectra": SentKind(stage="share", build=_spectra, rows=True),
    "model": SentKind(stage="model", build=_state("model", ModelState)),
    "update": SentKind(stage="update", build=_state("update", ModelState)),
    "gradient": SentKind(stage="update", build=_gradient),
    "prototypes": SentKind(stage="update", build=_prototypes, rows=True),
    "generator": SentKind(stage="update", build=_state("generator", GeneratorState)),
    "scores": SentKind(stage="review", build=_scores),
}
"""What can be recorded, by the names that users know it by."""


@dataclass(kw_only=True, eq=False)
class RecordedWire:
    """The wire of somebody else's federation: `send` appends one message to the recording in `folder`.

    `run` tells recordings apart that several processes write into one folder."""

    folder: Path
    run: str = ""
    _counts: dict[tuple[str, str, str], int] = field(default_factory=dict, repr=False)

    def send(
        self, kind: str, content: object, *, sender: str, receiver: str = SERVER, round: int | None = None
    ) -> None:
        """Record that `sender` sent `content` to `receiver`, before the call returns.

        `kind` is one of KINDS: "style" (2 C,) of means and stds, "image-styles" (R, 2 C), "update" or "model" (a state
        dict, or a list of arrays), "gradient", "prototypes" (classes, d), "spectra", "generator", "scores". Parties are
        "server", "client:3", or any names of your own. `round` is how often the sender sent this kind before, if it is
        not given. Raises UsageError for an unknown kind or a name or round that is none, ArtifactError for a wrong
        shape, one that differs from what was sent before, and numbers that are not finite."""
        if not isinstance(kind, str) or kind not in KINDS:
            raise unknown_name("kind", str(kind), KINDS)
        for name in (sender, receiver):
            _check_name(name)
        if round is None:
            round = self._counts.get((kind, sender, receiver), 0)
        if type(round) is not int or not 0 <= round < MOST_PARTIES:
            raise UsageError(f"round must be a whole number from 0 to {MOST_PARTIES - 1}; got {str(round)[:40]}.")
        with _writing, locked(self.folder, what="the recording", waiting=_nothing):
            notes = _read_notes(self.folder)
            if (self.folder / SUMS).exists():
                raise UsageError(f"the recording in {self.folder} has ended; begin another one.")
            if notes["run"] != self.run:
                raise UsageError(f"{self.folder} holds the recording of another run; name another folder.")
            names = dict(notes["names"])
            parties = [_party(name, names, kind) for name in (sender, receiver)]
            artifact = KINDS[kind].build(content, _number(parties[0]))
            shapes = _checked_shapes(kind, artifact, notes["shapes"])
            if names != notes["names"] or shapes != notes["shapes"]:
                _write_notes(self.folder, {**notes, "names": names, "shapes": shapes})
            stage = KINDS[kind].stage
            append_saved(
                self.folder,
                Message(round=round, stage=stage, sender=parties[0], receiver=parties[1], artifact=artifact),
            )
        self._counts[kind, sender, receiver] = self._counts.get((kind, sender, receiver), 0) + 1


_begun: set[Path] = set()  # folders that this process records into


@contextmanager
def record(folder: Path) -> Iterator[RecordedWire]:
    """Record what is sent inside the block into `folder`, and seal it with SHA256SUMS at the end.

    An older recording in it is replaced. Raises UsageError for a folder that holds anything else, or that another block
    of this process records into."""
    place = folder.absolute()
    if place in _begun:
        raise UsageError(f"{folder} is being recorded into; name another folder for another loop.")
    wire = open_recording(folder)
    complete = False
    _begun.add(place)
    try:
        yield wire
        complete = True
    finally:
        _begun.discard(place)
        with _writing, locked(folder, what="the recording", waiting=_nothing):
            _write_notes(folder, {**_read_notes(folder), "complete": complete})
            write_sums(folder)


def open_recording(folder: Path, *, run: str = "", afresh: bool = True) -> RecordedWire:
    """Begin a recording in `folder`; unless `afresh`, go on with one that another process began.

    Raises UsageError for a folder that holds anything else."""
    with _writing, locked(folder, what="the recording", waiting=_nothing):  # one that is being begun has no notes
        if folder.is_file() or (folder.is_dir() and any(folder.iterdir()) and not (folder / RECORDING).is_file()):
            raise UsageError(f"{folder} holds files that are no recording; name a new or empty folder.")
        if afresh or not (folder / RECORDING).is_file():
            folder.mkdir(parents=True, exist_ok=True)
            for old in (folder / SUMS, folder / "transcript.jsonl", *(folder / "payloads").glob("*.safetensors")):
                old.unlink(missing_ok=True)
            _write_notes(folder, {"schema": SCHEMA, "run": run, "names": {}, "shapes": {}, "complete": False})
    return RecordedWire(folder=folder, run=run)


def _nothing(_: str) -> None:
    """Say nothing while another process writes its message."""


def _read_notes(folder: Path) -> dict[str, Any]:
    """The notes of a recording. Raises UsageError where they are none."""
    notes = read_json_object(folder / RECORDING, error=UsageError)
    kinds = {"schema": int, "run": str, "names": dict, "shapes": dict, "complete": bool}
    fits = notes.keys() == kinds.keys() and all(type(notes[name]) is kind for name, kind in kinds.items())
    if not fits or notes["schema"] != SCHEMA or not all(isinstance(name, str) for name in notes["names"].values()):
        raise UsageError(f"{folder / RECORDING} is no recording of schema {SCHEMA}; it was altered.")
    return notes


def _write_notes(folder: Path, notes: Mapping[str, object]) -> None:
    write_atomic(folder / RECORDING, json.dumps(notes, indent=1) + "\n")


def names_in(folder: Path) -> tuple[Mapping[str, str], bool]:
    """The own names of the parties of a recording, and whether its loop came to its end. Raises UsageError."""
    notes = _read_notes(folder)
    if len(set(notes["names"].values())) < len(notes["names"]):
        raise UsageError(f"{folder / RECORDING} has one name for two parties; it was altered.")
    return notes["names"], notes["complete"]


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise UsageError(
            f"a party must have a name of 1 to {LONGEST_NAME} printable characters; got {str(name)[:40]!r}."
        )


def _party(name: str, names: dict[str, str], kind: str) -> str:
    """The party called `name`; a new one gets the number in its name, or the next that is free."""
    if name == SERVER or (name == CLIENTS and kind in ("model", "style", "prototypes", "generator")):
        return name
    known = next((party for party, title in names.items() if title == name), None)
    if known is not None:
        return known
    number = name.removeprefix("client:")
    asked = f"client:{int(number)}" if name != number and number.isdecimal() and len(number) < 10 else ""
    taken = {_number(party) for party in names}
    party = asked if asked and asked not in names else f"client:{max(taken, default=-1) + 1}"
    names[party] = name
    return party


def _number(party: str) -> int:
    return int(party.partition(":")[2]) if party.startswith("client:") else -1


def _checked_shapes(kind: str, artifact: Artifact, known: Mapping[str, Any]) -> dict[str, Any]:
    """The shapes of all kinds, with those of this message. Raises ArtifactError where they differ from those before."""
    apart = 1 if KINDS[kind].rows else 0
    found = {
        name: list(value.shape[apart:])
        for name, value in artifact.tensors().items() if not (kind == "scores" or name in ("owner", "classes"))
    }  # fmt: skip
    before = known.get(kind, found)
    if before != found:
        name = next((name for name in found if found[name] != before.get(name)), next(iter(before)))
        raise ArtifactError(
            f"a message of kind {kind} must have the shapes of those before: {name} is {found.get(name, 'missing')}, "
            f"and was {before.get(name, 'missing')}."
        )
    return {**known, kind: found}
