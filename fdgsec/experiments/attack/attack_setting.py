"""What all attacks of one report share, where their cases come from, and what comes of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fdgsec.experiments.attack.attack_context import AttackContext
from fdgsec.experiments.report.schema import AttackResult
from fdgsec.experiments.simulated_runs.simulator import Cases
from fdgsec.runtime.registry import name_of
from fdgsec.threats.adversary import Adversary, Knowledge
from fdgsec.threats.attack import Answers, Attack, Case, Question, TargetFacts
from fdgsec.threats.judging.judge import Judge
from fdgsec.threats.judging.permutation_tests import NullRow


class Questions(Protocol):
    """A source of cases for the questions of an attack."""

    def cases(self, question: Question, attack: Attack) -> Cases:
        """Return the cases of `question` for `attack` with their truths; empty if the question cannot be answered."""
        ...

    def gap(self, question: Question, attack: Attack) -> str:
        """Return why `question` is not, or only partly, answered for `attack`; empty if it is answered in full."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class SimulatedQuestions:
    """A question source that answers every question by a simulated run."""

    attack_context: AttackContext

    def cases(self, question: Question, attack: Attack) -> Cases:  # noqa: ARG002 - an argument of the protocol
        """Simulate the runs that the question asks for."""
        return self.attack_context.challenger.cases(question)

    def gap(self, question: Question, attack: Attack) -> str:  # noqa: ARG002 - arguments of the protocol
        """Return the empty string: every question is answered in full."""
        return ""


@dataclass(frozen=True, kw_only=True, eq=False)
class AttackSetting:
    """The inputs that all attacks of one report share; `seed` seeds the random draws of the adversary and the judge.

    `vectors` says that clients' pooled vectors are given without a run (ReadsVectors); `foreign` has the kinds of
    releases that are not what attacks take them for, with the reasons; `defenses` are the names of the run's; `unlike`
    says why releases without a method are not known to be what attacks take them for; `exchanges` counts, by kind of
    artifact, those of the run whose messages differ; `controls` says whether positive and negative controls are run."""

    target: str
    seed: int
    adversary: Adversary
    knowledge: Knowledge
    facts: TargetFacts
    judge: Judge
    questions: Questions
    vectors: bool = False
    foreign: Mapping[str, str] = field(default_factory=dict)
    defenses: Sequence[str] = ()
    unlike: str = ""
    exchanges: Mapping[str, int] = field(default_factory=dict)
    controls: bool = True

    @classmethod
    def of(
        cls, attack_context: AttackContext, *, questions: Questions | None = None, seed: int | None = None
    ) -> "AttackSetting":
        """The setting of an attack context; by default with its challenger's `questions` and its run's `seed`."""
        config = attack_context.config
        return cls(
            target=config.target, seed=config.seed if seed is None else seed, adversary=attack_context.adversary,
            knowledge=attack_context.knowledge, facts=attack_context.facts, judge=attack_context.judge,
            questions=questions or SimulatedQuestions(attack_context=attack_context), foreign=attack_context.foreign,
            defenses=[name_of("defenses", defense) for defense in config.defenses], exchanges=attack_context.exchanges,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one attack before its negative controls are corrected, with its answers and cases."""

    result: AttackResult
    nulls: Sequence[NullRow] = ()
    answers: Answers = ()
    cases: Sequence[Case] = ()
