"""`check_attack`: the questions, answers and controls of an attack, on a small run of a target that it reads."""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from fdgsec.experiments.attack.attack_context import attack_context_of
from fdgsec.experiments.attack.attack_setting import AttackSetting
from fdgsec.experiments.attack.current_styles import follows_model, last_global_model, prepare_style_view
from fdgsec.experiments.attack.loop import reason_to_skip
from fdgsec.experiments.run_config import RunConfig, attack_settings, made, target_method
from fdgsec.experiments.setup.defenses import defense_stack_of
from fdgsec.experiments.setup.run_federation import RunRequest, federate, observe
from fdgsec.experiments.setup.run_inputs import attacked_clients, load_world, method_of, model_of, roles_of
from fdgsec.federation.artifacts import kind_named
from fdgsec.federation.method import Method
from fdgsec.metrics.measurement import Control
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import NoProgress
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.registry import given_classes, target_named, targets
from fdgsec.testing.contracts import check_frozen, expect, nothing_kept, same
from fdgsec.threats.adversary import ADVERSARIES, KNOWLEDGE, View
from fdgsec.threats.answers import Answer
from fdgsec.threats.attack import Answers, Attack, Case, Incomplete, ReadsMore, TargetFacts, Truth
from fdgsec.threats.judging.controls import negative_controls, positive_control

Cases = Sequence[Case]
SIDE = 32
"""Pixels of an image's side: a check is of promises, not of what an attack finds."""


def check_attack(
    given: object, *, target: str | Method | None = None, adversary: str | None = None, per_domain: int = 120
) -> None:
    """Check an attack, given as an object, as its class or by name. Raises BrokenPromiseError, naming the promise.

    The attack reads a run of `target` (a name, or a method with options of its own) on `per_domain` images of shapes of
    32 px, as `adversary`. The defaults are the first target and adversary to which the attack applies."""
    with given_classes("methods", *([] if target is None else [target])):
        _check_attack(made("attacks", given, {}, where="attack"), target, adversary, per_domain)


def _check_attack(attack: Attack, target: str | Method | None, adversary: str | None, per_domain: int) -> None:
    check_frozen(attack)
    _check_declared(attack)
    config = _config(attack, target, adversary, per_domain)
    setting = _setting(config)
    with nothing_kept(attack):
        asked = list(_asked(attack, setting))
        expect(bool(asked), "an attack asks questions", f"no case came of {config.target}; give a target that it reads")
        cases, truths = [case for case, _ in asked], [truth for _, truth in asked]
        before = [_print(case) for case in cases]
        answers = _run(attack, cases, setting)
    expect(before == [_print(case) for case in cases], "cases are left as they were", "views or candidates changed")
    judged = _check_answers(attack, answers, cases, truths, setting)
    _check_same_answers(attack, cases, answers, setting)
    with nothing_kept(attack):
        _check_controls(attack, cases, truths, setting, judged=judged)


def _check_controls(
    attack: Attack, cases: Cases, truths: Sequence[Truth], setting: AttackSetting, *, judged: bool
) -> None:
    """Check that the negative control finds nothing and the positive control reaches its goal.

    Where nothing is `judged`, there is nothing that a negative control could find."""
    judge, knowledge = setting.judge, setting.knowledge
    null = attack.negative_control(cases, knowledge, stream(0, "attack", attack.name, "shuffled"))
    rows = judge.null(null, cases, truths, stream(0, "world", "null", attack.name))
    negative = negative_controls(rows, comparisons=len(rows))
    if judged or negative:
        _passed("the negative control finds nothing", negative)
    undefended = replace(knowledge, defended=None)  # the positive control is undefended
    control = attack.positive_control(undefended, stream(0, "attack", attack.name, "plant"))
    control_answers = control.answers(attack, stream(0, "attack", attack.name, "planted"))
    found = positive_control(control, control_answers, judge, stream(0, "world", "planted", attack.name))
    _passed("the positive control reaches its goal", found)


def _check_declared(attack: Attack) -> None:
    promise = "an attack says what it reads and needs"
    expect(isinstance(getattr(attack, "name", None), str), promise, f"{type(attack).__name__} has no name")
    expect(isinstance(attack.reads, frozenset) and bool(attack.reads), promise, "reads must be a set of artifact kinds")
    unknown = sorted(kind for kind in attack.reads if kind_named(kind) is None)
    expect(not unknown, promise, f"reads names no known kind of artifact: {', '.join(unknown)}")
    foreign = sorted(set(attack.needs) - set(KNOWLEDGE))
    expect(
        not foreign,
        promise,
        f"needs names what no adversary knows: {', '.join(foreign)}; known: {', '.join(KNOWLEDGE)}",
    )


def _config(attack: Attack, target: str | Method | None, adversary: str | None, per_domain: int) -> RunConfig:
    """Settings of a run to which the attack applies. Raises BrokenPromiseError, with the errors of `plan`, if there are
    none."""
    refused = dict[str, None]()
    for attacked in list(targets()) if target is None else [target]:
        method = target_method(target_named(attacked))
        facts = TargetFacts(
            artifact_kinds=method.released_kinds, clients=3, images_per_client=per_domain // 2, classes=7,
            profile="quick", pooled=method.shares_means, weighted=method.weighted_statistic is not None,
            rounds=int(method.needs_training),
        )  # fmt: skip
        for who in ADVERSARIES if adversary is None else [adversary]:
            if reason_to_skip(attack, str(attacked), method.released_kinds, ADVERSARIES[who]):
                continue
            try:
                asks = attack.plan(replace(facts, knows=frozenset(ADVERSARIES[who].knows)))
            except UsageError as error:
                refused[str(error)] = None
                continue
            if asks:
                given = {"per_domain": per_domain, "image_size": SIDE, "adversary": who, "device": "cpu"}
                rounds = 1 if method.needs_training else None
                return attack_settings(attacked, {**given, "keep": "models=all", "rounds": rounds})
    reasons = "; ".join(["no target and adversary suit its reads, needs and plan", *refused])
    expect(False, "an attack can be asked", f"{attack.name}: {reasons}")
    raise AssertionError


def _setting(config: RunConfig) -> AttackSetting:
    """A run of the target with its challenger, as inputs of the attack."""
    progress, method = NoProgress(), method_of(config)
    world = load_world(config, data_root=None, progress=progress)
    roles = roles_of(world, config)
    clients = attacked_clients(world, roles, config, method)
    needed = config.rounds or method.shares == "every"
    model = model_of(config, method, len(world.dataset.class_names)) if needed else None
    stack = defense_stack_of(config, method)
    if config.rounds and model is not None:
        run = federate(
            RunRequest(
                method=method, members=clients, model=model, config=config, defense_stack=stack, progress=progress
            )
        )
    else:
        run = observe(method, clients, seed=config.seed, name="run", model=model, defense_stack=stack)
    if model is not None and config.rounds and follows_model(method):
        model = last_global_model(run.transcript, model)
    view = prepare_style_view(config, world, method, model, fresh=False, progress=progress)
    return AttackSetting.of(attack_context_of(config, world, roles, method, clients, run, model, view, stack, progress))


def _asked(attack: Attack, setting: AttackSetting) -> Iterator[tuple[Case, Truth]]:
    for question in attack.plan(setting.facts):
        yield from setting.questions.cases(question, attack)


def _run(attack: Attack, cases: Cases, setting: AttackSetting) -> Answers:
    return attack.run(cases, setting.knowledge, stream(0, "attack", attack.name))


def _check_answers(
    attack: Attack, answers: Answers, cases: Cases, truths: Sequence[Truth], setting: AttackSetting
) -> bool:
    """Check that the judge can measure the answers; tell whether a row of them says that something leaks or not."""
    promise = "answers are typed and have a rule"
    missing = attack.missing(cases, setting.knowledge) if isinstance(attack, Incomplete) and not answers else []
    reasons = dict.fromkeys(row.unavailable for row in missing if row.unavailable)
    expect(bool(answers), promise, "; ".join(["there are none", *reasons]))
    for answer in answers:
        expect(isinstance(answer, Answer), promise, f"{answer!r} is none of fdgsec.threats.answers")
        expect(0 <= answer.case < len(cases), promise, f"{answer.kind} is about case {answer.case} of {len(cases)}")
    try:
        rows = setting.judge.measure(answers, cases, truths, stream(0, "world", "judge"))
    except (TypeError, ValueError) as error:
        expect(False, promise, f"the judge cannot measure them: {error}")
        raise
    expect(bool(rows), promise, "the judge made no measurement of them")
    return any(row.judged for row in rows)


def _check_same_answers(attack: Attack, cases: Cases, answers: Answers, setting: AttackSetting) -> None:
    """Check that a second run, without undeclared artifact kinds and with renamed domains in slices, answers the same.

    If it does not, further runs show which of these changes the answers."""
    reads = attack.reads | attack.also_reads if isinstance(attack, ReadsMore) else attack.reads
    narrow, domains = _of_kinds(cases, reads), setting.knowledge.domain_names
    if _same_answers(attack, _renamed(narrow, domains), answers, setting):
        return
    kept = _same_answers(attack, cases, answers, setting)
    expect(kept, "the same seed gives the same answers", "two runs differ")
    kept = _same_answers(attack, narrow, answers, setting)
    said = f"the answers change where its views hold {', '.join(sorted(reads))} alone"
    expect(kept, "an attack reads only what it declares", said)
    said = "the answers change with the names of domains in slices, which are the judge's"
    expect(False, "an attack does not touch the truth", said)


def _same_answers(attack: Attack, cases: Cases, answers: Answers, setting: AttackSetting) -> bool:
    return same(list(answers), list(_run(attack, cases, setting)))


def _of_kinds(cases: Cases, kinds: AbstractSet[str]) -> Cases:
    """The cases with the messages of these kinds alone; cases that shared a view share one."""
    views: dict[int, View] = {}
    for view in {id(view): view for case in cases for view in case.views}.values():
        kept = tuple(message for message in view.messages if message.artifact.kind in kinds)
        views[id(view)] = View(messages=kept)
    return [replace(case, views=tuple(views[id(view)] for view in case.views)) for case in cases]


def _renamed(cases: Cases, domains: Sequence[str]) -> Cases:
    """The cases with each domain in their slices named as the next one."""
    other = dict(zip(domains, [*domains[1:], domains[0]], strict=True))
    return [
        replace(case, slice={key: other.get(str(value), value) for key, value in case.slice.items()}) for case in cases
    ]


def _print(case: Case) -> list[str]:
    sent = [message.artifact.sha256 for view in case.views for message in view.messages]
    return [*sent, "" if case.candidates is None else case.candidates.content_sha256]


def _passed(promise: str, controls: Sequence[Control]) -> None:
    expect(bool(controls), promise, "it has no rows, so it cannot fail")
    for control in controls:
        row = control.measurement
        came = row.unavailable or f"{row.name} {dict(row.slice)} is {row.value}; expected {control.expected}"
        expect(control.passed, promise, came)
