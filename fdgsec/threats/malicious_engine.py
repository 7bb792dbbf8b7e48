"""A local federation in which malicious clients forge after all clients have answered.

A step leaves the same messages and states as malicious clients inside fdgsec.federation.client_step do. Here a
malicious client may also compare its reply with others: with the honest replies of the same step (the omniscient
adversary), or with its own replies on parts of its images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from fdgsec.federation.client_step import run_client_step
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.malicious_client_protocol import MaliciousClient, Peers, forge_reply
from fdgsec.federation.method import Client, Reply, State, Step, StepRequest
from fdgsec.runtime.random_streams import child, integer_seed, stream

REHEARSALS = 4
"""Replies on parts of the client's own images."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MaliciousEngine:
    """Runs every client of `engine` honestly, then lets `malicious_clients`, by name, replace their replies."""

    engine: LocalEngine
    malicious_clients: Mapping[str, MaliciousClient]

    def clients(self) -> Sequence[str]:
        """List the names of all members."""
        return self.engine.clients()

    def ask(self, step: Step, requests: Mapping[str, StepRequest]) -> tuple[Mapping[str, Reply], Mapping[str, str]]:
        """Run `step` on each named client, and forge the replies of malicious ones."""
        forgers = [name for name in requests if name in self.malicious_clients]
        before = {name: self.engine.states.read(name) for name in forgers}
        replies, failures = self.engine.ask(step, requests)
        honest = [reply for name, reply in replies.items() if name not in self.malicious_clients]
        sent = dict(replies)
        for name in forgers:
            if name not in replies:
                continue
            request = requests[name]
            rng = stream(self.engine.seed, "attack", "forgery", step, request.clock.round, name)
            sent[name] = forge_reply(
                self.malicious_clients[name], step, request, replies[name], sender=name, rng=rng,
                peers=self._peers(name, step, request, before[name], honest, forgers=len(forgers), rng=rng),
            )  # fmt: skip
        return sent, failures

    def _peers(
        self,
        name: str,
        step: Step,
        request: StepRequest,
        state: State,
        honest: Sequence[Reply],
        *,
        forgers: int,
        rng: torch.Generator,
    ) -> Peers:
        client = next(client for client in self.engine.members if client.name == name)

        def rehearse() -> Sequence[Reply]:
            return [
                self._rehearsed(client, step, request, state, child(rng, "rehearsal", number))
                for number in range(REHEARSALS)
            ]

        return Peers(honest=honest, rehearse=rehearse, malicious=forgers)

    def _rehearsed(self, client: Client, step: Step, request: StepRequest, state: State, rng: torch.Generator) -> Reply:
        """The undefended reply on a random half of the client's images, with other randomness.

        A client whose state may belong to its images keeps all of them."""
        count = len(client.data)
        if not state and count > 1:
            half = torch.randperm(count, generator=rng)[: -(-count // 2)].sort().values
            client = replace(client, data=client.data.subset(half))
        return run_client_step(self.engine.method, client, step, request, state, integer_seed(rng))[0]
