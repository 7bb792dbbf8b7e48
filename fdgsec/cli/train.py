"""`fdgsec train`: accuracy on the unseen domain."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fdgsec.cli import options as o
from fdgsec.cli.run_folders import default_folder
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import progress_bars, warn

if TYPE_CHECKING:
    from fdgsec.experiments.run_config import RunConfig

Method = Annotated[
    str | None,
    typer.Option(
        "--method", help="A method by name (`fdgsec list methods`).", show_default="the preset's, else fedavg"
    ),
]
Dataset = Annotated[
    str | None,
    typer.Option(
        "--dataset", help="A dataset by name (`fdgsec list datasets`).", show_default="shapes", rich_help_panel="Data"
    ),
]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Random seed.", show_default="0")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start anew where an unfinished run is kept in --out.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Measure a few steps, say what time, disk and memory the run takes, and stop.")
]
Workers = Annotated[int, typer.Option("--workers", help="Processes that share out the clients of a step; same result.")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="Train so many seeds, counted from --seed, and average.")]


@o.takes(
    "encoder", "style_size", "backbone", "norm", "pretrained", "local", "adapt", "splits", "roles", "partition",
    "clients", "heterogeneity", "rounds", "participation", "target_domain", "validation_domain", "per_domain",
    "per_class", "image_size", "device", "threads", "keep",
)  # fmt: skip
def command(
    *,
    method: Method = None,
    dataset: Dataset = None,
    data_root: o.DataRoot = None,
    given: Mapping[str, Any],
    preset: o.Preset = None,
    config_file: o.Config = None,
    seed: Seed = None,
    seeds: Seeds = 1,
    defense: o.Defenses = None,
    set_: o.Assignments = None,
    lr: o.LearningRate = None,
    epochs: o.Epochs = None,
    batch_size: o.BatchSize = None,
    allow_partial: o.AllowPartial = False,
    engine: o.Engine = "local",
    federation: o.Federation = "127.0.0.1:9191",
    ca: o.Ca = None,
    insecure: o.Insecure = False,
    quorum: o.Quorum = 1.0,
    workers: Workers = 1,
    client_timeout: o.ClientTimeout = 600.0,
    wait: o.Wait = 300.0,
    fresh: Fresh = False,
    dry_run: DryRun = False,
    out: o.Out = None,
    as_json: o.AsJson = False,
) -> int:
    """Train a method's rounds and measure accuracy on a domain that no client has seen."""
    from fdgsec.cli.print_report import print_report
    from fdgsec.cli.tables import print_seeds
    from fdgsec.experiments import train as experiment
    from fdgsec.experiments.bench.seeds import train_seeds
    from fdgsec.experiments.flower.engine_choice import EngineChoice, federation_of, flower_federation
    from fdgsec.experiments.flower.train_remote import train_remote
    from fdgsec.experiments.options_in_effect import check_in_effect
    from fdgsec.experiments.preset_sources import preset_experiment
    from fdgsec.experiments.run_config import train_settings

    experiment_of_preset = preset_experiment(preset) if preset and method is None else None
    stored = o.stored_settings(preset, config_file)
    if method is not None and stored.get("method", method) != method:
        raise UsageError(f"--config is of {stored['method']}, --method says {method}; leave one out.")
    told = {"dataset": dataset, "seed": seed, "defenses": defense or None, "allow_partial": allow_partial or None}
    config = train_settings(
        method or (experiment_of_preset.method if experiment_of_preset else "fedavg"),
        {**given, **told}, preset=preset or (None if config_file is None else str(config_file)),
        assignments=(*o.shortcuts(lr, epochs, batch_size), *(set_ or ())),
    )  # fmt: skip
    o.check_trained(config.rounds, lr=lr, epochs=epochs)
    check_in_effect(config, set_ or ())
    if dry_run:
        return _estimated(config, data_root=data_root, seeds=seeds, as_json=as_json)
    seed, name = config.seed, f"train-{config.method_name}-{config.dataset}-seed{config.seed}"
    folder = out or default_folder(name, config, seeds, engine, data_root)
    engine_choice = EngineChoice(
        engine=engine,
        federation=federation,
        ca=ca,
        insecure=insecure,
        quorum=quorum,
        timeout=client_timeout,
        wait=wait,
        workers=workers,
    )
    if engine == "flower":
        if seeds > 1 or given["clients"] is None:
            raise UsageError(
                "--engine flower takes one seed at a time and the number of clients that join: --clients N."
            )
        elsewhere = flower_federation(engine_choice, purpose="train", data_root=data_root)
        with progress_bars() as progress:
            report = train_remote(
                config, elsewhere, clients=given["clients"], data_root=data_root, out=folder, progress=progress
            )
        print_report(report, as_json=as_json, out=folder)
        return 0
    runner = federation_of(engine_choice, purpose="train", data_root=data_root)
    if seeds > 1:
        chosen = range(seed, seed + seeds)
        with progress_bars() as progress, _told_when_interrupted(folder):
            found = train_seeds(
                config, chosen, data_root=data_root, out=folder, progress=progress, federation=runner, fresh=fresh,
                engine=f"{engine} {quorum} {client_timeout}",
            )  # fmt: skip
        print_seeds(found, as_json=as_json, out=folder)
        return 0
    with progress_bars() as progress, _told_when_interrupted(folder):
        report = experiment.train(
            config, data_root=data_root, out=folder, progress=progress, federation=runner, fresh=fresh
        )
    print_report(report, as_json=as_json, out=folder)
    return 0


def _estimated(config: "RunConfig", *, data_root: Path | None, seeds: int, as_json: bool) -> int:
    """Print what the run would take, measured in this process."""
    from fdgsec.experiments.training_estimate import estimate

    with progress_bars() as progress:
        found = estimate(config, data_root=data_root, progress=progress)
    if as_json:
        print(json.dumps({**found.document(), "seeds": seeds}, indent=1))
        return 0
    for line in found.lines():
        print(line)
    if seeds > 1:
        print(f"{seeds} seeds take as much each")
    return 0


@contextmanager
def _told_when_interrupted(folder: Path) -> Iterator[None]:
    """On Ctrl-C say what is kept, and how to go on."""
    from fdgsec.experiments.train import kept_so_far

    try:
        yield
    except KeyboardInterrupt:
        warn(kept_so_far(folder))
        raise
