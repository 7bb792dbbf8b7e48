"""Admission of nodes to a run: each says which client it is, and one that may not be that client is refused alone.

Flower checks a node's key, and nothing of what the node says. A key is therefore bound to the client as which its node
is first admitted, in a file that the server's operator can read, write beforehand, and delete: no other key is that
client, and the key is no other client, in this run and in later ones. Where several unbound nodes claim a client, the
one that the operator registered first is admitted."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from fdgsec.federation.engines.flower.certificates import public_key, public_key_line
from fdgsec.federation.engines.flower.codec import Introduction, packed_whoami, printable, read_introduction
from fdgsec.federation.engines.flower.grid import POLL, VERB, exchange, reason_of, time_to_live
from fdgsec.federation.engines.flower.step_limits import link_once
from fdgsec.federation.round_loop import ClientFailedError
from fdgsec.runtime.errors import message_line


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """The nodes of a run by number, as they introduced themselves, and why others were refused."""

    nodes: Mapping[int, Introduction] = field(default_factory=dict)
    refused: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Applicant:
    """An online node with its key, when it was registered, and its introduction, or why it has none.

    The key is "" for nodes that joined without one."""

    node: int
    key: str
    registered: str
    told: Introduction | str

    def __str__(self) -> str:
        return f"node {self.node}" + (f" (key ...{self.key[-16:]})" if self.key else "")


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a node must agree with: the number of clients, the server's software, and the keys bound to clients.

    `bindings` is the folder of files client-N.pub; without it a client is bound to a node for one run."""

    clients: int
    fdgsec: str
    code_sha256: str
    bindings: Path | None = None

    @property
    def names(self) -> Sequence[str]:
        """The clients of the run."""
        return [f"client:{number}" for number in range(self.clients)]

    def bound(self) -> dict[str, str]:
        """The keys that are bound, by client, of this run and others. Raises UsageError for a file without a key."""
        files = sorted(self.bindings.glob("client-*.pub")) if self.bindings else []
        return {path.stem.replace("-", ":", 1): public_key(path) for path in files}

    def bind(self, name: str, key: str) -> None:
        """Bind `name` to `key`. Raises ClientFailedError where another run has just bound it to another key."""
        if self.bindings is None or not key:
            return
        link_once(self._file(name), f"{key}\n")
        if public_key(self._file(name)) != key:
            raise ClientFailedError(f"another run has just bound {name} to another key; start this run again.")

    def _file(self, name: str) -> Path:
        return (self.bindings or Path()) / f"{name.replace(':', '-')}.pub"

    def objection(self, told: Introduction) -> str | None:
        """What of an introduction does not fit this run; None where it fits."""
        if (told.fdgsec, told.code_sha256) != (self.fdgsec, self.code_sha256):
            return (
                f"it runs fdgsec {told.fdgsec} (code {told.code_sha256[:12]}), the server {self.fdgsec} "
                f"({self.code_sha256[:12]}); install the same version everywhere"
            )
        if told.clients != self.clients:
            return f"it says that it is one of {told.clients} clients; this run has {self.clients}"
        if told.name not in self.names:
            return f"it says that it is {told.name}; this run has {self.names[0]} to {self.names[-1]}"
        return None


def assemble(grid: Grid, *, settings: str, terms: Terms, least: int, wait: float) -> Assembly:
    """Ask the nodes that come online within `wait` seconds who they are, until every client is found.

    Raises ClientFailedError where fewer than `least` are admitted."""
    deadline, assembly, asked = time.monotonic() + wait, Assembly(), dict[int, Applicant]()
    while True:
        late, online = time.monotonic() >= deadline, {node.node_id: node for node in grid.get_nodes()}
        new = [info for node, info in online.items() if node not in asked]
        if new and (late or len(new) >= terms.clients - len(assembly.nodes)):
            asked |= {each.node: each for each in _applicants(grid, new, settings=settings, wait=wait)}
            assembly = admitted(list(asked.values()), terms)
        if late or len(assembly.nodes) == terms.clients:
            break
        time.sleep(POLL)
    if len(assembly.nodes) < least:
        reasons = "; ".join(assembly.refused) or "the others did not come online"
        raise ClientFailedError(
            f"{len(assembly.nodes)} of {terms.clients} clients were admitted within {wait:g} s; {reasons}"
        )
    for node, told in assembly.nodes.items():
        terms.bind(told.name, asked[node].key)
    return assembly


def admitted(applicants: Sequence[Applicant], terms: Terms) -> Assembly:
    """Decide about all applicants, those that were registered first before the others."""
    order, bound = sorted(applicants, key=lambda each: (each.registered, each.node)), terms.bound()
    everyone = _decided(order, terms, bound, None).nodes.values()  # one node of each client, so that none counts twice
    usual = Counter(told.classes for told in everyone).most_common(1)  # of equally many, what came first
    return _decided(order, terms, bound, usual[0][0] if usual else None)


def _decided(
    order: Sequence[Applicant], terms: Terms, bound: Mapping[str, str], classes: tuple[str, ...] | None
) -> Assembly:
    """Decide in this order; all admitted nodes have these `classes`, where they are given."""
    nodes, refused = dict[int, Introduction](), list[str]()
    for each in order:
        told = each.told
        if isinstance(told, str):
            refused.append(f"{each} did not introduce itself: {told}")
            continue
        reason = terms.objection(told)
        if reason is None and classes is not None and told.classes != classes:
            reason = f"it has the classes {', '.join(told.classes)}; most clients have {', '.join(classes)}"
        reason = reason or _objection_to_name(told.name, each.key, bound, [known.name for known in nodes.values()])
        if reason is None:
            nodes[each.node] = told
        else:
            refused.append(printable(f"{each} was refused: {reason}"))
    return Assembly(nodes=nodes, refused=refused)


def _objection_to_name(name: str, key: str, bound: Mapping[str, str], taken: Sequence[str]) -> str | None:
    own = [each for each, known in bound.items() if known == key]
    if own and name not in own:
        return f"it says that it is {name}; its key is bound to {own[0]}"
    if bound.get(name, key) != key:
        return f"it says that it is {name}, to which another key is bound"
    return f"it says that it is {name}, as another node does" if name in taken else None


def _applicants(grid: Grid, nodes: Sequence[NodeInfo], *, settings: str, wait: float) -> list[Applicant]:
    content, ttl = packed_whoami(settings), time_to_live(wait)
    messages = [Message(content=content, dst_node_id=each.node_id, message_type=VERB, ttl=ttl) for each in nodes]
    answers, found = exchange(grid, messages, timeout=wait), list[Applicant]()
    for each in nodes:
        told: Introduction | str
        try:
            told = read_introduction(answers.of(each.node_id).content)
        except Exception as error:  # noqa: BLE001 (one node's answer ends no run)
            told = message_line(reason_of(error))
        key = public_key_line(each.public_key)
        found.append(Applicant(node=each.node_id, key=key, registered=each.registered_at, told=told))
    return found
