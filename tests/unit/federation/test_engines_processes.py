"""Clients in worker processes give the run of one process to the bit, and their errors are told as there."""

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from fdgsec.defenses.dp_fedavg import DPFedAvg
from fdgsec.experiments.setup.run_federation import FederationRun, RoundSettings, run_rounds
from fdgsec.federation.client_step import UNDEFENDED
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.engines.processes import ClientStepError, ProcessEngine, forked_workers
from fdgsec.federation.engines.state import MemoryStates
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, Method, Reply, State, StepRequest, Update
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.threads import limited_threads
from tests.support.toy_federation import FULL_BATCH, PeerReviewed, PixelStyles, members, start


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Take steps on one thread, as every run does: workers have no more, and sums of several differ in the last bit."""
    with limited_threads(1):
        yield


SIZES = (6, 9, 4, 5)
NOISE = DefenseStack(defenses=(DPFedAvg(noise_multiplier=0.1, buffers="received"),))


@contextmanager
def working(method: Method, *, workers: int, stack: DefenseStack = UNDEFENDED, tolerant: bool = False) -> Any:
    clients, states = members(*SIZES), MemoryStates()
    with forked_workers(
        clients, method, blueprint=start().blueprint, seed=0, defense_stack=stack, workers=workers
    ) as pool:
        yield ProcessEngine(members=clients, pool=pool, states=states, tolerant=tolerant)


def ran(method: Method, engine: Any, stack: DefenseStack, *, quorum: float = 1.0) -> FederationRun:
    return run_rounds(
        method, engine, start(), RoundSettings(seed=0, rounds=2, keep="models=all"), defense_stack=stack,
        states=engine.states, quorum=quorum,
    )  # fmt: skip


def result(run: FederationRun) -> dict[str, object]:
    states = {name: {key: value.tolist() for key, value in state.items()} for name, state in run.states.items()}
    return {
        "transcript": run.transcript.sha256, "model": run.final.state.sha256, "order": list(run.final.state.state),
        "curve": run.curve, "states": states,
    }  # fmt: skip


@pytest.mark.parametrize("workers", [2, 9])
@pytest.mark.parametrize(
    ("method", "stack"),
    [
        (PixelStyles(when="every", plan=FULL_BATCH), UNDEFENDED),
        (PeerReviewed(plan=FULL_BATCH), UNDEFENDED),
        (CCST(k=1, plan=TrainingPlan(batch_size=4), encoder="pixels"), UNDEFENDED),
        (FedAvg(plan=FULL_BATCH), NOISE),
    ],
    ids=["styles", "reviews", "images in the state", "noise"],
)
@pytest.mark.medium
def test_any_number_of_workers_gives_the_run_of_one_process(method: Method, stack: DefenseStack, workers: int):
    states = MemoryStates()
    local = LocalEngine(members=members(*SIZES), method=method, seed=0, states=states, defense_stack=stack)
    whole = ran(method, local, stack)

    with working(method, workers=workers, stack=stack) as engine:
        assert result(ran(method, engine, stack)) == result(whole)


class OwnError(Exception):
    """An error that cannot be rebuilt from its text."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


@dataclass(frozen=True, kw_only=True)
class Failing(FedAvg):
    """FedAvg whose second client fails."""

    how: str = "value"

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        if client.name == "client:1" and self.how == "value":
            raise ValueError("this client cannot")
        if client.name == "client:1" and self.how == "own":
            raise OwnError("this", "that")
        if client.name == "client:1" and self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().fit(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        ("value", ValueError, "^this client cannot$"),
        ("own", ClientStepError, "^OwnError: this and that$"),
        ("killed", UsageError, "one of 2 worker processes was killed.*fewer --workers"),
    ],
)
def test_an_error_of_a_client_ends_the_run_with_its_own_exception(how: str, error: type[Exception], said: str):
    method = Failing(plan=FULL_BATCH, how=how)
    with working(method, workers=2) as engine, pytest.raises(error, match=said):
        ran(method, engine, UNDEFENDED)


@pytest.mark.medium
def test_a_client_that_fails_is_left_out_where_the_quorum_allows_it():
    method = Failing(plan=FULL_BATCH)
    local = LocalEngine(members=members(*SIZES), method=method, seed=0, states=MemoryStates(), tolerant=True)
    whole = ran(method, local, UNDEFENDED, quorum=0.5)

    with working(method, workers=2, tolerant=True) as engine:
        assert result(ran(method, engine, UNDEFENDED, quorum=0.5)) == result(whole)


def test_workers_are_other_processes_on_one_thread_and_end_with_the_engine():
    with working(FedAvg(plan=FULL_BATCH), workers=2) as engine:
        processes: Sequence[Any] = [worker.process for worker in engine.pool]
        assert all(process.is_alive() for process in processes)
        assert os.getpid() not in {process.pid for process in processes}

    assert not any(process.is_alive() for process in processes)


@pytest.mark.parametrize("given", [{"threads": 2}, {"device": "cuda"}])
def test_what_does_not_survive_a_fork_is_refused(given: Mapping[str, Any]):
    blueprint = start().blueprint.__class__(backbone="tiny", classes=2, device=given.get("device", "cpu"))
    with (
        pytest.raises(UsageError, match="--workers forks processes of one thread each"),
        forked_workers(members(4), FedAvg(), blueprint=blueprint, seed=0, workers=2, threads=given.get("threads", 1)),
    ):
        pass


@pytest.mark.medium
def test_replies_are_handed_over_in_the_order_of_the_clients_and_equal_those_of_one_process():
    method, clock = FedAvg(plan=FULL_BATCH), Clock(round=0, rounds=1, participants=())
    requests = {client.name: StepRequest(clock=clock, model=start(), inbox={}) for client in members(*SIZES)}
    alone = LocalEngine(members=members(*SIZES), method=method, seed=0)

    with working(method, workers=3) as engine:
        taken, asked = dict(engine.answers("fit", requests)), engine.ask("fit", requests)[0]

    expected = dict(alone.answers("fit", requests))
    assert list(taken) == list(expected) == [client.name for client in members(*SIZES)]
    for name, reply in expected.items():
        found = taken[name]
        assert isinstance(reply, Reply)
        assert isinstance(found, Reply)
        assert {each.artifacts["model"].sha256 for each in (reply, found, asked[name])} == {
            reply.artifacts["model"].sha256
        }


class Begun(dict[str, StepRequest]):
    """Requests that count how many were taken: a client begins with its request."""

    def __init__(self, requests: Mapping[str, StepRequest]) -> None:
        super().__init__(requests)
        self.count = 0

    def __getitem__(self, name: str) -> StepRequest:
        self.count += 1
        return super().__getitem__(name)


def test_no_client_begins_long_before_the_first_whose_reply_is_missing():
    method, clock = FedAvg(plan=FULL_BATCH), Clock(round=0, rounds=1, participants=())
    requests = Begun({client.name: StepRequest(clock=clock, model=start(), inbox={}) for client in members(*SIZES)})

    with working(method, workers=1) as engine:
        begun = [requests.count for _ in engine.answers("fit", requests)]

    assert begun == [min(place + 2, len(SIZES)) for place in range(len(SIZES))]  # the next one, and not all of them
