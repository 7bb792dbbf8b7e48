"""The options that several verbs share."""

from pathlib import Path
from typing import Annotated

import typer

Dataset = Annotated[str, typer.Option("--dataset", help="A dataset by name (`fdgsec list datasets`).")]
DataRoot = Annotated[
    Path | None, typer.Option("--data-root", help="Folder or .zip; else $FDGSEC_DATA, else the cache.")
]
Encoder = Annotated[str | None, typer.Option("--encoder", help="A style encoder by name (`fdgsec list encoders`).")]
Backbone = Annotated[str | None, typer.Option("--backbone", help="Classifier by torchvision name, or tiny.")]
Norm = Annotated[str | None, typer.Option("--norm", help="batch or group.")]
Pretrained = Annotated[
    bool | None, typer.Option("--pretrained/--no-pretrained", help="Start from stored ImageNet weights.")
]
Preset = Annotated[
    str | None, typer.Option("--preset", help="A bundled preset (`fdgsec list presets`) or a TOML file.")
]
Partition = Annotated[str | None, typer.Option("--partition", help="domain, single-domain, dirichlet or lambda.")]
Splits = Annotated[
    str | None, typer.Option("--splits", help="own (the seed draws validation images) or official (the dataset's).")
]
Clients = Annotated[int | None, typer.Option("--clients", help="How many clients; default: the partition's own.")]
Heterogeneity = Annotated[float | None, typer.Option("--heterogeneity", help="Dirichlet's alpha, or lambda.")]
Rounds = Annotated[int | None, typer.Option("--rounds", min=0, help="Rounds to train; 0 exchanges artifacts only.")]
TargetDomain = Annotated[
    str | None,
    typer.Option("--target-domain", help="The unseen domain, several as A+B, or @SPLIT; default: the dataset's."),
]
ValidationDomain = Annotated[
    str | None, typer.Option("--validation-domain", help="A second unseen domain (leave two domains out).")
]
PerDomain = Annotated[int | None, typer.Option("--per-domain", min=1, help="At most so many images of each domain.")]
PerClass = Annotated[
    int | None, typer.Option("--per-class", min=1, help="At most so many images of each class in each domain.")
]
StyleSize = Annotated[
    int | None, typer.Option("--style-size", min=16, help="Side at which images are encoded; default: as they are.")
]
ImageSize = Annotated[int | None, typer.Option("--image-size", min=16, help="Side in pixels; default: the dataset's.")]
Device = Annotated[str | None, typer.Option("--device", help="Where networks train: auto, cpu or cuda.")]
Seed = Annotated[int, typer.Option("--seed", help="Decides every draw.")]
ProfileName = Annotated[str, typer.Option("--profile", help="quick (minutes, capped) or full.")]
Defenses = Annotated[list[str] | None, typer.Option("--defense", help="NAME:k=v,...; repeatable, in order.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="name.option=value, e.g. method.k=2; repeatable.")]
AllowPartial = Annotated[bool, typer.Option("--allow-partial", help="Go on with an incomplete dataset.")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder for the run; replaced only if fdgsec wrote it.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Reuse no run and no cache.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the document instead of the table.")]
Engine = Annotated[
    str, typer.Option("--engine", help="local, flower-sim (Flower's simulation) or flower (nodes elsewhere).")
]
Federation = Annotated[
    str, typer.Option("--federation", help="With --engine flower: the server's HOST:PORT (`fdgsec serve`).")
]
Ca = Annotated[Path | None, typer.Option("--ca", help="The server's certificate; default: fdgsec-federation/ca.crt.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Without TLS: anybody in between reads and writes along.")]
Quorum = Annotated[
    float, typer.Option("--quorum", help="Share of a round's clients that must answer every step, in (0, 1].")
]
ClientTimeout = Annotated[float, typer.Option("--client-timeout", help="Seconds that a client's answer may take.")]
Wait = Annotated[float, typer.Option("--wait", help="Seconds that nodes may take to come online.")]
