"""Client-held state: what a client remembers between steps, in memory or in versioned files."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from safetensors.torch import load_file, save_file

from fdgsec.cache import atomic, write_atomic
from fdgsec.errors import FdgsecError
from fdgsec.federation import State


class StateMismatchError(FdgsecError):
    """A client's stored state is not the version that it was told to continue from."""


class StateStore(Protocol):
    """Keeps one state per client; `version` grows by one with every write."""

    def read(self, client: str) -> State:
        """The latest state, empty before the first write."""
        ...

    def write(self, client: str, state: State) -> None:
        """Replace the state."""
        ...


@dataclass(frozen=True)
class MemoryStates:
    """States of clients that live in this process."""

    states: dict[str, State] = field(default_factory=dict)

    def read(self, client: str) -> State:
        """The latest state, empty before the first write."""
        return self.states.get(client, {})

    def write(self, client: str, state: State) -> None:
        """Replace the state."""
        self.states[client] = dict(state)


@dataclass(frozen=True, kw_only=True)
class FileStates:
    """States under `folder`, one safetensors file per client and version; a write is complete or did not happen."""

    folder: Path

    def version(self, client: str) -> int:
        """How often `client` was written, 0 before the first time."""
        index = self._index(client)
        return int(json.loads(index.read_text())["version"]) if index.exists() else 0

    def read(self, client: str) -> State:
        """The latest state. Raises StateMismatchError where the file that the index names is gone."""
        version = self.version(client)
        if version == 0:
            return {}
        path = self._path(client, version)
        if not path.exists():
            raise StateMismatchError(f"the state of {client} should be version {version}, but {path} is missing.")
        return load_file(path)

    def write(self, client: str, state: State) -> None:
        """Write the next version, then point the index at it, then drop the one before."""
        version = self.version(client) + 1
        with atomic(self._path(client, version)) as temporary:
            save_file({name: value.contiguous() for name, value in state.items()}, temporary)
        write_atomic(self._index(client), json.dumps({"version": version}))
        self._path(client, version - 1).unlink(missing_ok=True)

    def _index(self, client: str) -> Path:
        return self.folder / f"{client.replace(':', '-')}.json"

    def _path(self, client: str, version: int) -> Path:
        return self.folder / f"{client.replace(':', '-')}.{version}.safetensors"
