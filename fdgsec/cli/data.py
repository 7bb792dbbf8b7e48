"""`fdgsec data`: which datasets are known, where to get them, and whether yours is whole."""

import json
from typing import Annotated

import typer

from fdgsec.cli.options import AllowPartial, AsJson, DataRoot
from fdgsec.runtime.progress import progress_bars

app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode=None,
    help="Datasets: list the known ones, check yours, fetch.",
)  # fmt: skip
Name = Annotated[str, typer.Argument(help="A dataset by name.")]


@app.command("list")
def list_(as_json: AsJson = False) -> int:
    """List the known datasets: source, size, license, layout, what is found."""
    from fdgsec.cli.print_listings import print_datasets

    print_datasets(as_json=as_json)
    return 0


@app.command()
def check(name: Name, data_root: DataRoot = None, allow_partial: AllowPartial = False, as_json: AsJson = False) -> int:
    """Read a dataset, check its counts and names, and decode it unless it is too large to hold."""
    from fdgsec.cli.print_listings import dataset_counts, print_dataset
    from fdgsec.data.catalog import load_dataset

    with progress_bars() as progress:
        dataset = load_dataset(name, data_root=data_root, allow_partial=allow_partial, progress=progress.update)
    if as_json:
        typer.echo(json.dumps(dataset_counts(dataset), indent=1))
    else:
        print_dataset(dataset)
    return 0


@app.command()
def fetch(name: Name, data_root: DataRoot = None, as_json: AsJson = False) -> int:
    """Download a dataset where its owners allow that; otherwise say where to get it."""
    from fdgsec.data import catalog

    with progress_bars() as progress:
        paths = [str(path) for path in catalog.fetch(name, data_root=data_root, progress=progress.update)]
    typer.echo(json.dumps({"dataset": name, "paths": paths}, indent=1) if as_json else "\n".join(paths))
    return 0
