"""The state of a client between steps, in memory or in versioned files."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from fdgsec.federation.method import State
from fdgsec.runtime import tensor_files
from fdgsec.runtime.cache_files import atomic, write_atomic
from fdgsec.runtime.errors import FdgsecError
from fdgsec.runtime.untrusted_text import read_json_object

KEPT = 2
"""How many versions stay on disk."""


class StateMismatchError(FdgsecError):
    """A client's stored state is not the version that it must continue from."""


@dataclass(frozen=True, kw_only=True)
class StateMark:
    """Identifies a client's state: the number of writes, and the SHA-256 of the last one ("" before the first)."""

    version: int
    sha256: str


NEVER = StateMark(version=0, sha256="")


class StateStore(Protocol):
    """Stores one state per client; `version` grows by one with every write."""

    def mark(self, client: str) -> StateMark:
        """Give the latest version."""
        ...

    def read(self, client: str, expected: StateMark | None = None) -> State:
        """Read the latest state, empty before the first write.

        Raises StateMismatchError where it is older than `expected`, or another one of the same version."""
        ...

    def write(self, client: str, state: State) -> None:
        """Replace the state."""
        ...


@dataclass(frozen=True)
class MemoryStates:
    """States of clients that run in this process."""

    states: dict[str, State] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)

    def mark(self, client: str) -> StateMark:
        """Give the latest version; its hash is computed on demand."""
        version = self.versions.get(client, 0)
        if version == 0:
            return NEVER
        digest = hashlib.sha256()
        for part in state_parts(self.states[client]):
            digest.update(part)
        return StateMark(version=version, sha256=digest.hexdigest())

    def read(self, client: str, expected: StateMark | None = None) -> State:
        """Read the latest state, empty before the first write. Raises StateMismatchError where it is not `expected`."""
        if expected is not None:
            check_mark(client, self.mark(client), expected, where="this process")
        return self.states.get(client, {})

    def write(self, client: str, state: State) -> None:
        """Replace the state."""
        self.states[client] = dict(state)
        self.versions[client] = self.versions.get(client, 0) + 1


@dataclass(frozen=True, kw_only=True)
class FileStates:
    """States under `folder`, one safetensors file per client and version; the newest two are kept.

    A write is complete or did not happen: an index, written last, names the current version. A client has one writer
    at a time."""

    folder: Path

    def version(self, client: str) -> int:
        """Count the writes of `client`, 0 before the first."""
        return self.mark(client).version

    def mark(self, client: str) -> StateMark:
        """Give the current version and its file's hash. Raises StateMismatchError for an index that cannot be read."""
        index = self._index(client)
        if not index.exists():
            return NEVER
        try:
            told = read_json_object(index)
            version, digest = told["version"], told["sha256"]
            if type(version) is not int or version < 0 or not isinstance(digest, str):
                raise ValueError("it names no version and hash")
        except (ValueError, KeyError) as error:
            raise StateMismatchError(
                f"which state {client} holds cannot be read from {index}: {error}; restore it, or start the run anew."
            ) from error
        return StateMark(version=version, sha256=digest)

    def read(self, client: str, expected: StateMark | None = None) -> State:
        """Read the latest state.

        Raises StateMismatchError where it is older than `expected` or another one of its version, and where the file
        that the index names is missing or has another content."""
        mark = self.mark(client)
        if expected is not None:
            check_mark(client, mark, expected, where=str(self.folder))
        if mark.version == 0:
            return {}
        path = self._path(client, mark.version)
        if not path.exists():
            raise StateMismatchError(f"the state of {client} should be version {mark.version}, but {path} is missing.")
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != mark.sha256:
            raise StateMismatchError(
                f"the state of {client} has another content than was written as version {mark.version}; {path} was "
                "altered or cut short; restore it, or start the run anew."
            )
        return tensor_files.load_safetensors(path, error=StateMismatchError)

    def write(self, client: str, state: State) -> None:
        """Write the next version in one pass, then update the index, then delete all but the newest two."""
        version, digest = self.version(client) + 1, hashlib.sha256()
        with atomic(self._path(client, version), private=True) as temporary, temporary.open("wb") as file:
            for part in state_parts(state):
                digest.update(part)
                file.write(part)
        mark = StateMark(version=version, sha256=digest.hexdigest())
        write_atomic(self._index(client), json.dumps(asdict(mark)), private=True)
        self._drop(client, before=version - KEPT + 1)

    def _drop(self, client: str, *, before: int) -> None:
        """Delete versions below `before`, and the files of killed writes."""
        stem = self._stem(client)
        for path in self.folder.glob(f"{stem}.*.safetensors"):
            number = path.name.split(".")[-2]
            if number.isdigit() and int(number) < before:
                path.unlink(missing_ok=True)
        for path in self.folder.glob(f".{stem}.*"):
            path.unlink(missing_ok=True)

    def _stem(self, client: str) -> str:
        return client.replace(":", "-")

    def _index(self, client: str) -> Path:
        return self.folder / f"{self._stem(client)}.json"

    def _path(self, client: str, version: int) -> Path:
        return self.folder / f"{self._stem(client)}.{version}.safetensors"


def check_mark(client: str, found: StateMark, expected: StateMark, *, where: str) -> None:
    """Raise StateMismatchError for a state that is neither `expected` nor a later one, of a reply that was lost."""
    if found.version > expected.version or found == expected:
        return
    if found.version < expected.version:
        raise StateMismatchError(
            f"{client} holds version {found.version} of its state, but the run goes on from version "
            f"{expected.version}: {where} was lost or set back; restore it, or start the run anew."
        )
    raise StateMismatchError(
        f"{client} holds another version {found.version} of its state ({found.sha256[:12]}) than the one that the run "
        f"goes on from ({expected.sha256[:12]}): {where} is of another run; restore it, or start the run anew."
    )


def state_parts(state: State) -> Iterator[bytes | memoryview]:
    """Yield a safetensors file of `state` in pieces; equal states give equal bytes.

    Raises TypeError for a dtype that the format does not have."""
    return tensor_files.safetensors_parts(state, of="the state")


def read_parts(content: bytes, order: Sequence[str]) -> State:
    """Read the bytes of `state_parts` back, the tensors in `order`, which a file does not keep.

    Raises ValueError for other names."""
    found = tensor_files.read_safetensors(content, source="a state")[0]
    if set(found) != set(order):
        raise ValueError(f"a state with {len(order)} names came with {len(found)} tensors, or others")
    return {name: found[name] for name in order}
