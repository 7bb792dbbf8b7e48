"""The one wire: every message is defended by its sender, guarded by its receiver and written down here."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

from fdgsec.artifacts import Artifact, decode
from fdgsec.cache import write_atomic
from fdgsec.errors import ArtifactError

SERVER = "server"
GENESIS = "0" * 64


@dataclass(frozen=True, kw_only=True)
class Message:
    """One artifact on its way from `sender` to `receiver` ("server", "client:3") in a stage of a round."""

    round: int
    stage: str
    sender: str
    receiver: str
    artifact: Artifact


class SendsDefended(Protocol):
    """The half of a defense that acts on a message before it leaves its sender."""

    def on_message(self, message: Message, rng: torch.Generator) -> Artifact:
        """Give the artifact that leaves instead of `message.artifact`."""
        ...


Guard = Callable[[Message], None]
"""Raises ArtifactError for a message that its receiver should refuse."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the transcript: who sent what to whom, how large, and which payload."""

    round: int
    stage: str
    sender: str
    receiver: str
    kind: str
    bytes: int
    sha256: str
    link: str


def _link(previous: str, fields: Sequence[str | int]) -> str:
    return hashlib.sha256((previous + json.dumps(list(fields))).encode()).hexdigest()


@dataclass
class Transcript:
    """Everything that crossed the wire, append-only and chained; payloads are stored once by content."""

    rows: list[Row] = field(default_factory=list)
    payloads: dict[str, Artifact] = field(default_factory=dict)

    def append(self, message: Message, *, keep: bool = True) -> None:
        """Write `message` down; without `keep` only its size and hash stay."""
        encoded = message.artifact.encode()
        digest = hashlib.sha256(encoded).hexdigest()
        row = (
            message.round,
            message.stage,
            message.sender,
            message.receiver,
            message.artifact.kind,
            message.artifact.bytes,
            digest,
        )
        self.rows.append(
            Row(
                round=row[0], stage=row[1], sender=row[2], receiver=row[3], kind=row[4], bytes=row[5], sha256=digest,
                link=_link(self.sha256, row),
            )
        )  # fmt: skip
        if keep:
            self.payloads[digest] = message.artifact

    @property
    def sha256(self) -> str:
        """The end of the hash chain: equal transcripts, equal hash."""
        return self.rows[-1].link if self.rows else GENESIS

    def messages(self) -> Iterator[Message]:
        """Replay the messages whose payload was kept, in order."""
        for row in self.rows:
            if row.sha256 in self.payloads:
                yield Message(
                    round=row.round, stage=row.stage, sender=row.sender, receiver=row.receiver,
                    artifact=self.payloads[row.sha256],
                )  # fmt: skip

    def save(self, folder: Path) -> None:
        """Write payloads by content, then the index, so that a broken-off save leaves no index."""
        for digest, artifact in self.payloads.items():
            target = folder / "payloads" / f"{digest}.safetensors"
            if not target.exists():
                write_atomic(target, artifact.encode())
        write_atomic(folder / "transcript.jsonl", "".join(json.dumps(row.__dict__) + "\n" for row in self.rows))

    @classmethod
    def load(cls, folder: Path) -> "Transcript":
        """Read a saved transcript back. Raises ArtifactError where the chain or a payload does not fit."""
        transcript = cls()
        for number, line in enumerate((folder / "transcript.jsonl").read_text().splitlines(), 1):
            row = Row(**json.loads(line))
            fields = (row.round, row.stage, row.sender, row.receiver, row.kind, row.bytes, row.sha256)
            if _link(transcript.sha256, fields) != row.link:
                raise ArtifactError(
                    f"{folder / 'transcript.jsonl'} line {number} breaks the hash chain; it was altered."
                )
            transcript.rows.append(row)
            payload = folder / "payloads" / f"{row.sha256}.safetensors"
            if row.sha256 not in transcript.payloads and payload.exists():
                content = payload.read_bytes()
                if hashlib.sha256(content).hexdigest() != row.sha256:
                    raise ArtifactError(f"{payload} does not have the content that its name says; it was altered.")
                transcript.payloads[row.sha256] = decode(content, source=str(payload))
        return transcript


def keeps_artifacts(message: Message) -> bool:
    """Keep every payload but models (`--keep artifacts`, the default)."""
    return message.artifact.kind not in ("ModelState", "GeneratorState")


@dataclass(frozen=True, kw_only=True)
class Wire:
    """Carries messages: the sender's defenses, then the receiver's guards, then the transcript, then the receiver.

    `secret` draws the defenses' noise."""

    secret: Callable[[Message, int], torch.Generator]
    defenses: Sequence[SendsDefended] = ()
    guards: Sequence[Guard] = ()
    keep: Callable[[Message], bool] = keeps_artifacts
    transcript: Transcript = field(default_factory=Transcript)

    def send(self, message: Message) -> Artifact:
        """Deliver `message` and give what its receiver holds. Raises ArtifactError where a guard refuses it."""
        if message.sender != SERVER:  # clients defend what leaves them; what the server sends on was defended before
            for number, defense in enumerate(self.defenses):
                artifact = defense.on_message(message, self.secret(message, number))
                message = Message(
                    round=message.round, stage=message.stage, sender=message.sender, receiver=message.receiver,
                    artifact=artifact,
                )  # fmt: skip
        for guard in self.guards:
            guard(message)
        self.transcript.append(message, keep=self.keep(message))
        return message.artifact
