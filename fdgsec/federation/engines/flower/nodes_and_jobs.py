"""Flower's processes in fdgsec: a SuperLink, SuperNodes, and a job from its start to its final status.

A job is a folder on the server's machine (`fdgsec.experiments.flower.jobs`). Flower's own exit codes are not used,
because they are 0 even where the server app raised; the folder's status.json gives the result."""

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from fdgsec.federation.engines.flower.app import write_app
from fdgsec.federation.engines.flower.commands import Node, Server, settings_text
from fdgsec.federation.engines.flower.connection import Connection, UnreachableError, ask
from fdgsec.federation.engines.flower.environment import command_of
from fdgsec.federation.engines.flower.process_trees import (
    POLL,
    FlowerFailedError,
    Running,
    free_port,
    refuse_taken,
    running,
    telling_line,
)
from fdgsec.federation.engines.flower.superlink_control import NAME, Control
from fdgsec.runtime.errors import UsageError

START_SECONDS = 90.0
"""Start timeout; a SuperLink starts in 1 to 4 s, a SuperNode in 3 to 7 s, on a busy machine in many times that."""
ONLINE = "SuperNode ID:"
"""The log line of a SuperNode that the SuperLink has accepted."""
GATE_SIGN = "/fdgsec/gate"
CONTROL, FORBIDDEN = "/v1/control/start-run", 403
STATUS = "status.json"
ENDED = ("done", "failed")
LINGER = 20.0
"""Seconds for Flower to finish a run after its status is final, or for the status to appear after the run."""


@contextmanager
def superlink(
    server: Server,
    *,
    home: Path,
    log: Path,
    timeout: float = START_SECONDS,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Running]:
    """Run a SuperLink behind `superlink_access_control` beside this module; the block starts once it answers.

    Raises UsageError where the port is taken, FlowerFailedError where it does not answer within `timeout` seconds."""
    refuse_taken(server.host, server.port)
    command = [sys.executable, "-m", "fdgsec.federation.engines.flower.superlink_access_control", *server.arguments()]
    with running(command, home=home, log=log, environment=environment) as link:
        link.wait_for("SuperLink", lambda: _answers(server.connection), timeout=timeout)
        yield link


@contextmanager
def supernode(
    node: Node,
    *,
    home: Path,
    log: Path,
    timeout: float = START_SECONDS,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Running]:
    """Run a SuperNode behind `supernode_app_allowlist` beside this module; the block starts once it is accepted.

    Raises UsageError where the port is taken, FlowerFailedError where it is not accepted within `timeout` seconds."""
    refuse_taken("127.0.0.1", node.port)
    command = [sys.executable, "-m", "fdgsec.federation.engines.flower.supernode_app_allowlist", *node.arguments()]
    with running(command, home=home, log=log, environment=environment) as run:
        run.wait_for("SuperNode", lambda: ONLINE in run.text(), timeout=timeout)
        yield run


def submit(job: Path, connection: Connection, *, timeout: float) -> None:
    """Run the job in folder `job` on a SuperLink of this machine; returns once status.json says done or failed.

    Writes `job`/flower.log. Raises UnreachableError where no such server answers, UsageError for one on another
    machine, FlowerFailedError where the run ends without a status, or is stopped after `timeout` seconds."""
    if ask(connection, CONTROL) == FORBIDDEN:
        raise UsageError(
            f"the server at {connection.address} takes runs from its own machine alone; start the run there."
        )
    with _scratch() as home:
        _submit(job, connection, home=home, timeout=timeout, options=())


def simulate(job: Path, clients: int, *, timeout: float, environment: Mapping[str, str] | None = None) -> None:
    """Run the job in folder `job` in Flower's simulation of `clients` nodes, one CPU each; else as `submit`.

    The SuperLink is our own, at loopback for this job alone (`flwr run` would start a detached one that stays).
    `environment` is added to that of server app and clients. Writes `job`/superlink.log too."""
    with _scratch() as home:
        server = Server(host="127.0.0.1", port=free_port(), tls=None, simulation=True)
        with superlink(server, home=home, log=job / "superlink.log", environment=environment):
            options = settings_text({"num-supernodes": clients, "client-resources-num-cpus": 1})
            _submit(job, server.connection, home=home, timeout=timeout, options=("--federation-config", options))


def _submit(job: Path, connection: Connection, *, home: Path, timeout: float, options: Sequence[str]) -> None:
    deadline = time.monotonic() + timeout
    (job / STATUS).unlink(missing_ok=True)
    control = Control(connection=connection, home=home / "cli")
    control.write()
    app = write_app(home / "app")
    told = ["--run-config", settings_text({"job": str(job.resolve())})]
    command = [command_of("flwr"), "run", str(app), NAME, "--stream", *told, *options]
    with running(command, home=control.home, log=job / "flower.log") as stream:
        try:
            _follow(job, stream, control, deadline)
        except BaseException:
            with suppress(FlowerFailedError):  # the first error counts
                if (run := _run_number(stream)) and not control.run_status(run).startswith("finished"):
                    control.stop(run)
            raise
        with suppress(FlowerFailedError):
            stream.wait_for("flwr run", lambda: stream.process.poll() is not None, timeout=LINGER)


def _follow(job: Path, stream: Running, control: Control, deadline: float) -> None:
    """Return once the status is final. Raises FlowerFailedError where it can no longer become so, or too late."""
    patience = None
    while _status(job) not in ENDED:
        now = time.monotonic()
        if now > deadline:
            raise FlowerFailedError(
                f"the run was not done in time and is stopped; last: {telling_line(stream.text())} (log: {stream.log})"
            )
        if stream.process.poll() is not None and patience is None and _is_over(stream, control):
            patience = now + LINGER / 4
        if patience is not None and now > patience:
            raise FlowerFailedError(
                f"the run ended without a result: {telling_line(stream.text())} (log: {stream.log})"
            )
        time.sleep(POLL if stream.process.poll() is None or patience else 10 * POLL)


def _is_over(stream: Running, control: Control) -> bool:
    """Tell whether a run has ended, where its log stream has."""
    run = _run_number(stream)
    return run is None or control.run_status(run).startswith("finished")


def _run_number(stream: Running) -> str | None:
    match = re.search(r"Successfully started run (\d+)", stream.text())
    return match[1] if match else None


def _status(job: Path) -> str:
    try:
        return str(json.loads((job / STATUS).read_text())["status"])
    except (OSError, ValueError, KeyError):
        return ""


def _answers(connection: Connection) -> bool:
    """Tell whether a SuperLink answers. Raises FlowerFailedError for one without its gate: anybody could run code."""
    try:
        if ask(connection, "/health") != 200:
            return False
        if ask(connection, GATE_SIGN) != 204:
            raise FlowerFailedError("this version of flwr starts its server past the gate of fdgsec; it was ended.")
    except UnreachableError:
        return False
    return True


@contextmanager
def _scratch() -> Iterator[Path]:
    """Yield a temporary folder for Flower's own files; its path is short, since it holds ray's sockets."""
    parent = tempfile.gettempdir()
    if len(parent) > 30 and os.path.isdir("/tmp"):
        parent = "/tmp"
    with tempfile.TemporaryDirectory(prefix="fdgsec-", dir=parent, ignore_cleanup_errors=True) as name:
        yield Path(name)
