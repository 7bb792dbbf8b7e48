"""`fdgsec cache`: what can be recomputed, and how large it is."""

import json
import shutil

import typer

from fdgsec.cli.options import AsJson
from fdgsec.runtime.cache_files import cache_root

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help="The cache: size, clear.")
KINDS = ("attacks", "features", "networks", "pixels", "runs")


@app.command()
def size(as_json: AsJson = False) -> int:
    """Print the size of each kind of cached thing."""
    held = {kind: [file for file in (cache_root() / kind).rglob("*") if file.is_file()] for kind in KINDS}
    sizes = {kind: sum(file.stat().st_size for file in files) for kind, files in held.items()}
    if as_json:
        kinds = {kind: {"bytes": sizes[kind], "files": len(files)} for kind, files in held.items()}
        typer.echo(json.dumps({"folder": str(cache_root()), "kinds": kinds}, indent=1))
        return 0
    for kind, files in held.items():
        typer.echo(f"{kind:<10}{sizes[kind] / 2**20:>10.1f} MiB  {len(files)} files")
    return 0


@app.command()
def clear(as_json: AsJson = False) -> int:
    """Remove cached features, trained networks, pixels, runs and finished attacks; datasets and weights stay."""
    for kind in KINDS:
        shutil.rmtree(cache_root() / kind, ignore_errors=True)
    told = {"folder": str(cache_root()), "cleared": list(KINDS)}
    typer.echo(json.dumps(told, indent=1) if as_json else f"cleared {', '.join(KINDS)} under {cache_root()}")
    return 0
