"""fdgsec: privacy and security analysis of federated domain generalization.

From Python as from the command line: `fdgsec.attack("ccst-overall", dataset="pacs")` gives the report that
`fdgsec attack --target ccst-overall --dataset pacs` prints."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fdgsec.reports import AttackReport

__version__ = "0.1.0"


def attack(
    target: str = "ccst-overall",
    *,
    dataset: str = "shapes",
    data_root: Path | None = None,
    out: Path | None = None,
    profile: str = "quick",
    preset: str | None = None,
    attacks: Sequence[str] = (),
    adversary: str = "server",
    seed: int = 0,
    fresh: bool = False,
    settings: Mapping[str, Any] | None = None,
    assignments: Sequence[str] = (),
) -> "AttackReport":
    """Run (or reuse) a target, run every applicable attack, and give the report.

    `settings` are further fields of `fdgsec.config.RunConfig` (per_domain, encoder, rounds, ...), `assignments` the
    command line's --set items ("method.k=2"). With `out` the run directory is written, else nothing is.
    Raises the errors of `fdgsec.errors`."""
    from fdgsec.config import attack_settings
    from fdgsec.console import Silent
    from fdgsec.experiments.attack import attack as experiment

    given = {
        "dataset": dataset, "attacks": tuple(attacks), "adversary": adversary, "seed": seed, **(settings or {}),
    }  # fmt: skip
    config = attack_settings(target, given, profile=profile, preset=preset, assignments=assignments)
    return experiment(config, data_root=data_root, out=out, fresh=fresh, progress=Silent())


def train(
    method: str = "fedavg",
    *,
    dataset: str = "shapes",
    data_root: Path | None = None,
    out: Path | None = None,
    preset: str | None = None,
    rounds: int | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    assignments: Sequence[str] = (),
) -> "AttackReport":
    """Train a method and give the report with its accuracy on the unseen domain; arguments as in `attack`."""
    from fdgsec.config import resolve_settings
    from fdgsec.console import Silent
    from fdgsec.experiments.train import train as experiment

    given = {"dataset": dataset, "rounds": rounds, "seed": seed, **(settings or {})}
    defaults = {"method": method, "target": method, "rounds": 10, "profile": "full"}
    config = resolve_settings(given, preset=preset, assignments=assignments, defaults=defaults)
    return experiment(config, data_root=data_root, out=out, progress=Silent())
