"""`fdgsec compare`: two or more finished runs side by side, as `fdgsec report` shows more than one."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fdgsec.cli import options as o
from fdgsec.cli.run_folders import default_folder

Runs = Annotated[
    list[Path], typer.Argument(help="Folders of two or more runs (or their report.json).", metavar="RUN...")
]
All = Annotated[
    bool,
    typer.Option(
        "--all", help="Every measurement, not just those that stand for their attack.", rich_help_panel="Output"
    ),
]  # fmt: skip


def command(runs: Runs, every: All = False, out: o.Out = None, as_json: o.AsJson = False) -> int:
    """Compare finished runs: what differs, which are comparable, questions by run; and make a page of it."""
    return show_comparison(runs, every=every, out=out, as_json=as_json)


def show_comparison(runs: Sequence[Path], *, every: bool, out: Path | None, as_json: bool) -> int:
    """Print the comparison of two or more runs, and write it with its page to `out`."""
    from fdgsec.cli.print_comparison import print_comparison
    from fdgsec.experiments.compare.compare_runs import compare

    folder = out or default_folder("compare", [str(run.resolve()) for run in runs])
    found = compare(runs, out=folder)
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    else:
        print_comparison(found, every=every, out=folder)
    return 0
