"""`fdgsec report`: show a finished run again, or several side by side."""

from pathlib import Path
from typing import Annotated

import typer

from fdgsec.cli import options as o
from fdgsec.runtime.errors import UsageError

Runs = Annotated[list[Path], typer.Argument(help="Run folders (or their report.json); several are compared.")]


def command(runs: Runs, every: o.Every = False, out: o.Out = None, as_json: o.AsJson = False) -> int:
    """Print the report of a finished run; of several, compare them and make a page, as `fdgsec compare` does."""
    from fdgsec.cli.compare import show_comparison
    from fdgsec.cli.print_report import print_stored

    if len(runs) > 1:
        return show_comparison(runs, every=every, out=out, as_json=as_json)
    if out is not None:
        raise UsageError("--out is for the page of a comparison; give two or more runs.")
    print_stored(runs[0], as_json=as_json, every=every)
    return 0
