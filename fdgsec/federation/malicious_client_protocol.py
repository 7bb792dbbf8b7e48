"""Malicious clients: the interface by which one replaces what it sends.

A malicious client replaces its replies after its own defenses, which therefore do not limit it, and before policies,
guards and transcript, which process them like any other message. It knows what its client knows: the server's request
in this step (the model and the inbox), the true reply, and what the step gives on parts of its own images. The
omniscient adversary of the literature also knows the honest replies of all others (`Peers`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch

from fdgsec.federation.artifacts import Artifact
from fdgsec.federation.method import NUMBERS, Reply, Step, StepRequest


class ForgeryError(Exception):
    """A forgery could not be made: an error of the malicious client, not an effect of the attack."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Peers:
    """What a malicious client can compare its reply with, in one step.

    `honest` are the replies of the honest clients in this step, which only the omniscient adversary knows. `rehearse`
    runs the step again on parts of the client's own images, without its defenses. `malicious` is the number of
    malicious clients in this step."""

    honest: Sequence[Reply]
    rehearse: Callable[[], Sequence[Reply]]
    malicious: int = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Leaving:
    """One artifact that `sender` is about to send in reply to `step`, under a slot's name.

    In slot "numbers" it is an update's weight and metrics; `metrics` then names the values after the weight. `peers`
    is None where the engine runs every client by itself."""

    step: Step
    slot: str
    artifact: Artifact
    sender: str
    metrics: tuple[str, ...] = ()
    peers: Peers | None = None


class MaliciousClient(Protocol):
    """One way to forge: a frozen dataclass of options; equal ones forge alike."""

    @property
    def name(self) -> str:
        """Name in the report ("x100")."""
        ...

    @property
    def kind(self) -> str:
        """Kind of artifact that it forges, as in the report."""
        ...

    @property
    def once(self) -> bool:
        """Tell whether one run is enough, where that run is refused or the forgery has no effect."""
        ...

    def forge(self, leaving: Leaving, seen: StepRequest, rng: torch.Generator, /) -> Artifact | None:
        """Give the replacement, `leaving.artifact` itself to leave it unchanged, or None to send nothing.

        `seen` is the server's request: the model that the client received, and its inbox."""
        ...


@runtime_checkable
class Forges(Protocol):
    """An active attack: its adversary must be a client of the federation."""

    def malicious_clients(self, kinds: frozenset[str]) -> tuple[MaliciousClient, ...]:
        """Give the forgeries for a target whose clients send artifacts of these kinds."""
        ...


def forge_reply(
    malicious_client: MaliciousClient,
    step: Step,
    seen: StepRequest,
    reply: Reply,
    *,
    sender: str,
    rng: torch.Generator,
    peers: Peers | None = None,
) -> Reply:
    """Replace every part of a reply by the forgery of a malicious client, including weight and metrics.

    Numbers cannot be left out: where the forgery is None they stay unchanged. Raises ForgeryError where it fails."""
    artifacts = dict[str, Artifact]()
    for slot, artifact in reply.artifacts.items():
        leaving = Leaving(step=step, slot=slot, artifact=artifact, sender=sender, peers=peers)
        instead = _instead(malicious_client, leaving, seen, rng)
        if instead is not None:
            artifacts[slot] = instead
    weight, told = reply.weight, reply.metrics
    if step == "fit":
        numbers, names = reply.numbers(), tuple(sorted(reply.metrics))
        leaving = Leaving(step=step, slot=NUMBERS, artifact=numbers, sender=sender, metrics=names)
        instead = _instead(malicious_client, leaving, seen, rng)
        if instead is not None and instead is not numbers:
            weight, told = reply.read_numbers(instead)
    return replace(reply, artifacts=artifacts, weight=weight, metrics=told)


def _instead(
    malicious_client: MaliciousClient, leaving: Leaving, seen: StepRequest, rng: torch.Generator
) -> Artifact | None:
    try:
        return malicious_client.forge(leaving, seen, rng)
    except Exception as error:
        what = f"{malicious_client.name} of {leaving.artifact.kind} in {leaving.slot!r}"
        raise ForgeryError(f"{what} could not be forged: {type(error).__name__}: {error}") from error
