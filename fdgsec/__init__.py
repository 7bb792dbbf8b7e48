"""fdgsec: privacy and security analysis of federated domain generalization.

From Python as from the command line: `fdgsec.attack("ccst-overall", dataset="pacs")` gives the report that
`fdgsec attack --target ccst-overall --dataset pacs` prints. So do `attack_run`, `attack_vectors`, `train`, `sweep`, `audit`
and `compare`; each imports what it needs when it is called."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fdgsec.runtime.version import __version__ as __version__

if TYPE_CHECKING:
    from fdgsec.experiments.report.schema import AttackReport


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

    `settings` are further fields of `fdgsec.experiments.config.RunConfig` (per_domain, encoder, rounds, ...), `assignments` the
    command line's --set items ("method.k=2"). With `out` the run directory is written, else nothing is.
    Raises the errors of `fdgsec.runtime.errors`."""
    from fdgsec.experiments.attack.verb import attack as experiment
    from fdgsec.experiments.config import attack_settings
    from fdgsec.runtime.progress import NoProgress

    given = {
        "dataset": dataset, "attacks": tuple(attacks), "adversary": adversary, "seed": seed, **(settings or {}),
    }  # fmt: skip
    config = attack_settings(target, given, profile=profile, preset=preset, assignments=assignments)
    return experiment(config, data_root=data_root, out=out, fresh=fresh, progress=NoProgress())


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
    from fdgsec.experiments.config import resolve_settings
    from fdgsec.experiments.train import train as experiment
    from fdgsec.runtime.progress import NoProgress

    given = {"dataset": dataset, "rounds": rounds, "seed": seed, **(settings or {})}
    defaults = {"method": method, "target": method, "rounds": 10, "profile": "full"}
    config = resolve_settings(given, preset=preset, assignments=assignments, defaults=defaults)
    return experiment(config, data_root=data_root, out=out, progress=NoProgress())


def sweep(
    target: str = "ccst-overall",
    *,
    defenses: Sequence[str] = ("style-noise",),
    option: str = "scale",
    values: Sequence[float],
    accuracy_at: Sequence[float] | None = (),
    dataset: str = "shapes",
    data_root: Path | None = None,
    out: Path | None = None,
    profile: str = "quick",
    attacks: Sequence[str] | None = None,
    protocol: str = "quick",
    seeds: int = 3,
    seed: int = 0,
    workers: int = 1,
    limit: int | None = None,
    settings: Mapping[str, Any] | None = None,
    assignments: Sequence[str] = (),
) -> dict[str, Any]:
    """Attack a target at all `values` of an `option` of the last defense, train it at `accuracy_at`, and give sweep.json.

    `accuracy_at` None means all values. With `out` points, tables and figures are written there, and the same call goes on
    where it stopped; else nothing is kept. The rest is as in `attack`, docs/sweep.md says what comes out."""
    from tempfile import TemporaryDirectory
    from typing import cast, get_args

    from fdgsec.experiments.config import Profile
    from fdgsec.experiments.sweep.verb import ATTACKS, SweepRequest
    from fdgsec.experiments.sweep.verb import sweep as experiment
    from fdgsec.runtime.errors import unknown_name
    from fdgsec.runtime.progress import NoProgress

    if profile not in get_args(Profile):
        raise unknown_name("profile", profile, get_args(Profile))
    request = SweepRequest(
        target=target, dataset=dataset, defenses=tuple(defenses), option=option, values=tuple(map(float, values)),
        accuracy_at=None if accuracy_at is None else tuple(map(float, accuracy_at)),
        attacks=ATTACKS if attacks is None else tuple(attacks), protocol=protocol, seeds=seeds, seed=seed,
        profile=cast(Profile, profile), workers=workers, given=settings or {}, assignments=tuple(assignments),
    )  # fmt: skip
    with TemporaryDirectory() as nowhere:
        return experiment(
            request, data_root=data_root, out=Path(nowhere) if out is None else out, progress=NoProgress(), limit=limit
        )


def audit(
    target: str = "ccst-overall",
    *,
    defenses: Sequence[str] = ("private-styles",),
    dataset: str = "shapes",
    data_root: Path | None = None,
    out: Path | None = None,
    runs: int = 2000,
    repeats: int = 1,
    confidence: float = 0.95,
    canaries: int = 1024,
    guesses: int | None = None,
    canary: Literal["gradient", "mislabeled"] = "gradient",
    rounds: int | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    assignments: Sequence[str] = (),
) -> dict[str, Any]:
    """Attack the guarantee of one of `defenses` and give audit.json: `found["exceeded"]` says that the claim has failed.

    With `out` the document is written there, else nothing is. The rest is as in `attack`; docs/audit.md says what a bound is."""
    from fdgsec.experiments.audit.verb import AuditPlan, audit_settings
    from fdgsec.experiments.audit.verb import audit as experiment
    from fdgsec.runtime.progress import NoProgress

    plan = AuditPlan(
        runs=runs, repeats=repeats, confidence=confidence, canaries=canaries, guesses=guesses, canary=canary
    )
    given = {
        "dataset": dataset, "defenses": tuple(defenses), "rounds": rounds, "seed": seed, **(settings or {}),
    }  # fmt: skip
    config = audit_settings(target, given, plan, assignments=assignments)
    return experiment(config, plan, data_root=data_root, out=out, progress=NoProgress())


def attack_run(
    run: Path,
    *,
    target: str | None = None,
    data_root: Path | None = None,
    out: Path | None = None,
    profile: str = "quick",
    attacks: Sequence[str] = (),
    adversary: str = "server",
    seed: int | None = None,
    fresh: bool = False,
    assignments: Sequence[str] = (),
) -> "AttackReport":
    """Attack what a finished run recorded, as `fdgsec attack --run`; `target` and `seed` default to the run's own.

    `report.environment["notes"]` says what could not be made again. Raises the errors of `fdgsec.runtime.errors`."""
    from fdgsec.experiments.attack_run.verb import RecordedRequest, attack_recorded
    from fdgsec.runtime.progress import NoProgress

    request = RecordedRequest(
        run=Path(run), target=target, adversary=adversary, attacks=tuple(attacks), profile=profile, seed=seed,
        assignments=tuple(assignments),
    )  # fmt: skip
    return attack_recorded(request, data_root=data_root, out=out, fresh=fresh, progress=NoProgress())


def attack_vectors(
    artifacts: Path,
    *,
    encoder: str,
    truth: Path | None = None,
    dataset: str | None = None,
    data_root: Path | None = None,
    per_domain: int | None = None,
    image_size: int | None = None,
    out: Path | None = None,
    profile: str = "quick",
    attacks: Sequence[str] = (),
    adversary: str = "server",
    seed: int = 0,
    assignments: Sequence[str] = (),
) -> "AttackReport":
    """Attack vectors of one's own, as `fdgsec attack --artifacts`; `dataset` are the adversary's public images.

    Guesses are written with the report, under `out`. Raises the errors of `fdgsec.runtime.errors`."""
    from fdgsec.experiments.attack_vectors.verb import VectorsRequest
    from fdgsec.experiments.attack_vectors.verb import attack_vectors as experiment
    from fdgsec.runtime.progress import NoProgress

    request = VectorsRequest(
        artifacts=Path(artifacts), encoder=encoder, truth=truth, dataset=dataset, per_domain=per_domain,
        image_size=image_size, attacks=tuple(attacks), adversary=adversary, profile=profile, seed=seed,
        assignments=tuple(assignments),
    )  # fmt: skip
    return experiment(request, data_root=data_root, out=out, progress=NoProgress())


def compare(first: Path, second: Path) -> dict[str, Any]:
    """Put two finished runs side by side, as `fdgsec compare --json`: what differs, and whether they may be compared."""
    from fdgsec.experiments.compare import compare as experiment

    return experiment(Path(first), Path(second))
