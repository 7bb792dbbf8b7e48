"""`fdgsec serve`: the server of a federation across machines."""

from pathlib import Path
from typing import Annotated

import typer

from fdgsec.federation.engines.flower.versions import require_flower

Folder = Annotated[Path, typer.Argument(help="Certificates, keys and logs; made the first time.")]
Host = Annotated[
    str | None, typer.Option("--host", help="Address to listen at; default: all, with --insecure loopback.")
]
Port = Annotated[int, typer.Option("--port", help="Port to listen at.")]
Name = Annotated[
    list[str] | None, typer.Option("--name", help="DNS name or address by which nodes reach it; repeatable.")
]
Register = Annotated[
    list[Path] | None, typer.Option("--register", metavar="FILE.pub", help="Let a node in, by its key; repeatable.")
]
Allow = Annotated[list[Path] | None, typer.Option("--allow", metavar="DIR", help="Let in every *.pub of a folder.")]
Renew = Annotated[bool, typer.Option("--renew", help="Issue a new server certificate; nodes keep their ca.crt.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="No TLS, no node authentication: for one machine alone.")]
Print = Annotated[bool, typer.Option("--print", help="Print Flower's own commands for the same, and end.")]


def command(
    folder: Folder = Path("fdgsec-federation"),
    host: Host = None,
    port: Port = 9191,
    name: Name = None,
    register: Register = None,
    allow: Allow = None,
    renew: Renew = False,
    insecure: Insecure = False,
    print_: Print = False,
) -> int:
    """Serve a federation with TLS and node authentication, until interrupted."""
    require_flower(simulation=False)
    from fdgsec.experiments.flower.serve import ServeSettings, serve, serve_commands

    serving = ServeSettings(
        folder=folder, host=host, port=port, names=name or (), allowed=[*(register or ()), *(allow or ())], renew=renew,
        insecure=insecure,
    )  # fmt: skip
    if print_:
        typer.echo("\n".join(serve_commands(serving)))
    else:
        serve(serving, say=typer.echo, log=lambda line: typer.echo(line, err=True))
    return 0
