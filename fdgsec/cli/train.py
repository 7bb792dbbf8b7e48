"""`fdgsec train`: accuracy on the unseen domain."""

from pathlib import Path
from typing import Annotated

import typer

from fdgsec.cli import options as o
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import progress_bars

Method = Annotated[str, typer.Option("--method", help="A method by name (`fdgsec list methods`).")]
Local = Annotated[
    str | None, typer.Option("--with", help="A local method on top, e.g. mixstyle; options: --set with.NAME=VALUE.")
]
Adapt = Annotated[
    str | None, typer.Option("--adapt", help="Report accuracy after test-time adaptation too: tent or tent-ccst.")
]
Roles = Annotated[
    str | None,
    typer.Option("--roles", help="none, or aside: keep images from clients for a later `fdgsec attack --run`."),
]
Participation = Annotated[float | None, typer.Option("--participation", help="Share of clients per round.")]
Keep = Annotated[
    str | None, typer.Option("--keep", help="Payloads in the transcript: artifacts, models=last (round) or models=all.")
]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="Train so many seeds, counted from --seed, and average.")]


def command(
    method: Method = "fedavg",
    dataset: o.Dataset = "shapes",
    data_root: o.DataRoot = None,
    encoder: o.Encoder = None,
    style_size: o.StyleSize = None,
    backbone: o.Backbone = None,
    norm: o.Norm = None,
    pretrained: o.Pretrained = None,
    preset: o.Preset = None,
    local: Local = None,
    adapt: Adapt = None,
    splits: o.Splits = None,
    roles: Roles = None,
    partition: o.Partition = None,
    clients: o.Clients = None,
    heterogeneity: o.Heterogeneity = None,
    rounds: o.Rounds = None,
    participation: Participation = None,
    target_domain: o.TargetDomain = None,
    validation_domain: o.ValidationDomain = None,
    per_domain: o.PerDomain = None,
    per_class: o.PerClass = None,
    image_size: o.ImageSize = None,
    seed: o.Seed = 0,
    seeds: Seeds = 1,
    device: o.Device = None,
    defense: o.Defenses = None,
    set_: o.Settings = None,
    allow_partial: o.AllowPartial = False,
    keep: Keep = None,
    engine: o.Engine = "local",
    federation: o.Federation = "127.0.0.1:9191",
    ca: o.Ca = None,
    insecure: o.Insecure = False,
    quorum: o.Quorum = 1.0,
    client_timeout: o.ClientTimeout = 600.0,
    wait: o.Wait = 300.0,
    out: o.Out = None,
    as_json: o.AsJson = False,
) -> int:
    """Train a method's rounds and measure accuracy on the domain that no client has."""
    from fdgsec.cli.tables import print_report, print_seeds
    from fdgsec.experiments import train as experiment
    from fdgsec.experiments.bench.seeds import train_seeds
    from fdgsec.experiments.config import resolve_settings
    from fdgsec.experiments.flower.engine_choice import EngineChoice, federation_of, flower_federation
    from fdgsec.experiments.flower.train_remote import lead

    config = resolve_settings(
        {
            "dataset": dataset, "encoder": encoder, "style_size": style_size, "backbone": backbone, "norm": norm, "pretrained": pretrained,
            "splits": splits, "roles": roles, "partition": partition, "clients": clients, "heterogeneity": heterogeneity, "rounds": rounds,
            "participation": participation, "target_domain": target_domain, "validation_domain": validation_domain,
            "per_domain": per_domain, "per_class": per_class,
            "image_size": image_size, "seed": seed, "device": device, "defenses": tuple(defense or ()), "allow_partial": allow_partial,
            "keep": keep, "local": local, "adapt": adapt,
        },
        preset=preset, assignments=set_ or (), defaults={"method": method, "rounds": 10, "profile": "full"},
    )  # fmt: skip
    folder = out or Path("runs") / f"train-{config.method_name}-{dataset}-seed{seed}"
    reach = EngineChoice(
        engine=engine, federation=federation, ca=ca, insecure=insecure, quorum=quorum, timeout=client_timeout, wait=wait
    )
    if engine == "flower":
        if seeds > 1 or clients is None:
            raise UsageError(
                "--engine flower takes one seed at a time and the number of clients that join: --clients N."
            )
        elsewhere = flower_federation(reach, purpose="train", data_root=data_root)
        with progress_bars() as progress:
            led = lead(config, elsewhere, clients=clients, data_root=data_root, out=folder, progress=progress)
        print_report(led, as_json=as_json, out=folder)
        return 0
    reached = federation_of(reach, purpose="train", data_root=data_root)
    if seeds > 1:
        with progress_bars() as progress:
            chosen = range(seed, seed + seeds)
            found = train_seeds(config, chosen, data_root=data_root, out=folder, progress=progress, federation=reached)
        print_seeds(found, as_json=as_json, out=folder)
        return 0
    with progress_bars() as progress:
        report = experiment.train(config, data_root=data_root, out=folder, progress=progress, federation=reached)
    print_report(report, as_json=as_json, out=folder)
    return 0
