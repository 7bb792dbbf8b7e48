"""What a refused reply leaves behind: nothing on the wire, its cost in the ledger, and the others' round."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch

from fdgsec.defenses.guards import Guards
from fdgsec.defenses.shuffle import Shuffle
from fdgsec.federation.artifacts import Artifact, Scores, StyleStatistics
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.method import Reply
from fdgsec.federation.participation import ClientFailedError
from fdgsec.federation.wire import Receipt, Upload, Wire
from fdgsec.privacy.accounting import Use
from fdgsec.runtime.errors import ArtifactError
from fdgsec.runtime.secret_streams import SecretStream, simulated_stream
from tests.support.faults import FAULTS, Altering, Faulty, Run, driven, local, silent
from tests.support.hostile import altered, first_is
from tests.support.toy_federation import FULL_BATCH, PixelStyles, largest_gap, members, run

Change = Callable[[Reply], Reply | None]
STYLES = PixelStyles(when="every", plan=FULL_BATCH)
USE = Use(mechanism="gaussian", noise=1.0, sensitivity={"zero-out": 1.0})


def with_style(forge: Callable[[Artifact], Artifact]) -> Change:
    return lambda reply: replace(reply, artifacts={"style": forge(reply.artifacts["style"])})


def shared(change: Change, *, wire: Wire | None = None, sizes: Sequence[int] = (6, 10, 8)) -> Run:
    """One round in which client:1 answers the exchange of styles otherwise."""
    return driven(STYLES, Altering(engine=local(STYLES, members(*sizes)), step="share", change=change), wire=wire)


@dataclass(frozen=True, kw_only=True)
class Counting:
    """A filter that notes how many uploads of a stage it holds, and how many the ledger has."""

    seen: list[tuple[str, int, int]] = field(default_factory=list)

    def on_received(self, receipt: Receipt) -> Sequence[Upload]:
        stage = receipt.uploads[0].stage
        entered = {entry.client for entry in receipt.ledger.entries if entry.stage == stage}
        self.seen.append((stage, len(receipt.uploads), len(entered)))
        return receipt.uploads


@dataclass(frozen=True, kw_only=True)
class Passing:
    """A policy that leaves uploads as they are."""

    def on_collected(self, uploads: Sequence[Upload], rng: SecretStream) -> Sequence[Upload]:
        return uploads


def wired(*, guards: bool = False, policies: bool = False, counting: Counting | None = None) -> Wire:
    defense_stack = DefenseStack(usual=Guards()) if guards else DefenseStack()
    return Wire(
        secret=lambda upload, number: simulated_stream(0), guards=defense_stack.guards, keep=lambda message: True,
        policies=[Passing()] if policies else [], filters=defense_stack.filters if counting is None else [counting],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (with_style(altered("mean", first_is(math.nan))), "style.mean has 1 of 3 values that are not finite"),
        (with_style(altered("std", first_is(math.inf))), "style.std has 1 of 3 values that are not finite"),
        (with_style(lambda a: StyleStatistics(mean=torch.ones(4), std=torch.ones(4))),
         "style.mean is (4,) float32; more clients sent (3,) float32"),
        (with_style(altered("mean", lambda mean: mean.double())),
         "style.mean is (3,) float64; more clients sent (3,) float32"),
        (with_style(lambda a: Scores(values=torch.ones(3))), "style is a Scores; more clients sent a StyleStatistics"),
        (lambda reply: replace(reply, artifacts={}), "style is missing"),
        (lambda reply: replace(reply, weight=-1.0), "its weight is -1; it must be at least 0 and at most 1e+09"),
        (silent, "no reply came"),
    ],
)  # fmt: skip
def test_a_bad_share_costs_its_client_the_round_and_the_others_nothing(change: Change, said: str):
    outcome = shared(change)

    absent = shared(silent)
    assert [str(failure) for failure in outcome.failures] == [f"client:1 failed in share: {said}"]
    assert outcome.wire.transcript.sha256 == absent.wire.transcript.sha256
    assert largest_gap(outcome.state(), absent.state()) == 0
    assert {message[2] for message in outcome.messages} == {"server", "client:0", "client:2"}


def test_of_two_replies_of_different_form_nobody_knows_which_is_right():
    change = with_style(lambda a: StyleStatistics(mean=torch.ones(4), std=torch.ones(4)))

    with pytest.raises(ClientFailedError) as caught:
        shared(change, sizes=(6, 6))

    assert str(caught.value) == (
        "round 0: 0 of 2 clients answered, and quorum 0.5 needs 1; "
        "client:0 failed in share: style.mean is (3,) float32; as many clients sent (4,) float32; "
        "client:1 failed in share: style.mean is (4,) float32; as many clients sent (3,) float32"
    )


NEGATIVE = with_style(altered("std", first_is(-1.0)))
REFUSED = r"client:1 sent a bad StyleStatistics \(round 0, share\): StyleStatistics.std must be >= 0"


def test_what_a_guard_refuses_costs_its_client_the_round():
    outcome = shared(NEGATIVE, wire=wired(guards=True))

    (failure,) = outcome.failures
    assert (failure.client, failure.step) == ("client:1", "share")
    assert failure.reason.startswith(
        "client:1 sent a bad StyleStatistics (round 0, share): StyleStatistics.std must be >= 0"
    )
    absent = shared(silent, wire=wired(guards=True))
    assert outcome.wire.transcript.sha256 == absent.wire.transcript.sha256
    assert largest_gap(outcome.state(), absent.state()) == 0


@pytest.mark.parametrize(
    ("quorum", "checked", "policies"), [(1.0, False, False), (1.0, True, False), (0.5, False, True)]
)
def test_at_quorum_one_and_behind_policies_a_guards_refusal_ends_the_run(quorum: float, checked: bool, policies: bool):
    engine = Altering(engine=local(STYLES, members(6, 10, 8)), step="share", change=NEGATIVE)

    with pytest.raises(ArtifactError, match=REFUSED):
        driven(STYLES, engine, wire=wired(guards=True, policies=policies), quorum=quorum, checked=checked)


def test_what_is_answered_to_nameless_senders_goes_to_those_who_are_still_in_the_round():
    wire = replace(wired(), policies=[Shuffle().policy()])

    outcome = shared(silent, wire=wire)

    answered = [receiver for _, stage, _, receiver, _ in outcome.messages if stage == "combine"]
    assert answered == ["client:0", "client:2"]
    senders = [sender for _, stage, sender, _, _ in outcome.messages if stage == "share"]
    assert senders == ["anonymous:0", "anonymous:1"]


def test_what_the_server_sends_is_no_clients_failure():
    wire = replace(wired(), guards=[Guards(largest_bytes=1000).inspect])

    with pytest.raises(ArtifactError, match="server sent a bad ModelState"):
        shared(lambda reply: reply, wire=wire)


def test_guards_refuse_nobody_whom_they_do_not_refuse_today():
    outcome = driven(STYLES, local(STYLES, members(6, 10, 8)), wire=wired(guards=True))

    assert outcome.failures == []
    assert outcome.wire.transcript.sha256 == run(STYLES, members(6, 10, 8)).wire.transcript.sha256


def test_a_refused_reply_is_in_the_ledger_with_its_cost_and_not_on_the_wire():
    wire = wired()

    shared(lambda reply: replace(reply, weight=-1.0, uses={"style": (USE,)}), wire=wire)

    entered = [
        (entry.client, entry.slot, entry.kind, entry.uses) for entry in wire.ledger.entries if entry.stage == "share"
    ]
    assert entered == [
        ("client:0", "style", "StyleStatistics", None),
        ("client:2", "style", "StyleStatistics", None),
        ("client:1", "style", "StyleStatistics", (USE,)),
    ]
    assert [row.sender for row in wire.transcript.rows if row.stage == "share"] == ["client:0", "client:2"]


def test_a_filter_finds_in_the_ledger_those_whose_uploads_it_holds_and_no_others():
    counting = Counting()
    method = Faulty(fault=FAULTS["weight -3"][0])

    outcome = driven(method, local(method, members(6, 10, 8)), wire=wired(counting=counting))

    assert counting.seen == [("update", 2, 2)]  # as who noises a sum for the number of its clients must
    last = outcome.wire.ledger.entries[-2:]
    assert [(entry.client, entry.slot) for entry in last] == [("client:1", "model"), ("client:1", "numbers")]
