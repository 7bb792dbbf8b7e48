"""The challenger: simulates the runs that attacks ask for, and withholds the ground truth from them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fdgsec.experiments.simulated_runs.guarded_cases import guarded
from fdgsec.experiments.simulated_runs.head_gradient_cases import head_gradients
from fdgsec.experiments.simulated_runs.malicious_client_cases import breakdown, hostile
from fdgsec.experiments.simulated_runs.model_round_cases import model_rounds
from fdgsec.experiments.simulated_runs.prototype_cases import prototypes
from fdgsec.experiments.simulated_runs.released_style_cases import add_one_record, as_if_released, released
from fdgsec.experiments.simulated_runs.resampled_client_cases import (
    added_images,
    cohorts,
    halves,
    mixtures,
    resampled_clients,
    rounds,
)
from fdgsec.experiments.simulated_runs.simulator import Cases, Simulator
from fdgsec.experiments.simulated_runs.single_step_cases import single_step
from fdgsec.experiments.simulated_runs.summed_client_cases import sums
from fdgsec.experiments.simulated_runs.trained_model_cases import trained
from fdgsec.threats.attack import Question, QuestionKind

KINDS: Mapping[QuestionKind, Callable[[Simulator, Question], Cases]] = {
    "released": released,
    "as_if_released": as_if_released,
    "add_one_record": add_one_record,
    "resampled_clients": resampled_clients,
    "added_images": added_images,
    "sums": sums,
    "model_rounds": model_rounds,
    "prototypes": prototypes,
    "head_gradients": head_gradients,
    "halves": halves,
    "sessions": halves,
    "rounds": rounds,
    "mixtures": mixtures,
    "cohorts": cohorts,
    "trained": trained,
    "single_step": single_step,
    "hostile": hostile,
    "breakdown": breakdown,
    "guarded_runs": guarded,
    "guarded_exchanges": guarded,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Challenger(Simulator):
    """A simulator that caches the cases of answered questions, and the names of the images `shown` in them."""

    memo: dict[Question, Cases] = field(default_factory=dict)
    shown: dict[Question, frozenset[str]] = field(default_factory=dict)

    def cases(self, question: Question) -> Cases:
        """Run `question` (once) and give its cases with their truths, in a fixed order."""
        if question not in self.memo:
            pairs = KINDS[question.kind](self, question)
            self.memo[question] = [(self.without_unknowns(case), truth) for case, truth in pairs]
        return self.memo[question]

    def known_images(self) -> frozenset[str]:
        """The adversary's images, and the candidates of earlier cases under their blinded names."""
        for question in self.memo.keys() - self.shown.keys():
            candidates = [case.candidates for case, _ in self.memo[question] if case.candidates is not None]
            self.shown[question] = frozenset(name for images in candidates for name in images.ids)
        return super().known_images().union(*self.shown.values())
