"""`fdgsec report`: show a finished run again."""

from pathlib import Path
from typing import Annotated

import typer

from fdgsec.cli.options import AsJson

Runs = Annotated[list[Path], typer.Argument(help="Run folders (or their report.json).")]


def command(runs: Runs, as_json: AsJson = False) -> int:
    """Print the reports of finished runs."""
    from fdgsec.cli.tables import print_stored

    for run in runs:
        print_stored(run, as_json=as_json)
    return 0
