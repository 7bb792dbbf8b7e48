"""Answers, cases and truths handed to the judge."""

from collections.abc import Sequence
from dataclasses import replace

from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.answers import Answer
from fdgsec.threats.attack import Case, Truth
from fdgsec.threats.judging.judge import Judge


def case(**changes: object) -> Case:
    blank = Case(question="released", views=(), victim="client:1", slice={"domain": "photo"})
    return replace(blank, **changes)  # type: ignore[arg-type]


def judged(
    answers: Sequence[Answer], cases: Sequence[Case], truths: Sequence[Truth], judge: Judge | None = None
) -> dict[tuple[str, ...], Measurement]:
    rows = (judge or Judge(bootstrap_repeats=300)).measure(answers, cases, truths, stream(0, "attack"))
    return {(m.name, *(str(v) for k, v in m.slice.items() if k != "domain")): m for m in rows}
