"""The options that several verbs share, and how they become settings."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from fdgsec.config import RunConfig, build, load_preset, merged, parse_assignments
from fdgsec.errors import UsageError
from fdgsec.registry import DEFENSES, suggestion

Dataset = Annotated[str, typer.Option("--dataset", help="A dataset by name (`fdgsec list datasets`).")]
DataRoot = Annotated[
    Path | None, typer.Option("--data-root", help="Folder or .zip; else $FDGSEC_DATA, else the cache.")
]
Encoder = Annotated[str | None, typer.Option("--encoder", help="mini (bundled), vgg19 or squeezenet (when imported).")]
Backbone = Annotated[str | None, typer.Option("--backbone", help="Classifier by torchvision name, or tiny.")]
Norm = Annotated[str | None, typer.Option("--norm", help="batch or group.")]
Pretrained = Annotated[
    bool | None, typer.Option("--pretrained/--no-pretrained", help="Start from stored ImageNet weights.")
]
Preset = Annotated[
    str | None, typer.Option("--preset", help="A bundled preset (`fdgsec list presets`) or a TOML file.")
]
Partition = Annotated[str | None, typer.Option("--partition", help="domain, single-domain, dirichlet or lambda.")]
Clients = Annotated[int | None, typer.Option("--clients", help="How many clients; default: the partition's own.")]
Heterogeneity = Annotated[float | None, typer.Option("--heterogeneity", help="Dirichlet's alpha, or lambda.")]
Rounds = Annotated[int | None, typer.Option("--rounds", min=0, help="Rounds to train; 0 exchanges artifacts only.")]
TargetDomain = Annotated[str | None, typer.Option("--target-domain", help="The unseen domain; default: the dataset's.")]
PerDomain = Annotated[int | None, typer.Option("--per-domain", min=1, help="At most so many images of each domain.")]
ImageSize = Annotated[int | None, typer.Option("--image-size", min=16, help="Side in pixels; default: the dataset's.")]
Seed = Annotated[int, typer.Option("--seed", help="Decides every draw.")]
ProfileName = Annotated[str, typer.Option("--profile", help="quick (minutes, capped) or full.")]
Defenses = Annotated[list[str] | None, typer.Option("--defense", help="NAME:k=v,...; repeatable, in order.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="name.option=value, e.g. method.k=2; repeatable.")]
AllowPartial = Annotated[bool, typer.Option("--allow-partial", help="Go on with an incomplete dataset.")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder for the run; replaced only if fdgsec wrote it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the document instead of the table.")]


def settings(
    given: Mapping[str, Any],
    *,
    preset: str | None,
    assignments: Sequence[str] | None,
    defaults: Mapping[str, Any],
    method: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Lay defaults, preset, the command line and --set over each other, later ones winning.

    Raises UsageError for anything that is not a setting."""
    loaded = load_preset(preset) if preset else {}
    foreign = set(loaded) - {"method", "run", "attacks"}
    if foreign:
        raise UsageError(f"preset {preset} has tables {sorted(foreign)}; [method], [run] and [attacks] are known.")
    extra = parse_assignments(assignments or [])
    options = merged(loaded.get("method", {}), method or {}, extra.pop("method", {}))
    chosen = extra.pop("attacks", {})
    run = merged(
        defaults, loaded.get("run", {}), {key: value for key, value in given.items() if value is not None},
        extra.pop("run", {}), extra, {"options": options, "preset": preset or "", "attack_options": chosen},
    )  # fmt: skip
    if "encoder" in options and given.get("encoder") is None:
        run["encoder"] = options["encoder"]
    for text in run.get("defenses", ()):
        name = str(text).partition(":")[0]
        if name not in DEFENSES:
            known = suggestion(name, DEFENSES) if DEFENSES else "no defense is available in this version"
            raise UsageError(f"unknown defense {name!r}; {known}.")
    return build(RunConfig, run, where="run")


def without_rounds(config: RunConfig) -> RunConfig:
    """The same settings, exchanging artifacts only."""
    return replace(config, rounds=0)
