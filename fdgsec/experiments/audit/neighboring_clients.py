"""Neighboring datasets for audits of messages: releases of one client with and without a canary.

The method's own step computes the message on real images, and the client's defense stack processes it. Only the canary
is inserted: far outside the clipping region in one direction and neutral in all others, so that the audit detects
missing clipping as well as too little noise. The sign of the canary alternates between rounds, so that noise reused in
two rounds cancels in the summed score."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import Artifact, ModelState
from fdgsec.federation.defense import DefenseStack, Sender, Uses
from fdgsec.federation.method import Client, Clock, GlobalModel, Inbox, Method, Reply, State, Step, StepRequest
from fdgsec.privacy.accounting import Relation
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream

CERTAIN = 1e3
"""The logit of a model that is certain of one class: the loss is 0, or for a wrong label above any bound on losses."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Site:
    """The audited client: a few real images, the received model, the defense stack and the rounds."""

    method: Method
    client: Client
    model: GlobalModel | None
    defense_stack: DefenseStack
    clocks: Sequence[Clock]
    seed: int

    def sender(self, clock: Clock, state: State) -> Sender:
        """The client, as input of its defenses."""
        request = StepRequest(clock=clock, model=self.model, inbox={})
        return self.defense_stack.sender(self.client, self.method, request, state, None)


@dataclass(frozen=True, kw_only=True, eq=False)
class Release:
    """An artifact that a client step has computed, before its defenses."""

    step: Step
    slot: str
    artifact: Artifact
    sender: Sender

    def sent(self, defense_stack: DefenseStack) -> tuple[Artifact, Uses]:
        """Apply the defense stack; return the sent artifact and its privacy cost."""
        reply = defense_stack.sent(self.step, Reply(artifacts={self.slot: self.artifact}), self.sender)
        return reply.artifacts[self.slot], reply.uses[self.slot]


@dataclass(frozen=True, kw_only=True, eq=False)
class Canary:
    """A canary: `plant` inserts it with sign 1 or -1, or its null (0); `without` removes its record.

    `score` is the evidence for sign 1 in a sent artifact; `words` describe the canary."""

    words: str
    plant: Callable[[Release, int], Release]
    score: Callable[[Artifact], float]
    without: Callable[[Release], Release] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Worlds:
    """The releases of all rounds without and with the canary."""

    absent: Sequence[Release]
    present: Sequence[Release]
    score: Callable[[Artifact], float]

    def scores(self, defense_stack: DefenseStack, *, present: bool, runs: int, name: str) -> list[float]:
        """Send the releases `runs` times with fresh noise; each run's score is the summed evidence for the canary."""
        releases, world = (self.present, "present") if present else (self.absent, "absent")
        found = []
        for run in range(runs):
            fresh = replace(defense_stack, name=f"{defense_stack.name}/{name}/{world}/{run}")
            found.append(sum(side * self.score(one.sent(fresh)[0]) for side, one in _sided(releases)))
        return found


def worlds_of(canary: Canary, releases: Sequence[Release], relation: Relation) -> Worlds:
    """Pair the `releases` of all rounds with the canary with their neighbors under `relation` without it."""
    present = [canary.plant(one, side) for side, one in _sided(releases)]
    if relation == "add-remove":
        if canary.without is None:
            raise UsageError("an audit under add-remove needs a release whose number of records is private.")
        absent = [canary.without(one) for one in releases]
    else:
        opposite = -1 if relation == "replace-one" else 0
        absent = [canary.plant(one, opposite * side) for side, one in _sided(releases)]
    return Worlds(absent=absent, present=present, score=canary.score)


def _sided(releases: Sequence[Release]) -> list[tuple[int, Release]]:
    return [((-1) ** number, one) for number, one in enumerate(releases)]


def releases_of(site: Site) -> list[list[Release]]:
    """The client's releases of all rounds, one list per slot: styles, models, scores."""
    made = [_shared(site), _updated(site), _reviewed(site)]
    return [releases for by_slot in made for releases in by_slot.values()]


def _shared(site: Site) -> dict[str, list[Release]]:
    if site.method.shares == "never":
        return {}
    found: dict[str, list[Release]] = {}
    state: State = {}
    for clock in site.clocks if site.method.shares == "every" else site.clocks[:1]:
        rng = stream(site.seed, "world", "share", clock.round, site.client.name)
        sent, state = site.method.share(site.client, model=site.model, state=state, clock=clock, rng=rng)
        for slot, artifact in sent.items():
            release = Release(step="share", slot=slot, artifact=artifact, sender=site.sender(clock, state))
            found.setdefault(slot, []).append(release)
    return found


def _updated(site: Site) -> dict[str, list[Release]]:
    """Model updates of a client that returns the received model."""
    if site.model is None:
        return {}
    sent = [
        Release(step="fit", slot="model", artifact=site.model.state, sender=site.sender(clock, {}))
        for clock in site.clocks
        if clock.rounds
    ]
    return {"model": sent} if sent else {}


def _reviewed(site: Site) -> dict[str, list[Release]]:
    if site.model is None or site.method.reviews == "none" or site.client.validation is None:
        return {}
    scores = [judged(site, site.client.validation, clock) for clock in site.clocks]
    return {"scores": scores}


def judged(site: Site, validation: DomainDataset, clock: Clock) -> Release:
    """The scores of peers whose models are certain of the class of the first validation image."""
    assert site.model is not None
    state = dict(site.model.state.state)
    state["head.weight"] = torch.zeros_like(state["head.weight"])
    state["head.bias"] = torch.zeros_like(state["head.bias"])
    assert site.client.validation is not None
    state["head.bias"][int(site.client.validation.labels[0])] = CERTAIN
    inbox: Inbox = {name: ModelState(state=state) for name in clock.participants if name != site.client.name}
    client = replace(site.client, validation=validation)
    rng = stream(site.seed, "world", "review", clock.round, client.name)
    scores = site.method.review(client, model=site.model, inbox=inbox, state={}, rng=rng)
    return Release(step="review", slot="scores", artifact=scores, sender=replace(site.sender(clock, {}), client=client))
