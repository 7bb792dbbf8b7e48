"""Flower without its processes: a grid whose nodes answer at once, in this process, through the real messages."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from flwr.app import Context, Message, RecordDict
from flwr.app.error import Error
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fdgsec.experiments.flower.apps import member_of
from fdgsec.federation.engines.flower.handler import answer

Fault = Callable[[Message, int], Message | None]
"""What becomes of an answer on its way from a node: another one, or nothing."""


@dataclass(eq=False)
class PaperGrid:
    """Nodes 101, 102, ... in an order that is not theirs; each message is packed, unpacked and answered by the client app."""

    folder: Path
    nodes: list[int]
    data_root: str = ""
    node_config: dict[str, str | bool] = field(default_factory=dict)
    fault: Fault | None = None
    messages: list[Message] = field(default_factory=list)
    bytes_sent: list[int] = field(default_factory=list)
    contexts: dict[int, Context] = field(default_factory=dict)
    keys: dict[int, bytes] = field(default_factory=dict)
    replies: list[Message] = field(default_factory=list)

    @classmethod
    def of(cls, folder: Path, clients: int, **given: object) -> "PaperGrid":
        """`clients` nodes, online in reverse."""
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 1
        grid = cls(folder=folder, nodes=[101 + index for index in reversed(range(clients))], **given)  # type: ignore[arg-type]
        for node in grid.nodes:
            config = {
                "partition-id": node - 101,
                "num-partitions": clients,
                "state": str(folder / str(node)),
                "secret": "run",
                **grid.node_config,
            }
            grid.contexts[node] = Context(7, node, config, RecordDict(), {})  # type: ignore[arg-type]
        return grid

    @property
    def grid(self) -> Grid:
        """The part of Flower's grid that the engine uses."""
        return cast(Grid, self)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node, public_key=self.keys.get(node, b"")) for node in self.nodes]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Have the nodes answer at once; `pull_messages` gives what they said."""
        asked = []
        for message in messages:
            asked.append(named(message, str(len(self.messages))))
            self.messages.append(message)
            node = message.metadata.dst_node_id
            self.bytes_sent.append(
                sum(len(array.data) for array in message.content.array_records["artifacts"].values())
            )
            reply: Message | None = answer(message, self.contexts[node], member_of)
            if self.fault is not None and reply is not None:
                reply = self.fault(reply, node)
            if reply is not None:
                self.replies.append(reply)
        return asked

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """What the nodes said, the last one first, each answer once."""
        wanted = set(message_ids)
        found = [reply for reply in self.replies if reply.metadata.reply_to_message_id in wanted]
        self.replies = [reply for reply in self.replies if reply not in found]
        return list(reversed(found))


def named(message: Message, name: str) -> str:
    """Give a message its identifier, as Flower's grid does where it is sent, and return it."""
    message.metadata.__dict__["_message_id"] = name
    return name


def error_reply(reply: Message, code: int, reason: str) -> Message:
    """Flower's own word for a node that did not answer, in place of its `reply`."""
    error = Message(Error(code=code, reason=reason), reply_to=reply)
    for name in ("_src_node_id", "_reply_to_message_id"):
        error.metadata.__dict__[name] = reply.metadata.__dict__[name]
    return error
