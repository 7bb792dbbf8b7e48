"""One client's reply that cannot be read is that client's failure: the others' round goes on."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.engines.flower.codec import BODY, HEAD, packed_reply
from fdgsec.federation.engines.flower.grid import GridEngine
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.engines.state import StateMark
from fdgsec.federation.method import Clock, Reply, StepRequest
from fdgsec.federation.round_loop import RoundLoop
from fdgsec.federation.wire import Wire
from fdgsec.methods.fedavg import FedAvg
from fdgsec.runtime.errors import LONGEST_LINE
from fdgsec.runtime.secret_streams import simulated_key, simulated_stream
from tests.support.paper_grid import named
from tests.support.toy_federation import members, start

NAMES = ("client:0", "client:1", "client:2")
CLOCK = Clock(round=0, rounds=1, participants=NAMES)
GOOD = packed_reply(
    Reply(artifacts={"model": ModelState(state={"w": torch.ones(2)})}, weight=2.0, metrics={"loss": 0.5}),
    StateMark(version=1, sha256="a" * 64),
)


def reply(**fields: Any) -> RecordDict:
    head = {**{str(name): value for name, value in cast(ConfigRecord, GOOD[HEAD]).items()}, **fields}
    return RecordDict({HEAD: ConfigRecord(head), BODY: cast(ArrayRecord, GOOD[BODY])})


@dataclass
class Answering:
    """A grid on which every node answers at once, client:1 with `bad`."""

    bad: RecordDict
    asked: dict[str, Message] = field(default_factory=dict)

    def push_messages(self, messages: Sequence[Message]) -> Iterable[str]:
        self.asked = {named(message, str(number)): message for number, message in enumerate(messages)}
        return list(self.asked)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        asked = [self.asked[each] for each in message_ids]
        return [
            Message(content=self.bad if message.metadata.dst_node_id == 1 else GOOD, reply_to=message)
            for message in asked
        ]


USE = {
    "mechanism": "gaussian",
    "noise": 1.0,
    "sensitivity": {"zero-out": 1.0},
    "sampling_rate": 1.0,
    "count": 1,
    "unit": "record",
}


def uses(**changed: Any) -> str:
    return json.dumps({"model": [{**USE, **changed}]})


@pytest.mark.parametrize(
    "bad",
    [
        {"metrics": "[" * 5000}, {"metrics": '{"a":' * 5000}, {"metrics": '{"loss": ' + "9" * 5000 + "}"}, {"metrics": "[1]"},
        {"metrics": '{"loss": null}'}, {"metrics": '{"loss": 1' + "0" * 400 + "}"}, {"metrics": '{"\\ud800": 1}'}, {"uses": "{" * 5000},
        {"uses": '{"model": 3}'}, {"uses": '{"model": [3]}'}, {"uses": uses(count=10**50)}, {"uses": uses(count=1.5)},
        {"uses": uses(noise=True)}, {"uses": uses(sensitivity=[1])}, {"orders": "[" * 5000}, {"orders": "3"},
        {"orders": '{"model": 3}'}, {"weight": "x" * 10_000}, {"failure": "\x1b[2J" * 5000},
    ],
    ids=range(19),
)  # fmt: skip
def test_a_bad_reply_on_flower_is_the_failure_of_its_client_alone(bad: Mapping[str, Any]):
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 9, 1  # which Flower's messages carry
    engine = GridEngine(
        grid=cast(Grid, Answering(bad=reply(**bad))), nodes={name: number for number, name in enumerate(NAMES)}, settings="{}",
        timeout=1.0,
    )  # fmt: skip

    replies, failures = engine.ask("fit", {name: StepRequest(clock=CLOCK, model=None, inbox={}) for name in NAMES})

    assert list(replies) == ["client:0", "client:2"]
    assert list(failures) == ["client:1"]
    assert 0 < len(failures["client:1"]) <= LONGEST_LINE
    assert failures["client:1"].isprintable()


class Vicious(dict[str, float]):
    """Metrics that raise when they are looked at."""

    def items(self) -> Any:
        raise RecursionError("x" * 1000)


@dataclass(frozen=True, kw_only=True)
class Replying(LocalEngine):
    """A local engine that delivers other metrics from client:1."""

    def ask(self, step: Any, requests: Mapping[str, StepRequest]) -> Any:
        replies, failures = super().ask(step, requests)
        bad = replies["client:1"]
        made = Reply(artifacts=bad.artifacts, weight=bad.weight, metrics=Vicious(bad.metrics), uses=bad.uses)
        return {**replies, "client:1": made}, failures


def test_a_reply_that_no_check_counted_on_is_left_out_of_the_round():
    failed = []
    loop = RoundLoop(
        method=FedAvg(), engine=Replying(members=members(4, 4, 4), method=FedAvg(), seed=0, tolerant=True),
        wire=Wire(secret=lambda upload, number: simulated_stream(0)), key=simulated_key(0), rounds=1, quorum=0.5,
        on_failure=failed.append,
    )  # fmt: skip

    model = loop.run(start())

    assert model is not None
    assert [failure.client for failure in failed] == ["client:1"]
    assert failed[0].reason.startswith("it cannot be checked: RecursionError: xxx")
    assert len(failed[0].reason) <= LONGEST_LINE
