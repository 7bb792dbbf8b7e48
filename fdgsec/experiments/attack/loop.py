"""The attack loop: each attack's questions, answers, measurements and controls, or the reason why it is skipped."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from fdgsec.experiments.attack.attack_setting import AttackSetting, Outcome, SimulatedQuestions
from fdgsec.experiments.attack.attacks_ahead import working_ahead
from fdgsec.experiments.attack.controlled_answers import answers_of, with_variant_controls
from fdgsec.experiments.attack.missing_clients import RUN_OR_TRAINING, missing_clients
from fdgsec.experiments.attack.own_domains import left_out
from fdgsec.experiments.attack.unread_releases import as_read, partly_read
from fdgsec.experiments.report.multiplicity import adjusted
from fdgsec.experiments.report.presentation import figures_of
from fdgsec.experiments.report.schema import COULD_NOT_RUN, NOT_ANSWERED, TOO_LARGE, AttackResult
from fdgsec.experiments.report.words import kind_in_words
from fdgsec.experiments.run_config import RunConfig, build, load_preset
from fdgsec.experiments.simulated_runs.simulator import Cases
from fdgsec.federation.artifacts import InterpolationStyle
from fdgsec.federation.malicious_client_protocol import Forges
from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.errors import CannotRunError, FdgsecError, UnseenError, UsageError
from fdgsec.runtime.interruption import telling
from fdgsec.runtime.progress import Progressive
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.registry import names, resolve
from fdgsec.runtime.worker_processes import return_freed_memory
from fdgsec.threats.adversary import Adversary
from fdgsec.threats.attack import (
    AccountsForDefenses,
    Attack,
    Case,
    Incomplete,
    Question,
    ReadsVectors,
    Truth,
)
from fdgsec.threats.judging.controls import negative_controls, positive_control
from fdgsec.threats.judging.groups import unavailable

UPLOADED = frozenset({"StyleStatistics", "StyleDistribution", "ImageStyles", "Amplitudes"})
"""Artifacts that clients send before any training."""
LONGEST = frozenset({"style-inversion"})
"""Attacks that take so long that another process begins them at once. It takes the others from the last one on, and the
loop from the first one on: each goes on until none is left."""
MODELS = "fedavg"
"""The target of which models are attacked; others are attacked by what they send beside it."""
NONE_KEPT = "no attack is kept: fdgsec does not know the code of all that was run; the same command starts anew."
NOTHING_ASKED = f"{COULD_NOT_RUN}its options and the number of images leave it nothing to ask"


@dataclass(frozen=True, kw_only=True)
class _AnsweredQuestions:
    """The cases of all answered questions, and the reason for each question that was not, or only partly, answered.

    `too_large` has the questions about clients of more images than the dataset has for them: such clients there are
    none, so that nothing else is put in doubt. `own` has, by domain, why a client that holds it is not asked."""

    cases: list[Case] = field(default_factory=list)
    truths: list[Truth] = field(default_factory=list)
    gaps: dict[str, str] = field(default_factory=dict)
    too_large: dict[str, str] = field(default_factory=dict)
    own: dict[str, str] = field(default_factory=dict)


def attack_named(name: str, config: RunConfig) -> Attack:
    """Build an attack; given options take precedence over those of the profile. Raises UsageError."""
    table: Mapping[str, Any] = load_preset(config.profile).get("attacks", {})
    options = {**table.get(name, {}), **config.attack_options.get(name, {})}
    attack: Attack = build(resolve("attacks", name), options, where=f"attack {name}")
    return attack


def attacks_of(config: RunConfig) -> list[Attack]:
    """The attacks named in the settings; all attacks if none is named."""
    return [attack_named(name, config) for name in config.attacks or names("attacks")]


class FinishedAttacks(Protocol):
    """The finished attacks that are kept (fdgsec.experiments.attack.kept_outcomes)."""

    def read(self, attack: Attack) -> Outcome | None:
        """Return how `attack` ended, None where it is not kept."""
        ...

    def made(self, attack: Attack) -> Outcome | None:
        """Return how `attack` ended in another process since this run began, None where that is not kept."""
        ...

    def keep(self, attack: Attack, outcome: Outcome) -> bool:
        """Keep how `attack` ended, and say whether it is kept."""
        ...

    def told(self, attacks: Sequence[Attack]) -> str:
        """Return how many of `attacks` are kept, and how to go on."""
        ...


def run_attacks(
    attacks: Sequence[Attack],
    setting: AttackSetting,
    progress: Progressive,
    *,
    finished: FinishedAttacks | None = None,
    workers: int = 1,
) -> list[Outcome]:
    """Run the attacks, apart from those that are `finished`, and keep each as it ends.

    Those that can be kept are shared out among `workers` processes (fdgsec.experiments.attack.attacks_ahead). An
    interruption ends with what is kept (fdgsec.runtime.interruption.Interrupted)."""
    ended, elsewhere = dict[int, Outcome](), list[int]()
    with telling(lambda: NONE_KEPT if finished is None else finished.told(attacks)):
        kept = [None if finished is None else finished.read(attack) for attack in attacks]
        lacking = [number for number, outcome in enumerate(kept) if outcome is None and finished is not None]
        lacking.sort(key=lambda number: (attacks[number].name not in LONGEST, -number))
        with working_ahead(
            lambda number: _run_and_keep(attacks[number], setting, finished)[1], lacking, workers=workers
        ) as ahead:
            for number, attack in enumerate(attacks):
                if number in lacking and not ahead.begins(number):
                    elsewhere.append(number)
                    continue
                progress.update(attack.name, 0, 1)
                ended[number] = kept[number] or _run_and_keep(attack, setting, finished)[0]
                progress.update(attack.name, 1, 1)
            for number in elsewhere:
                progress.update(attacks[number].name, 0, 1)
                made = finished.made(attacks[number]) if finished is not None and ahead.finishes(number) else None
                ended[number] = made or _run_and_keep(attacks[number], setting, finished)[0]
                progress.update(attacks[number].name, 1, 1)
    return [ended[number] for number in range(len(attacks))]


def _run_and_keep(attack: Attack, setting: AttackSetting, finished: FinishedAttacks | None) -> tuple[Outcome, bool]:
    """Run one attack; how it ended, and whether that is kept."""
    return_freed_memory()
    outcome = _run_attack(attack, setting)
    return outcome, finished is not None and finished.keep(attack, outcome)


def corrected(outcomes: Sequence[Outcome]) -> list[AttackResult]:
    """Return the results corrected over all rows of the report: negative controls (Bonferroni) and p-values (Holm)."""
    comparisons = sum(len(outcome.nulls) for outcome in outcomes)
    return adjusted([
        replace(outcome.result, negative=negative_controls(outcome.nulls, comparisons=comparisons))
        for outcome in outcomes
    ])  # fmt: skip


def accounted_for(attack: Attack) -> frozenset[str]:
    """The names of the defenses whose effect an attack takes into account."""
    return attack.accounts_for if isinstance(attack, AccountsForDefenses) else frozenset()


def reason_to_skip(attack: Attack, target: str, kinds: frozenset[str], adversary: Adversary) -> str:
    """Return why an attack does not apply: no artifact to read, or missing knowledge; empty if it applies."""
    if not attack.reads & kinds:
        wanted = " or ".join(kind_in_words(kind) for kind in sorted(attack.reads))
        beside = (
            f" but the one that is trained; `--target {MODELS} --run FOLDER` asks about that of a finished training run"
            if "ModelState" in attack.reads
            else ""
        )
        return f"not applicable: {target} sends no {wanted}{beside}"
    if isinstance(attack, Forges) and not any(party.startswith("client:") for party in adversary.parties):
        return f"not applicable: {attack.name} needs a malicious client (--adversary client)"
    lacking = attack.needs - set(adversary.knows)
    if lacking:
        return f"needs {', '.join(sorted(lacking))}; the adversary {adversary.name} does not know that"
    return ""


def planned(attack: Attack, setting: AttackSetting) -> Sequence[Question]:
    """The questions that an attack asks. Raises UsageError with the reason if it does not apply to the target."""
    if not (setting.vectors and isinstance(attack, ReadsVectors)):
        return _planned(attack, setting)
    try:
        return attack.plan_of_vectors(setting.facts)
    except UsageError as alone:
        if not setting.facts.public_images:  # none about which an attack could ask instead
            raise
        try:
            return _planned(attack, setting)
        except UsageError:
            raise alone from None


def _planned(attack: Attack, setting: AttackSetting) -> Sequence[Question]:
    """The questions that an attack asks about a run, or about vectors with the help of images."""
    reason = reason_to_skip(attack, setting.target, setting.facts.artifact_kinds, setting.adversary)
    reason = reason or _foreign(attack, setting)
    if reason:
        raise UsageError(reason)
    if "auxiliary" in attack.needs:
        setting.facts.check_images()
    questions = attack.plan(setting.facts)
    if not questions:
        raise UsageError(NOTHING_ASKED)
    return questions


def _foreign(attack: Attack, setting: AttackSetting) -> str:
    """Why releases that the attack reads are not what it takes them for; empty where none is known to differ."""
    return next((setting.foreign[kind] for kind in sorted(attack.reads & set(setting.foreign))), "")


def planned_rows(attacks: Sequence[Attack], setting: AttackSetting) -> list[tuple[str, str]]:
    """Each attack with whether it applies: "runs", or "skipped" and the reason.

    One small exchange of each question shows what the adversary sees, and what defenses withhold; nothing is trained
    but single steps, and the run itself does not exist yet."""
    rows = []
    for attack in attacks:
        try:
            questions = planned(attack, setting)
            if not setting.facts.named and attack.reads & UPLOADED and any(q.kind == "released" for q in questions):
                raise UnseenError("the adversary sees no client's release under its name")
            answered, found = False, dict[Question, Cases]()
            for question in questions:
                rehearsal = _rehearsal(question, setting)
                found[question] = [] if rehearsal is None else _cases(rehearsal, attack, setting)
                cases = [case for case, _ in found[question]]
                answered = answered or rehearsal is None or bool(cases)
                if attack.reads & UPLOADED and question.kind not in ("single_step", "hostile"):
                    _check_seen(attack, cases)
            if not answered:
                missing = (missing_clients(question, found) for question in questions)
                raise UsageError(_nothing_answered(one.reason for one in missing if one))
        except UsageError as error:
            rows.append((attack.name, f"skipped: {error}"))
        else:
            rows.append((attack.name, "runs"))
    return rows


def _rehearsal(question: Question, setting: AttackSetting) -> Question | None:
    """The question about as few clients as answer it; None for one about the run, or about training.

    Defenses may depend on how many rows are released, so that behind them a client releases all."""
    facts = setting.facts
    if question.kind == "hostile" and facts.artifact_kinds & UPLOADED:  # a client that a defense silences ends the run
        records = question.records or facts.images_per_client
        return Question(kind="rounds", count=1, records=min(records, facts.images_per_client), rounds=1)
    if question.kind in RUN_OR_TRAINING:
        return None
    if question.kind in ("halves", "sessions", "mixtures"):  # a client's share of the images depends on their number
        return question
    return replace(
        question,
        count=min(question.count, 1),
        per_class=question.per_class if setting.defenses else min(question.per_class, 1),
    )


def _check_seen(attack: Attack, cases: Sequence[Case]) -> None:
    """Raise UnseenError where a view has nothing of its victim that the attack could read."""
    for case in cases:
        for view in case.views:
            sent = any(m.artifact.kind in attack.reads for m in view.messages if m.sender == case.victim)
            of_all = "InterpolationStyle" in attack.reads and view.latest(InterpolationStyle) is not None
            if not (sent or of_all or view.styles(case.victim) or view.artifact(case.victim)):
                raise UnseenError(f"the adversary saw no artifact of {case.victim}.")


def _run_attack(attack: Attack, setting: AttackSetting) -> Outcome:
    """Run one attack with its controls; an attack that does not apply is skipped with the reason."""
    started = time.monotonic()
    try:
        requests = planned(attack, setting)
    except CannotRunError as error:
        return _skipped(attack, setting, f"{COULD_NOT_RUN}{error}")
    except UsageError as error:
        return _skipped(attack, setting, str(error))
    try:
        answered = _answer_questions(requests, attack, setting)
        if not answered.cases:
            return _skipped(attack, setting, _nothing_answered([*answered.gaps.values(), *answered.too_large.values()]))
        return _evaluate(attack, setting, answered, started=started)
    except CannotRunError as error:
        return _skipped(attack, setting, f"{COULD_NOT_RUN}{error}")
    except UnseenError as error:  # withheld by a defense
        return _skipped(attack, setting, str(error))
    except FdgsecError as error:
        result = AttackResult(
            name=attack.name, adversary=_adversary_document(setting.adversary), status="failed", reason=str(error),
            seconds=time.monotonic() - started,
        )  # fmt: skip
        return Outcome(result=result)


def _cases(question: Question, attack: Attack, setting: AttackSetting) -> Cases:
    """The cases of a question, with what the attack reads of them.

    Raises UnseenError where its exchanges show releases of another kind than is read."""
    cases = setting.questions.cases(question, attack)
    if reason := _foreign(attack, setting):
        raise UnseenError(reason)
    return [(as_read(attack, case, truth), truth) for case, truth in cases]


def _answer_questions(requests: Sequence[Question], attack: Attack, setting: AttackSetting) -> _AnsweredQuestions:
    answered = _AnsweredQuestions()
    found = dict[Question, Cases]()
    for question in requests:
        reason = setting.questions.gap(question, attack)
        if reason:
            answered.gaps[_describe(question)] = reason
        found[question] = _cases(question, attack, setting)
        for case, truth in found[question]:
            answered.cases.append(case)
            answered.truths.append(truth)
    if isinstance(setting.questions, SimulatedQuestions):
        answered.own.update(left_out(found, setting.questions.attack_context.challenger))
    for question in found if isinstance(setting.questions, SimulatedQuestions) else ():  # others say what they lack
        missing = None if _describe(question) in answered.gaps else missing_clients(question, found)
        if missing:
            (answered.too_large if missing.too_large else answered.gaps)[_describe(question)] = missing.reason
    return answered


def _nothing_answered(reasons: Iterable[str]) -> str:
    """Why an attack that applies was not run: each reason once; without any, that nothing was left to ask."""
    said = "; ".join(dict.fromkeys(filter(None, reasons)))
    return f"{COULD_NOT_RUN}{said}" if said else NOTHING_ASKED


def _describe(question: Question) -> str:
    clients = f"of {question.clients} clients" if question.clients else ""
    size = f"of {question.records} images each" if question.records else ""
    return " ".join(filter(None, (question.kind, question.scheme, clients, size)))


def _evaluate(attack: Attack, setting: AttackSetting, answered: _AnsweredQuestions, *, started: float) -> Outcome:
    """Run the attack, measure its answers, draw figures and run its controls, each with its own random stream."""
    cases, truths, judge, seed = answered.cases, answered.truths, setting.judge, setting.seed
    knowledge = setting.knowledge
    if all(case.question == "given" for case in cases):  # read alone, and so are their controls
        knowledge = replace(knowledge, auxiliary=None, unseen=None, own=None, vectors_alone=True)
    answers, null = answers_of(attack, setting, cases, knowledge)
    return_freed_memory()  # what training needed
    ignored = ", ".join(dict.fromkeys(name for name in setting.defenses if name not in accounted_for(attack)))
    unread = partly_read(attack, setting.exchanges, setting.facts.artifact_kinds)
    read = min(len(case.views) for case in cases)
    measurements = [
        replace(row, not_adapted_to=ignored, unread=row.unread or unread(row, read) or setting.unlike)
        for row in judge.measure(answers, cases, truths, stream(seed, "world", "judge", attack.name))
    ]
    if isinstance(attack, Incomplete):
        measurements += attack.missing(cases, knowledge)
    if not setting.controls:
        result = AttackResult(
            name=attack.name, adversary=_adversary_document(setting.adversary), status="done",
            seconds=time.monotonic() - started, measurements=measurements,
        )  # fmt: skip
        return Outcome(result=result, answers=answers, cases=cases)
    return_freed_memory()  # what judging needed
    figures = figures_of(answers, cases, truths)
    nulls = judge.null(null, cases, truths, stream(seed, "world", "null", attack.name))
    undefended = replace(knowledge, defended=None)  # the positive control is undefended
    control = attack.positive_control(undefended, stream(seed, "attack", attack.name, "plant"))
    control_answers = control.answers(attack, stream(seed, "attack", attack.name, "planted"))
    positive = positive_control(control, control_answers, judge, stream(seed, "world", "planted", attack.name))
    if failed := sum(not one.passed for one in positive):
        reason = f"{failed} of the attack's {len(positive)} positive controls failed"
        measurements = [replace(row, unread=row.unread or reason) for row in measurements]
    measurements, variants = with_variant_controls(attack, setting, undefended, measurements)
    result = AttackResult(
        name=attack.name, adversary=_adversary_document(setting.adversary), status="done",
        seconds=time.monotonic() - started, figures=figures, positive=positive, variants=variants,
        measurements=[
            *measurements, *_unavailable_rows(control.measurement, NOT_ANSWERED, answered.gaps),
            *_unavailable_rows(control.measurement, TOO_LARGE, answered.too_large),
            *_unavailable_rows(control.measurement, "domain", answered.own),
        ],
    )  # fmt: skip
    return Outcome(result=result, nulls=nulls, answers=answers, cases=cases)


def _unavailable_rows(measurement: str, kind: str, gaps: Mapping[str, str]) -> list[Measurement]:
    """One unavailable row of `measurement` for each question that was not, or only partly, answered."""
    return [row for question, reason in gaps.items() for row in unavailable([measurement], {kind: question}, reason)]


def _skipped(attack: Attack, setting: AttackSetting, reason: str) -> Outcome:
    result = AttackResult(
        name=attack.name, adversary=_adversary_document(setting.adversary), status="skipped", reason=reason
    )
    return Outcome(result=result)


def _adversary_document(adversary: Adversary) -> dict[str, object]:
    return {
        "name": adversary.name, "parties": list(adversary.parties), "taps": adversary.taps,
        "knows": list(adversary.knows),
    }  # fmt: skip
