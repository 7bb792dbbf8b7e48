"""`fdgsec.train`, `bench`, `sweep`, `audit`, `claims` and `compare`: trainings, and studies of many runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from fdgsec.experiments.python_api.error_words import with_keywords
from fdgsec.experiments.python_api.given_values import path_of

if TYPE_CHECKING:
    from fdgsec.experiments.report.attack_report import AttackReport
    from fdgsec.experiments.settings import Settings
    from fdgsec.federation.defense import Defense
    from fdgsec.federation.method import Method
    from fdgsec.runtime.progress import ShowProgress
    from fdgsec.threats.attack import Attack


@with_keywords
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
    from fdgsec.experiments.options_in_effect import check_in_effect
    from fdgsec.experiments.report.attack_report import AttackReport
    from fdgsec.experiments.run_config import train_settings
    from fdgsec.experiments.train import train as experiment
    from fdgsec.runtime.progress import progress_shown
    from fdgsec.runtime.registry import given_classes

    given = {"dataset": dataset, "defenses": defenses, "seed": seed, **settings}
    with given_classes("methods", method), progress_shown(progress) as shown:
        config = train_settings(method, given, preset=preset, assignments=assignments)
        check_in_effect(config, assignments)
        report = experiment(config, data_root=path_of(data_root), out=path_of(out), progress=shown, fresh=fresh)
    return AttackReport.of(report)


@with_keywords
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
            request, data_root=path_of(data_root), out=Path(out or nowhere), progress=shown, limit=limit,
            workers=workers,
        )  # fmt: skip


@with_keywords
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
        return experiment(request, data_root=path_of(data_root), out=Path(out or nowhere), progress=shown, limit=limit)


@with_keywords
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
    images: int = 16,
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
        distinct_releases=distinct_releases, images=images,
    )  # fmt: skip
    given = {"dataset": dataset, "defenses": defenses, "seed": seed, **settings}
    config = audit_settings(target, given, plan, assignments=assignments)
    with progress_shown(progress) as shown:
        return experiment(config, plan, data_root=path_of(data_root), out=path_of(out), progress=shown)


@with_keywords
def claims(
    dataset: str = "pacs",
    *,
    only: Sequence[str] = (),
    encoders: Sequence[str] = ("mini",),
    seeds: Sequence[int] = (0,),
    data_root: str | Path | None = None,
    out: str | Path | None = None,
    profile: str = "quick",
    beyond: bool = True,
    workers: int = 1,
    fresh: bool = False,
    progress: "ShowProgress" = "auto",
    **settings: "Unpack[Settings]",
) -> dict[str, Any]:
    """Measure the papers' privacy claims (all, or `only` those named) and return claims.json, as `fdgsec claims`.

    Without `beyond`, runs are left out that no verdict depends on. With `out` the table and a report per run are
    written there; otherwise nothing is kept."""
    from tempfile import TemporaryDirectory

    from fdgsec.experiments.claims.measured_runs import ClaimsRequest
    from fdgsec.experiments.claims.run_claims import claims as experiment
    from fdgsec.runtime.progress import progress_shown

    request = ClaimsRequest(
        dataset=dataset, profile=profile, encoders=encoders, seeds=seeds, only=only, given=settings, beyond=beyond
    )
    with TemporaryDirectory() as nowhere, progress_shown(progress) as shown:
        return experiment(
            request, data_root=path_of(data_root), out=Path(out or nowhere), fresh=fresh, progress=shown,
            workers=workers,
        )  # fmt: skip


@with_keywords
def compare(first: str | Path, *others: str | Path, out: str | Path | None = None) -> dict[str, Any]:
    """Compare finished runs, as `fdgsec compare --json`: what differs, which are comparable, and numbers of those.

    With `out` the document and a page are written there; otherwise nothing is."""
    from fdgsec.experiments.compare.compare_runs import compare as experiment

    return experiment([Path(run) for run in (first, *others)], out=path_of(out))
