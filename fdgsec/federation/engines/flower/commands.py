"""What Flower's programs are started with: a server, a node, and the node-config that only the node knows."""

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
    """The files by which a server shows who it is."""

    ca: Path
    certificate: Path
    key: Path


@dataclass(frozen=True, kw_only=True)
class Server:
    """A SuperLink; without `tls` anybody may join, and read along."""

    host: str
    port: int
    tls: Tls | None
    simulation: bool = False

    @property
    def connection(self) -> Connection:
        """How this machine itself reaches the server."""
        here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return Connection(address=address_of(here, self.port), ca=self.tls.ca if self.tls else None)

    def arguments(self) -> list[str]:
        """The arguments of `flower-superlink`."""
        where = ["--host", self.host, "--port", str(self.port), "--disable-runtime-dependency-installation"]
        kind = ["--simulation"] if self.simulation else []
        if self.tls is None:
            return ["--insecure", *where, *kind]
        ca, certificate, key = (str(path.resolve()) for path in (self.tls.ca, self.tls.certificate, self.tls.key))
        files = ["--ssl-ca-certfile", ca, "--ssl-certfile", certificate, "--ssl-keyfile", key]
        return [*files, "--enable-supernode-auth", *where, *kind]


@dataclass(frozen=True, kw_only=True)
class Node:
    """A SuperNode; `settings` is its node-config, `port` one of its own machine, where its helpers reach it."""

    server: Connection
    key: Path | None
    port: int
    settings: Mapping[str, Setting] = field(default_factory=dict)

    def arguments(self) -> list[str]:
        """The arguments of `flower-supernode`. Raises UsageError for settings that Flower cannot carry."""
        secure = ["--root-certificates", str(self.server.ca)] if self.server.ca else ["--insecure"]
        if self.key is not None:
            secure += ["--auth-supernode-private-key", str(self.key)]
        where = ["--superlink", self.server.address, "--port", str(self.port)]
        return [*secure, *where, "--node-config", settings_text(self.settings)]


def typed(program: str, arguments: Sequence[str], *, home: Path) -> str:
    """The line by which one starts one of Flower's programs as fdgsec would, its switches included."""
    variables = {name: value for name, value in SWITCHES.items() if name.startswith(("FLWR", "OMP"))}
    variables["FLWR_HOME"] = str(home.resolve())
    return " ".join(
        [*(f"{name}={shlex.quote(value)}" for name, value in variables.items()), shlex.join([program, *arguments])]
    )


def settings_text(settings: Mapping[str, Setting]) -> str:
    """`settings` as Flower's --node-config and --run-config read them: NAME=VALUE, with spaces between.

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
