"""The verb `audit`: a statistical lower bound on the epsilon of a defense, from runs of its own code.

Messages (styles, models, scores) are sent thousands of times with and without a canary, each time with fresh noise;
private training runs once with many canaries. Both give a lower bound on epsilon at the stated confidence. A bound
above the claimed epsilon proves a fault; a bound below it proves nothing. Beside the bound, noise is checked for
repetitions (`noise_checks`) and, in training, for a size that tells the number of records (`noise_scale`)."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import torch

from fdgsec.data.domains import DomainDataset
from fdgsec.experiments.audit.many_runs import audit_canaries
from fdgsec.experiments.audit.message_canaries import canaries_of
from fdgsec.experiments.audit.neighboring_clients import Canary, Release, Site, releases_of, worlds_of
from fdgsec.experiments.audit.noise_checks import NoiseChecks, check_messages, named_release
from fdgsec.experiments.audit.noise_scale import CONFIDENCE, SmallTraining
from fdgsec.experiments.audit.one_run import Canaries, GradientCanaries, MislabelledCanaries, audited, smooth
from fdgsec.experiments.audit.training_checks import check_trainings, each_kind_once
from fdgsec.experiments.options_in_effect import check_in_effect
from fdgsec.experiments.run_config import RunConfig, attack_settings, defense_text, on_stated_threads, target_method
from fdgsec.experiments.setup.defenses import defense_documents, defense_stack_of
from fdgsec.experiments.setup.guarantees import attributed
from fdgsec.experiments.setup.run_inputs import (
    attacked_method,
    clients_of,
    division_of,
    load_world,
    method_of,
    model_of,
    named,
    with_validation,
)
from fdgsec.federation.defense import HasPolicy, PlansGuarantee, TrainsPrivately, Uses
from fdgsec.federation.dp_sgd_joint import StepsJointly
from fdgsec.federation.method import Clock
from fdgsec.federation.run_folder import check_replaceable, environment, new_folder
from fdgsec.privacy.accounting import Relation, Use
from fdgsec.privacy.epsilon_bounds import FEWEST_RUNS, AuditResult, audit_runs, exceeds, summary
from fdgsec.privacy.guarantees import PlannedGuarantee
from fdgsec.privacy.ledger import Guarantee, Ledger
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import Progressive
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.registry import target_named

SCHEMA = 1
PER_DOMAIN = 120
"""Default number of images per domain; gradient and message canaries need few."""
MESSAGES, TRAININGS = 2**15, 2**11
"""Default numbers of releases that are compared: at most half a minute on one core."""
ALPHA = 0.05
"""False positive rate of a repeated audit of a correct defense."""
NOTE = (
    "A bound under the claim is no proof that the claim holds: it is what this attack found, and a better one may find "
    "more. A bound near its ceiling is saturated: more runs or guesses could raise it."
)
STEP = "a step of the run's network on two of the client's images"
NOT_TRAINED = "an audit trains for defenses of training alone (dp-sgd); leave it out"


@dataclass(frozen=True, kw_only=True)
class AuditPlan:
    """The size of an audit: `runs` per side for messages; `canaries` and `guesses` (None: a tenth) for training.

    Each of the `repeats` has its own secret randomness. `canary` is the kind of training canaries. `distinct_releases`
    are compared with each other (None: as many as take half a minute; 0: none). `images` is how many the audited client
    has, where nothing is trained: noise and sensitivity of a mean should both scale with 1/n. Raises UsageError for
    numbers out of range."""

    runs: int = 2000
    repeats: int = 1
    confidence: float = 0.95
    canaries: int = 1024
    guesses: int | None = None
    canary: Literal["gradient", "mislabeled"] = "gradient"
    distinct_releases: int | None = None
    images: int = 16

    def __post_init__(self) -> None:
        if self.runs < FEWEST_RUNS or self.repeats < 1 or self.canaries < 2 or self.images < 2:
            raise UsageError(
                f"an audit needs at least {FEWEST_RUNS} runs, 1 repeat, 2 canaries and 2 images; got {self.runs}, "
                f"{self.repeats}, {self.canaries} and {self.images}."
            )
        if not 0 < self.confidence < 1 or (self.guesses is not None and self.guesses < 1):
            raise UsageError(
                f"an audit needs a confidence in (0, 1) and at least 1 guess; got {self.confidence} and {self.guesses}."
            )
        if self.distinct_releases is not None and self.distinct_releases < 0:
            raise UsageError(f"an audit compares at least 0 releases (0: none); got {self.distinct_releases}.")
        if self.canary not in ("gradient", "mislabeled"):
            raise UsageError(f"canary must be gradient or mislabeled; got {self.canary!r}.")


@dataclass(frozen=True, kw_only=True, eq=False)
class Audited:
    """The audited guarantee, the canary, the number of runs, the result of every repeat, and the checks of the noise.

    `scale` is the audit of a private trainer's divisor; `gaussian` are the bounds of the same guesses on the whole
    trade-off curve, where the claim is a Gaussian one. `tried` names what faults were sought in."""

    guarantee: Guarantee
    canary: str
    runs: int
    results: Sequence[AuditResult]
    noise: NoiseChecks
    images: int
    tried: str
    scale: AuditResult | None = None
    gaussian: Sequence[AuditResult] = ()


@runtime_checkable
class StatesDelta(Protocol):
    """A defense that states the delta of its epsilon."""

    @property
    def delta(self) -> float:
        """The delta of the guarantee."""
        ...


def audit_settings(
    target: str, given: Mapping[str, Any], plan: AuditPlan, *, assignments: Sequence[str] = ()
) -> RunConfig:
    """The settings of an audit; by default few images, the CPU, and one round for targets that need training.

    Raises what `attack_settings` raises, and UsageError for options of a training that the audit does not run."""
    chosen = {name: value for name, value in given.items() if value is not None}
    usual: dict[str, Any] = {
        "device": "cpu",
        "rounds": 1 if target_method(target_named(target)).needs_training else None,
    }
    if plan.canary == "gradient":
        usual["per_domain"] = PER_DOMAIN
    config = attack_settings(target, {**usual, **chosen}, assignments=assignments)
    trains = any(isinstance(defense, TrainsPrivately) for defense in config.defenses)
    check_in_effect(config, assignments, trains=trains, otherwise=NOT_TRAINED)
    return config


@on_stated_threads
@each_kind_once
def audit(
    config: RunConfig, plan: AuditPlan, *, data_root: Path | None, out: Path | None, progress: Progressive
) -> dict[str, Any]:
    """Audit the defense of `config` with a guarantee, within the whole defense stack; return the document.

    With `out`, also write it as audit.json. Raises UsageError if no message of a client has a guarantee, and what
    `attack` raises."""
    started = time.monotonic()
    if out is not None:
        check_replaceable(out, "audit")
    place = audited_defense(config)
    site = site_of(config, plan, data_root=data_root, progress=progress)
    defense = site.defense_stack.defenses[place]
    delta = defense.delta if isinstance(defense, StatesDelta) else config.delta
    if isinstance(defense, TrainsPrivately):
        found = _training(site, config, plan, delta, progress)
    else:
        found = _messages(site, config, plan, delta, progress, place=place)
    document = _document(config, place, found, seconds=time.monotonic() - started)
    if out is not None:
        with new_folder(out, "audit") as draft:
            (draft / "audit.json").write_text(json.dumps(document, indent=1) + "\n")
    return document


def audited_defense(config: RunConfig) -> int:
    """The position of the audited defense: the one with a guarantee, or the first if none states one.

    Raises UsageError for no defense, for two with a guarantee, and for one that acts on the wire."""
    defenses = config.defenses
    if not defenses:
        raise UsageError("an audit needs a defense (--defense NAME:k=v).")
    wires = [defense_text(one) for one in defenses if isinstance(one, HasPolicy)]
    if wires and len(defenses) > 1:
        raise UsageError(
            f"{wires[0]} acts on the wire, on all clients' messages; an audit covers one client's: leave it out."
        )
    promising = [
        n
        for n, one in enumerate(defenses)
        if isinstance(one, PlansGuarantee) and isinstance(one.promise, PlannedGuarantee)
    ]
    if len(promising) > 1:
        named = " and ".join(defense_text(defenses[number]) for number in promising)
        raise UsageError(
            f"an audit tests one guarantee, but {named} give one each; audit each of them alone (the run's ledger "
            "composes the guarantees)."
        )
    return promising[0] if promising else 0


def site_of(config: RunConfig, plan: AuditPlan, *, data_root: Path | None, progress: Progressive) -> Site:
    """The run's first client with a few of its images, the received model and the defense stack."""
    method = method_of(config)
    defense_stack = replace(
        defense_stack_of(config, method), name=f"audit/{config.sha256}"
    )  # no two audits share their secrets
    trains = any(isinstance(defense, TrainsPrivately) for defense in defense_stack.defenses)
    rounds = max(config.rounds, 1) if trains else config.rounds
    world = load_world(config, data_root=data_root, progress=progress)
    members = clients_of(world.seen(), config)
    method.check(len(members))
    division = division_of(config.defenses)
    first = named(members[0], division)
    if rounds and method.reviews != "none":
        first = with_validation(first, seed=config.seed, division=division)
    images = plan.canaries if trains else plan.images
    first = replace(first, data=_some(first.data, images, config.seed))
    model = model_of(config, method, len(world.dataset.class_names)) if rounds or method.shares == "every" else None
    names = tuple(client.name for client in members)
    clocks = [Clock(round=number, rounds=rounds, participants=names) for number in range(max(rounds, 1))]
    return Site(method=method, client=first, model=model, defense_stack=defense_stack, clocks=clocks, seed=config.seed)


def _some(data: DomainDataset, images: int, seed: int) -> DomainDataset:
    order = torch.randperm(len(data), generator=stream(seed, "world", "audited images"))
    return data.subset(order[:images])


def message_of(
    site: Site, config: RunConfig, delta: float
) -> tuple[Guarantee, Sequence[Canary], list[Release], list[Use]]:
    """The first kind of message with a guarantee: its claim, canaries, releases and their costs.

    Raises UsageError if there is none."""
    for releases in releases_of(site):
        costs = [release.sent(site.defense_stack)[1] for release in releases]
        if all(costs):
            break
    else:
        raise _no_guarantee(config)
    guarantee = claimed(config, site, releases, costs, delta)
    uses = [use for cost in costs for use in cost or ()]
    return guarantee, canaries_of(site, releases[0], uses, guarantee.unit), releases, uses


def _messages(
    site: Site, config: RunConfig, plan: AuditPlan, delta: float, progress: Progressive, *, place: int
) -> Audited:
    """Audit messages by many runs, over all rounds."""
    guarantee, canaries, releases, uses = message_of(site, config, delta)
    assert guarantee.relation is not None
    protected = [one for made in releases_of(site) for one in made if one.sent(site.defense_stack)[1]]
    noise = check_messages(
        protected, site, place, confidence=plan.confidence,
        releases=MESSAGES if plan.distinct_releases is None else plan.distinct_releases,
    )  # fmt: skip
    if releases[0].step == "share" and (name := named_release(releases[0])) in noise.thin:
        canaries = canaries_of(site, releases[0], uses, guarantee.unit, thin=True)
        noise = replace(noise, bounded=[name])
    worlds = [worlds_of(canary, releases, guarantee.relation) for canary in canaries]
    results = []
    for repeat in range(plan.repeats):
        results.append(
            audit_canaries(
                worlds, site.defense_stack, guarantee, runs=plan.runs, confidence=plan.confidence, name=str(repeat),
                curve="gaussian" if smooth(uses) else "approximate",
            )
        )  # fmt: skip
        progress.update("repeats", repeat + 1, plan.repeats)
    words = "; then ".join(canary.words for canary in canaries)
    return Audited(
        guarantee=guarantee, canary=words, runs=2 * plan.runs * len(canaries), results=results, noise=noise,
        images=len(site.client.data), tried=f"messages of a client of {len(site.client.data)} images",
    )  # fmt: skip


def _training(site: Site, config: RunConfig, plan: AuditPlan, delta: float, progress: Progressive) -> Audited:
    """Audit the defense's trainer over all rounds, with full participation.

    Raises UsageError for mislabeled canaries if the method steps several networks jointly."""
    if plan.canary == "mislabeled" and isinstance(site.method, StepsJointly):
        raise UsageError(
            f"mislabeled canaries need a single network, but {config.target} steps several jointly; use "
            "--canary gradient."
        )
    canaries: Canaries = GradientCanaries(site=site, count=plan.canaries)
    if plan.canary == "mislabeled":
        canaries = MislabelledCanaries(site=site)
    nobody = torch.zeros(len(canaries), dtype=torch.bool)
    costs = canaries.observed(nobody, replace(site.defense_stack, name=f"{site.defense_stack.name}/claim")).uses
    if not all(costs):
        raise _no_guarantee(config)
    guarantee = claimed(config, site, _model_releases(site), costs, delta)
    guesses = plan.guesses or max(1, len(canaries) // 10)
    results = []
    for repeat in range(plan.repeats):
        results.append(
            audited(
                canaries, site.defense_stack, guarantee, guesses=guesses, confidence=plan.confidence, seed=site.seed,
                repeat=repeat,
            )
        )  # fmt: skip
        progress.update("repeats", repeat + 1, plan.repeats)
    distinct = TRAININGS if plan.distinct_releases is None else plan.distinct_releases
    noise = check_trainings(site, releases=distinct, confidence=plan.confidence)
    words = f"{len(canaries)} {canaries.words}; {guesses} guesses"
    return Audited(
        guarantee=guarantee, canary=words, runs=2, results=[one.result for one in results],
        images=len(site.client.data), tried=_tried(site, plan), noise=noise, scale=_training_scale(site, config, delta),
        gaussian=[one.gaussian for one in results if one.gaussian is not None],
    )  # fmt: skip


def _tried(site: Site, plan: AuditPlan) -> str:
    """What faults of a training are sought in."""
    own = f"trainings of small networks on images made for them, and {STEP}"
    return own if plan.canary == "gradient" else f"{own}, and its training on {len(site.client.data)} of its images"


def _training_scale(site: Site, config: RunConfig, delta: float) -> AuditResult:
    """Audit the divisor with the claim that the defense states for the small client."""
    small = SmallTraining(site=site)
    _, uses = small.updates(replace(site.defense_stack, name=f"{site.defense_stack.name}/scale/claim"))
    guarantee = claimed(config, site, _model_releases(site), uses, delta)
    assert guarantee.epsilon is not None
    without: Relation = "add-remove" if guarantee.relation == "add-remove" else "zero-out"
    full = all(use.sampling_rate == 1 for cost in uses for use in cost or ())
    return audit_runs(
        small.scores(site.defense_stack, without=without), small.scores(site.defense_stack),
        claimed_epsilon=guarantee.epsilon, delta=guarantee.delta, unit=guarantee.unit,
        curve="gaussian" if full else "approximate", confidence=CONFIDENCE,
    )  # fmt: skip


def _model_releases(site: Site) -> list[Release]:
    assert site.model is not None
    return [
        Release(step="fit", slot="model", artifact=site.model.state, sender=site.sender(clock, {}))
        for clock in site.clocks
    ]


def claimed(
    config: RunConfig, site: Site, releases: Sequence[Release], costs: Sequence[Uses], delta: float
) -> Guarantee:
    """The guarantee that the run's ledger states for these releases. Raises UsageError if epsilon is infinite."""
    ledger = Ledger()
    for release, uses in zip(releases, costs, strict=True):
        stage = "update" if release.step == "fit" else release.step
        ledger.write(
            site.client.name, round=release.sender.clock.round, stage=stage,
            kinds={release.slot: release.artifact.kind}, uses={release.slot: uses},
        )  # fmt: skip
    assumptions = [text for defense in site.defense_stack.defenses for text in defense.assumptions]
    found = ledger.guarantees(delta=delta, assumptions=assumptions)[0]
    if found.epsilon is None or math.isinf(found.epsilon):
        raise _no_guarantee(config)
    return attributed(found, site.defense_stack.defenses)


def _no_guarantee(config: RunConfig) -> UsageError:
    name = " then ".join(map(defense_text, config.defenses))
    trained = "" if config.rounds or attacked_method(config).needs_training else "; training needs --rounds 1 or more"
    return UsageError(
        f"{name} states no (epsilon, delta) for any message of a client of {config.target}, so there is nothing to "
        f"audit; private-styles, private-scores, dp-fedavg and dp-sgd state one{trained}."
    )


def _document(config: RunConfig, place: int, found: Audited, *, seconds: float) -> dict[str, Any]:
    middle, guarantee, defenses = summary(found.results), found.guarantee, defense_documents(config)
    alpha = 1 - middle.confidence if middle.repeats == 1 else ALPHA  # one audit is judged at its own confidence
    exceeded = exceeds(found.gaussian or found.results, alpha)  # one of them, fixed by the claim: no more false alarms
    noise, scale, curve = found.noise, found.scale, summary(found.gaussian) if found.gaussian else None
    told = {"the size of the noise tells how many records there are": scale is not None and scale.exceeded}
    faults = {"bounds lie above the claim": exceeded, **noise.faults, **told}
    return {
        "schema": SCHEMA, "target": config.target, "dataset": config.dataset, "encoder": config.encoder,
        "rounds": config.rounds, "seed": config.seed, "defense": defenses[place], "defenses": defenses,
        "images": found.images, "tried": found.tried,
        "claimed_epsilon": middle.claimed_epsilon, "delta": middle.delta, "unit": middle.unit,
        "relation": guarantee.relation, "mechanism": guarantee.mechanism, "covers": list(guarantee.covers),
        "by": list(guarantee.by), "vetted": guarantee.vetted, "assumptions": list(guarantee.assumptions),
        "lower_bound": middle.lower_bound, "ceiling": middle.ceiling,
        "confidence": middle.confidence, "repeats": middle.repeats, "auditor": middle.auditor, "runs": found.runs,
        "canary": found.canary, "bounds": [one.lower_bound for one in found.results],
        "above": sum(one.exceeded for one in found.results), "exceeded": exceeded,
        "gaussian_bound": None if curve is None else curve.lower_bound,
        "gaussian_ceiling": None if curve is None else curve.ceiling,
        "gaussian_bounds": [one.lower_bound for one in found.gaussian],
        "gaussian_above": sum(one.exceeded for one in found.gaussian),
        "noise": noise.line(), "distinct_releases": noise.releases, "states_bits": noise.states_bits,
        "repeated_noise": noise.repeated, "seeding": noise.seeding,
        "untested": list(noise.untested),
        "scale_bound": None if scale is None else scale.lower_bound,
        "scale_claim": None if scale is None else scale.claimed_epsilon,
        "faults": [words for words, shown in faults.items() if shown], "note": NOTE,
        "environment": environment(), "seconds": seconds,
    }  # fmt: skip
