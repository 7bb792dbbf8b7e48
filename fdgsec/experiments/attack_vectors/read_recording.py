"""Recordings of other federations as vectors to attack: what each client released first, and what it released next."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

import torch
from torch import Tensor

from fdgsec.federation.artifacts import Artifact, ImageStyles, StyleStatistics
from fdgsec.federation.recording import RECORDING, names_in
from fdgsec.federation.wire import SERVER, Transcript
from fdgsec.runtime.checked_files import SUMS, check_sums
from fdgsec.runtime.errors import ArtifactError, UsageError

STYLES = (StyleStatistics, ImageStyles)
"""Kinds of releases that attacks read without the method that made them; of a recording the first that any client
sent is read, in this order."""
KINDS = frozenset(kind.__name__ for kind in STYLES)


@dataclass(frozen=True, kw_only=True, eq=False)
class Recording:
    """A recording: its transcript, and the clients' styles by their own names.

    `first` has each client's first release, (2C,) if it is pooled and else (R, 2C) for its images; `again` has the
    second one of each, None where a client has none or where all are the first ones again."""

    transcript: Transcript
    first: Mapping[str, Tensor]
    again: Mapping[str, Tensor] | None
    notes: tuple[str, ...]


def is_recording(path: object) -> TypeGuard[Path]:
    """Whether a path is the folder of a recording."""
    return isinstance(path, Path) and (path / RECORDING).is_file()


def read_recording(folder: Path) -> Recording:
    """Read a recording. Raises ArtifactError or DataError for one that was altered, UsageError for one without styles.

    Other kinds stay in the transcript: without the method that made them no attack reads them."""
    notes = []
    if (folder / SUMS).is_file():
        check_sums(folder)
    else:
        notes.append("the recording is not sealed: its loop was killed, or several processes wrote it")
    names, complete = names_in(folder)
    if (folder / SUMS).is_file() and not complete:
        notes.append("the recorded loop ended with an error")
    transcript = Transcript.load(folder)
    releases = _releases(transcript, names)
    if not releases:
        kinds = ", ".join(sorted({row.kind for row in transcript.rows})) or "nothing"
        raise UsageError(
            f"{folder} holds {kinds}, and no style that a client sent: attacks on other kinds need the method that "
            "made them (fdgsec attack --target); docs/attack-existing.md says which attack reads what."
        )
    unread = sum(row.kind in KINDS for row in transcript.rows) - sum(len(sent) for sent in releases.values())
    if unread:
        notes.append(f"{unread} messages with styles are not read: of another kind, or not from a client to the server")
    first = {name: sent[0] for name, sent in releases.items()}
    again = {name: sent[1] for name, sent in releases.items() if len(sent) > 1}
    if again and len(again) < len(first):
        notes.append(f"{len(first) - len(again)} of {len(first)} clients released once: second releases are not read")
    pooled = next(iter(first.values())).ndim == 1
    if again and not pooled:
        notes.append("of rows of single images the first release of each client is read, and no later one")
    if len(again) < len(first) or not pooled:
        return Recording(transcript=transcript, first=first, again=None, notes=tuple(notes))
    if all(torch.equal(first[name], again[name]) for name in first):
        notes.append("every client released the same style twice: whose it is needs no attack")
        return Recording(transcript=transcript, first=first, again=None, notes=tuple(notes))
    later = max(len(sent) for sent in releases.values()) - 2
    if later > 0:
        notes.append(f"{later} later releases are not read")
    return Recording(transcript=transcript, first=first, again=again, notes=tuple(notes))


def _releases(transcript: Transcript, names: Mapping[str, str]) -> dict[str, list[Tensor]]:
    """The styles of one kind that each client sent the server, in their order. Raises ArtifactError for a lost one."""
    kept: dict[str, list[Artifact]] = {}
    for row in transcript.rows:
        if row.sha256 not in transcript.payloads:
            raise ArtifactError(f"the payload {row.sha256} of the recording is missing; it is not complete.")
        artifact = transcript.payloads[row.sha256]
        if isinstance(artifact, STYLES) and row.receiver == SERVER and row.sender.startswith("client:"):
            kept.setdefault(row.sender, []).append(artifact)
    kind = next((kind for kind in STYLES if any(isinstance(one, kind) for sent in kept.values() for one in sent)), None)
    if kind is None:
        return {}
    named = {names.get(party, party): [one for one in sent if isinstance(one, kind)] for party, sent in kept.items()}
    return {name: [_numbers(one) for one in sent] for name, sent in named.items() if sent}


def _numbers(artifact: Artifact) -> Tensor:
    return torch.cat([artifact.tensors()["mean"], artifact.tensors()["std"]], dim=-1)
