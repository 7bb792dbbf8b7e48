"""Neighboring datasets for audits of messages: releases of one client with and without a canary.

The method's own step computes the message on real images, and the client's defense stack processes it. Only the canary
is inserted: far outside the clipping region in one direction and neutral in all others, so that the audit detects
missing clipping as well as too little noise. The sign of the canary, or its world, alternates between rounds, so that
noise reused in two rounds cancels in the summed score.

Beside the canary's projection each run has two further scores, for faults that leave it alone: the number of values
that come back exactly in one of the two worlds only (numbers that are sent without noise), and the size of the noise
(a divisor that depends on the records)."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import Artifact, ModelState
from fdgsec.federation.defense import Sender, Uses
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, Method, Reply, State, Step, StepRequest
from fdgsec.privacy.accounting import Relation
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream

T = TypeVar("T")
LATE = 100
"""Rounds of a run in whose last one updates and trainings are compared too: noise that shrinks from round to round is
seen."""
PILOT_RUNS = 16
LEAST = -1e3
"""The log size of no noise at all."""
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


def late(clock: Clock) -> Clock:
    """The last of LATE rounds with the same participants."""
    return replace(clock, round=LATE - 1, rounds=LATE)


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

    `score` is the evidence for sign 1 in a sent artifact, and so is each of those `beside` it, which are evaluated
    where they have much more; `words` describe the canary. One that is `upward` has no sign -1, because values that
    cannot be negative would be cut at 0."""

    words: str
    plant: Callable[[Release, int], Release]
    score: Callable[[Artifact], float]
    beside: Sequence[Callable[[Artifact], float]] = ()
    without: Callable[[Release], Release] | None = None
    upward: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Worlds:
    """The releases of all rounds without and with the canary."""

    absent: Sequence[Release]
    present: Sequence[Release]
    score: Callable[[Artifact], float]
    beside: Sequence[Callable[[Artifact], float]] = ()

    def scores(self, defense_stack: DefenseStack, *, present: bool, runs: int, name: str) -> list[float]:
        """Send the releases `runs` times with fresh noise; each run's score is the summed evidence for the canary."""
        return [_summed(self.score, sent) for sent in self._runs(defense_stack, present=present, runs=runs, name=name)]

    def every_score(
        self, defense_stack: DefenseStack, pilots: "Sequence[Pilot]", *, present: bool, runs: int, name: str
    ) -> Tensor:
        """As `scores`, with those `beside` it and those of `pilots` (one for each release): (runs, 3 or more)."""
        rows = []
        for sent in self._runs(defense_stack, present=present, runs=runs, name=name):
            learned = [pilot.scores(numbers(one)) for pilot, one in zip(pilots, sent, strict=True)]
            known = [_summed(score, sent) for score in (self.score, *self.beside)]
            rows.append([*known, *map(sum, zip(*learned, strict=True))])
        return torch.tensor(rows, dtype=torch.float64)

    def pilots(self, defense_stack: DefenseStack, *, name: str) -> "list[Pilot]":
        """Learn from `PILOT_RUNS` runs in each world what its releases have in common; one pilot for each release."""
        worlds = [
            [list(map(numbers, sent)) for sent in self._runs(defense_stack, present=side, runs=PILOT_RUNS, name=name)]
            for side in (False, True)
        ]
        absent, present = ([torch.stack(list(one)) for one in zip(*world, strict=True)] for world in worlds)
        return [Pilot.of(one, other) for one, other in zip(absent, present, strict=True)]

    def _runs(self, defense_stack: DefenseStack, *, present: bool, runs: int, name: str) -> Iterator[list[Artifact]]:
        releases, world = (self.present, "present") if present else (self.absent, "absent")
        for run in range(runs):
            fresh = replace(defense_stack, name=f"{defense_stack.name}/{name}/{world}/{run}")
            yield [one.sent(fresh)[0] for one in releases]


@dataclass(frozen=True, kw_only=True, eq=False)
class Pilot:
    """What releases of one slot and round have in common, number by number: mean and sd over both worlds, and the value
    that came back exactly in each world (NaN: none did)."""

    mean: Tensor
    sd: Tensor
    absent: Tensor
    present: Tensor

    @classmethod
    def of(cls, absent: Tensor, present: Tensor) -> "Pilot":
        """Of releases (runs, D) in each world."""
        every = torch.cat([absent, present])
        return cls(mean=every.mean(0), sd=every.std(0), absent=_recurring(absent), present=_recurring(present))

    def scores(self, release: Tensor) -> tuple[float, float]:
        """Count the recurring values of the world with the canary less those without it, and measure the noise."""
        differ = self.absent != self.present
        exact = ((release == self.present) & differ).sum() - ((release == self.absent) & differ).sum()
        noisy = self.sd > 0
        size = ((release - self.mean)[noisy] / self.sd[noisy]).square().sum()
        return float(exact), math.log(float(size)) if size > 0 else LEAST


def _recurring(releases: Tensor) -> Tensor:
    """The most frequent value of each number, (D,); NaN where no two runs agree."""
    value = releases.mode(0).values
    return torch.where((releases == value).sum(0) > 1, value, torch.nan)


def numbers(artifact: Artifact) -> Tensor:
    """All floating-point numbers of an artifact, (D,) float64."""
    parts = [value.double().flatten() for value in artifact.tensors().values() if value.is_floating_point()]
    return torch.cat(parts)


def worlds_of(canary: Canary, releases: Sequence[Release], relation: Relation) -> Worlds:
    """Pair the `releases` of all rounds with the canary with their neighbors under `relation` without it.

    From round to round an upward canary changes its world, and any other one its sign. Raises UsageError under
    add-remove for a release whose number of records is public."""
    pairs = [_neighbors(canary, one, side, relation) for side, one in _sided(releases)]
    absent, present = zip(*pairs, strict=True)
    return Worlds(absent=absent, present=present, score=canary.score, beside=canary.beside)


def _summed(score: Callable[[Artifact], float], sent: Sequence[Artifact]) -> float:
    """The evidence of all rounds, whose sides alternate."""
    return sum(side * score(one) for side, one in _sided(sent))


def _neighbors(canary: Canary, release: Release, side: int, relation: Relation) -> tuple[Release, Release]:
    """A release in the world without the canary and in that with it, of which the latter scores higher x `side`."""
    present = canary.plant(release, 1 if canary.upward else side)
    if relation == "add-remove":
        if canary.without is None:
            raise UsageError("an audit under add-remove needs a release whose number of records is private.")
        absent = canary.without(release)
    else:
        absent = canary.plant(release, -side if relation == "replace-one" and not canary.upward else 0)
    return (present, absent) if canary.upward and side < 0 else (absent, present)


def _sided(releases: Sequence[T]) -> list[tuple[int, T]]:
    return [((-1) ** number, one) for number, one in enumerate(releases)]


def releases_of(site: Site) -> list[list[Release]]:
    """The client's releases of all rounds, one list per slot: styles, models, scores."""
    made = [shared_releases(site), _updated(site), _reviewed(site)]
    return [releases for by_slot in made for releases in by_slot.values()]


def shared_releases(site: Site) -> dict[str, list[Release]]:
    """What the client shares in all rounds, one list per slot."""
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
