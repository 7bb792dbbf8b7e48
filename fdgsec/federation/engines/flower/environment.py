"""The environment variables of Flower's processes: no telemetry, and no installation at run time."""

import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

SWITCHES = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # else `uv sync` fetches code at run time
    "FLWR_TRACING_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",  # until a step takes the number of the run
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",  # seconds; the default of 1 s slows down every step
    "PYTHONUNBUFFERED": "1",
    "SPT_NOENV": "1",  # ray's workers rename themselves, which would overwrite our mark in the environment
}
DROPPED = (
    "FLWR_OIDC_ENABLED", "FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API", "FLWR_DATABASE",
    "FLWR_ENABLE_EVENT_LOG", "FORWARDED_ALLOW_IPS", "RAY_ADDRESS",
)  # fmt: skip
"""Settings of other Flowers on this machine, which are removed: ports, accounts, a cluster, allowed origins."""
MARK = "FDGSEC_FLOWER_MARK"
BINDINGS = "FDGSEC_BINDINGS"
"""The variable with the folder in which a server keeps which node key is which client."""


def flower_environment(home: Path, *, mark: str, added: Mapping[str, str] | None = None) -> dict[str, str]:
    """Give this process's environment with `added`, the switches, Flower's and ray's folders at `home`, and `mark`."""
    kept = {key: value for key, value in os.environ.items() if key not in DROPPED} | dict(added or {})
    places = [*_program_folders(), kept.get("PATH", os.defpath)]
    direct = ",".join(filter(None, [kept.get("NO_PROXY", kept.get("no_proxy", "")), "localhost", "127.0.0.1", "::1"]))
    return kept | SWITCHES | {
        "PATH": os.pathsep.join(dict.fromkeys(places)),  # Flower starts its helpers by name
        "NO_PROXY": direct, "no_proxy": direct,
        "FLWR_HOME": str(home.resolve()), "RAY_TMPDIR": str(home.resolve()), MARK: mark,
    }  # fmt: skip


def command_of(name: str) -> str:
    """Give the path of one of Flower's programs beside this Python, e.g. flower-superlink; elsewhere its bare name."""
    beside = [str(Path(folder) / name) for folder in _program_folders() if (Path(folder) / name).exists()]
    return (beside or [name])[0]


def _program_folders() -> list[str]:
    return list(dict.fromkeys([sysconfig.get_path("scripts"), str(Path(sys.executable).parent)]))
