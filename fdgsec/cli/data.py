"""`fdgsec data`: which datasets are known, and whether yours is whole."""

from typing import Annotated

import typer

from fdgsec.cli.options import AllowPartial, DataRoot
from fdgsec.console import progress_bars
from fdgsec.tables import print_dataset, print_list

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Datasets: list the known ones, check yours.")
Name = Annotated[str, typer.Argument(help="A dataset by name.")]


@app.command("list")
def list_() -> int:
    """List the known datasets."""
    print_list("datasets")
    return 0


@app.command()
def check(name: Name, data_root: DataRoot = None, allow_partial: AllowPartial = False) -> int:
    """Decode a dataset, check its manifest and count its images."""
    from fdgsec.data.catalog import load_dataset

    with progress_bars() as progress:
        dataset = load_dataset(name, data_root=data_root, allow_partial=allow_partial, progress=progress.update)
    print_dataset(dataset)
    return 0
