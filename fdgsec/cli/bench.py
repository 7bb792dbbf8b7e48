"""`fdgsec bench`: the papers' tables and ablations."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fdgsec.cli import options as o
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import progress_bars

Methods = Annotated[
    str | None, typer.Option("--methods", help="Arms or methods by name, comma-separated; default: the protocol's.")
]
ProtocolName = Annotated[str, typer.Option("--protocol", help="A table by name (`fdgsec list protocols`).")]
Ablation = Annotated[str, typer.Option("--ablation", help="An ablation by name (`fdgsec list ablations`).")]
Domains = Annotated[str | None, typer.Option("--domains", help="Only these unseen domains, comma-separated.")]
Seeds = Annotated[
    int | None, typer.Option("--seeds", min=1, help="Seeds 0, 1, ... (so many); default: the protocol's.")
]
Limit = Annotated[
    int | None, typer.Option("--limit", min=0, help="Stop after so many runs (0: only show); a later call goes on.")
]
Workers = Annotated[int, typer.Option("--workers", min=1, help="Runs trained at once; memory permitting.")]
Baseline = Annotated[
    str, typer.Option("--baseline", help="The arm that others are compared with; default: the protocol's.")
]
Unequal = Annotated[
    bool, typer.Option("--unequal-steps", help="Also show differences between arms with unequal optimizer steps.")
]


@o.takes("encoder", "backbone", "pretrained", "rounds", "clients", "per_domain", "per_class", "image_size", "device")
def command(
    *,
    methods: Methods = None,
    dataset: o.Dataset = "pacs",
    protocol: ProtocolName = "quick",
    ablation: Ablation = "",
    domains: Domains = None,
    seeds: Seeds = None,
    limit: Limit = None,
    workers: Workers = 1,
    baseline: Baseline = "",
    unequal_steps: Unequal = False,
    data_root: o.DataRoot = None,
    given: Mapping[str, Any],
    set_: o.Assignments = None,
    out: o.Out = None,
    as_json: o.AsJson = False,
) -> int:
    """Fill a paper's table, run by run; what is finished is kept, and a later call goes on from there."""
    from fdgsec.experiments.bench.run_bench import BenchRequest, bench
    from fdgsec.experiments.bench.tables import markdown

    if given["rounds"] == 0:
        raise UsageError("a table of accuracies needs --rounds 1 or more.")
    request = BenchRequest(
        protocol=protocol, ablation=ablation, dataset=dataset, arms=_listed(methods), domains=_listed(domains),
        seeds=tuple(range(seeds or 0)), baseline=baseline, unequal=unequal_steps, assignments=tuple(set_ or ()),
        given=given,
    )  # fmt: skip
    folder = out or Path("runs") / f"bench-{ablation or protocol}-{dataset}"
    with progress_bars() as progress:
        found = bench(
            request, data_root=data_root, out=folder, progress=progress, limit=limit, workers=workers,
            tell=lambda line: typer.echo(line, err=True),
        )  # fmt: skip
    typer.echo(
        json.dumps(found, indent=1)
        if as_json
        else f"{markdown(found)}\nwritten to {folder}: bench.html, .md, .csv, .tex, .json"
    )
    return 0


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())
