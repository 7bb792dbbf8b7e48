"""A whole federation on this machine, with certificates and keys as across machines, for trials and measurements."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fdgsec.federation.engines.flower.certificates import create_authority, create_node_key, create_server_certificate
from fdgsec.federation.engines.flower.commands import Node, Server, Setting, Tls
from fdgsec.federation.engines.flower.connection import Connection
from fdgsec.federation.engines.flower.environment import BINDINGS
from fdgsec.federation.engines.flower.nodes_and_jobs import superlink, supernode
from fdgsec.federation.engines.flower.process_trees import Running, free_port
from fdgsec.federation.engines.flower.superlink_control import Control


@dataclass(frozen=True, kw_only=True)
class Loopback:
    """A running federation: the connection to its server, and its nodes by client number."""

    connection: Connection
    nodes: Mapping[int, Running]


@contextmanager
def loopback(
    folder: Path,
    nodes: int,
    *,
    settings: Mapping[str, Setting] | None = None,
    environments: Mapping[int, Mapping[str, str]] | None = None,
) -> Iterator[Loopback]:
    """Run a SuperLink with TLS and `nodes` registered SuperNodes, which draw their noise from the run's seed.

    `settings` are added to every node's configuration, `environments` to the variables of single nodes. Logs, keys and
    states are under `folder`; the processes end with the block."""
    keys = folder / "keys"
    create_authority(keys)
    create_server_certificate(keys, ())
    tls = Tls(ca=keys / "ca.crt", certificate=keys / "server.pem", key=keys / "server.key")
    server = Server(host="127.0.0.1", port=free_port(), tls=tls)
    with ExitStack() as stack:
        bindings = {BINDINGS: str((folder / "clients").resolve())}
        log = folder / "superlink.log"
        stack.enter_context(superlink(server, home=folder / "server", log=log, environment=bindings))
        control = Control(connection=server.connection, home=folder / "cli")
        running = dict[int, Running]()
        for number in range(nodes):
            key = keys / f"node{number}"
            create_node_key(key)
            control.register(key.with_name(key.name + ".pub"))
            told = {
                "partition-id": number, "num-partitions": nodes, "state": str((folder / f"state{number}").resolve()),
                "secret": "run", **(settings or {}),
            }  # fmt: skip
            node = Node(server=server.connection, key=key, port=free_port(), settings=told)
            home, log = folder / f"node{number}", folder / f"node{number}.log"
            running[number] = stack.enter_context(
                supernode(node, home=home, log=log, environment=(environments or {}).get(number))
            )
        yield Loopback(connection=server.connection, nodes=running)
