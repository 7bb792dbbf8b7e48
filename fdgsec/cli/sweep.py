"""`fdgsec sweep`: privacy against accuracy over an option of a defense."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from fdgsec.cli import options as o
from fdgsec.cli.run_folders import default_folder
from fdgsec.runtime.progress import progress_bars

Target = Annotated[str, typer.Option("--target", help="What to attack (`fdgsec list targets`).")]
Over = Annotated[
    str, typer.Option("--over", help="OPTION=v,v,... of the last --defense, or OPTION=log:LOW:HIGH:COUNT.")
]
At = Annotated[
    str | None,
    typer.Option("--accuracy-at", help="Values at which to train too: v,v,..., log:..., or none. Default: all."),
]
Attacks = Annotated[list[str] | None, typer.Option("--attack", help="Measure this attack; repeatable.")]
ProtocolName = Annotated[str, typer.Option("--protocol", help="How accuracy is trained (`fdgsec list protocols`).")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="Seeds of each accuracy.")]
Workers = Annotated[int, typer.Option("--workers", min=1, help="Points computed at once; memory permitting.")]
Limit = Annotated[
    int | None,
    typer.Option("--limit", min=0, help="Maximum number of points to compute now."),
]


@o.takes(
    "encoder", "style_size", "backbone", "norm", "pretrained", "partition", "clients", "heterogeneity", "rounds",
    "target_domain", "per_domain", "image_size", "allow_partial", "device",
)  # fmt: skip
def command(
    *,
    target: Target = "ccst-overall",
    dataset: o.Dataset = "shapes",
    over: Over = "scale=log:0.01:100:9",
    defense: o.Defenses = None,
    accuracy_at: At = None,
    attack: Attacks = None,
    protocol: ProtocolName = "quick",
    seeds: Seeds = 3,
    data_root: o.DataRoot = None,
    given: Mapping[str, Any],
    seed: o.Seed = 0,
    profile: o.ProfileName = "quick",
    set_: o.Assignments = None,
    workers: Workers = 1,
    limit: Limit = None,
    out: o.Out = None,
    as_json: o.AsJson = False,
) -> int:
    """Attack and train a target at many values of a defense's option: the privacy-accuracy trade-off, with figures."""
    from fdgsec.cli.tables import print_sweep
    from fdgsec.experiments.run_config import defense_of
    from fdgsec.experiments.sweep.run_sweep import ATTACKS, SweepRequest, parsed_over, parsed_values, sweep

    option, values = parsed_over(over)
    asked = None if accuracy_at is None else () if accuracy_at == "none" else parsed_values(accuracy_at)
    request = SweepRequest(
        target=target, dataset=dataset, defenses=tuple(map(defense_of, defense or ("style-noise",))), option=option,
        values=values, accuracy_at=asked, attacks=tuple(attack or ATTACKS), protocol=protocol, seeds=seeds, seed=seed,
        profile=profile, workers=workers, assignments=tuple(set_ or ()), given=given,
    )  # fmt: skip
    folder = out or default_folder(f"sweep-{target}-{dataset}-{option}-seed{seed}", request, data_root)
    with progress_bars() as progress:
        found = sweep(request, data_root=data_root, out=folder, progress=progress, limit=limit)
    if as_json:
        typer.echo((folder / "sweep.json").read_text(), nl=False)
    else:
        print_sweep(found, out=folder)
    return 0
