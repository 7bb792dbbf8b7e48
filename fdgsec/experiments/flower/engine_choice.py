"""The engine of a run: this process, Flower's simulation, or the nodes of a Flower federation."""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from fdgsec.experiments.flower.jobs import FlowerFederation, Job, Purpose, Runner
from fdgsec.experiments.setup.run_federation import Federation, federate
from fdgsec.runtime.errors import UsageError, unknown_name

EngineName = Literal["local", "flower-sim", "flower"]

CA = "fdgsec-federation/ca.crt"
"""The default path of the server's certificate, which `fdgsec serve` writes."""


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """The engine of a run, the address of its federation, quorum and timeouts.

    `federation` is a SuperLink's "host:port", `ca` the certificate of its authority; with `insecure` there is no TLS,
    and anyone on the network path can read and change messages. `quorum` is the share of clients that must answer a
    step, `timeout` the seconds that an answer may take, `wait` the seconds that nodes may take to come online.
    `workers` is the number of processes that share out the clients of a step, in this process's engine alone. Raises
    UsageError for values out of range."""

    engine: str = "local"
    federation: str = "127.0.0.1:9191"
    ca: Path | None = None
    insecure: bool = False
    quorum: float = 1.0
    timeout: float = 600.0
    wait: float = 300.0
    workers: int = 1

    def __post_init__(self) -> None:
        if self.engine not in get_args(EngineName):
            raise unknown_name("engine", self.engine, get_args(EngineName))
        if not 0 < self.quorum <= 1:
            raise UsageError(f"--quorum must lie in (0, 1]; got {self.quorum:g}.")
        if not (self.timeout > 0 and self.wait > 0):
            raise UsageError(
                f"--client-timeout and --wait are seconds above 0; got {self.timeout:g} and {self.wait:g}."
            )
        if self.workers < 1 or (self.workers > 1 and self.engine != "local"):
            raise UsageError(f"--workers must be at least 1, and goes with --engine local; got {self.workers}.")
        host, _, port = self.federation.rpartition(":")
        if not host or not port.isdigit():
            raise UsageError(f"--federation is the server's host:port; got {self.federation!r}.")
        if self.insecure and self.ca is not None:
            raise UsageError("--insecure and --ca exclude each other; leave one of them out.")


def federation_of(engine_choice: EngineChoice, *, purpose: Purpose, data_root: Path | None) -> Federation:
    """The federation of the chosen engine. Raises UsageError, and MissingResourceError without Flower."""
    if engine_choice.engine == "local":
        return partial(federate, quorum=engine_choice.quorum, workers=engine_choice.workers)
    return flower_federation(engine_choice, purpose=purpose, data_root=data_root)


def flower_federation(engine_choice: EngineChoice, *, purpose: Purpose, data_root: Path | None) -> FlowerFederation:
    """The federation on Flower of the chosen engine. Raises UsageError, and MissingResourceError without Flower."""
    from fdgsec.federation.engines.flower.versions import require_flower

    deployed = engine_choice.engine == "flower"
    require_flower(simulation=not deployed)
    return FlowerFederation(
        runner=_submitted(engine_choice) if deployed else _simulated(data_root), purpose=purpose,
        quorum=engine_choice.quorum, timeout=engine_choice.timeout, wait=engine_choice.wait, deployed=deployed,
    )  # fmt: skip


def _simulated(data_root: Path | None) -> Runner:
    from fdgsec.federation.engines.flower.nodes_and_jobs import simulate

    def run(folder: Path, job: Job) -> None:
        root = data_root or os.environ.get("FDGSEC_DATA")
        environment = {"FDGSEC_SIMULATION": str(folder), **({"FDGSEC_DATA": str(Path(root).resolve())} if root else {})}
        simulate(folder, job.clients, timeout=_bound(job), environment=environment)

    return run


def _submitted(engine_choice: EngineChoice) -> Runner:
    from fdgsec.federation.engines.flower.connection import Connection
    from fdgsec.federation.engines.flower.nodes_and_jobs import submit

    ca = engine_choice.ca or (Path(CA) if Path(CA).is_file() else None)
    if ca is None and not engine_choice.insecure:
        raise UsageError(f"--engine flower needs the server's certificate: --ca FILE (`fdgsec serve` leaves {CA}).")
    if ca is not None and not ca.is_file():
        raise UsageError(f"--ca {ca} is not a file.")
    connection = Connection(address=engine_choice.federation, ca=None if engine_choice.insecure else ca)

    def run(folder: Path, job: Job) -> None:
        submit(folder, connection, timeout=_bound(job))

    return run


def _bound(job: Job) -> float:
    """The maximum duration of a job in seconds, if every step of every round takes its full timeout."""
    return 3 * job.wait + 3 * job.timeout * max(job.config.rounds, 1) + 60
