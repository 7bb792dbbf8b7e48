"""The verb `audit`: attack a guarantee through the code that gives it, and say how large its epsilon must at least be.

Messages (styles, models, scores) are made thousands of times with a canary and without, each time with noise of its
own; private training runs once with many canaries. Either way a lower bound on epsilon comes out that holds with the
stated confidence. Above the claim it proves a fault; under it, it proves nothing."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import torch

from fdgsec.data.domains import DomainDataset
from fdgsec.experiments.audit.message_canaries import canary_of
from fdgsec.experiments.audit.neighbors import Canary, Release, Site, Worlds, releases_of, worlds_of
from fdgsec.experiments.audit.one_run import Canaries, GradientCanaries, MislabelledCanaries, audited
from fdgsec.experiments.config import RunConfig, attack_settings, defense_text, target_method
from fdgsec.experiments.setup.defenses import defense_documents, defense_stack_of
from fdgsec.experiments.setup.world import attacked_method, clients_of, load_world, method_of, model_of, with_validation
from fdgsec.federation.defense import HasPolicy, PlansGuarantee, TrainsPrivately, Uses
from fdgsec.federation.dp_sgd_joint import StepsJointly
from fdgsec.federation.method import Clock
from fdgsec.federation.run_folder import check_replaceable, environment
from fdgsec.privacy.accounting import Use
from fdgsec.privacy.epsilon_bounds import FEWEST_RUNS, AuditResult, audit_runs, exceeds, summary
from fdgsec.privacy.guarantees import PlannedGuarantee
from fdgsec.privacy.ledger import Guarantee, Ledger
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.files import write_atomic
from fdgsec.runtime.progress import Progressive
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.registry import target_named

SCHEMA = 1
PER_DOMAIN = 120
"""Images of each domain that are loaded unless told otherwise: the audited client needs few, but for mislabeled
ones."""
IMAGES = 16
"""How many images the audited client has: noise and sensitivity of a mean both go with 1/n, so that few are as good."""
ALPHA = 0.05
"""How often repeats of an audit may find a fault in a sound defense."""
NOTE = (
    "A bound under the claim is no proof that the claim holds: it is what this attack found, and a better one may find more. "
    "A bound near its ceiling is saturated: more runs or guesses could raise it."
)


@dataclass(frozen=True, kw_only=True)
class AuditPlan:
    """How hard to look: `runs` of each kind for messages, `canaries` and `guesses` (None: a tenth) for training.

    Everything `repeats` times with secrets of its own. `canary` is what training is audited with. Raises UsageError for
    numbers out of range."""

    runs: int = 2000
    repeats: int = 1
    confidence: float = 0.95
    canaries: int = 1024
    guesses: int | None = None
    canary: Literal["gradient", "mislabeled"] = "gradient"

    def __post_init__(self) -> None:
        if self.runs < FEWEST_RUNS or self.repeats < 1 or self.canaries < 2:
            raise UsageError(
                f"an audit needs {FEWEST_RUNS} runs, 1 repeat and 2 canaries or more; got {self.runs}, {self.repeats} and "
                f"{self.canaries}."
            )
        if not 0 < self.confidence < 1 or (self.guesses is not None and self.guesses < 1):
            raise UsageError(
                f"an audit needs a confidence in (0, 1) and a guess or more; got {self.confidence} and {self.guesses}."
            )
        if self.canary not in ("gradient", "mislabeled"):
            raise UsageError(f"canary must be gradient or mislabeled; got {self.canary!r}.")


@dataclass(frozen=True, kw_only=True, eq=False)
class Audited:
    """What was claimed, of which message, how it was looked at, and the result of every repeat."""

    guarantee: Guarantee
    canary: str
    runs: int
    results: Sequence[AuditResult]


@runtime_checkable
class StatesDelta(Protocol):
    """A defense that says at which delta its epsilon holds."""

    @property
    def delta(self) -> float:
        """The probability."""
        ...


def audit_settings(
    target: str, given: Mapping[str, Any], plan: AuditPlan, *, assignments: Sequence[str] = ()
) -> RunConfig:
    """What an audit runs on, unless `given` says otherwise: few images, one round where only trained messages leave,
    the CPU.

    Raises what `attack_settings` raises."""
    told = {name: value for name, value in given.items() if value is not None}
    usual: dict[str, Any] = {
        "device": "cpu",
        "rounds": 1 if target_method(target_named(target)).needs_training else None,
    }
    if plan.canary == "gradient":
        usual["per_domain"] = PER_DOMAIN
    return attack_settings(target, {**usual, **told}, assignments=assignments)


def audit(
    config: RunConfig, plan: AuditPlan, *, data_root: Path | None, out: Path | None, progress: Progressive
) -> dict[str, Any]:
    """Audit the defense of `config` that promises something, behind and before the others that it names; give the
    document, and write it to `out` as audit.json.

    Raises UsageError for a defense without a guarantee for anything that one client sends, and what `attack` raises."""
    started = time.monotonic()
    if out is not None:
        check_replaceable(out)
    place = paying(config)
    site = site_of(config, plan, data_root=data_root, progress=progress)
    defense = site.defense_stack.defenses[place]
    delta = defense.delta if isinstance(defense, StatesDelta) else config.delta
    through = _training if isinstance(defense, TrainsPrivately) else _messages
    found = through(site, config, plan, delta, progress)
    document = _document(config, place, found, seconds=time.monotonic() - started)
    if out is not None:
        write_atomic(out / "audit.json", json.dumps(document, indent=1) + "\n")
    return document


def paying(config: RunConfig) -> int:
    """Which of the run's defenses, by its place, gives the guarantee that is audited; the first, where none says so.

    Raises UsageError for none, for two with a guarantee each, and for what acts behind the client."""
    defenses = config.defenses
    if not defenses:
        raise UsageError("an audit needs a defense (--defense NAME:k=v).")
    wires = [defense_text(one) for one in defenses if isinstance(one, HasPolicy)]
    if wires and len(defenses) > 1:
        raise UsageError(
            f"{wires[0]} acts on the wire, on all clients together; an audit sees what one client sends: leave it out."
        )
    promising = [
        n
        for n, one in enumerate(defenses)
        if isinstance(one, PlansGuarantee) and isinstance(one.promise, PlannedGuarantee)
    ]
    if len(promising) > 1:
        named = " and ".join(defense_text(defenses[number]) for number in promising)
        raise UsageError(
            f"an audit looks at one guarantee at a time, and {named} give one each; audit each by itself (the run's ledger "
            "composes what they promise)."
        )
    return promising[0] if promising else 0


def site_of(config: RunConfig, plan: AuditPlan, *, data_root: Path | None, progress: Progressive) -> Site:
    """Set up the first client of the run with a few of its images, the model that it receives, and its defense
    stack."""
    method = method_of(config)
    defense_stack = replace(
        defense_stack_of(config, method), name=f"audit/{config.sha256}"
    )  # no two audits share their secrets
    trains = any(isinstance(defense, TrainsPrivately) for defense in defense_stack.defenses)
    rounds = max(config.rounds, 1) if trains else config.rounds
    world = load_world(config, data_root=data_root, progress=progress)
    members = clients_of(world.seen(), config)
    method.check(len(members))
    first = members[0]
    if rounds and method.reviews != "none":
        first = with_validation(first, seed=config.seed)
    images = plan.canaries if trains else IMAGES
    first = replace(first, data=_some(first.data, images, config.seed))
    model = model_of(config, method, len(world.dataset.class_names)) if rounds or method.shares == "every" else None
    names = tuple(client.name for client in members)
    clocks = [Clock(round=number, rounds=rounds, participants=names) for number in range(max(rounds, 1))]
    return Site(method=method, client=first, model=model, defense_stack=defense_stack, clocks=clocks, seed=config.seed)


def _some(data: DomainDataset, images: int, seed: int) -> DomainDataset:
    order = torch.randperm(len(data), generator=stream(seed, "world", "audited images"))
    return data.subset(order[:images])


def message_of(site: Site, config: RunConfig, delta: float) -> tuple[Guarantee, Canary, list[Release], list[Use]]:
    """Find the first kind of message that the defense gives a guarantee for: its claim, canary, releases and their
    cost.

    Raises UsageError where there is none."""
    for releases in releases_of(site):
        costs = [release.sent(site.defense_stack)[1] for release in releases]
        if all(costs):
            break
    else:
        raise _no_guarantee(config)
    guarantee = _claimed(config, site, releases, costs, delta)
    uses = [use for cost in costs for use in cost or ()]
    return guarantee, canary_of(site, releases[0], uses, guarantee.unit), releases, uses


def _messages(site: Site, config: RunConfig, plan: AuditPlan, delta: float, progress: Progressive) -> Audited:
    """Audit a message by many runs, over all rounds."""
    guarantee, canary, releases, uses = message_of(site, config, delta)
    assert guarantee.relation is not None
    worlds = worlds_of(canary, releases, guarantee.relation)
    smooth = all(use.mechanism == "gaussian" and use.sampling_rate == 1 for use in uses)
    results = []
    for repeat in range(plan.repeats):
        results.append(_compared(worlds, site, plan, guarantee, repeat, curve="gaussian" if smooth else "approximate"))
        progress.update("repeats", repeat + 1, plan.repeats)
    return Audited(guarantee=guarantee, canary=canary.words, runs=2 * plan.runs, results=results)


def _compared(
    worlds: Worlds, site: Site, plan: AuditPlan, guarantee: Guarantee, repeat: int, *, curve: Literal["gaussian", "approximate"]
) -> AuditResult:  # fmt: skip
    absent, present = (
        worlds.scores(site.defense_stack, present=side, runs=plan.runs, name=str(repeat)) for side in (False, True)
    )
    assert guarantee.epsilon is not None
    return audit_runs(
        absent, present, claimed_epsilon=guarantee.epsilon, delta=guarantee.delta, unit=guarantee.unit, curve=curve,
        confidence=plan.confidence,
    )  # fmt: skip


def _training(site: Site, config: RunConfig, plan: AuditPlan, delta: float, progress: Progressive) -> Audited:
    """Audit the defense's trainer over all rounds, each client taking part in each.

    Raises UsageError for wrong labels where networks step together, which no single network learns."""
    if plan.canary == "mislabeled" and isinstance(site.method, StepsJointly):
        raise UsageError(
            f"mislabeled canaries are learned by one network, but those of {config.target} step together; take "
            "--canary gradient."
        )
    canaries: Canaries = (
        MislabelledCanaries(site=site) if plan.canary == "mislabeled" else GradientCanaries(site=site, count=plan.canaries)
    )  # fmt: skip
    nobody = torch.zeros(len(canaries), dtype=torch.bool)
    costs = canaries.observed(nobody, replace(site.defense_stack, name=f"{site.defense_stack.name}/claim")).uses
    if not all(costs):
        raise _no_guarantee(config)
    assert site.model is not None
    releases = [
        Release(step="fit", slot="model", artifact=site.model.state, sender=site.sender(clock, {})) for clock in site.clocks
    ]  # fmt: skip
    guarantee = _claimed(config, site, releases, costs, delta)
    guesses = plan.guesses or max(1, len(canaries) // 10)
    results = []
    for repeat in range(plan.repeats):
        results.append(
            audited(
                canaries, site.defense_stack, guarantee, guesses=guesses, confidence=plan.confidence, seed=site.seed, repeat=repeat
            )
        )  # fmt: skip
        progress.update("repeats", repeat + 1, plan.repeats)
    words = f"{len(canaries)} {canaries.words}; {guesses} guesses"
    return Audited(guarantee=guarantee, canary=words, runs=2, results=results)


def _claimed(
    config: RunConfig, site: Site, releases: Sequence[Release], costs: Sequence[Uses], delta: float
) -> Guarantee:
    """What the run's ledger says of these releases. Raises UsageError where that is nothing, or infinite."""
    ledger = Ledger()
    for release, uses in zip(releases, costs, strict=True):
        stage = "update" if release.step == "fit" else release.step
        ledger.write(
            site.client.name, round=release.sender.clock.round, stage=stage, kinds={release.slot: release.artifact.kind},
            uses={release.slot: uses},
        )  # fmt: skip
    assumptions = [text for defense in site.defense_stack.defenses for text in defense.assumptions]
    found = ledger.guarantees(delta=delta, assumptions=assumptions)[0]
    if found.epsilon is None or math.isinf(found.epsilon):
        raise _no_guarantee(config)
    return found


def _no_guarantee(config: RunConfig) -> UsageError:
    name = " then ".join(map(defense_text, config.defenses))
    trained = (
        "" if config.rounds or attacked_method(config).needs_training else "; what is trained needs --rounds 1 or more"
    )
    return UsageError(
        f"{name} promises no (epsilon, delta) for anything that one client of {config.target} sends here, so that nothing can "
        f"be audited; private-styles, private-scores, dp-fedavg and dp-sgd promise one{trained}."
    )


def _document(config: RunConfig, place: int, found: Audited, *, seconds: float) -> dict[str, Any]:
    middle, guarantee, defenses = summary(found.results), found.guarantee, defense_documents(config)
    alpha = 1 - middle.confidence if middle.repeats == 1 else ALPHA  # one audit is judged at its own confidence
    return {
        "schema": SCHEMA, "target": config.target, "dataset": config.dataset, "encoder": config.encoder,
        "rounds": config.rounds, "seed": config.seed, "defense": defenses[place], "defenses": defenses,
        "claimed_epsilon": middle.claimed_epsilon, "delta": middle.delta, "unit": middle.unit,
        "relation": guarantee.relation, "mechanism": guarantee.mechanism, "covers": list(guarantee.covers),
        "assumptions": list(guarantee.assumptions), "lower_bound": middle.lower_bound, "ceiling": middle.ceiling,
        "confidence": middle.confidence, "repeats": middle.repeats, "auditor": middle.auditor, "runs": found.runs,
        "canary": found.canary, "bounds": [one.lower_bound for one in found.results],
        "above": sum(one.exceeded for one in found.results), "exceeded": exceeds(found.results, alpha), "note": NOTE,
        "environment": environment(), "seconds": seconds,
    }  # fmt: skip
