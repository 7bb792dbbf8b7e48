"""fdgsec: privacy and security analysis of federated domain generalization.

Each verb of the command line is a function: `fdgsec.attack("ccst-overall", dataset="pacs")` returns the report that
`fdgsec attack --target ccst-overall --dataset pacs` prints. The types that methods, attacks and defenses
need are here too. Everything is imported on first use."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

from fdgsec.runtime.version import __version__ as __version__

if TYPE_CHECKING:
    from torch import Tensor

    from fdgsec.data.domains import DomainDataset
    from fdgsec.experiments.attack_vectors.candidate_images import StatisticsOf
    from fdgsec.experiments.attack_vectors.read_arrays import Candidates, Owners, Vectors
    from fdgsec.experiments.report.attack_report import AttackReport as AttackReport
    from fdgsec.experiments.settings import Settings
    from fdgsec.federation.artifacts import Artifact as Artifact
    from fdgsec.federation.defense import Defense as Defense
    from fdgsec.federation.engines.flower.record_mod import FlowerMod
    from fdgsec.federation.method import Method as Method
    from fdgsec.federation.recording import RecordedWire
    from fdgsec.metrics.measurement import Measurement as Measurement
    from fdgsec.nn.styles.encoders import StyleEncoder
    from fdgsec.runtime.progress import ShowProgress
    from fdgsec.runtime.random_streams import stream as stream
    from fdgsec.runtime.registry import Target as Target
    from fdgsec.threats.attack import Attack as Attack
    from fdgsec.threats.attack import Question as Question

__all__ = [
    "Artifact", "Attack", "AttackReport", "Defense", "Measurement", "Method", "Question", "Target", "attack",
    "attack_run", "attack_vectors", "audit", "bench", "claims", "compare", "load_dataset", "record",
    "record_mod", "stream", "sweep", "train",
]  # fmt: skip

T = TypeVar("T")

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


def attack(
    target: "str | Target | Method" = "ccst-overall",
    *,
    dataset: str = "shapes",
    data_root: str | Path | None = None,
    out: str | Path | None = None,
    profile: str = "quick",
    preset: str | None = None,
    attacks: "Sequence[str | Attack]" = (),
    adversary: str = "server",
    defenses: "Sequence[str | Defense]" = (),
    seed: int = 0,
    fresh: bool = False,
    assignments: Sequence[str] = (),
    progress: "ShowProgress" = "auto",
    **settings: "Unpack[Settings]",
) -> "AttackReport":
    """Run (or reuse) a target, run every applicable attack, and return the report.

    Attacks and defenses are named ("private-styles:epsilon=8") or given as objects (`PrivateStyles(epsilon=8)`); a
    target may be the object of a method. `settings` are those of `fdgsec.experiments.settings.Settings` (per_domain,
    encoder, rounds, ...), `assignments` the command line's --set items ("method.k=2"). With `out`, the run directory is
    written; otherwise nothing is. `progress` "auto" shows it in notebooks and on a terminal's stderr.
    Raises the errors of `fdgsec.runtime.errors`."""
    from fdgsec.experiments.attack.run_attacks import attack as experiment
    from fdgsec.experiments.report.attack_report import AttackReport
    from fdgsec.experiments.run_config import attack_settings
    from fdgsec.runtime.progress import progress_shown
    from fdgsec.runtime.registry import Target, given_classes

    given = {
        "dataset": dataset,
        "attacks": attacks,
        "adversary": adversary,
        "defenses": defenses,
        "seed": seed,
        **settings,
    }
    methods = () if isinstance(target, (str, Target)) else (target,)
    with given_classes("methods", *methods), given_classes("attacks", *attacks), progress_shown(progress) as shown:
        config = attack_settings(target, given, profile=profile, preset=preset, assignments=assignments)
        report = experiment(config, data_root=_path(data_root), out=_path(out), fresh=fresh, progress=shown)
    return AttackReport.of(report)


def attack_run(
    run: str | Path,
    *,
    target: str | None = None,
    data_root: str | Path | None = None,
    out: str | Path | None = None,
    profile: str = "quick",
    attacks: "Sequence[str | Attack]" = (),
    adversary: str = "server",
    seed: int | None = None,
    fresh: bool = False,
    assignments: Sequence[str] = (),
    progress: "ShowProgress" = "auto",
) -> "AttackReport":
    """Attack what a finished run recorded, as `fdgsec attack --run`; `target` and `seed` default to the run's own.

    `report.environment["notes"]` says what could not be repeated. Raises the errors of `fdgsec.runtime.errors`."""
    from fdgsec.experiments.attack_run.attack_finished_run import RecordedRequest, attack_recorded
    from fdgsec.experiments.report.attack_report import AttackReport
    from fdgsec.runtime.progress import progress_shown
    from fdgsec.runtime.registry import given_classes

    request = RecordedRequest(
        run=Path(run), target=target, adversary=adversary, attacks=attacks, profile=profile, seed=seed,
        assignments=assignments,
    )  # fmt: skip
    with given_classes("attacks", *attacks), progress_shown(progress) as shown:
        report = attack_recorded(request, data_root=_path(data_root), out=_path(out), fresh=fresh, progress=shown)
    return AttackReport.of(report)


def attack_vectors(
    artifacts: "str | Vectors",
    *,
    encoder: "str | StyleEncoder | Callable[[Tensor], Tensor] | None" = None,
    rows: Literal["images", "clients"] = "images",
    again: "str | Vectors | None" = None,
    candidates: "str | Candidates | None" = None,
    statistics: "StatisticsOf | None" = None,
    images_per_client: int | Sequence[int] = (),
    truth: "str | Owners | None" = None,
    dataset: str | None = None,
    target_domain: str | None = None,
    data_root: str | Path | None = None,
    per_domain: int | None = None,
    image_size: int | None = None,
    allow_partial: bool = False,
    out: str | Path | None = None,
    profile: str = "quick",
    attacks: "Sequence[str | Attack]" = (),
    adversary: str = "server",
    seed: int = 0,
    assignments: Sequence[str] = (),
    progress: "ShowProgress" = "auto",
) -> "AttackReport":
    """Attack vectors of your own, as `fdgsec attack --artifacts`; `dataset` names the adversary's public images.

    Vectors are a file, an artifact, rows (R, 2C) with all channel means, then all stds, or by client name one vector
    (2C,) or the rows of its images. With `rows="clients"` each row is one client's: no encoder is needed. `again` is a
    second release of the same clients, `candidates` are the rows of images that may be behind the vectors, and `truth`
    says which (one bool for each, or the number of its vector, from 1, and 0 for none); without candidates it is a file
    that lists images. Candidates may be images, uint8 or float in [0, 1], (N, 3, H, W) or (N, H, W, 3), or a folder of
    them: `statistics` is then the function that gives for float images (N, 3, H, W) their rows (N, 2C), or `encoder`
    names what does. The folder of a recording (`record`) is attacked with its second releases. An `encoder` of your own
    is a function of float images (N, 3, H, W) in [0, 1] that gives features (N, C, h, w), or a
    `fdgsec.nn.styles.callable_encoder.CallableEncoder` of one that takes uint8.
    With `out` the attacks' answers are written beside the report. Raises the errors of `fdgsec.runtime.errors`."""
    from fdgsec.experiments.attack_vectors.run_vector_attacks import attack_vectors as experiment
    from fdgsec.experiments.attack_vectors.vectors_request import VectorsRequest
    from fdgsec.experiments.report.attack_report import AttackReport
    from fdgsec.runtime.progress import progress_shown
    from fdgsec.runtime.registry import given_classes

    request = VectorsRequest(
        artifacts=_file(artifacts), encoder=_encoder(encoder), rows=rows, again=_file(again),
        candidates=_file(candidates), statistics=statistics, truth=_file(truth), dataset=dataset, unseen=target_domain,
        images_per_client=(images_per_client,) if isinstance(images_per_client, int) else tuple(images_per_client),
        per_domain=per_domain, image_size=image_size, allow_partial=allow_partial, attacks=attacks, adversary=adversary,
        profile=profile, seed=seed, assignments=assignments,
    )  # fmt: skip
    with given_classes("attacks", *attacks), progress_shown(progress) as shown:
        report = experiment(request, data_root=_path(data_root), out=_path(out), progress=shown)
    return AttackReport.of(report)


@contextmanager
def record(folder: str | Path) -> "Iterator[RecordedWire]":
    """Record what the parties of any federation send, for `attack_run` and `fdgsec attack --run`:

        with fdgsec.record("runs/wire") as wire:
            wire.send("style", tensor, sender="hospital A")

    Kinds are "style" (2C,), all channel means, then all stds, "image-styles" (R, 2C), "update" and "model" (state dicts
    or lists of arrays), "gradient", "prototypes" (classes, d), "spectra", "generator" and "scores". Parties have any
    names; the server is "server". A message is on the disk when `send` returns. An older recording in `folder` is
    replaced. Raises UsageError for unknown kinds and for a folder that holds anything else, ArtifactError for wrong
    shapes and numbers that are not finite."""
    from fdgsec.federation.recording import record as recording

    with recording(Path(folder)) as wire:
        yield wire


def record_mod(folder: str | Path, *, kinds: Mapping[str, str] | None = None) -> "FlowerMod":
    """Make a mod for a Flower client app that records what its clients receive and send into `folder`:

        app = ClientApp(client_fn, mods=[fdgsec.record_mod("runs/wire")])

    `kinds` says of which kind the array records of a name are ({"bn_stats": "style"}); others are of the kind that they
    are named after, else the model on the way down and an update on the way up. All processes on one machine may write
    into one folder. Raises FlowerUnavailableError without the extra `flower`."""
    from fdgsec.federation.engines.flower.versions import require_flower

    require_flower(simulation=False)
    from fdgsec.federation.engines.flower.record_mod import recording_mod

    return recording_mod(Path(folder), kinds or {})


def load_dataset(
    name: str = "shapes",
    *,
    data_root: str | Path | None = None,
    per_domain: int | None = None,
    image_size: int | None = None,
    seed: int = 0,
    progress: "ShowProgress" = "auto",
) -> "DomainDataset":
    """Read the images of a dataset (`fdgsec list datasets`) with their domains, labels and names.

    `images.pixels()` is (N, 3, H, W) uint8, `labels` and `domains` are (N,), with `class_names` and `domain_names`;
    `subset(positions)` and `of_domain(name)` select. "folder" reads `data_root`/<domain>/<class>/<image>."""
    from fdgsec.data.catalog import load_dataset as read
    from fdgsec.runtime.progress import progress_shown

    with progress_shown(progress) as shown:
        return read(
            name, data_root=_path(data_root), per_domain=per_domain, image_size=image_size, seed=seed,
            progress=shown.update,
        )  # fmt: skip


def train(
    method: "str | Method" = "fedavg",
    *,
    dataset: str = "shapes",
    data_root: str | Path | None = None,
    out: str | Path | None = None,
    preset: str | None = None,
    defenses: "Sequence[str | Defense]" = (),
    seed: int = 0,
    fresh: bool = False,
    assignments: Sequence[str] = (),
    progress: "ShowProgress" = "auto",
    **settings: "Unpack[Settings]",
) -> "AttackReport":
    """Train a method and return the report with its accuracy on the unseen domain; arguments as in `attack`.

    With `out`, every round is kept there until the run is written, and the same call goes on after an interruption,
    unless `fresh`."""
    from fdgsec.experiments.report.attack_report import AttackReport
    from fdgsec.experiments.run_config import train_settings
    from fdgsec.experiments.train import train as experiment
    from fdgsec.runtime.progress import progress_shown
    from fdgsec.runtime.registry import given_classes

    given = {"dataset": dataset, "defenses": defenses, "seed": seed, **settings}
    with given_classes("methods", method), progress_shown(progress) as shown:
        config = train_settings(method, given, preset=preset, assignments=assignments)
        report = experiment(config, data_root=_path(data_root), out=_path(out), progress=shown, fresh=fresh)
    return AttackReport.of(report)


def bench(
    protocol: str = "quick",
    *,
    ablation: str = "",
    methods: Sequence[str] = (),
    dataset: str = "pacs",
    domains: Sequence[str] = (),
    seeds: Sequence[int] = (),
    baseline: str = "",
    unequal_steps: bool = False,
    data_root: str | Path | None = None,
    out: str | Path | None = None,
    workers: int = 1,
    limit: int | None = None,
    assignments: Sequence[str] = (),
    progress: "ShowProgress" = "auto",
    **settings: "Unpack[Settings]",
) -> dict[str, Any]:
    """Train the cells of a protocol's (or an ablation's) table and return bench.json, as `fdgsec bench`.

    Empty `methods`, `domains`, `seeds` and `baseline` are the protocol's. With `out` the table is written there, and
    the same call goes on where it stopped; otherwise nothing is kept. With `unequal_steps` arms are compared that took
    unequal numbers of optimizer steps."""
    from tempfile import TemporaryDirectory

    from fdgsec.experiments.bench.run_bench import BenchRequest
    from fdgsec.experiments.bench.run_bench import bench as experiment
    from fdgsec.runtime.progress import progress_shown

    request = BenchRequest(
        protocol=protocol, ablation=ablation, dataset=dataset, arms=tuple(methods), domains=tuple(domains),
        seeds=tuple(seeds), baseline=baseline, unequal=unequal_steps, given=settings, assignments=tuple(assignments),
    )  # fmt: skip
    with TemporaryDirectory() as nowhere, progress_shown(progress) as shown:
        return experiment(
            request, data_root=_path(data_root), out=Path(out or nowhere), progress=shown, limit=limit,
            workers=workers,
        )  # fmt: skip


def sweep(
    target: str = "ccst-overall",
    *,
    defenses: "Sequence[str | Defense]" = ("style-noise",),
    option: str = "scale",
    values: Sequence[float],
    accuracy_at: Sequence[float] | None = (),
    dataset: str = "shapes",
    data_root: str | Path | None = None,
    out: str | Path | None = None,
    profile: str = "quick",
    attacks: "Sequence[str | Attack] | None" = None,
    protocol: str = "quick",
    seeds: int = 3,
    seed: int = 0,
    workers: int = 1,
    limit: int | None = None,
    assignments: Sequence[str] = (),
    progress: "ShowProgress" = "auto",
    **settings: "Unpack[Settings]",
) -> dict[str, Any]:
    """Attack a target at all `values` of an `option` of the last defense, train it at `accuracy_at`, and return
    sweep.json.

    `accuracy_at` None means all values. With `out` points, tables and figures are written there, and the same call goes
    on where it stopped; otherwise nothing is kept. The rest is as in `attack`; docs/sweep.md describes the result."""
    from tempfile import TemporaryDirectory

    from fdgsec.experiments.run_config import defense_of
    from fdgsec.experiments.sweep.run_sweep import ATTACKS, SweepRequest
    from fdgsec.experiments.sweep.run_sweep import sweep as experiment
    from fdgsec.runtime.progress import progress_shown
    from fdgsec.runtime.registry import given_classes

    request = SweepRequest(
        target=target, dataset=dataset, defenses=tuple(map(defense_of, defenses)), option=option,
        values=tuple(map(float, values)), accuracy_at=None if accuracy_at is None else tuple(map(float, accuracy_at)),
        attacks=ATTACKS if attacks is None else tuple(attacks), protocol=protocol, seeds=seeds, seed=seed,
        profile=profile, workers=workers, given=settings, assignments=tuple(assignments),
    )  # fmt: skip
    with (
        TemporaryDirectory() as nowhere, given_classes("attacks", *(attacks or ())), progress_shown(progress) as shown,
    ):  # fmt: skip
        return experiment(request, data_root=_path(data_root), out=Path(out or nowhere), progress=shown, limit=limit)


def audit(
    target: str = "ccst-overall",
    *,
    defenses: "Sequence[str | Defense]" = ("private-styles",),
    dataset: str = "shapes",
    data_root: str | Path | None = None,
    out: str | Path | None = None,
    runs: int = 2000,
    repeats: int = 1,
    confidence: float = 0.95,
    canaries: int = 1024,
    guesses: int | None = None,
    canary: Literal["gradient", "mislabeled"] = "gradient",
    distinct_releases: int | None = None,
    seed: int = 0,
    assignments: Sequence[str] = (),
    progress: "ShowProgress" = "auto",
    **settings: "Unpack[Settings]",
) -> dict[str, Any]:
    """Audit the guarantee of one of `defenses` and return audit.json; "faults" lists what refutes it.

    With `out`, the document is written there; otherwise nothing is. Other arguments are as in `attack`; docs/audit.md
    describes the bounds."""
    from fdgsec.experiments.audit.run_audit import AuditPlan, audit_settings
    from fdgsec.experiments.audit.run_audit import audit as experiment
    from fdgsec.runtime.progress import progress_shown

    plan = AuditPlan(
        runs=runs, repeats=repeats, confidence=confidence, canaries=canaries, guesses=guesses, canary=canary,
        distinct_releases=distinct_releases,
    )  # fmt: skip
    given = {"dataset": dataset, "defenses": defenses, "seed": seed, **settings}
    config = audit_settings(target, given, plan, assignments=assignments)
    with progress_shown(progress) as shown:
        return experiment(config, plan, data_root=_path(data_root), out=_path(out), progress=shown)


def claims(
    dataset: str = "pacs",
    *,
    only: Sequence[str] = (),
    encoders: Sequence[str] = ("mini",),
    seeds: Sequence[int] = (0,),
    data_root: str | Path | None = None,
    out: str | Path | None = None,
    profile: str = "quick",
    workers: int = 1,
    fresh: bool = False,
    progress: "ShowProgress" = "auto",
    **settings: "Unpack[Settings]",
) -> dict[str, Any]:
    """Measure the papers' privacy claims (all, or `only` those named) and return claims.json, as `fdgsec claims`.

    With `out` the table and a report per run are written there; otherwise nothing is kept."""
    from tempfile import TemporaryDirectory

    from fdgsec.experiments.claims.measured_runs import ClaimsRequest
    from fdgsec.experiments.claims.run_claims import claims as experiment
    from fdgsec.runtime.progress import progress_shown

    request = ClaimsRequest(dataset=dataset, profile=profile, encoders=encoders, seeds=seeds, only=only, given=settings)
    with TemporaryDirectory() as nowhere, progress_shown(progress) as shown:
        return experiment(
            request, data_root=_path(data_root), out=Path(out or nowhere), fresh=fresh, progress=shown,
            workers=workers,
        )  # fmt: skip


def compare(first: str | Path, *others: str | Path, out: str | Path | None = None) -> dict[str, Any]:
    """Compare finished runs, as `fdgsec compare --json`: what differs, which are comparable, and numbers of those.

    With `out` the document and a page are written there; otherwise nothing is."""
    from fdgsec.experiments.compare.compare_runs import compare as experiment

    return experiment([Path(run) for run in (first, *others)], out=_path(out))


def _file(given: "T | str") -> "T | Path":
    """What is given, with a path for a string."""
    return Path(given) if isinstance(given, str) else given


def _encoder(given: "str | StyleEncoder | Callable[[Tensor], Tensor] | None") -> str | None:
    """The name of an encoder; one that is given as an object is registered under its own."""
    if given is None or isinstance(given, str):
        return given
    from fdgsec.nn.styles.callable_encoder import CallableEncoder
    from fdgsec.nn.styles.encoders import StyleEncoder
    from fdgsec.nn.styles.image_styles import register_encoder

    return register_encoder(given if isinstance(given, StyleEncoder) else CallableEncoder(given))


def _path(given: str | Path | None) -> Path | None:
    return None if given is None else Path(given)
