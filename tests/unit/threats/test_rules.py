"""Every type of answer has a rule by which it is judged, and a presentation; answers of a plug-in bring their own."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from fdgsec.experiments.report.presentation import PRESENTATIONS, Line, Names, Presentation, presentation_of
from fdgsec.threats import answers as answer_types
from fdgsec.threats.answers import Answer, Ranking
from fdgsec.threats.attack import Truth
from fdgsec.threats.judging.groups import Scale, row
from fdgsec.threats.judging.rules import RULES, Rule, each, rule_of
from tests.support.judged import case, judged

TYPES = {
    found
    for found in vars(answer_types).values()
    if isinstance(found, type) and issubclass(found, Answer) and found is not Answer
}


@dataclass(frozen=True, kw_only=True)
class Guesses(Answer):
    """An answer as a plug-in defines it: a number per case, judged by their sum."""

    kind: ClassVar[str] = "guesses"
    rule: ClassVar[Rule] = Rule(
        measure=each(
            lambda group, _rng, _context: [
                row("sum", group.slice, sum(e.answer.value for e in group.of(Guesses)), None, 1, Scale(chance=0.0))
            ]
        )
    )
    presentation: ClassVar[Presentation] = Presentation(tell=lambda answer, _names: lines(answer))
    value: float


def lines(answer: Answer) -> list[Line]:
    assert isinstance(answer, Guesses)
    return [("", 1, "value", answer.value)]


@dataclass(frozen=True, kw_only=True)
class Unruled(Answer):
    """An answer that nobody can judge."""


class OwnRanking(Ranking):
    """An answer that is judged as the one that it extends."""


def test_every_type_of_answer_has_a_rule_and_a_presentation():
    assert len(TYPES) > 10
    assert set(RULES) == set(PRESENTATIONS) == TYPES


def test_an_answer_of_a_plug_in_is_judged_by_the_rule_that_it_declares():
    found = judged([Guesses(case=0, value=2.0), Guesses(case=1, value=3.0)], [case()] * 2, [Truth()] * 2)

    assert found["sum",].value == 5.0


def test_an_answer_of_a_plug_in_is_told_as_it_declares():
    tell = presentation_of(Guesses).tell

    assert tell is not None
    assert list(tell(Guesses(case=0, value=2.0), Names(candidates=[], classes=[], domains=[]))) == [
        ("", 1, "value", 2.0)
    ]


def test_a_type_that_extends_another_is_judged_and_shown_like_it():
    assert rule_of(OwnRanking) is RULES[Ranking]
    assert presentation_of(OwnRanking) is PRESENTATIONS[Ranking]


def test_an_answer_without_a_rule_is_refused_by_name():
    with pytest.raises(TypeError, match="no rule judges Unruled"):
        judged([Unruled(case=0)], [case()], [Truth()])
