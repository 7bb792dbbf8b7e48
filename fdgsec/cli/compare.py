"""`fdgsec compare`: two finished runs side by side."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fdgsec.cli.options import AsJson

First = Annotated[Path, typer.Argument(help="A run's folder (or its report.json).", metavar="RUN")]
Second = Annotated[Path, typer.Argument(help="Another one.", metavar="RUN")]
All = Annotated[bool, typer.Option("--all", help="Every measurement, not just those that stand for their attack.")]


def command(first: First, second: Second, every: All = False, as_json: AsJson = False) -> int:
    """Show which settings of two runs differ, and their accuracies and measurements side by side."""
    from fdgsec.cli.tables import print_comparison
    from fdgsec.experiments.compare import compare

    found = compare(first, second)
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    else:
        print_comparison(found, every=every)
    return 0
