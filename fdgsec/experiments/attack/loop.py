"""One attack after the other before one adversary's bench: asked, run, judged, controlled; or the reason why not."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from fdgsec.experiments.config import RunConfig, build, load_preset
from fdgsec.experiments.lab.scene import Scene
from fdgsec.experiments.lab.simulator import Cases
from fdgsec.experiments.report.figures import figures_of
from fdgsec.experiments.report.schema import AttackResult
from fdgsec.federation.malicious_client import Forges
from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.errors import FdgsecError, UnseenError, UsageError
from fdgsec.runtime.progress import Progressive
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.registry import names, resolve
from fdgsec.threats.adversary import Adversary, Knowledge
from fdgsec.threats.attack import Case, Guess, Incomplete, Observer, Request, TargetFacts, Truth
from fdgsec.threats.judging.controls import negative_controls, positive_control
from fdgsec.threats.judging.groups import unavailable
from fdgsec.threats.judging.judge import Judge, NullRow

NOTHING_ASKED = "asks nothing of this target: it releases no row per image, or has too few images for every request"


class Questions(Protocol):
    """Turns what an attack asks for into cases, as far as that can be had."""

    def cases(self, request: Request, observer: Observer) -> Cases:
        """Give the cases of `request` for `observer` with their truths, none where it cannot be answered."""
        ...

    def gap(self, request: Request, observer: Observer) -> str:
        """Say why `request` is not answered to `observer`, or not in full; empty where it is."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Freely:
    """Questions that a laboratory answers, whatever they are."""

    scene: Scene

    def cases(self, request: Request, observer: Observer) -> Cases:
        """Execute the runs that are asked for."""
        return self.scene.laboratory.cases(request)

    def gap(self, request: Request, observer: Observer) -> str:
        """Nothing is missing."""
        return ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Bench:
    """Everything that the attacks of one report are put before; `seed` is that of the adversary's and the judge's coins."""

    target: str
    seed: int
    adversary: Adversary
    knowledge: Knowledge
    facts: TargetFacts
    judge: Judge
    questions: Questions

    @classmethod
    def of(cls, scene: Scene, *, questions: Questions | None = None, seed: int | None = None) -> "Bench":
        """The bench of a scene, with its laboratory's answers and its run's seed unless others are given."""
        return cls(
            target=scene.config.target, seed=scene.config.seed if seed is None else seed, adversary=scene.adversary,
            knowledge=scene.knowledge, facts=scene.facts, judge=scene.judge, questions=questions or Freely(scene=scene),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """An attack's result before the report-wide correction of its negative controls, and what it said about which cases."""

    result: AttackResult
    nulls: Sequence[NullRow] = ()
    guess: Guess = ()
    cases: Sequence[Case] = ()


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """The cases of all requests that were answered, and for each other request the reason why it was not."""

    cases: list[Case] = field(default_factory=list)
    truths: list[Truth] = field(default_factory=list)
    gaps: dict[str, str] = field(default_factory=dict)


def observer_named(name: str, config: RunConfig) -> Observer:
    """Build an attack with the options of the profile, below those that were given. Raises UsageError."""
    table: Mapping[str, Any] = load_preset(config.profile).get("attacks", {})
    options = {**table.get(name, {}), **config.attack_options.get(name, {})}
    observer: Observer = build(resolve("attacks", name), options, where=f"attack {name}")
    return observer


def observers_of(config: RunConfig) -> list[Observer]:
    """The attacks that were named, all of them where none was."""
    return [observer_named(name, config) for name in config.attacks or names("attacks")]


def attacked_by(observers: Sequence[Observer], bench: Bench, progress: Progressive) -> list[Outcome]:
    """Run one attack after the other."""
    outcomes = []
    for observer in observers:
        progress.update(observer.name, 0, 1)
        outcomes.append(_attacked(observer, bench))
        progress.update(observer.name, 1, 1)
    return outcomes


def corrected(outcomes: Sequence[Outcome]) -> list[AttackResult]:
    """Judge the negative controls of all attacks together: Bonferroni over the rows of the report."""
    comparisons = sum(len(outcome.nulls) for outcome in outcomes)
    return [
        replace(outcome.result, negative=negative_controls(outcome.nulls, comparisons=comparisons))
        for outcome in outcomes
    ]


def obstacle(observer: Observer, target: str, kinds: frozenset[str], adversary: Adversary) -> str:
    """Say why an attack cannot even be asked: nothing to read, or too little known; empty where it can."""
    if not observer.reads & kinds:
        return f"reads {', '.join(sorted(observer.reads))}; {target} releases {', '.join(sorted(kinds))}"
    if isinstance(observer, Forges) and not any(party.startswith("client:") for party in adversary.parties):
        return f"a client forges what it sends; the adversary {adversary.name} is none: give --adversary client"
    lacking = observer.needs - set(adversary.knows)
    if lacking:
        return f"needs {', '.join(sorted(lacking))}; the adversary {adversary.name} does not know that"
    return ""


def _attacked(observer: Observer, bench: Bench) -> Outcome:
    """Run one attack with its controls; what it cannot do is a reason, not an error."""
    started, requests = time.monotonic(), list[Request]()
    try:
        reason = obstacle(observer, bench.target, bench.facts.artifact_kinds, bench.adversary)
        requests = [] if reason else list(observer.plan(bench.facts))
    except UsageError as error:
        reason = str(error)
    if reason:
        return _left(observer, bench, reason)
    try:
        asked = _asked(requests, observer, bench.questions)
        if not asked.cases:
            return _left(observer, bench, "; ".join(dict.fromkeys(asked.gaps.values())) or NOTHING_ASKED)
        return _judged(observer, bench, asked, started=started)
    except UnseenError as error:  # a defense kept it away
        return _left(observer, bench, str(error))
    except FdgsecError as error:
        result = AttackResult(
            name=observer.name, adversary=_described(bench.adversary), status="failed", reason=str(error),
            seconds=time.monotonic() - started,
        )  # fmt: skip
        return Outcome(result=result)


def _asked(requests: Sequence[Request], observer: Observer, questions: Questions) -> _Asked:
    asked = _Asked()
    for request in requests:
        reason = questions.gap(request, observer)
        if reason:
            asked.gaps[_described_request(request)] = reason
        for case, truth in questions.cases(request, observer):
            asked.cases.append(case)
            asked.truths.append(truth)
    return asked


def _described_request(request: Request) -> str:
    size = f"of {request.records} images each" if request.records else ""
    return " ".join(filter(None, (request.kind, request.scheme, size)))


def _judged(observer: Observer, bench: Bench, asked: _Asked, *, started: float) -> Outcome:
    """Answer, measure, draw, and run both controls; each with coins of its own."""
    cases, truths, knowledge, judge, seed = asked.cases, asked.truths, bench.knowledge, bench.judge, bench.seed
    guess = observer.run(cases, knowledge, stream(seed, "attack", observer.name))
    measurements = judge.measure(guess, cases, truths, stream(seed, "world", "judge", observer.name))
    if isinstance(observer, Incomplete):
        measurements += observer.missing(cases, knowledge)
    figures = figures_of(guess, cases, truths, rng=stream(seed, "world", "figures", observer.name))
    null = observer.shuffled(cases, knowledge, stream(seed, "attack", observer.name, "shuffled"))
    nulls = judge.null(null, cases, truths, stream(seed, "world", "null", observer.name))
    bare = replace(knowledge, defended=None)  # nobody defends what is planted
    plant = observer.plant(bare, stream(seed, "attack", observer.name, "plant"))
    won = observer.run(plant.cases, plant.knowledge, stream(seed, "attack", observer.name, "planted"))
    positive = positive_control(plant, won, judge, stream(seed, "world", "planted", observer.name))
    result = AttackResult(
        name=observer.name, adversary=_described(bench.adversary), status="done", seconds=time.monotonic() - started,
        figures=figures, positive=positive, measurements=[*measurements, *_gaps(plant.measurement, asked.gaps)],
    )  # fmt: skip
    return Outcome(result=result, nulls=nulls, guess=guess, cases=cases)


def _gaps(measurement: str, gaps: Mapping[str, str]) -> list[Measurement]:
    """One row per request that was not answered, or not in full, under the name of what the attack is known by."""
    return [
        row for request, reason in gaps.items() for row in unavailable([measurement], {"not answered": request}, reason)
    ]


def _left(observer: Observer, bench: Bench, reason: str) -> Outcome:
    result = AttackResult(name=observer.name, adversary=_described(bench.adversary), status="skipped", reason=reason)
    return Outcome(result=result)


def _described(adversary: Adversary) -> dict[str, object]:
    return {
        "name": adversary.name, "parties": list(adversary.parties), "taps": adversary.taps, "knows": list(adversary.knows),
    }  # fmt: skip
