"""Runs attacks one after the other: questions, answers, judging and controls, or the reason why an attack is
skipped."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from fdgsec.experiments.config import RunConfig, build, load_preset
from fdgsec.experiments.lab.attack_context import AttackContext
from fdgsec.experiments.lab.simulator import Cases
from fdgsec.experiments.report.presentation import figures_of
from fdgsec.experiments.report.schema import AttackResult
from fdgsec.federation.malicious_client import Forges
from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.errors import FdgsecError, UnseenError, UsageError
from fdgsec.runtime.progress import Progressive
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.registry import names, resolve
from fdgsec.threats.adversary import Adversary, Knowledge
from fdgsec.threats.attack import Answers, Attack, Case, Incomplete, Question, TargetFacts, Truth
from fdgsec.threats.judging.controls import negative_controls, positive_control
from fdgsec.threats.judging.groups import unavailable
from fdgsec.threats.judging.judge import Judge
from fdgsec.threats.judging.permutation_tests import NullRow

NOTHING_ASKED = "asks nothing of this target: it releases no row per image, or has too few images for every request"


class Questions(Protocol):
    """Turns what an attack asks for into cases, as far as that can be had."""

    def cases(self, question: Question, attack: Attack) -> Cases:
        """Give the cases of `question` for `attack` with their truths, none where it cannot be answered."""
        ...

    def gap(self, question: Question, attack: Attack) -> str:
        """Say why `question` is not answered to `attack`, or not in full; empty where it is."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class LaboratoryQuestions:
    """Questions that a laboratory answers, whatever they are."""

    attack_context: AttackContext

    def cases(self, question: Question, attack: Attack) -> Cases:
        """Execute the runs that are asked for."""
        return self.attack_context.laboratory.cases(question)

    def gap(self, question: Question, attack: Attack) -> str:
        """Nothing is missing."""
        return ""


@dataclass(frozen=True, kw_only=True, eq=False)
class AttackSetting:
    """What the attacks of one report share; `seed` is that of the adversary's and the judge's random draws."""

    target: str
    seed: int
    adversary: Adversary
    knowledge: Knowledge
    facts: TargetFacts
    judge: Judge
    questions: Questions

    @classmethod
    def of(
        cls, attack_context: AttackContext, *, questions: Questions | None = None, seed: int | None = None
    ) -> "AttackSetting":
        """The setting of an attack context, with its laboratory's answers and its run's seed unless others are
        given."""
        return cls(
            target=attack_context.config.target, seed=attack_context.config.seed if seed is None else seed, adversary=attack_context.adversary,
            knowledge=attack_context.knowledge, facts=attack_context.facts, judge=attack_context.judge, questions=questions or LaboratoryQuestions(attack_context=attack_context),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """An attack's result before the report-wide correction of its negative controls, and what it said about which
    cases."""

    result: AttackResult
    nulls: Sequence[NullRow] = ()
    answers: Answers = ()
    cases: Sequence[Case] = ()


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """The cases of all requests that were answered, and for each other request the reason why it was not."""

    cases: list[Case] = field(default_factory=list)
    truths: list[Truth] = field(default_factory=list)
    gaps: dict[str, str] = field(default_factory=dict)


def attack_named(name: str, config: RunConfig) -> Attack:
    """Build an attack with the options of the profile, below those that were given. Raises UsageError."""
    table: Mapping[str, Any] = load_preset(config.profile).get("attacks", {})
    options = {**table.get(name, {}), **config.attack_options.get(name, {})}
    attack: Attack = build(resolve("attacks", name), options, where=f"attack {name}")
    return attack


def attacks_of(config: RunConfig) -> list[Attack]:
    """The attacks that were named, all of them where none was."""
    return [attack_named(name, config) for name in config.attacks or names("attacks")]


def attacked_by(attacks: Sequence[Attack], setting: AttackSetting, progress: Progressive) -> list[Outcome]:
    """Run one attack after the other."""
    outcomes = []
    for attack in attacks:
        progress.update(attack.name, 0, 1)
        outcomes.append(_attacked(attack, setting))
        progress.update(attack.name, 1, 1)
    return outcomes


def corrected(outcomes: Sequence[Outcome]) -> list[AttackResult]:
    """Judge the negative controls of all attacks together: Bonferroni over the rows of the report."""
    comparisons = sum(len(outcome.nulls) for outcome in outcomes)
    return [
        replace(outcome.result, negative=negative_controls(outcome.nulls, comparisons=comparisons))
        for outcome in outcomes
    ]


def obstacle(attack: Attack, target: str, kinds: frozenset[str], adversary: Adversary) -> str:
    """Say why an attack cannot even be asked: nothing to read, or too little known; empty where it can."""
    if not attack.reads & kinds:
        return f"reads {', '.join(sorted(attack.reads))}; {target} releases {', '.join(sorted(kinds))}"
    if isinstance(attack, Forges) and not any(party.startswith("client:") for party in adversary.parties):
        return f"not applicable: {attack.name} needs a malicious client (--adversary client)"
    lacking = attack.needs - set(adversary.knows)
    if lacking:
        return f"needs {', '.join(sorted(lacking))}; the adversary {adversary.name} does not know that"
    return ""


def _attacked(attack: Attack, setting: AttackSetting) -> Outcome:
    """Run one attack with its controls; what it cannot do is a reason, not an error."""
    started, requests = time.monotonic(), list[Question]()
    try:
        reason = obstacle(attack, setting.target, setting.facts.artifact_kinds, setting.adversary)
        requests = [] if reason else list(attack.plan(setting.facts))
    except UsageError as error:
        reason = str(error)
    if reason:
        return _left(attack, setting, reason)
    try:
        asked = _asked(requests, attack, setting.questions)
        if not asked.cases:
            return _left(attack, setting, "; ".join(dict.fromkeys(asked.gaps.values())) or NOTHING_ASKED)
        return _judged(attack, setting, asked, started=started)
    except UnseenError as error:  # a defense kept it away
        return _left(attack, setting, str(error))
    except FdgsecError as error:
        result = AttackResult(
            name=attack.name, adversary=_described(setting.adversary), status="failed", reason=str(error),
            seconds=time.monotonic() - started,
        )  # fmt: skip
        return Outcome(result=result)


def _asked(requests: Sequence[Question], attack: Attack, questions: Questions) -> _Asked:
    asked = _Asked()
    for question in requests:
        reason = questions.gap(question, attack)
        if reason:
            asked.gaps[_described_request(question)] = reason
        for case, truth in questions.cases(question, attack):
            asked.cases.append(case)
            asked.truths.append(truth)
    return asked


def _described_request(question: Question) -> str:
    size = f"of {question.records} images each" if question.records else ""
    return " ".join(filter(None, (question.kind, question.scheme, size)))


def _judged(attack: Attack, setting: AttackSetting, asked: _Asked, *, started: float) -> Outcome:
    """Answer, measure, draw, and run both controls; each with a random stream of its own."""
    cases, truths, knowledge, judge, seed = asked.cases, asked.truths, setting.knowledge, setting.judge, setting.seed
    answers = attack.run(cases, knowledge, stream(seed, "attack", attack.name))
    measurements = judge.measure(answers, cases, truths, stream(seed, "world", "judge", attack.name))
    if isinstance(attack, Incomplete):
        measurements += attack.missing(cases, knowledge)
    figures = figures_of(answers, cases, truths)
    null = attack.negative_control(cases, knowledge, stream(seed, "attack", attack.name, "shuffled"))
    nulls = judge.null(null, cases, truths, stream(seed, "world", "null", attack.name))
    bare = replace(knowledge, defended=None)  # the positive control is undefended
    control = attack.positive_control(bare, stream(seed, "attack", attack.name, "plant"))
    won = attack.run(control.cases, control.knowledge, stream(seed, "attack", attack.name, "planted"))
    positive = positive_control(control, won, judge, stream(seed, "world", "planted", attack.name))
    result = AttackResult(
        name=attack.name, adversary=_described(setting.adversary), status="done", seconds=time.monotonic() - started,
        figures=figures, positive=positive, measurements=[*measurements, *_gaps(control.measurement, asked.gaps)],
    )  # fmt: skip
    return Outcome(result=result, nulls=nulls, answers=answers, cases=cases)


def _gaps(measurement: str, gaps: Mapping[str, str]) -> list[Measurement]:
    """One row per request that was not answered, or not in full, under the name of what the attack is known by."""
    return [
        row
        for question, reason in gaps.items()
        for row in unavailable([measurement], {"not answered": question}, reason)
    ]


def _left(attack: Attack, setting: AttackSetting, reason: str) -> Outcome:
    result = AttackResult(name=attack.name, adversary=_described(setting.adversary), status="skipped", reason=reason)
    return Outcome(result=result)


def _described(adversary: Adversary) -> dict[str, object]:
    return {
        "name": adversary.name, "parties": list(adversary.parties), "taps": adversary.taps, "knows": list(adversary.knows),
    }  # fmt: skip
