"""A tolerant local engine makes a client's error that client's failure, and leaves its state as it was."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from fdgsec.federation.artifacts import Artifact, ModelState
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.engines.state import FileStates, MemoryStates
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, State, StepRequest, Update
from fdgsec.methods.fedavg import FedAvg
from fdgsec.runtime.errors import UsageError
from tests.support.hostile import first_is, forged
from tests.support.toy_federation import members, start

ALL = ("client:0", "client:1", "client:2")
CLOCK = Clock(round=0, rounds=1, participants=ALL)
REQUESTS: dict[str, StepRequest] = {name: StepRequest(clock=CLOCK, model=start(), inbox={}) for name in ALL}


@dataclass(frozen=True, kw_only=True)
class Counting(FedAvg):
    """FedAvg whose clients count their trainings, and after which client:1 fails by `error`, if there is one."""

    error: BaseException | None = None
    sent: Artifact | None = None

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        update, _ = super().fit(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
        if client.name == "client:1" and self.error is not None:
            raise self.error
        if client.name == "client:1" and self.sent is not None:
            update = replace(update, artifacts={"model": self.sent})
        return update, {"count": state.get("count", torch.tensor(0)) + 1}


def engine(method: Counting, **settings: object) -> LocalEngine:
    return LocalEngine(members=members(4, 4, 4), method=method, seed=0, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (UsageError("client:1 has no images."), "UsageError: client:1 has no images."),
        (RuntimeError("sizes differ:\n  3\n  4"), "RuntimeError: sizes differ: 3 4"),
        (KeyError("bank"), "KeyError: 'bank'"),
    ],
)
def test_an_error_is_that_clients_failure_in_one_line(error: Exception, said: str):
    replies, failures = engine(Counting(error=error), tolerant=True).ask("fit", REQUESTS)

    assert list(replies) == ["client:0", "client:2"]
    assert failures == {"client:1": said}


def test_an_engine_that_is_not_tolerant_raises_the_error_itself():
    error = KeyError("bank")

    with pytest.raises(KeyError) as caught:
        engine(Counting(error=error)).ask("fit", REQUESTS)

    assert caught.value is error


def test_an_interrupt_is_nobodys_failure():
    with pytest.raises(KeyboardInterrupt):
        engine(Counting(error=KeyboardInterrupt()), tolerant=True).ask("fit", REQUESTS)


def test_a_failed_step_leaves_the_state_as_it_was(tmp_path: Path):
    states = FileStates(folder=tmp_path)
    engine(Counting(), states=states).ask("fit", REQUESTS)
    before = states.mark("client:1")

    engine(Counting(error=ValueError("no")), states=states, tolerant=True).ask("fit", REQUESTS)

    assert states.mark("client:1") == before
    assert [int(states.read(name)["count"]) for name in ALL] == [2, 1, 2]


def test_what_cannot_be_decoded_is_a_failure_too_and_leaves_the_state_as_it_was():
    states = MemoryStates()
    bad = forged(ModelState, state={"head.bias": first_is(float("nan"))(torch.zeros(2))})

    replies, failures = engine(Counting(sent=bad), states=states, tolerant=True, recode=True).ask("fit", REQUESTS)

    assert list(replies) == ["client:0", "client:2"]
    assert failures == {
        "client:1": "ArtifactError: ModelState.head.bias has 1 values that are not finite; nothing was accepted."
    }
    assert sorted(states.states) == ["client:0", "client:2"]
