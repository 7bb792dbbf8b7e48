"""The verb `join`: a Flower node that takes part in a federation with this machine's images."""

import json
import os
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fdgsec.federation.engines.flower.certificates import check_certificate, check_node_key
from fdgsec.federation.engines.flower.commands import Node, Setting, shell_line
from fdgsec.federation.engines.flower.connection import AbsentError, Connection, ask
from fdgsec.federation.engines.flower.foreground_process import LogForwarder, alone, until_told
from fdgsec.federation.engines.flower.nodes_and_jobs import supernode
from fdgsec.federation.engines.flower.process_trees import FlowerFailedError, Running, free_port, telling_line
from fdgsec.federation.engines.flower.step_limits import FROM_SEED, key_in
from fdgsec.runtime.errors import UsageError, unknown_name
from fdgsec.runtime.registry import names

POLL, AGAIN = 0.2, 3.0
"""Seconds between polls of the node, and between attempts to join."""
PLAIN = (
    "# this node runs any app that its server sends; to limit it to fdgsec's own app, as `fdgsec join` does, replace",
    "# flower-supernode with `python -m fdgsec.federation.engines.flower.supernode_app_allowlist`.",
)
STAGES = ("share", "update", "review")
UNKNOWN_KEY = ("[code: 2001]", "[code: 2004]")
"""Error codes of Flower's server for an unknown node key."""


@dataclass(frozen=True, kw_only=True)
class JoinSettings:
    """The options of `fdgsec join`. Raises UsageError for options that exclude each other.

    With `own_data`, all images under `data_root` are this client's; otherwise it is client `partition` of `clients`.
    `required` are defenses without which the node joins no run, and `uncovered` the stages in which it sends what no
    required mechanism covers. It takes part in at most `runs` runs. `secret` is the file with the key of its noise, by
    default a file in `state`; `reproducible` uses the run's seed instead. `patience` is how many seconds the server may
    take to start and to register this node's key."""

    server: str
    partition: int
    clients: int
    state: Path
    ca: Path | None = None
    key: Path | None = None
    data_root: Path | None = None
    own_data: bool = False
    required: Sequence[str] = ()
    uncovered: Sequence[str] = ()
    runs: int | None = None
    secret: Path | None = None
    reproducible: bool = False
    port: int | None = None
    insecure: bool = False
    patience: float = 60.0

    def __post_init__(self) -> None:
        if not 0 <= self.partition < self.clients:
            raise UsageError(
                f"--partition must lie in 0..M-1 of --of M; got {self.partition} of {self.clients} (counted from 0)."
            )
        if self.insecure and (self.ca or self.key):
            raise UsageError("--insecure joins without certificate and key; leave --ca and --key out, or --insecure.")
        if not self.insecure and not (self.ca and self.key):
            raise UsageError(
                "join needs --ca (the server's ca.crt) and --key (`fdgsec join --new-key FILE` creates one); to join "
                "without TLS, use --insecure."
            )
        if self.secret and self.reproducible:
            raise UsageError("--secret and --reproducible exclude each other.")
        if self.own_data and self.data_root is None:
            raise UsageError("--own-data needs --data-root: the folder that holds this client's images.")
        if self.data_root is not None and not self.data_root.exists():
            raise UsageError(f"--data-root {self.data_root} does not exist.")
        self._check_limits()

    def _check_limits(self) -> None:
        for stage in self.uncovered:
            if stage not in STAGES:
                raise unknown_name("stage", stage, STAGES)
        if self.runs is not None and self.runs < 1:
            raise UsageError(f"--runs must be at least 1; got {self.runs}.")
        for text in self.required:
            if (name := text.partition(":")[0]) not in names("defenses"):
                raise unknown_name("defense", name, names("defenses"))


def join_commands(joining: JoinSettings) -> list[str]:
    """Prepare the folder as `join` does, and return the equivalent shell commands."""
    return [shell_line("flower-supernode", _node(joining).arguments(), home=_home(joining)), *PLAIN]


def join(joining: JoinSettings, *, say: Callable[[str], None], log: Callable[[str], None]) -> None:
    """Take part until a signal comes; rejoin if the server disconnects this node, e.g. after a restart.

    `say` receives messages for the operator, `log` Flower's log lines. Raises UsageError for invalid input,
    UnreachableError if the server does not answer, FlowerFailedError if it rejects this node."""
    with alone(joining.state / "join.lock") as first:
        if not first:
            raise UsageError(f"--state {joining.state} is in use by another `fdgsec join`; each node needs its own.")
        node = _node(joining)
        with until_told():
            _reach(node.server, time.monotonic() + joining.patience)
            _take_part(joining, node, say, log)
        say("stopped.")


def _take_part(joining: JoinSettings, node: Node, say: Callable[[str], None], log: Callable[[str], None]) -> None:
    met, deadline = False, time.monotonic() + joining.patience
    while True:
        try:
            with supernode(node, home=_home(joining), log=joining.state / "supernode.log") as run:
                say(f"client:{joining.partition} of {joining.clients} has joined {node.server.address}.")
                met = True
                _watch(run, log)
                end = f"the node ended with code {run.process.returncode}: {telling_line(run.text())}"
            say(f"{end if run.process.returncode else 'the server has let this node go'}; joining again.")
            deadline = time.monotonic() + joining.patience
        except FlowerFailedError as error:
            unknown = any(code in str(error) for code in UNKNOWN_KEY)
            if time.monotonic() > deadline or not (unknown or met):
                raise (_unknown_key(joining, node) if unknown else error) from None
            say(f"{_unknown_key(joining, node) if unknown else error}; trying again.")
        time.sleep(AGAIN)
        _reach(node.server, None if met else deadline)


def _watch(run: Running, log: Callable[[str], None]) -> None:
    news = LogForwarder(run, log)
    while run.process.poll() is None:
        news.pass_on()
        time.sleep(POLL)
    news.pass_on()


def _unknown_key(joining: JoinSettings, node: Node) -> FlowerFailedError:
    return FlowerFailedError(
        f"{node.server.address} does not know this node's key; take {joining.key}.pub there: "
        "`fdgsec serve --register FILE.pub`"
    )


def _reach(server: Connection, deadline: float | None) -> None:
    """Wait until the server answers. Raises UnreachableError at once for a wrong server, at `deadline` for none."""
    while True:
        try:
            ask(server, "/health")
            return
        except AbsentError:
            if deadline is not None and time.monotonic() > deadline:
                raise
        time.sleep(POLL)


def _home(joining: JoinSettings) -> Path:
    return joining.state / "flower"


def _node(joining: JoinSettings) -> Node:
    """Check the given files, and create the state folder with the node's secret. Raises UsageError."""
    server = Connection(address=joining.server, ca=joining.ca)
    if joining.ca is not None and joining.key is not None:
        check_certificate(joining.ca)
        check_node_key(joining.key)
        if stat.S_IMODE(joining.key.stat().st_mode) & 0o077:
            raise UsageError(f"others can read {joining.key}; run: chmod 600 {joining.key}")
    joining.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = joining.key.resolve() if joining.key else None
    ca = joining.ca.resolve() if joining.ca else None
    return Node(
        server=Connection(address=server.address, ca=ca), key=key, port=joining.port or free_port(),
        settings=_settings(joining),
    )  # fmt: skip


def _settings(joining: JoinSettings) -> dict[str, Setting]:
    settings: dict[str, Setting] = {
        "partition-id": joining.partition, "num-partitions": joining.clients, "state": str(joining.state.resolve()),
        "secret": _secret(joining),
    }  # fmt: skip
    root = joining.data_root or (Path(given) if (given := os.environ.get("FDGSEC_DATA")) else None)
    if root is not None:
        settings["data-root"] = str(root.resolve())
    if joining.own_data:
        settings["own-data"] = True
    if joining.required:
        settings["require-defenses"] = json.dumps(list(joining.required))
    if joining.uncovered:
        settings["uncovered"] = json.dumps(list(joining.uncovered))
    if joining.runs is not None:
        settings["runs"] = joining.runs
    return settings


def _secret(joining: JoinSettings) -> str:
    """The file with the key of the node's noise, or FROM_SEED if `reproducible`."""
    if joining.reproducible:
        return FROM_SEED
    path = joining.secret or joining.state / "secret.key"
    key_in(path)
    return str(path.resolve())
