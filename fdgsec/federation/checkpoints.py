"""Checkpoints of a training run: after every round, everything that the next one needs, and what the result tells.

Contents lie in `objects`, each under its SHA-256, which is checked on reading; `round-N.json`, written last and with a
hash of its own, names those of a round. The newest two rounds are kept. Random streams are named by the round, so that
none is stored: a round that is done again draws what it drew before, for the same messages. The key of a run binds a
checkpoint to settings, data, initial model and code: with any other of these the messages would not be the same."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from fdgsec.federation.artifacts import Artifact, ModelState, decode
from fdgsec.federation.engines.state import read_parts, state_parts
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Inbox, State
from fdgsec.federation.participation import Failure
from fdgsec.federation.round_loop import LoopState
from fdgsec.federation.wire import Row, Transcript, encoded_as_sent
from fdgsec.privacy.accounting import Use
from fdgsec.privacy.ledger import Entry, Ledger, SummedRelease, Uses
from fdgsec.runtime.cache_files import atomic, write_atomic
from fdgsec.runtime.errors import FdgsecError, UsageError
from fdgsec.runtime.progress import warn

UNFINISHED = "unfinished"
"""The folder of a run's checkpoints in the folder that will hold the run."""
BEGUN = "run.json"
"""The file in it that says which run it is."""
KEPT = 2
DAMAGED = (
    OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, SafetensorError,
    FdgsecError,
)  # fmt: skip
"""What reading a damaged checkpoint may raise."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """A run after a round: the loop, what crossed the wire and its cost, the clients' states with their numbers of
    writes, the failures, and the `kept` model with plain `facts` about it."""

    loop: LoopState
    transcript: Transcript
    ledger: Ledger
    states: Mapping[str, State] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)
    failures: Sequence[Failure] = ()
    kept: GlobalModel | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class Checkpoints:
    """The checkpoints of one run in `folder`; `key` names the run, `settings` say it to a person.

    Raises UsageError on reading where the folder holds another run."""

    folder: Path
    key: str
    settings: Mapping[str, Any]
    _written: set[str] = field(default_factory=set)
    _clients: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    _rows: list[str] = field(default_factory=list)
    _costs: list[str] = field(default_factory=list)
    _counts: tuple[int, int, int] = (0, 0, 0)
    _rounds: dict[int, set[str]] = field(default_factory=dict)

    @property
    def begun(self) -> bool:
        """Whether the folder holds an unfinished run, this one or another, of which a round was kept."""
        return (self.folder / BEGUN).exists() and bool(rounds_in(self.folder))

    def clear(self) -> None:
        """Forget whatever unfinished run the folder holds."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def begin(self) -> None:
        """Write which run this is. Raises UsageError where the folder holds another one."""
        self._check_run()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        told = {"key": self.key, "settings": dict(self.settings)}
        write_atomic(self.folder / BEGUN, json.dumps(told, indent=1, default=str) + "\n", private=True)

    def save(self, checkpoint: Checkpoint) -> None:
        """Keep a round. Where the disk refuses, this is said, and the run goes on without."""
        number = checkpoint.loop.round
        try:
            document = self._document(checkpoint)
            body = json.dumps(document)
            write_atomic(self._index(number), f"{_sha256(body.encode())}\n{body}", private=True)
        except OSError as error:
            warn(f"round {number} could not be kept in {self.folder}: {error.strerror or error}")
            return
        self._rounds[number] = _objects(document)
        self._drop()

    def latest(self, blueprint: Blueprint) -> Checkpoint | None:
        """The newest round that can be read, None without any; a damaged one is said in one line.

        Raises UsageError where the folder holds another run."""
        self._check_run()
        for number in sorted(rounds_in(self.folder), reverse=True):
            try:
                return self._read(number, blueprint)
            except DAMAGED as error:
                said = " ".join(str(error).split())[:200]
                warn(f"the checkpoint after round {number} in {self.folder} is damaged ({said}); going on before it")
                self._index(number).unlink(missing_ok=True)
        return None

    def _check_run(self) -> None:
        path = self.folder / BEGUN
        if not self.begun:  # nothing of a run that ended before its first round is worth a refusal
            return
        try:
            told: dict[str, Any] = json.loads(path.read_text())
            key, settings = told["key"], dict(told["settings"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise UsageError(f"{path} cannot be read: {type(error).__name__}; --fresh starts anew there.") from error
        if key == self.key:
            return
        mine: dict[str, Any] = json.loads(json.dumps(dict(self.settings), default=str))
        other = [f"{name} {settings.get(name)!r}, not {value!r}" for name, value in mine.items()
                 if settings.get(name) != value]  # fmt: skip
        why = f"other settings ({'; '.join(other)})" if other else "other data, weights, code or hardware"
        raise UsageError(
            f"{self.folder} holds an unfinished run with {why[:200]}; give another --out, or --fresh to start anew."
        )

    def _index(self, number: int) -> Path:
        return self.folder / f"round-{number}.json"

    def _object(self, digest: str) -> Path:
        return self.folder / "objects" / digest

    def _document(self, checkpoint: Checkpoint) -> dict[str, Any]:
        loop, transcript, ledger = checkpoint.loop, checkpoint.transcript, checkpoint.ledger
        self._append(transcript, ledger)
        for digest, artifact in transcript.payloads.items():
            if digest not in self._written:
                self._put(encoded_as_sent(artifact, digest))
        return {
            "key": self.key, "round": loop.round, "names": list(loop.names), "model": self._model(loop.model),
            "server": self._tensors(loop.server), "rows": self._rows, "costs": self._costs,
            "payloads": list(transcript.payloads), "kept": self._model(checkpoint.kept),
            "facts": dict(checkpoint.facts), "failures": [asdict(each) for each in checkpoint.failures],
            "inboxes": self._inboxes(loop.inboxes),
            "states": {
                name: self._state(name, state, checkpoint.versions.get(name, 0))
                for name, state in checkpoint.states.items()
            },
            "versions": dict(checkpoint.versions),
        }  # fmt: skip

    def _append(self, transcript: Transcript, ledger: Ledger) -> None:
        """Write what the transcript and the ledger have gained since the last time, in a part of their own."""
        rows, entries, restated = self._counts
        lines = [json.dumps(row.document()) for row in transcript.rows[rows:]]
        self._rows = [*self._rows, self._put("\n".join(lines).encode())]
        costs = {
            "entries": [_plain(each) for each in ledger.entries[entries:]],
            "restated": [_plain(each) for each in ledger.restated[restated:]],
        }
        self._costs = [*self._costs, self._put(json.dumps(costs).encode())]
        self._counts = (len(transcript.rows), len(ledger.entries), len(ledger.restated))

    def _put(self, content: bytes) -> str:
        return self._put_parts((content,))

    def _put_parts(self, parts: Sequence[bytes | memoryview]) -> str:
        hashed = hashlib.sha256()
        for part in parts:
            hashed.update(part)
        digest = hashed.hexdigest()
        if digest not in self._written:
            with atomic(self._object(digest), private=True) as temporary, temporary.open("wb") as file:
                file.writelines(parts)
            self._written.add(digest)
        return digest

    def _tensors(self, state: State) -> dict[str, Any]:
        """Store a state; the order of its tensors, which files do not keep, is told beside its hash."""
        return {"sha256": self._put_parts(list(state_parts(state))), "order": list(state)}

    def _state(self, name: str, state: State, version: int) -> dict[str, Any]:
        """Store a client's state, unless it is the version that was stored before."""
        before = self._clients.get(name)
        if before is None or before[0] != version:
            self._clients[name] = (version, self._tensors(state))
        return self._clients[name][1]

    def _model(self, model: GlobalModel | None) -> dict[str, Any] | None:
        return None if model is None else self._tensors(model.state.state)

    def _inboxes(self, inboxes: Mapping[str, Inbox]) -> dict[str, Any]:
        """Store what clients received; what many hold is encoded once."""
        held = {id(each): each for inbox in inboxes.values() for each in inbox.values()}
        stored = {place: self._artifact(each) for place, each in held.items()}
        return {name: {slot: stored[id(each)] for slot, each in inbox.items()} for name, inbox in inboxes.items()}

    def _artifact(self, artifact: Artifact) -> dict[str, Any]:
        return {"sha256": self._put_parts(list(artifact.encoded_parts())), "order": list(artifact.tensors())}

    def _drop(self) -> None:
        """Delete rounds before the newest ones, and contents that none of these names."""
        for number in sorted(self._rounds)[:-KEPT]:
            self._index(number).unlink(missing_ok=True)
            del self._rounds[number]
        named = set[str]().union(*self._rounds.values())
        for path in (self.folder / "objects").iterdir():
            if path.name not in named:
                path.unlink(missing_ok=True)
        self._written &= named

    def _read(self, number: int, blueprint: Blueprint) -> Checkpoint:
        head, _, body = self._index(number).read_text().partition("\n")
        if _sha256(body.encode()) != head:
            raise ValueError(f"{self._index(number).name} has another content than was written")
        told: dict[str, Any] = json.loads(body)
        if told["key"] != self.key or told["round"] != number:
            raise ValueError(f"{self._index(number).name} is of another run or round")
        transcript = self._transcript(told["rows"], told["payloads"])
        ledger, held = self._ledger(told["costs"]), dict[str, Artifact]()
        loop = LoopState(
            round=number, names=tuple(told["names"]), model=self._model_read(told["model"], blueprint),
            server=self._tensors_read(told["server"]),
            inboxes={
                name: {slot: self._artifact_read(each, held) for slot, each in inbox.items()}
                for name, inbox in told["inboxes"].items()
            },
        )  # fmt: skip
        found = Checkpoint(
            loop=loop, transcript=transcript, ledger=ledger,
            states={name: self._tensors_read(each) for name, each in told["states"].items()},
            versions={name: int(each) for name, each in told["versions"].items()},
            failures=[Failure(**each) for each in told["failures"]],
            kept=self._model_read(told["kept"], blueprint), facts=told["facts"],
        )  # fmt: skip
        self._resume_from(number, told, found)
        return found

    def _resume_from(self, number: int, told: Mapping[str, Any], found: Checkpoint) -> None:
        self._rounds = {number: _objects(told)}
        self._written = set(self._rounds[number])
        self._rows, self._costs = list(told["rows"]), list(told["costs"])
        self._counts = (len(found.transcript.rows), len(found.ledger.entries), len(found.ledger.restated))
        self._clients = {name: (found.versions.get(name, 0), each) for name, each in told["states"].items()}

    def _content(self, digest: str) -> bytes:
        content = self._object(digest).read_bytes()
        if _sha256(content) != digest:
            raise ValueError(f"objects/{digest[:12]} has another content than its name says")
        return content

    def _tensors_read(self, told: Mapping[str, Any]) -> State:
        return read_parts(self._content(told["sha256"]), told["order"])

    def _model_read(self, told: Mapping[str, Any] | None, blueprint: Blueprint) -> GlobalModel | None:
        if told is None:
            return None
        return GlobalModel(blueprint=blueprint, state=ModelState(state=self._tensors_read(told)))

    def _artifact_read(self, told: Mapping[str, Any], held: dict[str, Artifact]) -> Artifact:
        """Read an artifact, or take it from `held` where another client received the same."""
        digest = told["sha256"]
        if digest not in held:
            held[digest] = decode(self._content(digest), source=f"objects/{digest[:12]}")
        artifact = held[digest]
        if not isinstance(artifact, ModelState):
            return artifact
        return type(artifact)(state={name: artifact.state[name] for name in told["order"]})

    def _transcript(self, parts: Iterable[str], payloads: Iterable[str]) -> Transcript:
        lines = [line for part in parts for line in self._content(part).decode().splitlines()]
        kept = {digest: decode(self._content(digest), source=f"objects/{digest[:12]}") for digest in payloads}
        return Transcript(rows=[Row(**json.loads(line)) for line in lines], payloads=kept)

    def _ledger(self, parts: Iterable[str]) -> Ledger:
        ledger = Ledger()
        for part in parts:
            costs = json.loads(self._content(part))
            ledger.entries.extend(Entry(**{**each, "uses": _uses(each["uses"])}) for each in costs["entries"])
            ledger.restated.extend(SummedRelease(**{**each, "uses": _uses(each["uses"])}) for each in costs["restated"])
        return ledger


def rounds_in(folder: Path) -> list[int]:
    """The numbers of finished rounds that `folder` has a checkpoint of."""
    names = (path.stem.removeprefix("round-") for path in folder.glob("round-*.json"))
    return sorted(int(name) for name in names if name.isdecimal())


def size_of(folder: Path) -> int:
    """The bytes of all files under `folder`."""
    return sum(os.stat(path).st_size for path in folder.rglob("*") if path.is_file())


def _objects(document: Mapping[str, Any]) -> set[str]:
    """The contents that a round's document names."""
    tensors = [document["model"], document["kept"], document["server"], *document["states"].values()]
    sent = [each for inbox in document["inboxes"].values() for each in inbox.values()]
    named = {each["sha256"] for each in [*tensors, *sent] if each is not None}
    return named | set(document["rows"]) | set(document["costs"]) | set(document["payloads"])


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _plain(entry: Entry | SummedRelease) -> dict[str, Any]:
    costs = (
        None if entry.uses is None else [{**asdict(use), "sensitivity": dict(use.sensitivity)} for use in entry.uses]
    )
    return {**{name: getattr(entry, name) for name in entry.__dataclass_fields__}, "uses": costs}


def _uses(told: Sequence[Mapping[str, Any]] | None) -> Uses:
    return None if told is None else tuple(Use(**use) for use in told)
