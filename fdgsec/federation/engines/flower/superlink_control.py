"""Control of a SuperLink by Flower's own `flwr`: list, register and remove nodes, query and stop runs."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fdgsec.federation.engines.flower.connection import Connection
from fdgsec.federation.engines.flower.environment import command_of, flower_environment
from fdgsec.federation.engines.flower.process_trees import FlowerFailedError, plain, telling_line
from fdgsec.runtime.cache_files import write_atomic

NAME = "fdgsec"
"""The name of the connection in Flower's configuration."""
PATIENCE = 60.0
"""Seconds for one answer; it takes two on an idle machine, most of them to start Python."""


@dataclass(frozen=True, kw_only=True)
class Control:
    """A SuperLink and its operator's commands; `home` is a folder for Flower's configuration."""

    connection: Connection
    home: Path

    def write(self) -> None:
        """Write Flower's configuration, with this connection as NAME."""
        ca = self.connection.ca
        secure = f"root-certificates = {json.dumps(str(ca.resolve()))}" if ca else "insecure = true"
        lines = ["[superlink]", f'default = "{NAME}"', f"[superlink.{NAME}]"]
        write_atomic(
            self.home / "config.toml", "\n".join([*lines, f'address = "{self.connection.address}"', secure, ""])
        )

    def register(self, public_key: Path) -> str:
        """Accept the node with this key; gives the number that the server assigns to it."""
        return str(self._asked("supernode", "register", str(public_key), NAME)["node-id"])

    def unregister(self, node: str) -> None:
        """Remove a node."""
        self._asked("supernode", "unregister", node, NAME)

    def nodes(self) -> dict[str, str]:
        """Give the state of every node by its number: registered, online, offline."""
        return {str(node["node-id"]): str(node["status"]) for node in self._asked("supernode", "list", NAME)["nodes"]}

    def run_status(self, run: str) -> str:
        """Give the status of a run in Flower's words: pending, starting, running, finished:completed, ..."""
        runs = self._asked("list", NAME, "--run-id", run)["runs"]
        return str(runs[0]["status"]) if runs else "unknown"

    def stop(self, run: str) -> None:
        """Stop a run."""
        self._asked("stop", run, NAME)

    def _asked(self, *words: str) -> dict[str, Any]:
        """Run `flwr`. Raises FlowerFailedError where it does not report success (its exit code always does)."""
        self.write()
        command = [command_of("flwr"), *words, "--format", "json"]
        try:
            done = subprocess.run(
                command, env=flower_environment(self.home, mark=""), capture_output=True, timeout=PATIENCE, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise FlowerFailedError(f"flwr {' '.join(words)} gave no answer within {PATIENCE:.0f} s.") from None
        told = plain(done.stdout)
        try:
            document = json.loads(told[told.index("{") :])
        except ValueError:
            raise FlowerFailedError(f"flwr {' '.join(words)}: {telling_line(told + plain(done.stderr))}") from None
        if not document.get("success"):
            raise FlowerFailedError(f"flwr {' '.join(words)}: {telling_line(str(document.get('error-message', told)))}")
        return dict(document)
