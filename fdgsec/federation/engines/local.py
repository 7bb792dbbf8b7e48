"""The reference engine: every client in this process, one after the other."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fdgsec.federation.artifacts import Artifact, ModelState, decode
from fdgsec.federation.client_step import run_client_step
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.engines.state import MemoryStates, StateStore
from fdgsec.federation.engines.unchanged_requests import own_state, unchanged
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Inbox, Method, Reply, Step, StepRequest
from fdgsec.runtime.errors import message_line


def _recoded(inbox: Inbox) -> Inbox:
    return {name: _through_bytes(artifact) for name, artifact in inbox.items()}


def _through_bytes(artifact: Artifact) -> Artifact:
    return decode(artifact.encode())


def _recoded_model(model: GlobalModel | None) -> GlobalModel | None:
    if model is None:
        return None
    return GlobalModel(blueprint=model.blueprint, state=ModelState(state=_through_bytes(model.state).tensors()))


@dataclass(frozen=True, kw_only=True)
class LocalEngine:
    """Runs clients in order, each behind its defense stack.

    With `recode` every artifact is encoded and decoded, as on a network. A client's error ends the run with its own
    exception, so that the cause is visible; with `tolerant` it is a failure of that client, as on another machine. A
    failed step leaves the client's state unchanged."""

    members: Sequence[Client]
    method: Method
    seed: int
    states: StateStore = field(default_factory=MemoryStates)
    recode: bool = False
    defense_stack: DefenseStack = field(default_factory=DefenseStack)
    tolerant: bool = False

    def clients(self) -> Sequence[str]:
        """List the names of all members."""
        return [client.name for client in self.members]

    def ask(self, step: Step, requests: Mapping[str, StepRequest]) -> tuple[Mapping[str, Reply], Mapping[str, str]]:
        """Run `step` on each named client, in the members' order."""
        replies, failures = dict[str, Reply](), dict[str, str]()
        for name, answer in self.answers(step, requests):
            if isinstance(answer, Reply):
                replies[name] = answer
            else:
                failures[name] = answer
        return replies, failures

    def answers(self, step: Step, requests: Mapping[str, StepRequest]) -> Iterator[tuple[str, Reply | str]]:
        """Run `step` on one client after the other; a reply is given away before the next one begins.

        Raises ReceivedChangedError where one has changed what others receive: after the last, or one that failed."""
        with unchanged(step, requests):
            for client in self.members:
                if client.name in requests:
                    yield client.name, self._answer(client, step, requests[client.name])

    def _answer(self, client: Client, step: Step, request: StepRequest) -> Reply | str:
        try:
            return self._done(client, step, request)
        except Exception as error:
            if not self.tolerant:
                raise
            return message_line(f"{type(error).__name__}: {error}")

    def _done(self, client: Client, step: Step, request: StepRequest) -> Reply:
        if self.recode:
            model = _recoded_model(request.model)
            request = StepRequest(clock=request.clock, model=model, inbox=_recoded(request.inbox))
        before = self.states.read(client.name)
        reply, state = run_client_step(self.method, client, step, request, before, self.seed, self.defense_stack)
        if self.recode:
            reply = replace(reply, artifacts=_recoded(reply.artifacts))
        if not state or state is not before:  # stylized images need not be stored again in every round
            self.states.write(client.name, own_state(state, request))
        return reply
