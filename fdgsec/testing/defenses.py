"""`check_defense`: the contract of a defense, over two rounds of a method and on single messages."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from fdgsec.experiments.audit.free_numbers import told_for_free
from fdgsec.experiments.audit.moved_releases import Moved, moved_too_far, tensors_moved
from fdgsec.experiments.audit.neighboring_clients import Site, releases_of
from fdgsec.experiments.audit.noise_of_records import same_cost
from fdgsec.experiments.audit.noise_tails import without_tails
from fdgsec.experiments.audit.noise_within import update_repeats
from fdgsec.experiments.audit.tensors_without_noise import trained_without_noise
from fdgsec.experiments.audit.training_checks import each_kind_once, faults_of_training
from fdgsec.experiments.run_config import RunConfig, made
from fdgsec.experiments.setup.defenses import statistic_source_of
from fdgsec.federation.defense import (
    Defense,
    HasPolicy,
    Inspects,
    Outgoing,
    PlansGuarantee,
    Protected,
    Sender,
    TrainsPrivately,
)
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Clock, Method
from fdgsec.federation.replaced_records import with_records_replaced
from fdgsec.federation.wire import Filter
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.privacy.accounting import Use
from fdgsec.privacy.guarantees import PlannedGuarantee, RecordMixing
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import warn
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.registry import name_of, names
from fdgsec.runtime.secret_streams import simulated_stream
from fdgsec.testing.contracts import check_frozen, expect, nothing_kept
from fdgsec.testing.small_federation import CLIENTS, Outcome, Passed, federated, four_clients, start_of

CLIENT_NAMES = tuple(f"client:{number}" for number in range(CLIENTS))
TAILS = 512
"""Draws of what a client shares, whose largest deviation is compared with that of Gaussian noise."""
PLAN = TrainingPlan(batch_size=8, learning_rate=0.01)


@each_kind_once
def check_defense(given: object, *, method: object = None) -> None:
    """Check a defense, given as an object, as its class or by name. Raises BrokenPromiseError, naming the promise.

    Four clients of `method` use it for two rounds; the default is the first method that it works with."""
    defense: Defense = made("defenses", given, {}, where="defense")
    check_frozen(defense)
    whole = isinstance(defense, Defense)
    expect(whole, "a defense is a Defense", f"{type(defense).__name__} lacks assumptions, check or on_message")
    words = all(isinstance(text, str) and text for text in defense.assumptions)
    expect(words, "a defense says what it rests on", f"assumptions must be sentences; got {defense.assumptions!r}")
    works_with = next(_methods(defense, method), None)
    expect(works_with is not None, "a defense works with some method", "its check refuses all that were tried")
    assert works_with is not None
    members, start = four_clients(), start_of(works_with, norm="group")
    source = statistic_source_of(RunConfig(method=name_of("methods", works_with)), works_with)
    stack = DefenseStack(defenses=(defense,), statistic_source=source)
    stack.check(works_with)
    with nothing_kept(defense):
        plain = federated(works_with, members, recode=False, start=start)
        _check_messages(defense, works_with, plain, stack, start)
        _check_costs_of_others(defense, works_with, stack, start)
        try:
            first = federated(works_with, members, recode=False, defense_stack=stack, start=start)
        except UsageError as error:
            expect(False, "a mechanism names its stages, and nothing else pays or reads records", str(error))
            raise
        again = federated(works_with, members, recode=False, defense_stack=stack, start=start)
        _check_moves(works_with, stack, start)
    expect(first.same_bytes == again.same_bytes, "the same seed gives the same bytes", "two defended runs differ")
    kinds = [{(one.stage, one.slot, one.artifact.kind) for one in run.passed} for run in (plain, first)]
    said = f"{sorted(kinds[0] ^ kinds[1])} of stage, slot and kind"
    expect(kinds[0] == kinds[1], "a defense keeps the kind of every artifact", said)
    acts = isinstance(defense, HasPolicy | Inspects | Filter) or first.same_bytes != plain.same_bytes
    expect(acts, "a defense acts", f"nothing that {type(works_with).__name__} sends is changed; give another method")
    _check_costs(defense, first)
    _check_later_rounds(first)


def _methods(defense: Defense, given: object) -> Iterator[Method]:
    """The methods that the defense accepts: the given one, or bundled ones."""
    for one in ["ccst", "fedavg", *names("methods")] if given is None else [given]:
        try:
            method: Method = made("methods", one, {"plan": PLAN} if isinstance(one, str) else {}, where="method")
            method = method.fitting(CLIENTS)
            defense.check(method)
        except UsageError as error:
            if given is not None:
                expect(False, "a defense works with some method", str(error))
            continue
        yield method


def _check_messages(defense: Defense, method: Method, plain: Outcome, stack: DefenseStack, start: GlobalModel) -> None:
    """Apply the defense twice to each message of a client's first round, outside a run."""
    client = four_clients()[0]
    for sent in plain.passed:
        if sent.client != client.name or sent.round or sent.stage in ("combine", "exhibit"):
            continue
        clock = Clock(round=0, rounds=2, participants=CLIENT_NAMES)
        sender = Sender(
            client=client, method=method, clock=clock, model=start, state=plain.states[client.name],
            statistic_source=stack.statistic_source,
        )  # fmt: skip
        outgoing = Outgoing(round=0, stage=sent.stage, name=sent.slot, artifact=sent.artifact, sender=sender)
        before = sent.artifact.sha256
        made_of = [defense.on_message(replace(outgoing), simulated_stream(0, "check")) for _ in range(2)]
        what = f"{sent.artifact.kind} in slot {sent.slot!r} of stage {sent.stage!r}"
        _check_protected(made_of, sent, what)
        expect(sent.artifact.sha256 == before, "a defense leaves what it is handed as it was", f"it changed {what}")


def _check_costs_of_others(defense: Defense, method: Method, stack: DefenseStack, start: GlobalModel) -> None:
    """Check that what a client shares costs the same when half of its images are others, and when all are."""
    if method.shares == "never":
        return
    client, clock = four_clients()[0], Clock(round=0, rounds=2, participants=CLIENT_NAMES)
    count = len(client.data)
    half, none = torch.arange(count) % 2 == 0, torch.zeros(count, dtype=torch.bool)
    changed = [with_records_replaced(client.data, half, "black"), with_records_replaced(client.data, none, "noise")]
    costs = []
    for data in (client.data, *changed):
        member = replace(client, data=data)
        rng = stream(0, "world", "cost of a release")
        shared, state = method.share(member, model=start, state={}, clock=clock, rng=rng)
        sender = Sender(
            client=member, method=method, clock=clock, model=start, state=state,
            statistic_source=stack.statistic_source,
        )  # fmt: skip
        made_of = {
            slot: defense.on_message(
                Outgoing(round=0, stage="share", name=slot, artifact=artifact, sender=sender),
                simulated_stream(0, "check"),
            )
            for slot, artifact in shared.items()
        }
        costs.append({slot: None if one is None else one.uses for slot, one in made_of.items()})
    for slot, uses in costs[0].items():
        same = all(same_cost(uses, other.get(slot)) for other in costs[1:])
        expect(same, "a cost does not depend on the records", f"that of {slot!r} is another one for other images")


def _check_moves(method: Method, stack: DefenseStack, start: GlobalModel) -> None:
    """Check that one image moves what a client shares no further than its cost allows, where that image decides."""
    clocks = [Clock(round=number, rounds=2, participants=CLIENT_NAMES) for number in range(2)]
    site = Site(method=method, client=four_clients()[0], model=start, defense_stack=stack, clocks=clocks, seed=0)
    if any(isinstance(defense, TrainsPrivately) for defense in stack.defenses):
        _check_trainings(site, stack)
    for said in told_for_free(site, stack):
        expect(False, "every new release has its cost", said)
    for release in without_tails(site, stack, draws=TAILS):
        expect(False, "noise has the tails that its cost says", f"that of {release.slot!r} is cut")
    for release in (releases[0] for releases in releases_of(site)):
        again = bool(release.sent(stack)[1]) and update_repeats(release, stack)
        expect(not again, "noise does not come again", f"that of {release.slot!r} is a shorter one over and over")
    for one in [*moved_too_far(site, stack), *_averages_moved(site, stack)]:
        expect(
            False, "a release moves with one image or client no further than its cost allows",
            f"{one.release.slot!r} moves with {one.by} {one.words}",
        )  # fmt: skip


def _check_trainings(site: Site, stack: DefenseStack) -> None:
    """Check that one image moves a training no further than its cost allows, and that samples are as it says."""
    plans = [replace(PLAN, optimizer="sgd", momentum=0.9), replace(PLAN, optimizer="adam", learning_rate=1e-3)]
    untested = list[str]()
    for found in faults_of_training(site, stack, plans):
        untested += found.untested
        for said in found.moved:
            expect(False, "a training moves with one image no further than its cost allows", said)
        for said in found.samples:
            expect(False, "a training draws its records as its cost says", said)
    if (tensor := _averages_taken(site, stack)) is not None:
        expect(False, "a training moves with one image no further than its cost allows", f"it moves {tensor!r}")
    for said in untested:
        warn(f"check_defense did not test {said}")


def _averages_moved(site: Site, stack: DefenseStack) -> list[Moved]:
    """The update that batch norm's averages leave with as they are, of a network that has some."""
    try:
        return tensors_moved(replace(site, model=start_of(site.method, norm="batch")), stack)
    except UsageError:  # a defense may refuse averages over images
        return []


def _averages_taken(site: Site, stack: DefenseStack) -> str | None:
    """The average of batch norm that a private training takes from its images as it is."""
    try:
        return trained_without_noise(replace(site, model=start_of(site.method, norm="batch")), stack)
    except UsageError:  # as above
        return None


def _check_protected(made_of: Sequence[Protected | None], sent: Passed, what: str) -> None:
    first, second = made_of
    hashes = [None if one is None else one.artifact.sha256 for one in made_of]
    expect(hashes[0] == hashes[1], "a defense draws from the generator it is handed", f"two answers to {what} differ")
    if first is None or second is None:
        return
    kept = type(first.artifact) is type(sent.artifact)
    expect(kept, "a defense keeps the kind of every artifact", f"{what} became {first.artifact.kind}")
    typed = first.uses is None or all(isinstance(use, Use) for use in first.uses)
    expect(typed, "a cost is None or uses of a mechanism", f"{what} cost {first.uses!r}")


def _check_later_rounds(run: Outcome) -> None:
    """Check that a client that paid for a slot pays for it again, or sends what it has paid for."""
    sent = {(one.client, one.round, one.stage, one.slot): one.artifact.sha256 for one in run.passed}
    paid: dict[tuple[str, str, str], set[str | None]] = {}
    for entry in run.ledger.entries:
        hashes = paid.setdefault((entry.client, entry.stage, entry.slot), set())
        now = sent.get((entry.client, entry.round, entry.stage, entry.slot))
        if any(use.noise for use in entry.uses or ()):
            hashes.add(now)
        elif hashes and entry.uses is not None:
            expect(
                now in hashes, "every new release has its cost",
                f"{entry.slot!r} of round {entry.round} is another one than was paid for",
            )  # fmt: skip


def _check_costs(defense: Defense, run: Outcome) -> None:
    """Check that the costs in the run's ledger match the planned guarantee, in unit, stage and relation."""
    promise, planned = "a guarantee is none, or what was said before", None
    if isinstance(defense, PlansGuarantee):
        planned = defense.promise
        known = planned is None or isinstance(planned, PlannedGuarantee | RecordMixing)
        expect(known, promise, f"promise is {planned!r}; it must be None, a PlannedGuarantee or RecordMixing")
    paid = [(entry.stage, use) for entry in run.ledger.entries for use in entry.uses or ()]
    costs = {(stage, use.unit) for stage, use in paid if use.noise}
    if isinstance(planned, PlannedGuarantee):
        expect(bool(costs), promise, f"{planned.by} plans to pay in stage {planned.stage!r}, and paid nothing")
        foreign = costs - {(planned.stage, planned.unit)}
        expect(
            not foreign, promise, f"{planned.by} pays for {sorted(foreign)}, and said {(planned.stage, planned.unit)}"
        )
        lacking = [use for _, use in paid if not planned.relations & set(use.sensitivity)]
        expect(not lacking, promise, f"{planned.by} pays between other neighbors than {sorted(planned.relations)}")
    else:
        expect(
            not costs, promise, f"{type(defense).__name__} pays for {sorted(costs)}, and its promise says nothing of it"
        )
