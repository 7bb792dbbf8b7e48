"""Fault injection for runs on Flower, with a node that fails or lies: `python -m benchmarks.flower_faults`.

Three nodes at loopback (TLS, node keys), of which client:1 misbehaves in the fit of every round; FedAvg on shapes, a
quorum of two thirds. Each fault is one run: its duration, how it ended, who was named, and whether the model is finite.
Finally two nodes that must be rejected: one without a registered key, and one without TLS."""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fdgsec.experiments.flower.jobs import FlowerFederation
from fdgsec.experiments.run_config import resolve_settings
from fdgsec.experiments.setup.run_inputs import method_of
from fdgsec.federation.engines.flower.certificates import create_node_key
from fdgsec.federation.engines.flower.connection import Connection
from fdgsec.federation.engines.flower.loopback import loopback
from fdgsec.federation.engines.flower.nodes_and_jobs import submit
from fdgsec.federation.run_folder import environment
from fdgsec.runtime.cache_files import write_atomic
from fdgsec.runtime.errors import FdgsecError
from fdgsec.runtime.progress import NoProgress

FAULTS = ("none", "nan", "wrong shape", "missing key", "bad weight", "exception", "sleep", "sigkill")
TIMEOUT = 30.0
"""Seconds that an answer may take; the sleeping node takes 40 longer than that an honest one needs."""


def run_with(fault: str, connection: Connection, told: Path, *, quorum: float, timeout: float) -> dict[str, Any]:
    """One run with one fault: a row of the table."""
    told.write_text("" if fault == "none" else fault)
    config = resolve_settings(
        {"dataset": "shapes", "rounds": 2, "per_domain": 24, "image_size": 32},
        preset=None, defaults={"method": "fedavg"},
    )  # fmt: skip
    federation = FlowerFederation(
        runner=lambda folder, _: submit(folder, connection, timeout=1200), quorum=quorum, timeout=timeout, wait=120
    )
    started = time.monotonic()
    row: dict[str, Any] = {"fault": fault, "quorum": quorum}
    try:
        trained = federation.run(method_of(config), config, clients=3, progress=NoProgress())
    except FdgsecError as error:
        return row | {"exit_code": error.exit_code, "seconds": time.monotonic() - started, "said": str(error)}
    finite = all(bool(torch.isfinite(value.double()).all()) for value in trained.final.state.state.values())
    failures = [] if trained.federation is None else trained.federation["failures"]
    said = "; ".join(f"{each['client']}, round {each['round']}, {each['step']}: {each['reason']}" for each in failures)
    return row | {"exit_code": 0, "seconds": time.monotonic() - started, "said": said, "finite": finite}


def refused(name: str, arguments: list[str], folder: Path) -> dict[str, Any]:
    """Start a node that must be rejected."""
    command = [
        sys.executable,
        "-m",
        "fdgsec.cli",
        "join",
        *arguments,
        "--state",
        str(folder / "state"),
        "--patience",
        "10",
    ]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    said = next((line for line in reversed(done.stderr.splitlines()) if line.startswith("fdgsec:")), "")
    return {
        "fault": name,
        "exit_code": done.returncode,
        "seconds": time.monotonic() - started,
        "said": said.replace(f"{folder}/", ""),
    }


def measured(given: argparse.Namespace) -> list[Mapping[str, Any]]:
    """All rows."""
    rows: list[Mapping[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="fdgsec-faults-") as name:
        folder, told = Path(name), Path(name) / "fault"
        told.write_text("")
        variables = {"PYTHONPATH": str(Path(__file__).parent / "faulty_node"), "FDGSEC_FAULT": str(told)}
        with loopback(folder, 3, environments={1: variables}) as reached:
            told.with_name("fault.pid").write_text(str(reached.nodes[1].process.pid))
            address = reached.connection.address
            ca = str(reached.connection.ca)
            create_node_key(folder / "stranger")
            for fault, arguments in (
                ("unregistered key", ["--ca", ca, "--key", str(folder / "stranger")]),
                ("plaintext node on the TLS port", ["--insecure"]),
            ):
                where = ["--server", address, "--partition", "0", "--of", "3"]
                rows.append(refused(fault, [*where, *arguments], folder))
                print(json.dumps(rows[-1]), flush=True)
            cases = [(fault, 0.6) for fault in given.faults if fault != "sigkill"]
            cases += [("exception", 1.0)] if "exception" in given.faults else []
            cases += [("sigkill", 0.6)] if "sigkill" in given.faults else []  # there is no node after it
            for fault, quorum in cases:
                rows.append(run_with(fault, reached.connection, told, quorum=quorum, timeout=given.timeout))
                print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=lambda text: text.split(","), default=list(FAULTS))
    parser.add_argument("--timeout", type=float, default=TIMEOUT)
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    rows = measured(given)
    if given.results is not None:
        write_atomic(given.results, json.dumps({"rows": rows, "environment": environment()}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
