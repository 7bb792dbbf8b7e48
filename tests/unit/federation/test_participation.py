"""Who takes part in a round, what is refused, and what happens to a client that fails."""

import pytest

from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.method import Client, Step
from fdgsec.federation.round_loop import ClientFailedError, RoundLoop
from fdgsec.federation.wire import Wire
from fdgsec.methods.fedavg import FedAvg
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.secret_streams import simulated_key, simulated_stream
from tests.support.toy_federation import Outcome, PixelStyles, images, members, run


def participants(outcome: Outcome, number: int) -> list[str]:
    return [receiver for round_, stage, _, receiver, _ in outcome.messages if (round_, stage) == (number, "model")]


def test_participants_are_drawn_anew_each_round_from_the_secret_stream_of_the_seed():
    clients = members(*[2] * 10)

    outcome = run(FedAvg(), clients, rounds=3, participation=0.3, seed=5)

    for number in range(3):
        order = simulated_stream(5, "participants", number).permutation(10)[:3]
        assert participants(outcome, number) == [f"client:{i}" for i in sorted(order.tolist())]
    assert len({tuple(participants(outcome, number)) for number in range(3)}) > 1


def test_the_same_seed_draws_the_same_participants_whatever_the_method():
    clients = members(*[2] * 6)

    first = run(FedAvg(), clients, rounds=2, participation=0.5)
    again = run(PixelStyles(when="every"), clients, rounds=2, participation=0.5)

    assert [participants(first, n) for n in (0, 1)] == [participants(again, n) for n in (0, 1)]


@pytest.mark.parametrize(("share", "expected"), [(0.01, 1), (0.29, 29), (0.999, 99), (1.0, 100)])
def test_a_share_of_a_hundred_clients_is_rounded_down_but_never_to_nobody(share: float, expected: int):
    clients = [Client(name=f"client:{i}", data=images(2, "c0")) for i in range(100)]
    engine = LocalEngine(members=clients, method=FedAvg(), seed=0)
    wire = Wire(secret=lambda message, number: simulated_stream(0))
    driver = RoundLoop(method=FedAvg(), engine=engine, wire=wire, key=simulated_key(0), rounds=1, participation=share)

    assert len(driver._participants(list(engine.clients()), 0)) == expected


@pytest.mark.parametrize(("rounds", "share"), [(-1, 1.0), (1, 0.0), (1, 1.5), (1, -0.5)])
def test_rounds_and_participation_out_of_range_are_refused(rounds: int, share: float):
    with pytest.raises(UsageError, match="rounds must be at least 0 and participation in"):
        run(FedAvg(), members(2), rounds=rounds, participation=share)


def test_a_federation_without_clients_or_without_a_model_is_refused():
    wire = Wire(secret=lambda message, number: simulated_stream(0))
    engine = LocalEngine(members=members(2), method=FedAvg(), seed=0)

    with pytest.raises(UsageError, match="at least one client"):
        run(FedAvg(), [])
    with pytest.raises(UsageError, match="needs a model"):
        RoundLoop(method=FedAvg(), engine=engine, wire=wire, key=simulated_key(0), rounds=1).run(None)


@pytest.mark.parametrize(
    ("method", "step"), [(PixelStyles(), "share"), (FedAvg(), "fit"), (FedAvg(select="validation"), "review")]
)
def test_a_client_that_fails_ends_the_run_and_is_named_with_its_step_and_reason(method: FedAvg, step: Step):
    with pytest.raises(ClientFailedError, match=f"client:1 failed in {step}: no answer within 5 seconds"):
        run(method, members(4, 4, 4), lost=("client:1", step))
