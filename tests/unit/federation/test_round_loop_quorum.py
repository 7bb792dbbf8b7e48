"""A round goes on without clients that fail, as long as a quorum is left, and as if they had never been asked."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.method import Client, Clock, Reply, Step, StepRequest
from fdgsec.federation.participation import ClientFailedError, Failure, RoundParticipation
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from tests.support.faults import FAULTS, Altering, Faulty, driven, local, silent, weighing
from tests.support.toy_federation import PixelStyles, Unreliable, largest_gap, members, run, start

ALL = ("client:0", "client:1", "client:2")


def trained_without(lost: Mapping[int, str], clients: Sequence[Client], *, rounds: int) -> Mapping[str, Tensor]:
    """FedAvg spelled out: in each round all but the one who is lost in it train, and their weighted mean is taken."""
    model = start()
    for number in range(rounds):
        states, sizes = [], []
        for client in clients:
            if client.name != lost.get(number):
                clock = Clock(round=number, rounds=rounds, participants=ALL)
                rng = stream(0, "world", "fit", number, client.name)
                update, _ = FedAvg().fit(client, model=model, inbox={}, state={}, clock=clock, rng=rng)
                states.append(update.artifacts["model"].tensors())
                sizes.append(len(client.data))
        mean = dict(states[0])
        for name, first in mean.items():
            if first.is_floating_point():
                total = torch.zeros(first.shape, dtype=torch.float64)
                for size, state in zip(sizes, states, strict=True):
                    total += size / sum(sizes) * state[name].double()
                mean[name] = total.to(first.dtype)
        model = model.with_state(mean)
    return model.state.state


@dataclass(frozen=True, kw_only=True)
class Backwards:
    """An engine whose last client answers first."""

    engine: LocalEngine

    def clients(self) -> Sequence[str]:
        return self.engine.clients()

    def ask(self, step: Step, requests: Mapping[str, StepRequest]) -> tuple[Mapping[str, Reply], Mapping[str, str]]:
        replies, failures = self.engine.ask(step, requests)
        return dict(reversed(list(replies.items()))), failures


def senders(messages: Sequence[tuple[int, str, str, str, str]], stage: str, number: int) -> list[str]:
    return list(dict.fromkeys(sender for found, at, sender, _, _ in messages if (found, at) == (number, stage)))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_round_with_a_faulty_update_is_the_round_without_that_client(fault: str):
    spoil, said = FAULTS[fault]
    method, clients = Faulty(fault=spoil), members(6, 10, 8)

    outcome = driven(method, local(method, clients), rounds=2)

    (failure,) = outcome.failures
    assert (failure.client, failure.round, failure.step) == ("client:1", 0, "fit")
    assert re.search(said, failure.reason)
    assert "\n" not in failure.reason
    assert all(torch.isfinite(value).all() for value in outcome.state().values())
    assert largest_gap(outcome.state(), trained_without({0: "client:1"}, clients, rounds=2)) == 0
    assert senders(outcome.messages, "update", 0) == ["client:0", "client:2"]
    assert senders(outcome.messages, "update", 1) == ["client:0", "client:1", "client:2"]
    assert [sorted(report.metrics) for report in outcome.reports] == [["client:0", "client:2"], list(ALL)]


@pytest.mark.parametrize("fault", FAULTS)
def test_at_quorum_one_a_faulty_update_ends_a_checked_run_by_name(fault: str):
    spoil, said = FAULTS[fault]
    method = Faulty(fault=spoil)

    with pytest.raises(ClientFailedError, match=f"^client:1 failed in fit: {said}"):
        driven(method, local(method, members(6, 10, 8)), quorum=1.0, checked=True)


def test_at_quorum_one_nothing_is_checked_unless_that_is_asked_for():
    method = Faulty(fault=weighing(1e12))

    outcome = driven(method, local(method, members(6, 10, 8)), quorum=1.0)

    assert outcome.failures == []
    assert senders(outcome.messages, "update", 0) == list(ALL)


@pytest.mark.parametrize("method", [FedAvg(), PixelStyles(), PixelStyles(when="every"), FedAvg(select="validation")])
def test_where_nobody_fails_a_quorum_changes_nothing(method: FedAvg):
    clients = members(6, 10, 8, 4)

    usual = run(method, clients, rounds=3, participation=0.5)
    outcome = driven(method, local(method, clients), rounds=3, participation=0.5, quorum=0.5)

    assert outcome.wire.transcript.sha256 == usual.wire.transcript.sha256
    assert largest_gap(outcome.state(), usual.state()) == 0


def test_replies_are_taken_in_the_order_of_the_participants_however_they_come():
    method, clients = FedAvg(), members(6, 10, 8)

    outcome = driven(method, Backwards(engine=local(method, clients)))

    assert outcome.wire.transcript.sha256 == run(method, clients).wire.transcript.sha256


def test_who_failed_a_step_is_asked_nothing_more_in_the_round_and_everything_in_the_next():
    method, answers = PixelStyles(when="every", select="validation"), iter([None])
    engine = Altering(engine=local(method, members(6, 6, 6)), step="share", change=lambda reply: next(answers, reply))

    outcome = driven(method, engine, rounds=2)

    left = ("client:0", "client:2")
    assert engine.asked == [
        ("share", 0, ALL, ALL), ("fit", 0, left, left), ("review", 0, left, left),
        ("share", 1, ALL, ALL), ("fit", 1, ALL, ALL), ("review", 1, ALL, ALL),
    ]  # fmt: skip
    assert outcome.failures == [Failure(client="client:1", round=0, step="share", reason="no reply came")]


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_a_run_whose_once_only_share_failed_is_the_run_of_the_others(participation: float):
    method, clients = PixelStyles(), members(6, 10, 8, 4, 6)
    engine = Altering(engine=local(method, clients), step="share", change=silent)

    outcome = driven(method, engine, rounds=3, participation=participation)

    others = run(
        method, [client for client in clients if client.name != "client:1"], rounds=3, participation=participation
    )
    assert outcome.wire.transcript.sha256 == others.wire.transcript.sha256
    assert largest_gap(outcome.state(), others.state()) == 0
    assert outcome.failures == [Failure(client="client:1", round=0, step="share", reason="no reply came")]


def test_who_shared_once_and_failed_to_train_trains_with_what_it_received_in_the_next_round():
    method, answers = PixelStyles(), iter([None])
    engine = Altering(engine=local(method, members(6, 10, 8)), step="fit", change=lambda reply: next(answers, reply))

    outcome = driven(method, engine, rounds=2)

    assert [question[:3] for question in engine.asked] == [("share", 0, ALL), ("fit", 0, ALL), ("fit", 1, ALL)]
    assert senders(outcome.messages, "update", 1) == list(ALL)


def test_an_engines_own_reason_is_kept():
    engine = Unreliable(engine=local(FedAvg(), members(6, 10, 8)), lost="client:2", step="fit")

    outcome = driven(FedAvg(), engine)

    assert outcome.failures == [Failure(client="client:2", round=0, step="fit", reason="no answer within 5 seconds")]


def test_reviews_after_aggregation_are_those_of_who_answered():
    method, clients = FedAvg(select="validation"), members(6, 10, 8)
    engine = Altering(engine=local(method, clients), step="review", change=silent)

    outcome = driven(method, engine)

    whole = run(method, clients)
    given = [m.artifact.tensors()["values"] for m in whole.wire.transcript.messages() if m.stage == "review"]
    expected = torch.stack([values[0] / values[1] for values in (given[0], given[2])]).mean()
    assert float(outcome.reports[0].server["validation_accuracy"]) == float(expected)
    assert largest_gap(outcome.state(), whole.state()) == 0


@pytest.mark.parametrize("quorum", [0.0, -0.5, 1.5, float("nan")])
def test_a_quorum_that_is_no_share_is_refused(quorum: float):
    with pytest.raises(UsageError, match=r"quorum is the share of clients that must answer, in \(0, 1\]"):
        driven(FedAvg(), local(FedAvg(), members(4)), quorum=quorum)


def test_a_lost_quorum_ends_the_run_with_numbers_and_every_reason_of_the_round():
    method = PixelStyles(when="every")
    lossy = Unreliable(engine=local(method, members(6, 6, 6, 6, 6)), lost="client:3", step="fit")
    engine = Altering(engine=lossy, step="share", change=silent)

    with pytest.raises(ClientFailedError) as caught:
        driven(method, engine, quorum=0.7)

    assert str(caught.value) == (
        "round 0: 3 of 5 clients answered, and quorum 0.7 needs 4; client:1 failed in share: no reply came; "
        "client:3 failed in fit: no answer within 5 seconds"
    )


def failing(count: int) -> list[Failure]:
    return [Failure(client=f"client:{i}", round=2, step="fit", reason="gone") for i in range(count)]


def attendance(clients: int) -> RoundParticipation:
    return RoundParticipation.of(Clock(round=2, rounds=5, participants=tuple(f"client:{i}" for i in range(clients))))


@pytest.mark.parametrize(
    ("quorum", "asked", "least"),
    [(0.5, 3, 2), (0.5, 4, 2), (0.3, 10, 3), (0.07, 100, 7), (0.29, 100, 29), (0.01, 7, 1), (0.99, 7, 7)],
)
def test_a_quorum_is_rounded_up_to_whole_clients(quorum: float, asked: int, least: int):
    left = attendance(asked).without(failing(asked - least), quorum=quorum)

    assert len(left.present) == least
    assert left.asked == asked
    with pytest.raises(
        ClientFailedError, match=f"{least - 1} of {asked} clients answered, and quorum .* needs {least}"
    ):
        left.without([Failure(client=left.present[0], round=2, step="review", reason="gone")], quorum=quorum)


def at_least(number: int) -> Callable[[int], None]:
    def check(clients: int) -> None:
        if clients < number:
            raise UsageError(f"needs {number} clients; got {clients}.")

    return check


def test_a_method_that_cannot_do_with_who_is_left_ends_the_run_in_its_own_words():
    with pytest.raises(
        ClientFailedError, match=r"round 2: 2 of 4 clients answered, but needs 3 clients; got 2\.; client:0"
    ):
        attendance(4).without(failing(2), quorum=0.5, check=at_least(3))


def test_a_method_that_was_content_with_fewer_participants_than_it_checks_for_stays_content():
    left = attendance(4).without(failing(2), quorum=0.5, check=at_least(5))  # as a share of participants leaves them

    assert left.present == ("client:2", "client:3")


def test_ccst_needs_its_k_of_those_who_shared_and_of_nobody_who_trains():
    method = CCST(k=3, plan=TrainingPlan(batch_size=8))
    steps: list[Step] = ["share", "fit"]
    lost = {step: Unreliable(engine=local(method, members(4, 4, 4)), lost="client:1", step=step) for step in steps}

    with pytest.raises(ClientFailedError, match=r"2 of 3 clients answered, but ccst draws k = 3 of the 2 clients'"):
        driven(method, lost["share"])
    outcome = driven(method, lost["fit"])

    assert senders(outcome.messages, "update", 0) == ["client:0", "client:2"]
