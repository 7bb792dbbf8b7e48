"""`fdgsec runs`: the finished runs of a folder."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fdgsec.cli.options import AsJson
from fdgsec.cli.run_folders import RUNS

Folder = Annotated[Path, typer.Argument(help="Folder whose runs are listed.")]


def command(folder: Folder = RUNS, as_json: AsJson = False) -> int:
    """List finished runs, newest first, with what each found."""
    from fdgsec.cli.tables import print_table
    from fdgsec.experiments.stored_runs import stored_runs
    from fdgsec.runtime.errors import UsageError

    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder; `fdgsec attack` and `fdgsec train` write their runs to {RUNS}/.")
    found = stored_runs(folder)
    if as_json:
        typer.echo(json.dumps([run.document() for run in found], indent=1))
        return 0
    rows = [(run.folder.name, run.verb, run.about, f"{run.finished:%Y-%m-%d %H:%M}", run.found) for run in found]
    print_table(f"{len(found)} runs in {folder}", ("folder", "verb", "about", "finished", "found"), rows)
    return 0
