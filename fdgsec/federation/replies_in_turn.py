"""Replies as the round loop takes them: one after the other, what is sent of them, and what the server reads of it."""

from collections.abc import Iterator, Mapping

from fdgsec.federation.artifacts import Artifact
from fdgsec.federation.method import (
    NUMBERS,
    AnswersInTurn,
    Engine,
    Inbox,
    Method,
    Reply,
    Step,
    StepRequest,
    Update,
)
from fdgsec.federation.wire import Upload


def answers_of(engine: Engine, step: Step, requests: Mapping[str, StepRequest]) -> Iterator[tuple[str, Reply | str]]:
    """Each client's reply, or why it failed, in the order of the requests."""
    if isinstance(engine, AnswersInTurn):
        yield from engine.answers(step, requests)
        return
    replies, failures = engine.ask(step, requests)
    for name in requests:
        if name in failures:
            yield name, failures[name]
        elif name in replies:
            yield name, replies[name]


def sent_artifacts(stage: str, reply: Reply) -> dict[str, Artifact]:
    """The artifacts of a reply by slot; an update's weight and metrics are one of them."""
    numbers = {NUMBERS: reply.numbers()} if stage == "update" else {}
    return {**reply.artifacts, **numbers}


def received_update(upload: Upload, method: Method) -> Update:
    """Read an update: metrics and weight come from its numbers, unless all clients of `method` have equal weight."""
    weight, *values = upload.artifacts[NUMBERS].tensors()["values"].tolist()
    artifacts = {slot: artifact for slot, artifact in upload.artifacts.items() if slot != NUMBERS}
    metrics = dict(zip(upload.metrics, values, strict=True))
    return Update(artifacts=artifacts, weight=1.0 if method.counts_alike else weight, metrics=metrics)


def contents_of(inbox: Inbox) -> Mapping[str, str]:
    """The hash of every artifact by slot."""
    return {slot: artifact.sha256 for slot, artifact in inbox.items()}
