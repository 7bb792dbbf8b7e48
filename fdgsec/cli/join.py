"""`fdgsec join`: take part in a federation across machines."""

from pathlib import Path
from typing import Annotated

import typer

from fdgsec.federation.engines.flower.versions import require_flower
from fdgsec.runtime.errors import UsageError

Server = Annotated[str | None, typer.Option("--server", metavar="HOST:PORT", help="The server (`fdgsec serve`).")]
Ca = Annotated[Path | None, typer.Option("--ca", metavar="FILE", help="The server's ca.crt, copied from there.")]
Key = Annotated[Path | None, typer.Option("--key", metavar="FILE", help="This node's private key.")]
NewKey = Annotated[
    Path | None, typer.Option("--new-key", metavar="FILE", help="Make a key pair, print the public one, and end.")
]
Partition = Annotated[int | None, typer.Option("--partition", help="Which client this is, from 0.")]
Clients = Annotated[int | None, typer.Option("--of", help="How many clients there are.")]
DataRoot = Annotated[Path | None, typer.Option("--data-root", help="Folder or .zip; else $FDGSEC_DATA.")]
State = Annotated[
    Path | None, typer.Option("--state", help="Folder for what the client remembers; default: fdgsec-node-N.")
]
OwnData = Annotated[bool, typer.Option("--own-data", help="Everything under --data-root is this client's.")]
Require = Annotated[
    list[str] | None,
    typer.Option("--require-defense", metavar="TEXT", help="Take part in no run without it; repeatable."),
]
Uncovered = Annotated[
    list[str] | None,
    typer.Option("--uncovered", metavar="STAGE", help="Send share, update or review that no such defense covers."),
]
Runs = Annotated[int | None, typer.Option("--runs", help="Maximum number of runs; default: any number.")]
Secret = Annotated[
    Path | None, typer.Option("--secret", metavar="FILE", help="Key of this node's noise; default: drawn, in --state.")
]
Reproducible = Annotated[
    bool, typer.Option("--reproducible", help="Draw noise from the run's seed, which the server knows.")
]
Port = Annotated[int | None, typer.Option("--port", min=1, max=65535, help="Port at loopback; default: a free one.")]
Patience = Annotated[
    float, typer.Option("--patience", min=0, help="Seconds for the server to come up, or know the key.")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="No TLS and no key: for one machine alone.")]
Print = Annotated[bool, typer.Option("--print", help="Print Flower's own command for the same, and end.")]


def command(
    server: Server = None,
    ca: Ca = None,
    key: Key = None,
    new_key: NewKey = None,
    partition: Partition = None,
    clients: Clients = None,
    data_root: DataRoot = None,
    state: State = None,
    own_data: OwnData = False,
    require_defense: Require = None,
    uncovered: Uncovered = None,
    runs: Runs = None,
    secret: Secret = None,
    reproducible: Reproducible = False,
    port: Port = None,
    patience: Patience = 60.0,
    insecure: Insecure = False,
    print_: Print = False,
) -> int:
    """Take part in a federation with this machine's images, until interrupted."""
    require_flower(simulation=False)
    if new_key is not None:
        from fdgsec.federation.engines.flower.certificates import create_node_key

        typer.echo(create_node_key(new_key))
        return 0
    if server is None or partition is None or clients is None:
        raise UsageError("join needs --server HOST:PORT, --partition N and --of M (or --new-key FILE alone).")
    from fdgsec.experiments.flower.join import JoinSettings, join, join_commands

    joining = JoinSettings(
        server=server, partition=partition, clients=clients, state=state or Path(f"fdgsec-node-{partition}"), ca=ca,
        key=key, data_root=data_root, own_data=own_data, required=require_defense or (), uncovered=uncovered or (),
        runs=runs, secret=secret, reproducible=reproducible, port=port, insecure=insecure, patience=patience,
    )  # fmt: skip
    if print_:
        typer.echo("\n".join(join_commands(joining)))
    else:
        join(joining, say=typer.echo, log=lambda line: typer.echo(line, err=True))
    return 0
