"""`fdgsec claims`: every privacy claim of the five papers, with a measured verdict."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fdgsec.cli import options as o
from fdgsec.runtime.progress import progress_bars

Only = Annotated[list[str] | None, typer.Option("--claim", help="Only this claim (`fdgsec list claims`); repeatable.")]


@o.takes("encoder", "target_domain", "per_domain", "image_size", "device")
def command(
    *,
    dataset: o.Dataset = "pacs",
    data_root: o.DataRoot = None,
    given: Mapping[str, Any],
    seed: o.Seed = 0,
    profile: o.ProfileName = "quick",
    claim: Only = None,
    fresh: o.Fresh = False,
    out: o.Out = None,
    as_json: o.AsJson = False,
) -> int:
    """Measure what the papers claim about privacy, and give a verdict for each claim."""
    from fdgsec.cli.tables import print_claims
    from fdgsec.experiments.claims.run_claims import ClaimsRequest, claims

    request = ClaimsRequest(dataset=dataset, profile=profile, seed=seed, only=tuple(claim or ()), given=given)
    folder = out or Path("runs") / f"claims-{dataset}-{profile}-seed{seed}"
    with progress_bars() as progress:
        found = claims(request, data_root=data_root, out=folder, fresh=fresh, progress=progress)
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    else:
        print_claims(found, out=folder)
    return 0
