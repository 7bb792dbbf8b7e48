"""How the server side on Flower waits for answers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import cast

import pytest

pytest.importorskip("flwr")

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fdgsec.federation.engines.flower import grid as module
from fdgsec.federation.engines.flower.codec import WireFormatError
from fdgsec.federation.engines.flower.grid import LONGEST_WAIT, SHORTEST_WAIT, VERB, Answers, exchange, time_to_live
from tests.support.paper_grid import named

SUPERLINK = 1
"""The source of Flower's own errors."""


@dataclass
class Slow:
    """A grid whose nodes answer after so many seconds each, by a clock that its reader moves; None: never."""

    after: Sequence[float | None]
    pushed: bool = True
    too_large: bool = False
    pushing: float = 0.0
    failing: str = ""
    answering: int | None = None
    now: float = 0.0
    looks: list[float] = field(default_factory=list)
    sent: dict[str, Message] = field(default_factory=dict)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now

    def push_messages(self, messages: Sequence[Message]) -> Iterable[str | None]:
        self.now += self.pushing
        self.sent = {named(message, str(number)): message for number, message in enumerate(messages)}
        if self.too_large:
            return []
        return list(self.sent) if self.pushed else [None] * len(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.looks.append(self.now)
        ready = [
            each
            for each in message_ids
            if each in self.sent and (when := self.after[int(each)]) is not None and when <= self.now
        ]
        return [self.reply(self.sent.pop(each)) for each in ready]

    def reply(self, message: Message) -> Message:
        """An answer of the message's node, or of the one that is `answering` for it; where it is `failing` an error of
        Flower's, which comes from no node."""
        if not self.failing:
            made = Message(content=RecordDict(), reply_to=message)
            if self.answering is not None:
                made.metadata.__dict__["_src_node_id"] = self.answering
            return made
        error = Message(Error(code=3, reason=self.failing), reply_to=message)
        error.metadata.__dict__["_src_node_id"] = SUPERLINK
        return error


def exchanged(grid: Slow, monkeypatch: pytest.MonkeyPatch, *, timeout: float) -> Answers:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 9, 1
    monkeypatch.setattr(module, "time", grid)
    messages = [
        Message(content=RecordDict(), dst_node_id=node, message_type=VERB, ttl=600) for node in range(len(grid.after))
    ]
    return exchange(cast(Grid, grid), messages, timeout=timeout)


def answered(grid: Slow, monkeypatch: pytest.MonkeyPatch, *, timeout: float) -> set[int]:
    return set(exchanged(grid, monkeypatch, timeout=timeout).found)


def test_answers_are_read_soon_after_they_came_and_looked_for_no_longer(monkeypatch: pytest.MonkeyPatch):
    grid = Slow(after=(0.35, 2.0))

    assert answered(grid, monkeypatch, timeout=600) == {0, 1}
    assert 2.0 <= grid.now <= 2.0 + max(SHORTEST_WAIT, 0.1 * grid.now)
    assert len(grid.looks) == len(set(grid.looks))


def test_a_long_step_is_looked_for_at_longer_intervals(monkeypatch: pytest.MonkeyPatch):
    grid = Slow(after=(3600.0,))

    assert answered(grid, monkeypatch, timeout=7200) == {0}
    waits = [after - before for before, after in pairwise(grid.looks)]
    assert waits[0] == SHORTEST_WAIT
    assert max(waits) == pytest.approx(LONGEST_WAIT)
    assert len(waits) < 3600 / LONGEST_WAIT + 60


def test_a_node_that_never_answers_is_waited_for_until_the_timeout(monkeypatch: pytest.MonkeyPatch):
    grid = Slow(after=(None, 4.99))

    assert answered(grid, monkeypatch, timeout=5.0) == {1}
    assert grid.now == pytest.approx(5.0)


@pytest.mark.parametrize("refused", [{"pushed": False}, {"too_large": True}])
def test_what_could_not_be_sent_is_not_waited_for_and_said(refused: dict[str, bool], monkeypatch: pytest.MonkeyPatch):
    grid = Slow(after=(0.0,), pushed=refused.get("pushed", True), too_large=refused.get("too_large", False))

    answers = exchanged(grid, monkeypatch, timeout=5.0)

    assert grid.now == 0
    with pytest.raises(WireFormatError, match=r"^nothing could be sent to it"):
        answers.of(0)


def test_sending_takes_no_time_from_answers(monkeypatch: pytest.MonkeyPatch):
    """As it does not with Flower's own loop: a broadcast to many nodes may take longer than a step."""
    grid = Slow(after=(70.0, 95.0), pushing=60.0)

    assert answered(grid, monkeypatch, timeout=30.0) == {0}
    assert grid.now == pytest.approx(90.0)
    assert time_to_live(30.0) > 90.0


def test_an_error_of_flower_s_is_told_as_that_of_the_node_that_was_asked(monkeypatch: pytest.MonkeyPatch):
    grid = Slow(after=(None, 0.3), failing="the node\nis gone")

    answers = exchanged(grid, monkeypatch, timeout=1.0)

    with pytest.raises(WireFormatError, match=r"^the node is gone \(Flower's error 3\)$"):
        answers.of(1)
    with pytest.raises(WireFormatError, match=r"^no answer within 1 s$"):
        answers.of(0)


def test_no_node_answers_for_another_one(monkeypatch: pytest.MonkeyPatch):
    grid = Slow(after=(0.2, 0.2), answering=1)

    assert answered(grid, monkeypatch, timeout=1.0) == {1}
