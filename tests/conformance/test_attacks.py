"""Every bundled attack keeps its promises, and liars are found out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from fdgsec.attacks.pool_exposure.attack import PoolExposure
from fdgsec.experiments.run_config import made
from fdgsec.federation.method import Method
from fdgsec.methods.ccst import CCST
from fdgsec.methods.feddag import FedDAG
from fdgsec.runtime.registry import ATTACKS
from fdgsec.testing import BrokenPromiseError, check_attack
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Membership
from fdgsec.threats.attack import Answers, Case, PositiveControl, Question, TargetFacts

SMALL: Mapping[str, dict[str, object]] = {
    "poisoning": {"seeds": 2, "forgeries": ("update x10",)},
    "style-inversion": {"losses": ("mse",), "priors": ("intra",), "size": 8},
    "optimization-inversion": {"restarts": 1, "steps": 40, "side": 32},
    "generator-leakage": {"candidates": 10, "references": 4, "largest": 16},
    "gradient-inversion": {"records": (1,), "count": 1, "variation": 0.05, "steps": 60},
    "model-membership": {"candidates": 20, "references": 4},
}
TARGETS: Mapping[str, str | Method] = {"poisoning": "fedavg", "generator-leakage": FedDAG(warm_up=0, generator="fcn16")}
"""Where the first target that suits releases nothing to answer from: styles alone for a forged update, and FedDAG's
generators as they were, which are trained only after a warm-up of five rounds by default."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_a_bundled_attack_keeps_every_promise(name: str):
    attack = made("attacks", name, SMALL.get(name, {}), where=name)
    check_attack(attack, target=TARGETS.get(name))


@dataclass(frozen=True, kw_only=True)
class Guesses:
    """Scores candidates by coins."""

    name: ClassVar[str] = "guesses"
    reads: ClassVar[frozenset[str]] = frozenset({"StyleStatistics"})
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary"})

    def plan(self, facts: TargetFacts) -> Sequence[Question]:
        return [Question(kind="resampled_clients", count=3, records=10)]

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        return [self.answer(number, case, rng) for number, case in enumerate(cases)]

    def answer(self, number: int, case: Case, rng: torch.Generator) -> Membership:
        assert case.candidates is not None
        return Membership(case=number, scores=torch.rand(len(case.candidates), generator=rng))

    def negative_control(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        return self.run(cases, knowledge, rng)

    def positive_control(self, knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
        return PoolExposure().positive_control(knowledge, rng)


@dataclass(frozen=True, kw_only=True)
class DrawsGlobally(Guesses):
    """Draws from numpy's global generator, and uses none of it."""

    def answer(self, number: int, case: Case, rng: torch.Generator) -> Membership:
        np.random.random()
        return super().answer(number, case, rng)


@dataclass(frozen=True, kw_only=True)
class Remembers(Guesses):
    """Remembers its victims."""

    seen: list[str] = field(default_factory=list)

    def answer(self, number: int, case: Case, rng: torch.Generator) -> Membership:
        self.seen.append(case.victim)
        return super().answer(number, case, rng)


@dataclass(frozen=True, kw_only=True)
class ReadsBanks(Guesses):
    """Scores by the bank, which it does not declare."""

    def answer(self, number: int, case: Case, rng: torch.Generator) -> Membership:
        kinds = [message.artifact.kind for view in case.views for message in view.messages]
        found = super().answer(number, case, rng)
        return replace(found, scores=found.scores * (1 + kinds.count("StyleBank")))


@dataclass(frozen=True, kw_only=True)
class ReadsSlices(Guesses):
    """Scores by the domain that the slice names."""

    def answer(self, number: int, case: Case, rng: torch.Generator) -> Membership:
        found = super().answer(number, case, rng)
        return replace(found, scores=found.scores * len(str(case.slice["domain"])))


@dataclass(frozen=True, kw_only=True)
class AnswersForNobody(Guesses):
    """Answers a case that there is not."""

    def answer(self, number: int, case: Case, rng: torch.Generator) -> Membership:
        return replace(super().answer(number, case, rng), case=number + 1)


@dataclass(frozen=True, kw_only=True)
class ScoresTooFew(Guesses):
    """Leaves a candidate out."""

    def answer(self, number: int, case: Case, rng: torch.Generator) -> Membership:
        found = super().answer(number, case, rng)
        return replace(found, scores=found.scores[1:])


@dataclass(frozen=True, kw_only=True)
class ReadsNothingKnown(Guesses):
    """Reads a kind that nobody has."""

    reads: ClassVar[frozenset[str]] = frozenset({"Colours"})


@dataclass(frozen=True, kw_only=True)
class ControlsNothing(Guesses):
    """Has a negative control without answers."""

    def negative_control(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        return []


@dataclass(frozen=True, kw_only=True)
class AimsLow(Guesses):
    """Sets its positive control a goal that guesses reach."""

    def positive_control(self, knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
        return replace(super().positive_control(knowledge, rng), measurement="auc", at_least=0.0, also=())


LIARS = [
    (DrawsGlobally(), "no draws from global randomness: DrawsGlobally moved the global state of numpy"),
    (Remembers(), "nothing is kept on self: Remembers changed seen"),
    (ReadsBanks(), "an attack reads only what it declares"),
    (ReadsSlices(), "an attack does not touch the truth"),
    (AnswersForNobody(), "answers are typed and have a rule: membership is about case"),
    (ScoresTooFew(), "answers are typed and have a rule: the judge cannot measure them"),
    (ReadsNothingKnown(), "an attack says what it reads and needs: reads names no known kind of artifact: Colours"),
    (ControlsNothing(), "the negative control finds nothing: it has no rows"),
    (AimsLow(), "the positive control reaches its goal: .* expected >= 0, a goal above chance"),
    (Guesses(), "the positive control reaches its goal"),
]


@pytest.mark.parametrize(
    ("liar", "promise"), LIARS, ids=lambda value: "" if isinstance(value, str) else type(value).__name__
)
@pytest.mark.medium
def test_a_liar_is_found_out_and_told_which_promise_it_broke(liar: object, promise: str):
    with pytest.raises(BrokenPromiseError, match=promise):
        check_attack(liar, target="ccst-overall", per_domain=60)


@dataclass(frozen=True, kw_only=True)
class Unregistered(CCST):
    """A method that no registry knows."""


@pytest.mark.medium
def test_an_attack_is_checked_on_a_method_that_no_registry_knows():
    with pytest.raises(BrokenPromiseError, match="the positive control reaches its goal"):
        check_attack(Guesses(), target=Unregistered(), per_domain=60)
