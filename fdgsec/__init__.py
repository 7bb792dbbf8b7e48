"""fdgsec: privacy and security analysis of federated domain generalization.

Each verb of the command line is a function: `fdgsec.attack("ccst-overall", dataset="pacs")` returns the report that
`fdgsec attack --target ccst-overall --dataset pacs` prints. The types that methods, attacks and defenses
need are here too. What a verb needs is imported on first use."""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fdgsec.experiments.python_api.attack_functions import attack as attack
from fdgsec.experiments.python_api.attack_functions import attack_run as attack_run
from fdgsec.experiments.python_api.attack_functions import attack_vectors as attack_vectors
from fdgsec.experiments.python_api.data_functions import load_dataset as load_dataset
from fdgsec.experiments.python_api.data_functions import record as record
from fdgsec.experiments.python_api.data_functions import record_mod as record_mod
from fdgsec.experiments.python_api.study_functions import audit as audit
from fdgsec.experiments.python_api.study_functions import bench as bench
from fdgsec.experiments.python_api.study_functions import claims as claims
from fdgsec.experiments.python_api.study_functions import compare as compare
from fdgsec.experiments.python_api.study_functions import sweep as sweep
from fdgsec.experiments.python_api.study_functions import train as train
from fdgsec.runtime.errors import FdgsecError as FdgsecError
from fdgsec.runtime.errors import UsageError as UsageError
from fdgsec.runtime.version import __version__ as __version__

if TYPE_CHECKING:
    from fdgsec.experiments.report.attack_report import AttackReport as AttackReport
    from fdgsec.federation.artifacts import Artifact as Artifact
    from fdgsec.federation.defense import Defense as Defense
    from fdgsec.federation.method import Method as Method
    from fdgsec.metrics.measurement import Measurement as Measurement
    from fdgsec.runtime.random_streams import stream as stream
    from fdgsec.runtime.registry import Target as Target
    from fdgsec.threats.attack import Attack as Attack
    from fdgsec.threats.attack import Question as Question

__all__ = [
    "Artifact", "Attack", "AttackReport", "Defense", "FdgsecError", "Measurement", "Method", "Question", "Target",
    "UsageError", "attack", "attack_run", "attack_vectors", "audit", "bench", "claims", "compare", "load_dataset",
    "record", "record_mod", "stream", "sweep", "train",
]  # fmt: skip

_TYPES: Mapping[str, str] = {
    "Artifact": "fdgsec.federation.artifacts",
    "Attack": "fdgsec.threats.attack",
    "AttackReport": "fdgsec.experiments.report.attack_report",
    "Defense": "fdgsec.federation.defense",
    "Measurement": "fdgsec.metrics.measurement",
    "Method": "fdgsec.federation.method",
    "Question": "fdgsec.threats.attack",
    "Target": "fdgsec.runtime.registry",
    "stream": "fdgsec.runtime.random_streams",
}


def __getattr__(name: str) -> Any:
    if name not in _TYPES:
        raise AttributeError(f"module 'fdgsec' has no attribute {name!r}")
    return getattr(import_module(_TYPES[name]), name)


def __dir__() -> list[str]:
    return __all__
