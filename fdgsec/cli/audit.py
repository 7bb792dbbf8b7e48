"""`fdgsec audit`: attack a defense's guarantee through the code that gives it."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

import typer

from fdgsec.cli import options as o
from fdgsec.cli.run_folders import default_folder
from fdgsec.runtime.progress import progress_bars

Target = Annotated[str, typer.Option("--target", help="Whose messages to audit (`fdgsec list targets`).")]
Runs = Annotated[int, typer.Option("--runs", help="Number of messages with the canary (and the same number without).")]
Repeats = Annotated[int, typer.Option("--repeats", help="Audits, each with secrets of its own.")]
Confidence = Annotated[float, typer.Option("--confidence", help="Confidence level of the lower bound.")]
Count = Annotated[int, typer.Option("--canaries", help="Canaries in a training run (dp-sgd).")]
Guesses = Annotated[
    int | None, typer.Option("--guesses", help="Guesses about canaries (dp-sgd). Default: a tenth of them.")
]
Kind = Annotated[str, typer.Option("--canary", help="gradient or mislabeled (dp-sgd).")]

Distinct = Annotated[
    int | None,
    typer.Option("--distinct-releases", help="Releases whose noise is compared; 0: none. Default: half a minute's."),
]
Images = Annotated[int, typer.Option("--images", help="Images of the audited client (not dp-sgd).")]


@o.takes(
    "encoder", "style_size", "backbone", "norm", "pretrained", "partition", "clients", "heterogeneity", "rounds",
    "target_domain", "per_domain", "image_size", "allow_partial", "device",
)  # fmt: skip
def command(
    *,
    target: Target = "ccst-overall",
    dataset: o.Dataset = "shapes",
    defense: o.Defenses = None,
    runs: Runs = 2000,
    repeats: Repeats = 1,
    confidence: Confidence = 0.95,
    canaries: Count = 1024,
    guesses: Guesses = None,
    canary: Kind = "gradient",
    distinct_releases: Distinct = None,
    images: Images = 16,
    data_root: o.DataRoot = None,
    given: Mapping[str, Any],
    seed: o.Seed = 0,
    set_: o.Assignments = None,
    out: o.Out = None,
    as_json: o.AsJson = False,
) -> int:
    """Audit a defense's guarantee: a lower bound on its epsilon. Exits with status 1 if it finds a fault."""
    from fdgsec.cli.tables import print_audit
    from fdgsec.experiments.audit.run_audit import AuditPlan, audit, audit_settings
    from fdgsec.runtime.registry import name_of

    plan = AuditPlan(
        runs=runs, repeats=repeats, confidence=confidence, canaries=canaries, guesses=guesses,
        canary=cast(Literal["gradient", "mislabeled"], canary), distinct_releases=distinct_releases,
        images=images,
    )  # fmt: skip
    config = audit_settings(
        target,
        {**given, "dataset": dataset, "seed": seed, "defenses": defense or ("private-styles",)},
        plan,
        assignments=set_ or (),
    )  # fmt: skip
    defended = name_of("defenses", type(config.defenses[0]))
    folder = out or default_folder(f"audit-{target}-{dataset}-{defended}-seed{seed}", config, plan, data_root)
    with progress_bars() as progress:
        found = audit(config, plan, data_root=data_root, out=folder, progress=progress)
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    else:
        print_audit(found, out=folder)
    return 1 if found["faults"] else 0
