"""Where a run's clients are reached: in this process, in Flower's simulation, or on nodes of a Flower federation."""

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
"""Where `fdgsec serve` leaves the certificate by which its server is known."""


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """The engine of a run, where its federation is, and how patient it is with clients.

    `federation` is a SuperLink's "host:port", `ca` the certificate that vouches for it; without it (`insecure`) anybody
    in between reads and writes along. `quorum` is the share of clients that must answer a step, `timeout` how many
    seconds an answer may take, `wait` how long nodes may take to come online. Raises UsageError out of range."""

    engine: str = "local"
    federation: str = "127.0.0.1:9191"
    ca: Path | None = None
    insecure: bool = False
    quorum: float = 1.0
    timeout: float = 600.0
    wait: float = 300.0

    def __post_init__(self) -> None:
        if self.engine not in get_args(EngineName):
            raise unknown_name("engine", self.engine, get_args(EngineName))
        if not 0 < self.quorum <= 1:
            raise UsageError(f"--quorum must lie in (0, 1]; got {self.quorum:g}.")
        if not (self.timeout > 0 and self.wait > 0):
            raise UsageError(
                f"--client-timeout and --wait are seconds above 0; got {self.timeout:g} and {self.wait:g}."
            )
        host, _, port = self.federation.rpartition(":")
        if not host or not port.isdigit():
            raise UsageError(f"--federation is the server's host:port; got {self.federation!r}.")
        if self.insecure and self.ca is not None:
            raise UsageError("--insecure leaves certificates out; drop it or --ca.")


def federation_of(reach: EngineChoice, *, purpose: Purpose, data_root: Path | None) -> Federation:
    """The federation that `reach` describes. Raises UsageError, and MissingResourceError without Flower."""
    if reach.engine == "local":
        return partial(federate, quorum=reach.quorum)
    return flower_federation(reach, purpose=purpose, data_root=data_root)


def flower_federation(reach: EngineChoice, *, purpose: Purpose, data_root: Path | None) -> FlowerFederation:
    """The federation on Flower that `reach` describes. Raises UsageError, and MissingResourceError without Flower."""
    from fdgsec.federation.engines.flower.versions import require_flower

    deployed = reach.engine == "flower"
    require_flower(simulation=not deployed)
    return FlowerFederation(
        runner=_submitted(reach) if deployed else _simulated(data_root), purpose=purpose, quorum=reach.quorum,
        timeout=reach.timeout, wait=reach.wait, deployed=deployed,
    )  # fmt: skip


def _simulated(data_root: Path | None) -> Runner:
    from fdgsec.federation.engines.flower.processes import simulate

    def run(folder: Path, job: Job) -> None:
        root = data_root or os.environ.get("FDGSEC_DATA")
        environment = {"FDGSEC_SIMULATION": str(folder), **({"FDGSEC_DATA": str(Path(root).resolve())} if root else {})}
        simulate(folder, job.clients, timeout=_bound(job), environment=environment)

    return run


def _submitted(reach: EngineChoice) -> Runner:
    from fdgsec.federation.engines.flower.connection import Connection
    from fdgsec.federation.engines.flower.processes import submit

    ca = reach.ca or (Path(CA) if Path(CA).is_file() else None)
    if ca is None and not reach.insecure:
        raise UsageError(f"--engine flower needs the server's certificate: --ca FILE (`fdgsec serve` leaves {CA}).")
    if ca is not None and not ca.is_file():
        raise UsageError(f"--ca {ca} is not a file.")
    connection = Connection(address=reach.federation, ca=None if reach.insecure else ca)

    def run(folder: Path, job: Job) -> None:
        submit(folder, connection, timeout=_bound(job))

    return run


def _bound(job: Job) -> float:
    """Seconds after which a job cannot still be at work: every step of every round used all its time."""
    return 2 * job.wait + 3 * job.timeout * max(job.config.rounds, 1) + 60
