"""The verb `serve`: a Flower server for one federation, with TLS certificates and registered nodes.

`nodes/` in the server's folder holds the public key of every node that may join. The server registers them at start and
whenever that folder changes. `clients/` holds which of these keys is which client. It stores nothing else between
starts, so that no database keeps clients' messages."""

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fdgsec.federation.engines.flower.certificates import (
    certificate_gap,
    certificate_names,
    create_authority,
    create_server_certificate,
    is_name,
    public_key,
)
from fdgsec.federation.engines.flower.commands import Server, Tls, shell_line
from fdgsec.federation.engines.flower.connection import address_of
from fdgsec.federation.engines.flower.environment import BINDINGS
from fdgsec.federation.engines.flower.foreground_process import LogForwarder, alone, until_told
from fdgsec.federation.engines.flower.nodes_and_jobs import superlink
from fdgsec.federation.engines.flower.process_trees import FlowerFailedError
from fdgsec.federation.engines.flower.superlink_control import NAME, Control
from fdgsec.runtime.cache_files import write_atomic
from fdgsec.runtime.errors import UsageError

POLL, LOOK = 0.2, 2.0
"""Seconds between polls of the server, and between checks of the folder of keys."""
PLAIN = (
    "# this server accepts runs and keys from anyone who reaches its port: block /v1/control and /v1/runtime, or",
    "# replace flower-superlink by `python -m fdgsec.federation.engines.flower.superlink_access_control`,",
    "# as `fdgsec serve` does.",
)
ANYWHERE = ("0.0.0.0", "::")


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """The options of `fdgsec serve`. Raises UsageError for options that exclude each other.

    `names` are the server's host names in its certificate, `allowed` the nodes' public keys (files, or folders of
    *.pub). Without `host`, it listens on all interfaces, or with `insecure` only on loopback."""

    folder: Path
    host: str | None = None
    port: int = 9191
    names: Sequence[str] = ()
    allowed: Sequence[Path] = ()
    renew: bool = False
    insecure: bool = False

    def __post_init__(self) -> None:
        if self.insecure and (self.names or self.allowed or self.renew):
            raise UsageError(
                "--insecure serves without certificates and keys; leave --name, --register, --allow, --renew out."
            )
        if not 0 < self.port < 65536:
            raise UsageError(f"--port must lie in 1..65535; got {self.port}.")

    @property
    def nodes(self) -> Path:
        """The folder with the public keys of the nodes that may join."""
        return self.folder / "nodes"

    @property
    def bindings(self) -> Path:
        """The folder with the public key of the node that is client N, in client-N.pub."""
        return self.folder / "clients"

    @property
    def home(self) -> Path:
        """The folder of Flower's own files."""
        return self.folder / "flower"


def serve_commands(serving: ServeSettings) -> list[str]:
    """Prepare the folder as `serve` does, and return the equivalent shell commands, with one line per node key."""
    server = _prepared(serving)
    _admit(serving)
    Control(connection=server.connection, home=serving.home).write()
    keys = [["supernode", "register", str(key.resolve()), NAME] for key in sorted(serving.nodes.glob("*.pub"))]
    plain = shell_line("flower-superlink", server.arguments(), home=serving.home)
    return [plain, *PLAIN, *(shell_line("flwr", words, home=serving.home) for words in keys)]


def serve(serving: ServeSettings, *, say: Callable[[str], None], log: Callable[[str], None]) -> None:
    """Serve until a signal comes; `say` receives messages for the operator, `log` Flower's log lines.

    If the folder's server already runs, only add the new keys for it. Raises UsageError for invalid input,
    FlowerFailedError if the server does not start or ends unexpectedly."""
    with alone(serving.folder / "serve.lock") as first:
        if not first:
            _leave_keys(serving, say)
            return
        server = _prepared(serving)
        _admit(serving)
        with until_told():
            _serve(serving, server, say, log)
        say("stopped.")


def _serve(serving: ServeSettings, server: Server, say: Callable[[str], None], log: Callable[[str], None]) -> None:
    bindings = {} if server.tls is None else {BINDINGS: str(serving.bindings.resolve())}
    log_file = serving.folder / "superlink.log"
    with superlink(server, home=serving.home, log=log_file, environment=bindings) as link:
        for line in _greeting(serving, server):
            say(line)
        news = LogForwarder(link, log)
        registry = _NodeRegistry(Control(connection=server.connection, home=serving.home), serving.nodes, say)
        looked = 0.0
        while True:
            news.pass_on()
            link.check("SuperLink")
            if server.tls is not None and time.monotonic() - looked > LOOK:
                registry.update()
                looked = time.monotonic()
            time.sleep(POLL)


def _greeting(serving: ServeSettings, server: Server) -> list[str]:
    where = address_of(server.host, server.port)
    if server.tls is None:
        return [f"serving at {where} WITHOUT TLS: whoever reaches it may join, and read and alter what is sent."]
    names = ", ".join(certificate_names(server.tls.certificate))
    return [
        f"serving at {where}, with TLS and node authentication, as {names}.",
        f"copy to every node: {server.tls.ca.resolve()}",
        f"register a node: put its public key into {serving.nodes.resolve()},",
        f"or run `fdgsec serve {serving.folder} --register FILE.pub`",
        "runs and keys are accepted only from this machine: `fdgsec train --engine flower` here.",
    ]


class _NodeRegistry:
    """Registers nodes whose public key is in a folder, and unregisters those whose key was removed."""

    def __init__(self, control: Control, folder: Path, say: Callable[[str], None]) -> None:
        self.control, self.folder, self.say = control, folder, say
        self.known: dict[Path, tuple[bytes, str]] = {}

    def update(self) -> None:
        """Register new keys, and unregister removed ones."""
        found: dict[Path, bytes] = {}
        for path in sorted(self.folder.glob("*.pub")):
            with suppress(OSError):  # removed since
                found[path] = path.read_bytes()
        for path, (text, node) in list(self.known.items()):
            if found.get(path) != text:
                del self.known[path]
                if node:
                    self._try(partial(self.control.unregister, node), f"{path.stem} may not join any more.")
        for path, text in found.items():
            if path not in self.known:
                node = self._try(partial(self.control.register, path), f"{path.stem} may join.")
                self.known[path] = (text, node)

    def _try(self, change: Callable[[], str | None], done: str) -> str:
        try:
            node = change() or ""
        except FlowerFailedError as error:
            self.say(str(error))  # an invalid key does not stop the server
            return ""
        self.say(done)
        return node


def _leave_keys(serving: ServeSettings, say: Callable[[str], None]) -> None:
    if not serving.allowed:
        raise UsageError(f"{serving.folder} is served already, by another `fdgsec serve`.")
    _admit(serving)
    say(f"left for the server that runs in {serving.folder}; it lets the keys in within seconds.")


def _prepared(serving: ServeSettings) -> Server:
    """Create the folder and missing certificates. Raises UsageError if existing certificates do not fit."""
    serving.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if serving.insecure:
        return Server(host=serving.host or "127.0.0.1", port=serving.port, tls=None)
    serving.nodes.mkdir(exist_ok=True)
    host = serving.host or ANYWHERE[0]
    folder = serving.folder
    tls = Tls(ca=folder / "ca.crt", certificate=folder / "server.pem", key=folder / "server.key")
    if not tls.ca.exists():
        create_authority(folder)
    needed = [*serving.names, *([] if host in ANYWHERE else [host])]
    if not tls.certificate.exists():
        create_server_certificate(folder, [*needed, *_own_name()], overwrite=True)
    elif serving.renew:
        create_server_certificate(folder, [*certificate_names(tls.certificate), *needed], overwrite=True)
    elif gap := certificate_gap(tls.certificate, needed):
        raise UsageError(f"{gap}; issue another with --renew (nodes keep their ca.crt).")
    return Server(host=host, port=serving.port, tls=tls)


def _own_name() -> list[str]:
    name = socket.gethostname()
    return [name] if is_name(name) else []


def _admit(serving: ServeSettings) -> None:
    """Copy the given keys to the folder of registered nodes. Raises UsageError for a file without a public key."""
    keys: list[Path] = []
    for path in serving.allowed:
        found = sorted(path.glob("*.pub")) if path.is_dir() else [path]
        if not found:
            raise UsageError(f"{path} holds no public key (*.pub).")
        keys += found
    held = {public_key(path): path for path in serving.nodes.glob("*.pub")} if keys else {}
    for key in keys:
        line = public_key(key)
        if line in held:
            continue
        target = serving.nodes / f"{key.name.removesuffix('.pub')}.pub"
        if target.exists():
            raise UsageError(f"{target} holds another key; rename {key}, or remove that one first.")
        write_atomic(target, f"{line}\n")
        held[line] = target
