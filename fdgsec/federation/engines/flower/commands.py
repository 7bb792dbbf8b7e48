"""Command lines of Flower's programs: a server, a node, and the node-config that stays on the node."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fdgsec.federation.engines.flower.connection import Connection, address_of
from fdgsec.federation.engines.flower.environment import SWITCHES
from fdgsec.runtime.errors import UsageError

Setting = str | int | bool


@dataclass(frozen=True, kw_only=True)
class Tls:
    """The certificate files of a server."""

    ca: Path
    certificate: Path
    key: Path


@dataclass(frozen=True, kw_only=True)
class Server:
    """A SuperLink; without `tls` anybody may join, and read the traffic."""

    host: str
    port: int
    tls: Tls | None
    simulation: bool = False

    @property
    def connection(self) -> Connection:
        """Give the connection from this machine to the server."""
        here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return Connection(address=address_of(here, self.port), ca=self.tls.ca if self.tls else None)

    def arguments(self) -> list[str]:
        """Give the arguments of `flower-superlink`."""
        where = ["--host", self.host, "--port", str(self.port), "--disable-runtime-dependency-installation"]
        kind = ["--simulation"] if self.simulation else []
        if self.tls is None:
            return ["--insecure", *where, *kind]
        ca, certificate, key = (str(path.resolve()) for path in (self.tls.ca, self.tls.certificate, self.tls.key))
        files = ["--ssl-ca-certfile", ca, "--ssl-certfile", certificate, "--ssl-keyfile", key]
        return [*files, "--enable-supernode-auth", *where, *kind]


@dataclass(frozen=True, kw_only=True)
class Node:
    """A SuperNode; `settings` is its node-config, `port` a local port for its helper processes."""

    server: Connection
    key: Path | None
    port: int
    settings: Mapping[str, Setting] = field(default_factory=dict)

    def arguments(self) -> list[str]:
        """Give the arguments of `flower-supernode`. Raises UsageError for settings that Flower cannot encode."""
        secure = ["--root-certificates", str(self.server.ca)] if self.server.ca else ["--insecure"]
        if self.key is not None:
            secure += ["--auth-supernode-private-key", str(self.key)]
        where = ["--superlink", self.server.address, "--port", str(self.port)]
        return [*secure, *where, "--node-config", settings_text(self.settings)]


def shell_line(program: str, arguments: Sequence[str], *, home: Path) -> str:
    """Format the shell line that starts one of Flower's programs as fdgsec does, with its environment."""
    variables = {name: value for name, value in SWITCHES.items() if name.startswith(("FLWR", "OMP"))}
    variables["FLWR_HOME"] = str(home.resolve())
    return " ".join(
        [*(f"{name}={shlex.quote(value)}" for name, value in variables.items()), shlex.join([program, *arguments])]
    )


def settings_text(settings: Mapping[str, Setting]) -> str:
    """Format `settings` for Flower's --node-config and --run-config: NAME=VALUE, with spaces between.

    Raises UsageError for text that holds a control character or both kinds of quotes."""
    return " ".join(f"{name}={_written(name, value)}" for name, value in settings.items())


def _written(name: str, value: Setting) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    if value.isprintable() and '"' not in value and "\\" not in value:
        return f'"{value}"'
    if value.isprintable() and "'" not in value:
        return f"'{value}'"
    raise UsageError(f"{name} {value!r} holds both kinds of quotes or a control character; Flower cannot carry it.")
