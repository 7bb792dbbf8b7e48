"""`fdgsec cache`: what can be recomputed, and how large it is."""

import shutil

import typer

from fdgsec.runtime.cache_files import cache_root

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help="The cache: size, clear.")
KINDS = ("attacks", "features", "pixels", "runs")


@app.command()
def size() -> int:
    """Print the size of each kind of cached thing."""
    for kind in KINDS:
        files = [file for file in (cache_root() / kind).rglob("*") if file.is_file()]
        typer.echo(f"{kind:<10}{sum(file.stat().st_size for file in files) / 2**20:>10.1f} MiB  {len(files)} files")
    return 0


@app.command()
def clear() -> int:
    """Remove cached features, pixels, runs and finished attacks; datasets and weights stay."""
    for kind in KINDS:
        shutil.rmtree(cache_root() / kind, ignore_errors=True)
    typer.echo(f"cleared {', '.join(KINDS)} under {cache_root()}")
    return 0
