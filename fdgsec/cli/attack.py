"""`fdgsec attack`: the main job, on a target, on a finished run, or on one's own vectors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fdgsec.cli import options as o
from fdgsec.cli.run_folders import default_folder
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import progress_bars, warn

if TYPE_CHECKING:
    from fdgsec.experiments.flower.engine_choice import EngineChoice
    from fdgsec.experiments.report.schema import AttackReport
    from fdgsec.experiments.run_config import RunConfig

Positional = Annotated[
    str | None,
    typer.Argument(metavar="[TARGET]", help="What to attack, as --target.", show_default=False),
]
Target = Annotated[
    str | None,
    typer.Option("--target", help="What to attack (`fdgsec list targets`).", show_default="ccst-overall, or the run's"),
]
Run = Annotated[Path | None, typer.Option("--run", help="Attack what a finished run recorded; give its folder.")]
VECTORS = "Your own vectors"
Artifacts = Annotated[
    Path | None,
    typer.Option(
        "--artifacts",
        help="Attack vectors of your own: .safetensors, or rows as .csv, .npy.",
        rich_help_panel=VECTORS,
    ),
]
TruthFile = Annotated[
    Path | None,
    typer.Option(
        "--truth",
        help="For --artifacts: CSV of image, and label, domain, member if known; of --candidates: member.",
        rich_help_panel=VECTORS,
    ),
]
RowsOf = Annotated[
    str | None,
    o.one_of("images", "clients", flags=["--rows"], help="For --artifacts: what each row is of.", panel=VECTORS),
]
Again = Annotated[
    Path | None,
    typer.Option(
        "--again",
        help="For --artifacts: a second release of the same clients, in their order.",
        rich_help_panel=VECTORS,
    ),
]
CandidateFile = Annotated[
    Path | None,
    typer.Option(
        "--candidates",
        help="For --artifacts: statistics of images, one per row, that may be behind them.",
        rich_help_panel=VECTORS,
    ),
]
ImagesPerClient = Annotated[
    str | None,
    typer.Option(
        "--images-per-client",
        help="For --candidates: images behind each vector, as N or N,N,...",
        rich_help_panel=VECTORS,
    ),
]
Dataset = Annotated[
    str | None,
    typer.Option(
        "--dataset", help="A dataset by name (`fdgsec list datasets`); with --artifacts, public images.",
        show_default="shapes; with --artifacts none",
    ),
]  # fmt: skip
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed", min=0, help="Random seed; with --run that of the attacks alone.", show_default="0, or the run's"
    ),
]
Attacks = Annotated[
    list[str] | None, typer.Option("--attack", help="Only this attack; repeatable.", rich_help_panel="Attack")
]
AdversaryName = Annotated[
    str | None,
    o.one_of(
        "server", "client", "outsider", flags=["--adversary"], help="Who attacks; default: server.", panel="Attack"
    ),
]
ProfileName = Annotated[
    str | None,
    o.one_of("quick", "full", flags=["--profile"], help="quick (the default) takes minutes, capped.", panel="Attack"),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", min=1, help="Processes that share out the attacks; same result.",
        show_default="2 with as many cores and 4 GiB free",
    ),
]  # fmt: skip
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would run, and stop.")]


@o.takes(
    "encoder", "style_size", "backbone", "norm", "pretrained", "partition", "clients", "heterogeneity", "rounds",
    "target_domain", "per_domain", "image_size", "device", "threads",
)  # fmt: skip
def command(
    *,
    positional: Positional = None,
    target: Target = None,
    run: Run = None,
    artifacts: Artifacts = None,
    truth: TruthFile = None,
    rows: RowsOf = None,
    again: Again = None,
    candidates: CandidateFile = None,
    images_per_client: ImagesPerClient = None,
    dataset: Dataset = None,
    data_root: o.DataRoot = None,
    given: Mapping[str, Any],
    preset: o.Preset = None,
    config: o.Config = None,
    seed: Seed = None,
    profile: ProfileName = None,
    attack: Attacks = None,
    adversary: AdversaryName = None,
    defense: o.Defenses = None,
    set_: o.Assignments = None,
    lr: o.LearningRate = None,
    epochs: o.Epochs = None,
    batch_size: o.BatchSize = None,
    allow_partial: o.AllowPartial = False,
    fresh: o.Fresh = False,
    dry_run: DryRun = False,
    workers: Workers = None,
    engine: o.Engine = "local",
    federation: o.Federation = "127.0.0.1:9191",
    ca: o.Ca = None,
    insecure: o.Insecure = False,
    client_timeout: o.ClientTimeout = 600.0,
    wait: o.Wait = 300.0,
    out: o.Out = None,
    every: o.Every = False,
    as_json: o.AsJson = False,
) -> int:
    """Run privacy attacks on a method, a recorded run (--run) or your own vectors (--artifacts)."""
    target = _one("target", positional, target)
    stored = o.stored_settings(preset, config)
    if (run is not None or artifacts is not None) and engine != "local":
        raise UsageError("--engine says where a target runs; --run and --artifacts attack what is there already.")
    chosen = _Chosen(
        attacks=tuple(attack or ()), adversary=adversary or str(stored.get("adversary", "server")),
        profile=profile or str(stored.get("profile", "quick")), seed=seed,
        assignments=(*o.shortcuts(lr, epochs, batch_size), *(set_ or ())),
        data_root=data_root, fresh=fresh, dry_run=dry_run, out=out, as_json=as_json, every=every, workers=workers,
        training={"lr": lr, "epochs": epochs},
    )  # fmt: skip
    said = {"target": target, "preset": preset, "config": config, "defense": defense}
    about_vectors = {
        "truth": truth, "rows": rows, "again": again, "candidates": candidates, "images_per_client": images_per_client,
    }  # fmt: skip
    if run is not None:
        settled = {**given, **said, "target": None, "device": None, "dataset": dataset, **about_vectors}
        settled |= {"artifacts": artifacts, "allow_partial": allow_partial or None}
        _refuse("--run", settled, "the run's own settings hold")
        return _on_run(run, chosen, target=target, device=given["device"])
    if artifacts is not None:
        of_images = {name: None for name in ("encoder", "target_domain", "per_domain", "image_size")}
        of_runs = {**of_images, "dry_run": dry_run or None, "workers": workers}
        _refuse("--artifacts", {**given, **said, **of_runs}, "there is no method to run")
        own = {**about_vectors, "rows": rows or "images", "images_per_client": _counts(images_per_client)}
        return _on_vectors(artifacts, chosen, {**given, **own}, dataset=dataset, allow_partial=allow_partial)
    for name, value in about_vectors.items():
        if value is not None:
            raise UsageError(f"--{name.replace('_', '-')} is about vectors of your own; give them with --artifacts.")
    from fdgsec.experiments.flower.engine_choice import EngineChoice

    engine_choice = EngineChoice(
        engine=engine, federation=federation, ca=ca, insecure=insecure, timeout=client_timeout, wait=wait
    )
    settings = {**given, "dataset": dataset, "defenses": defense or None, "allow_partial": allow_partial or None}
    if config is not None:
        settings["rounds"] = given["rounds"] if given["rounds"] is not None else stored.get("rounds")
        target = _one("target", target, str(stored.get("target") or stored.get("method") or "") or None)
    source = preset or (None if config is None else str(config))
    return _on_target(target or "ccst-overall", chosen, settings, preset=source, engine_choice=engine_choice)


def _one(name: str, first: str | None, second: str | None) -> str | None:
    """What was said, where it was said once or twice the same. Raises UsageError for two answers."""
    if first is not None and second is not None and first != second:
        raise UsageError(f"two answers for the {name}: {first} and {second}; leave one out.")
    return first or second


@dataclass(frozen=True, kw_only=True)
class _Chosen:
    """What holds whatever is attacked."""

    attacks: tuple[str, ...]
    adversary: str
    profile: str
    seed: int | None
    assignments: tuple[str, ...]
    data_root: Path | None
    fresh: bool
    dry_run: bool
    out: Path | None
    as_json: bool
    every: bool
    workers: int | None
    training: Mapping[str, float | None]

    def processes(self, threads: int) -> int:
        """How many processes share out attacks that compute on so many threads. Raises UsageError."""
        from fdgsec.experiments.attack.attacks_ahead import default_workers

        if threads > 1 and (self.workers or 1) > 1:
            raise UsageError(f"--workers shares out attacks of one thread, and --threads is {threads}; leave one out.")
        return self.workers or default_workers()

    def folder(self, what: str, *settings: object, seeded: bool = True) -> Path:
        """Where the report goes: --out, or a name of its own under runs/."""
        seed = f"-seed{self.seed or 0}" if seeded else ""
        return self.out or default_folder(f"{what}-{self.profile}-{self.adversary}{seed}", *settings, self.data_root)


def _on_target(
    target: str, chosen: _Chosen, settings: Mapping[str, object], *, preset: str | None, engine_choice: "EngineChoice"
) -> int:
    from fdgsec.experiments.attack import run_attacks as experiment
    from fdgsec.experiments.flower.engine_choice import flower_federation
    from fdgsec.experiments.options_in_effect import check_in_effect
    from fdgsec.experiments.run_config import attack_settings

    given = {**settings, "seed": chosen.seed, "attacks": chosen.attacks or None, "adversary": chosen.adversary}
    config = attack_settings(target, given, profile=chosen.profile, preset=preset, assignments=chosen.assignments)
    o.check_trained(config.rounds, **chosen.training)
    check_in_effect(config, chosen.assignments)
    if chosen.attacks:
        experiment.check_attacks(config)
    if chosen.dry_run:
        with progress_bars() as progress:
            rows = experiment.dry_run(config, data_root=chosen.data_root, progress=progress)
        return _planned(config, rows, chosen)
    workers = chosen.processes(config.threads)
    folder, elsewhere = chosen.folder(f"{target}-{config.dataset}", config, engine_choice.engine), None
    if engine_choice.engine != "local":
        elsewhere = flower_federation(engine_choice, purpose="attack", data_root=chosen.data_root)
    with progress_bars() as progress:
        report = experiment.attack(
            config, data_root=chosen.data_root, out=folder, fresh=chosen.fresh, progress=progress, federation=elsewhere,
            workers=workers,
        )  # fmt: skip
    return _done(report, folder, chosen)


def _on_run(run: Path, chosen: _Chosen, *, target: str | None, device: str | None) -> int:
    from fdgsec.experiments.attack_run.attack_finished_run import RecordedRequest, attack_recorded, dry_run_recorded

    request = RecordedRequest(
        run=run, target=target, adversary=chosen.adversary, attacks=chosen.attacks, profile=chosen.profile,
        seed=chosen.seed, assignments=chosen.assignments, device=device,
    )  # fmt: skip
    if chosen.dry_run:
        with progress_bars() as progress:
            config, rows = dry_run_recorded(request, data_root=chosen.data_root, progress=progress)
        return _planned(config, rows, chosen)
    folder = chosen.folder(f"attack-on-{run.resolve().name}", request, seeded=chosen.seed is not None)
    with progress_bars() as progress:
        report = attack_recorded(
            request, data_root=chosen.data_root, out=folder, fresh=chosen.fresh, progress=progress,
            workers=chosen.processes(1),
        )  # fmt: skip
    return _done(report, folder, chosen)


def _on_vectors(
    file: Path,
    chosen: _Chosen,
    given: Mapping[str, Any],
    *,
    dataset: str | None,
    allow_partial: bool,
) -> int:
    from fdgsec.cli.tables import console
    from fdgsec.experiments.attack_vectors.run_vector_attacks import attack_vectors
    from fdgsec.experiments.attack_vectors.vectors_request import VectorsRequest
    from fdgsec.runtime.checked_files import computed_anew

    request = VectorsRequest(
        artifacts=file, encoder=given["encoder"], rows=given["rows"], again=given["again"],
        candidates=given["candidates"], images_per_client=given["images_per_client"], truth=given["truth"],
        dataset=dataset, unseen=given["target_domain"], per_domain=given["per_domain"],
        image_size=given["image_size"], allow_partial=allow_partial,
        attacks=chosen.attacks, adversary=chosen.adversary, profile=chosen.profile, seed=chosen.seed or 0,
        assignments=chosen.assignments,
    )  # fmt: skip
    folder = chosen.folder(f"attack-on-{file.stem}", request)
    with progress_bars() as progress, computed_anew(chosen.fresh):
        report = attack_vectors(request, data_root=chosen.data_root, out=folder, progress=progress)
    code = _done(report, folder, chosen)
    if not chosen.as_json:
        console().print(f"guesses: {folder / 'guesses.csv'}", highlight=False, markup=False)
    return code


def _counts(text: str | None) -> tuple[int, ...]:
    """The numbers of --images-per-client, none where it was not given. Raises UsageError."""
    parts = [] if text is None else [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise UsageError(f"--images-per-client must be a number, or numbers with commas; got {text!r}.")
    return tuple(map(int, parts))


def _refuse(mode: str, options: Mapping[str, object], reason: str) -> None:
    """Raise UsageError for an option that has no meaning beside `mode`."""
    for name, value in options.items():
        if value is not None and value != []:
            raise UsageError(f"--{name.replace('_', '-')} has no place beside {mode}: {reason}; leave it out.")


def _planned(config: "RunConfig", rows: Sequence[tuple[str, str]], chosen: _Chosen) -> int:
    """Print which attacks would run, and return the exit code of the run."""
    from fdgsec.cli.tables import print_dry_run

    print_dry_run(config, rows)
    skipped = {name: text for name, text in rows if text.startswith("skipped")}
    return _exit_code({}, skipped if chosen.attacks else {})


def _done(report: "AttackReport", folder: Path, chosen: _Chosen) -> int:
    """Print the report with what is to be said about it, and return the exit code.

    A report in which nothing was measured is an error too, whatever the reason."""
    from fdgsec.cli.print_report import print_report
    from fdgsec.experiments.report.findings import findings_of

    print_report(report, as_json=chosen.as_json, out=folder, every=chosen.every)
    failed, skipped = (
        {result.name: result.reason for result in report.attacks if result.status == status}
        for status in ("failed", "skipped")
    )
    code = _exit_code(failed, skipped if chosen.attacks else {})
    measured = any(row.value is not None for result in report.attacks for row in result.measurements)
    if code == 0 and not measured:
        warn(f"no attack measured anything: {findings_of(report).sentence}")
        return 2
    return code


def _exit_code(failed: Mapping[str, str], refused: Mapping[str, str]) -> int:
    """1 for an attack that failed, 2 for one that was asked for and cannot run, each told on stderr; else 0."""
    for outcome, reasons in (("failed", failed), ("did not run", refused)):
        for name, reason in reasons.items():
            warn(f"attack {name} {outcome}: {reason.removeprefix('skipped: ')}")
    return 1 if failed else 2 if refused else 0
