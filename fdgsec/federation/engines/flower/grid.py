"""The server side on Flower: requests of the round loop become messages to nodes, and answers become replies.

One request to all clients is one message stage, and everything that is broadcast is sent with the next request. So a
round has as many stages as steps: share and fit, or fit and review, or all three. Flower's own aggregation and sampling
are not used, because they accept whatever arrives."""

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.serverapp import Grid

from fdgsec.federation.engines.flower.codec import (
    WireFormatError,
    packed_request,
    read_reply,
)
from fdgsec.federation.engines.state import StateMark
from fdgsec.federation.method import Reply, Step, StepRequest
from fdgsec.runtime.errors import FdgsecError, message_line

VERB = "query.fdgsec"
"""The one kind of message that nodes answer."""
POLL = 0.5
SHORTEST_WAIT, LONGEST_WAIT = 0.1, 3.0
"""Seconds between two looks for answers."""
UNKNOWN = StateMark(version=0, sha256="")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One request to some clients: how many were asked and answered, and the longest time in seconds.

    It also has the state version of each client, as far as the server knows."""

    round: int
    step: str
    asked: int
    answered: int
    seconds: float
    states: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class GridEngine:
    """Runs steps on Flower nodes; `nodes` maps clients to nodes.

    A client without a valid answer within `timeout` seconds has failed. A model that a client already received in this
    round is not sent again."""

    grid: Grid
    nodes: Mapping[str, int]
    settings: str
    timeout: float
    on_stage: Callable[[Stage], None] = lambda _: None
    marks: dict[str, StateMark] = field(default_factory=dict)
    sent: dict[str, tuple[int, str]] = field(default_factory=dict)

    def clients(self) -> Sequence[str]:
        """List the clients whose nodes introduced themselves, by number."""
        return sorted(self.nodes, key=lambda name: int(name.partition(":")[2]))

    def ask(self, step: Step, requests: Mapping[str, StepRequest]) -> tuple[Mapping[str, Reply], Mapping[str, str]]:
        """Run `step` on each named client; replies come in the order of the clients' numbers."""
        started = time.monotonic()
        messages, models = [], dict[int, tuple[bytes, str]]()
        names = [name for name in self.clients() if name in requests]
        for name in names:
            messages.append(self._message(step, name, requests[name], models))
        models.clear()
        answers = exchange(self.grid, messages, timeout=self.timeout)
        replies, failures = dict[str, Reply](), dict[str, str]()
        for name in names:
            try:
                replies[name], self.marks[name] = read_reply(answers.of(self.nodes[name]).content)
            except Exception as error:  # noqa: BLE001 (whatever a reply makes its reader raise is the failure of its client alone)
                failures[name] = message_line(reason_of(error))
                self.sent.pop(name, None)  # it is unknown whether the client has the model
        if requests:
            number, seconds = next(iter(requests.values())).clock.round, time.monotonic() - started
            held = {name: self.marks.get(name, UNKNOWN).version for name in names}
            stage = Stage(
                round=number, step=step, asked=len(names), answered=len(replies), seconds=seconds, states=held
            )
            self.on_stage(stage)
        return replies, failures

    def _message(self, step: Step, name: str, request: StepRequest, models: dict[int, tuple[bytes, str]]) -> Message:
        model, held = None, ""
        if request.model is not None:
            state = request.model.state
            if id(state) not in models:  # the requests hold every state, so that no other gets its id
                encoded = state.encode()
                models[id(state)] = (encoded, hashlib.sha256(encoded).hexdigest())
            encoded, held = models[id(state)]
            if self.sent.get(name) != (request.clock.round, held):
                model = encoded
            self.sent[name] = (request.clock.round, held)
        content = packed_request(
            step, request, settings=self.settings, known=self.marks.get(name, UNKNOWN), model=model, held=held
        )
        return Message(content=content, dst_node_id=self.nodes[name], message_type=VERB, ttl=time_to_live(self.timeout))


def reason_of(error: Exception) -> str:
    """Describe an error about one node: the text of fdgsec's own, of others also their type."""
    return str(error) if isinstance(error, FdgsecError) else f"{type(error).__name__}: {error}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Answers:
    """What nodes answered within `timeout` seconds, a reply or Flower's own error message, and to whom no message could
    be sent."""

    found: Mapping[int, Message]
    unsent: frozenset[int]
    timeout: float

    def of(self, node: int) -> Message:
        """Give a node's answer that has content. Raises WireFormatError for none, and for an error of Flower's."""
        answer = self.found.get(node)
        if node in self.unsent:
            raise WireFormatError("nothing could be sent to it: Flower refused the message, or it is too large")
        if answer is None:
            raise WireFormatError(f"no answer within {self.timeout:g} s")
        if answer.has_error():
            reason = " ".join(str(answer.error.reason).split())
            raise WireFormatError(f"{reason} (Flower's error {answer.error.code})")
        return answer


def exchange(grid: Grid, messages: Sequence[Message], *, timeout: float) -> Answers:
    """Send messages, one a node at most, and give the answers that came within `timeout` seconds after all were sent.

    Flower's `send_and_receive` looks for answers every 3 seconds. This looks after times that grow with what it has
    waited, so that short steps wait little and long ones ask little."""
    nodes = [message.metadata.dst_node_id for message in messages]
    pushed = dict(zip(grid.push_messages(list(messages)), nodes, strict=False))  # none at all where they are too large
    waiting = {number: node for number, node in pushed.items() if number}  # no number for what could not be pushed
    unsent = frozenset(nodes) - frozenset(waiting.values())
    begun, found = time.monotonic(), dict[int, Message]()
    while waiting:
        for reply in grid.pull_messages(set(waiting)):
            asked = reply.metadata.reply_to_message_id
            # an error of Flower's comes from no node; an answer only from the node that was asked
            if asked in waiting and (reply.has_error() or reply.metadata.src_node_id == waiting[asked]):
                found[waiting.pop(asked)] = reply
        waited = time.monotonic() - begun
        if waited >= timeout:
            break
        if waiting:
            time.sleep(min(max(SHORTEST_WAIT, waited / 10), LONGEST_WAIT, timeout - waited))
    return Answers(found=found, unsent=unsent, timeout=timeout)


def time_to_live(timeout: float) -> float:
    """Give the time to live of a message at Flower: the timeout once for sending all messages and once for answers, and
    some seconds for clocks that differ."""
    return 2 * math.ceil(timeout) + 60.0
