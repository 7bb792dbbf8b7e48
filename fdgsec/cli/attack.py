"""`fdgsec attack`: the main job."""

from pathlib import Path
from typing import Annotated

import typer

from fdgsec.cli import options as o
from fdgsec.config import attack_settings
from fdgsec.console import progress_bars
from fdgsec.tables import print_dry_run, print_report

Target = Annotated[str, typer.Option("--target", help="What to attack (`fdgsec list targets`).")]
Attacks = Annotated[list[str] | None, typer.Option("--attack", help="Only this attack; repeatable.")]
AdversaryName = Annotated[str, typer.Option("--adversary", help="server, client or outsider.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would run, and stop.")]


def command(
    target: Target = "ccst-overall",
    dataset: o.Dataset = "shapes",
    data_root: o.DataRoot = None,
    encoder: o.Encoder = None,
    style_size: o.StyleSize = None,
    backbone: o.Backbone = None,
    norm: o.Norm = None,
    pretrained: o.Pretrained = None,
    preset: o.Preset = None,
    partition: o.Partition = None,
    clients: o.Clients = None,
    heterogeneity: o.Heterogeneity = None,
    rounds: o.Rounds = None,
    target_domain: o.TargetDomain = None,
    per_domain: o.PerDomain = None,
    image_size: o.ImageSize = None,
    seed: o.Seed = 0,
    device: o.Device = None,
    profile: o.ProfileName = "quick",
    attack: Attacks = None,
    adversary: AdversaryName = "server",
    defense: o.Defenses = None,
    set_: o.Settings = None,
    allow_partial: o.AllowPartial = False,
    fresh: o.Fresh = False,
    dry_run: DryRun = False,
    out: o.Out = None,
    as_json: o.AsJson = False,
) -> int:
    """Run (or reuse) a target, attack what it sends, and report every number with interval and chance."""
    from fdgsec.experiments import attack as experiment

    config = attack_settings(
        target,
        {
            "dataset": dataset, "encoder": encoder, "style_size": style_size, "backbone": backbone, "norm": norm, "pretrained": pretrained,
            "partition": partition, "clients": clients, "heterogeneity": heterogeneity, "rounds": rounds,
            "target_domain": target_domain, "per_domain": per_domain, "image_size": image_size, "seed": seed, "device": device,
            "attacks": tuple(attack or ()), "adversary": adversary, "defenses": tuple(defense or ()),
            "allow_partial": allow_partial,
        },
        profile=profile, preset=preset, assignments=set_ or (),
    )  # fmt: skip
    if dry_run:
        print_dry_run(config, experiment.dry_run(config))
        return 0
    folder = out or Path("runs") / f"{target}-{dataset}-{profile}-{adversary}-seed{seed}"
    with progress_bars() as progress:
        report = experiment.attack(config, data_root=data_root, out=folder, fresh=fresh, progress=progress)
    print_report(report, as_json=as_json, out=folder)
    return 1 if any(result.status == "failed" for result in report.attacks) else 0
