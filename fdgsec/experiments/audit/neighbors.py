"""Two neighboring clients of which an audit has many messages made: one holds a canary, the other something in its
place.

The message is made as a client makes it (the method's own step on real images) and leaves through each client's defense
stack. Only the canary is planted: far outside the clip along one direction, neutral in all others, so that a clip which
is missing shows as well as noise that is too small. From round to round it changes sides: noise that is drawn once and
used twice cancels out of what an observer adds up."""

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
"""The logit of a model that is sure of one class: a right label costs nothing, a wrong one more than any bound on
losses."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Site:
    """One client under audit: a few real images, the model it received, its defense stack, and the rounds that it takes
    part in."""

    method: Method
    client: Client
    model: GlobalModel | None
    defense_stack: DefenseStack
    clocks: Sequence[Clock]
    seed: int

    def sender(self, clock: Clock, state: State) -> Sender:
        """The client as its defenses see it."""
        request = StepRequest(clock=clock, model=self.model, inbox={})
        return self.defense_stack.sender(self.client, self.method, request, state, None)


@dataclass(frozen=True, kw_only=True, eq=False)
class Release:
    """An artifact that a step has made and that is about to leave."""

    step: Step
    slot: str
    artifact: Artifact
    sender: Sender

    def sent(self, defense_stack: DefenseStack) -> tuple[Artifact, Uses]:
        """Let it pass the defense stack; give what leaves, and what that cost."""
        reply = defense_stack.sent(self.step, Reply(artifacts={self.slot: self.artifact}), self.sender)
        return reply.artifacts[self.slot], reply.uses[self.slot]


@dataclass(frozen=True, kw_only=True, eq=False)
class Canary:
    """What is planted: `plant` puts it on a side (1, -1) or its null (0) in; `without` leaves its record out.

    `score` reads from what left how much speaks for side 1; `words` say what was planted."""

    words: str
    plant: Callable[[Release, int], Release]
    score: Callable[[Artifact], float]
    without: Callable[[Release], Release] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Worlds:
    """The messages of all rounds without and with the canary."""

    absent: Sequence[Release]
    present: Sequence[Release]
    score: Callable[[Artifact], float]

    def scores(self, defense_stack: DefenseStack, *, present: bool, runs: int, name: str) -> list[float]:
        """Make the messages `runs` times, each with noise of its own, and add up what speaks for the canary."""
        releases, world = (self.present, "present") if present else (self.absent, "absent")
        found = []
        for run in range(runs):
            worn = replace(defense_stack, name=f"{defense_stack.name}/{name}/{world}/{run}")
            found.append(sum(side * self.score(one.sent(worn)[0]) for side, one in _sided(releases)))
        return found


def worlds_of(canary: Canary, releases: Sequence[Release], relation: Relation) -> Worlds:
    """Put the canary into all rounds' `releases`, and what neighbors it under `relation` into the others."""
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
    """Make, slot by slot, what the client would send in all rounds: styles, models, scores."""
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
    """A client that has learned nothing sends back what it received."""
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
    """Let the client judge peers whose models are sure of the class of its first validation image."""
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
