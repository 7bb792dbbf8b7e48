"""Hostile clients: what one sends in place of what it would have sent.

An intruder acts where an answer leaves its client, behind the client's own defenses, which therefore do not bind it, and
before policies, guards and transcript, which see what it forged like any other message. It knows what its client knows:
what the server asked in this step (the model and the inbox), and what would have been sent."""

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch

from fdgsec.federation.artifacts import Artifact
from fdgsec.federation.method import NUMBERS, Reply, Step, StepRequest


class ForgeryError(Exception):
    """A forgery could not be made: a fault of the intruder, and no harm that it did."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Leaving:
    """One artifact about to leave `sender` in answer to `step`, under a slot's name ("numbers": an update's weight and metrics).

    `metrics` names the values behind the weight, where the slot is "numbers"."""

    step: Step
    slot: str
    artifact: Artifact
    sender: str
    metrics: tuple[str, ...] = ()


class MaliciousClient(Protocol):
    """One way to forge: a frozen dataclass of options, equal ones forging alike."""

    @property
    def name(self) -> str:
        """What the report calls it ("x100")."""
        ...

    @property
    def kind(self) -> str:
        """The kind of artifact that it forges, as the report names it."""
        ...

    @property
    def once(self) -> bool:
        """Whether one run is enough, where that run is refused or nothing comes of the forgery."""
        ...

    def forge(self, leaving: Leaving, seen: StepRequest, rng: torch.Generator) -> Artifact | None:
        """Give what leaves instead, `leaving.artifact` itself where that is not forged, None where nothing is sent.

        `seen` is what the server asked: the model that the client received, and its inbox."""
        ...


@runtime_checkable
class Forges(Protocol):
    """An attack that sends something: its adversary must be a client of the federation."""

    def malicious_clients(self, kinds: frozenset[str]) -> tuple[MaliciousClient, ...]:
        """The forgeries for a target whose clients send artifacts of these kinds."""
        ...


def forged(
    malicious_client: MaliciousClient, step: Step, seen: StepRequest, reply: Reply, *, sender: str, rng: torch.Generator
) -> Reply:
    """Let an intruder have its way with everything in a reply, its weight and metrics included.

    Numbers cannot be left out: where it drops them they stay as they were. Raises ForgeryError where it fails."""
    artifacts = dict[str, Artifact]()
    for slot, artifact in reply.artifacts.items():
        leaving = Leaving(step=step, slot=slot, artifact=artifact, sender=sender)
        instead = _instead(malicious_client, leaving, seen, rng)
        if instead is not None:
            artifacts[slot] = instead
    weight, told = reply.weight, reply.metrics
    if step == "fit":
        numbers, names = reply.numbers(), tuple(sorted(reply.metrics))
        leaving = Leaving(step=step, slot=NUMBERS, artifact=numbers, sender=sender, metrics=names)
        instead = _instead(malicious_client, leaving, seen, rng)
        if instead is not None and instead is not numbers:
            weight, told = reply.told(instead)
    return replace(reply, artifacts=artifacts, weight=weight, metrics=told)


def _instead(
    malicious_client: MaliciousClient, leaving: Leaving, seen: StepRequest, rng: torch.Generator
) -> Artifact | None:
    try:
        return malicious_client.forge(leaving, seen, rng)
    except Exception as error:
        what = f"{malicious_client.name} of {leaving.artifact.kind} in {leaving.slot!r}"
        raise ForgeryError(f"{what} could not be forged: {type(error).__name__}: {error}") from error
