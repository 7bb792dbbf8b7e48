"""`fdgsec report`: show a finished run again."""

from pathlib import Path
from typing import Annotated

import typer

from fdgsec.cli.options import AsJson, Every

Runs = Annotated[list[Path], typer.Argument(help="Run folders (or their report.json).")]


def command(runs: Runs, every: Every = False, as_json: AsJson = False) -> int:
    """Print the reports of finished runs."""
    from fdgsec.cli.print_report import print_stored

    for run in runs:
        print_stored(run, as_json=as_json, every=every)
    return 0
