"""`fdgsec plot`: the papers' figures for one's own model."""

from pathlib import Path
from typing import Annotated

import typer

from fdgsec.cli import options as o
from fdgsec.runtime.cache_files import write_atomic
from fdgsec.runtime.checked_files import add_to_sums
from fdgsec.runtime.errors import UsageError, unknown_name
from fdgsec.runtime.progress import progress_bars

Kind = Annotated[str, typer.Argument(help="attention, tsne, loss-surface, domain-gap or style-histogram.")]
Run = Annotated[Path, typer.Argument(help="A folder that `fdgsec train --out` wrote.")]
Picture = Annotated[Path | None, typer.Option("--out", help="The .png, .pdf or .svg to write; default: RUN/KIND.png.")]


def command(kind: Kind, run: Run, data_root: o.DataRoot = None, out: Picture = None) -> int:
    """Draw a figure from a finished run."""
    import io

    from fdgsec.experiments.attack_run.finished_run import finished
    from fdgsec.experiments.paper_plots import PLOTS

    if kind not in PLOTS:
        raise unknown_name("plot", kind, PLOTS)
    path = out or run / f"{kind}.png"
    if path.suffix not in (".png", ".pdf", ".svg"):
        raise UsageError(f"a figure is written as .png, .pdf or .svg; got {path.name}.")
    with progress_bars() as progress:
        canvas = PLOTS[kind](finished(run, data_root=data_root, progress=progress))
    buffer = io.BytesIO()
    canvas.savefig(buffer, format=path.suffix[1:], dpi=160)
    write_atomic(path, buffer.getvalue())
    if out is None:
        add_to_sums(path)
    typer.echo(str(path))
    return 0
