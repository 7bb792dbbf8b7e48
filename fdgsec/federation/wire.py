"""The wire between server and clients: every message is checked by its receiver and recorded in the transcript."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from fdgsec.federation.artifacts import (
    Amplitudes,
    Artifact,
    ImageStyles,
    StyleDistribution,
    StyleStatistics,
    decode,
)
from fdgsec.federation.global_model import GlobalModel
from fdgsec.privacy.ledger import Ledger
from fdgsec.runtime.cache_files import write_atomic
from fdgsec.runtime.errors import ArtifactError
from fdgsec.runtime.secret_streams import SecretStream
from fdgsec.runtime.untrusted_text import LARGEST_JSON, parse_json_object, read_bytes

SERVER = "server"
CLIENTS = "clients"
"""The sender of what a policy makes of the uploads of all clients."""
SUM = "sum over clients"
"""What such messages count as."""
ANONYMOUS = "anonymous"
"""Prefix of an anonymous sender: "anonymous:3" is a client whose name a policy has removed."""
GENESIS = "0" * 64
PARTY = re.compile(rf"{SERVER}|{CLIENTS}|(client|{ANONYMOUS}):[0-9]{{1,9}}")
"""The names of senders and receivers."""
LARGEST_PAYLOAD = 2**33
LONGEST_ROW = 4096
"""Bytes of one line of a transcript; fdgsec's have less than 500."""
_DIGEST = re.compile("[0-9a-f]{64}")


def parties(name: str) -> str:
    """What counts together with `name` where senders or receivers are counted: all clients, all without a name, or the
    sum of all, of which every client sends a part of the same size."""
    kind = name.partition(":")[0]
    return {ANONYMOUS: f"anonymous {CLIENTS}", "client": CLIENTS, CLIENTS: SUM}.get(kind, name)


@dataclass(frozen=True, kw_only=True)
class Message:
    """One artifact from `sender` to `receiver` ("server", "client:3") in a stage of a round."""

    round: int
    stage: str
    sender: str
    receiver: str
    artifact: Artifact


def number_of(sender: str) -> int:
    """Give the 3 of "client:3"; an anonymous sender gets a negative number, so that it is never taken for a client."""
    kind, _, number = sender.partition(":")
    if kind == "client":
        return int(number)
    return -1 if kind == CLIENTS else -2 - int(number)


@dataclass(frozen=True, kw_only=True, eq=False)
class Upload:
    """The reply of one client in one stage of a round to the server: artifacts by slot.

    `weight` is its weight in a mean: that of an update, and the number of images where it shares. `metrics` names the
    values after the weight among an update's numbers."""

    round: int
    stage: str
    sender: str
    artifacts: Mapping[str, Artifact]
    weight: float = 1.0
    metrics: tuple[str, ...] = ()

    @property
    def receiver(self) -> str:
        """Give the server."""
        return SERVER


class Policy(Protocol):
    """Processes the uploads of all clients in one stage of a round, before anybody on the wire sees one."""

    def on_collected(self, uploads: Sequence[Upload], rng: SecretStream) -> Sequence[Upload]:
        """Give what reaches the server instead. Raises UsageError where that is impossible; then nothing reaches it."""
        ...


Guard = Callable[[Message], None]
"""Raises ArtifactError for a message that its receiver should refuse."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the transcript: sender, receiver, kind, size and payload hash of a message.

    `omits` is the number of a client whose rows of the payload were left out: what many receive without their own rows
    is stored once."""

    round: int
    stage: str
    sender: str
    receiver: str
    kind: str
    bytes: int
    sha256: str
    link: str
    omits: int | None = None

    def document(self) -> dict[str, str | int]:
        """The fields of its line; `omits` is written where something is left out."""
        return {name: value for name, value in self.__dict__.items() if value is not None}

    def linked(self) -> Sequence[str | int]:
        """The fields that the hash chain covers."""
        return [value for name, value in self.document().items() if name != "link"]

    @property
    def content(self) -> str:
        """Tell contents apart: the payload, and what is left out of it."""
        return self.sha256 if self.omits is None else f"{self.sha256} without {self.omits}"


def _row(line: bytes, source: str) -> Row:
    """Read one line of a transcript. Raises ArtifactError."""
    told = parse_json_object(line, source=source, error=ArtifactError)
    kinds = {"round": int, "bytes": int, "omits": int}
    if told.keys() | {"omits"} != Row.__dataclass_fields__.keys() or any(
        type(value) is not kinds.get(name, str) for name, value in told.items()
    ):
        raise ArtifactError(f"{source} is no row of a transcript; it was altered.")
    row = Row(**told)
    parties = PARTY.fullmatch(row.sender) and PARTY.fullmatch(row.receiver)
    digests = _DIGEST.fullmatch(row.sha256) and _DIGEST.fullmatch(row.link)
    if not (parties and digests and row.round >= 0 and row.bytes >= 0):
        raise ArtifactError(f"{source} names a party, a hash, a round or a size that is none; it was altered.")
    return row


def _link(previous: str, fields: Sequence[str | int]) -> str:
    return hashlib.sha256((previous + json.dumps(list(fields))).encode()).hexdigest()


STYLES = frozenset(kind.kind for kind in (StyleStatistics, StyleDistribution, ImageStyles, Amplitudes))
"""Kinds of artifacts whose slots are compared before a run is attacked."""


def _different(kind: str, exchanges: Mapping[tuple[int, str], Mapping[tuple[str, str], set[str]]]) -> int:
    """How many messages of a kind, beyond copies, one sender sent one receiver in all of these exchanges."""
    found: dict[tuple[object, ...], int] = {}
    for (_, stage), links in exchanges.items():
        content = tuple(sorted((sender, receiver, *sorted(digests)) for (sender, receiver), digests in links.items()))
        compared = stage == "share" and kind in STYLES
        found[content] = 1 if compared else max(len(digests) for digests in links.values())
    return sum(found.values())


@dataclass
class Transcript:
    """All messages on the wire, append-only with a hash chain; payloads are stored once by content."""

    rows: list[Row] = field(default_factory=list)
    payloads: dict[str, Artifact] = field(default_factory=dict)

    def append(self, message: Message, *, keep: bool = True) -> None:
        """Record `message`; without `keep` only its size and hash are stored."""
        self.append_all([message], keep=[keep])

    def append_all(self, messages: Sequence[Message], *, keep: Sequence[bool]) -> None:
        """Record messages that are delivered together; of those without `keep` only size and hash are stored.

        A payload that many receive is hashed once, for nobody gets it in between; a later delivery hashes it anew.
        Nothing is recorded where one cannot be hashed."""
        stored = [message.artifact.stored() for message in messages]
        distinct = {id(payload): payload for payload, _ in stored}
        hashed = {place: payload.sha256 for place, payload in distinct.items()}  # all of them before any row
        for message, (payload, omits), kept in zip(messages, stored, keep, strict=True):
            row = Row(
                round=message.round, stage=message.stage, sender=message.sender, receiver=message.receiver, link="",
                kind=message.artifact.kind, bytes=message.artifact.bytes, sha256=hashed[id(payload)], omits=omits,
            )  # fmt: skip
            self.rows.append(replace(row, link=_link(self.sha256, row.linked())))
            if kept:
                self.payloads[row.sha256] = payload

    @property
    def sha256(self) -> str:
        """Give the end of the hash chain: equal transcripts have equal hashes."""
        return self.rows[-1].link if self.rows else GENESIS

    def different_exchanges(self, seen: Callable[[Row], bool] | None = None) -> dict[str, int]:
        """Count, for each kind of artifact, the exchanges whose messages of that kind are not those of another one.

        An exchange is a stage of a round; only messages that are `seen` count. Where a sender sends one receiver
        several different ones in a stage, that many count, except styles in "share", whose slots are compared without
        a defense beforehand (fdgsec.experiments.attack.release_check)."""
        sent: dict[str, dict[tuple[int, str], dict[tuple[str, str], set[str]]]] = {}
        for row in self.rows if seen is None else filter(seen, self.rows):
            exchange = sent.setdefault(row.kind, {}).setdefault((row.round, row.stage), {})
            exchange.setdefault((row.sender, row.receiver), set()).add(row.content)
        return {kind: _different(kind, exchanges) for kind, exchanges in sent.items()}

    def messages(self) -> Iterator[Message]:
        """Yield the messages whose payload was kept, in order."""
        for row in self.rows:
            payload = self.payloads.get(row.sha256)
            if payload is not None:
                artifact = payload if row.omits is None else payload.without_rows_of(row.omits)
                yield Message(
                    round=row.round, stage=row.stage, sender=row.sender, receiver=row.receiver, artifact=artifact
                )

    def save(self, folder: Path) -> None:
        """Write payloads by content, then the index, so that an interrupted save leaves no index.

        Whoever owns the folder has the disk hold it (fdgsec.runtime.cache_files.sync_tree). Raises ArtifactError for a
        payload that was changed after it was sent."""
        for digest, artifact in self.payloads.items():
            target = folder / "payloads" / f"{digest}.safetensors"
            if not target.exists():
                write_atomic(target, encoded_as_sent(artifact, digest), synced=False)
        lines = "".join(json.dumps(row.document()) + "\n" for row in self.rows)
        write_atomic(folder / "transcript.jsonl", lines, synced=False)

    @classmethod
    def load(cls, folder: Path) -> "Transcript":
        """Read a saved transcript back. Raises ArtifactError where the chain or a payload does not fit."""
        transcript = cls()
        index = read_bytes(folder / "transcript.jsonl", largest=LARGEST_JSON, error=ArtifactError)
        for number, line in enumerate(index.splitlines(), 1):
            row = _row(line, f"{folder / 'transcript.jsonl'} line {number}")
            if _link(transcript.sha256, row.linked()) != row.link:
                raise ArtifactError(
                    f"{folder / 'transcript.jsonl'} line {number} breaks the hash chain; it was altered."
                )
            transcript.rows.append(row)
            payload = folder / "payloads" / f"{row.sha256}.safetensors"
            if row.sha256 not in transcript.payloads and payload.exists():
                content = read_bytes(payload, largest=LARGEST_PAYLOAD, error=ArtifactError)
                if hashlib.sha256(content).hexdigest() != row.sha256:
                    raise ArtifactError(f"{payload} does not have the content that its name says; it was altered.")
                transcript.payloads[row.sha256] = decode(content, source=str(payload))
            if row.omits is not None and row.sha256 in transcript.payloads:
                transcript.payloads[row.sha256].without_rows_of(row.omits)  # of a kind whose rows have owners
        return transcript


def encoded_as_sent(artifact: Artifact, digest: str) -> bytes:
    """Encode a payload that was recorded with this hash. Raises ArtifactError where it was changed since."""
    content = artifact.encode()
    if hashlib.sha256(content).hexdigest() != digest:
        raise ArtifactError(
            f"a {artifact.kind} was changed after it was sent (its hash was {digest[:16]}): who writes into a tensor "
            "that was sent or received must copy it first."
        )
    return content


def append_saved(folder: Path, message: Message) -> None:
    """Append a message to the transcript that is saved in `folder`, or begin one there.

    The payload is written first. The caller holds the folder against other writers."""
    index = folder / "transcript.jsonl"
    last = _last_line(index)
    transcript = Transcript(rows=[_row(last, f"the last line of {index}")] if last else [])
    transcript.append(message)
    payload = folder / "payloads" / f"{transcript.rows[-1].sha256}.safetensors"
    if not payload.exists():
        write_atomic(payload, message.artifact.encode(), synced=False)
    with index.open("ab") as file:
        file.write((json.dumps(transcript.rows[-1].document()) + "\n").encode())


def _last_line(path: Path) -> bytes:
    """The last line of a file without its end; empty where there is none."""
    if not path.exists():
        return b""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LONGEST_ROW))
        return file.read().rstrip(b"\n").rpartition(b"\n")[2]


@dataclass(frozen=True, kw_only=True, eq=False)
class Receipt:
    """What the server received in a stage of a round, before it is used.

    It has the uploads, the `model` that the server had sent, the number of rounds, a random stream of its own, and the
    ledger of the clients' releases."""

    uploads: Sequence[Upload]
    model: GlobalModel | None
    rounds: int
    rng: SecretStream
    ledger: Ledger


@runtime_checkable
class Filter(Protocol):
    """Processes received uploads on the server, after the transcript: robust statistics, or the server's own noise."""

    def on_received(self, receipt: Receipt) -> Sequence[Upload]:
        """Give the uploads for the method, one by one. Raises ArtifactError for what it refuses."""
        ...


def keeps_artifacts(message: Message) -> bool:
    """Tell whether to keep a payload: all but models (`--keep artifacts`, the default)."""
    return message.artifact.kind not in ("ModelState", "GeneratorState")


@dataclass(frozen=True, kw_only=True)
class Wire:
    """Delivers messages: first the receiver's guards, then the transcript, then the receiver.

    Clients' messages have passed their defenses on the clients' machines (fdgsec.federation.defense); `ledger` has
    their cost. `policies` process, in order, what clients send to the server, `filters` what it then holds; `secret`
    gives the random stream of each."""

    secret: Callable[[Upload, int], SecretStream]
    guards: Sequence[Guard] = ()
    policies: Sequence[Policy] = ()
    filters: Sequence[Filter] = ()
    keep: Callable[[Message], bool] = keeps_artifacts
    transcript: Transcript = field(default_factory=Transcript)
    ledger: Ledger = field(default_factory=Ledger)

    def send(self, message: Message) -> Artifact:
        """Deliver `message` and give what its receiver holds. Raises ArtifactError where a guard refuses it."""
        self.send_all([message])
        return message.artifact

    def send_all(self, messages: Sequence[Message]) -> None:
        """Deliver messages that are sent together; what many receive is hashed once.

        Raises ArtifactError where a guard refuses one: then none is recorded."""
        for message in messages:
            for guard in self.guards:
                guard(message)
        self.transcript.append_all(messages, keep=[self.keep(message) for message in messages])

    def collect(
        self, uploads: Sequence[Upload], *, model: GlobalModel | None = None, rounds: int = 0
    ) -> Sequence[Upload]:
        """Deliver all clients' uploads of one stage of a round, and give what the server continues with.

        Filters get the `model` that clients had received, and the number of `rounds`. Raises ArtifactError where a
        guard or filter refuses a message, UsageError where a policy or filter cannot be applied."""
        for number, policy in enumerate(self.policies):
            if uploads:
                coins = self.secret(replace(uploads[0], sender=CLIENTS), number)
                uploads = policy.on_collected(uploads, coins)
        for upload in uploads:
            self.send_all(_messages(upload))
        for number, chosen in enumerate(self.filters):
            if uploads:
                coins = self.secret(replace(uploads[0], sender=SERVER), number)
                held = Receipt(uploads=uploads, model=model, rounds=rounds, rng=coins, ledger=self.ledger)
                uploads = list(chosen.on_received(held))
        return uploads


def _messages(upload: Upload) -> list[Message]:
    return [
        Message(
            round=upload.round, stage=upload.stage, sender=upload.sender, receiver=upload.receiver, artifact=artifact
        )
        for artifact in upload.artifacts.values()
    ]
