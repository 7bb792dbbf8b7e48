"""Options that would be without effect: they are refused, since who gives one believes that it acts."""

from collections.abc import Sequence
from dataclasses import fields

from fdgsec.experiments.run_config import RunConfig
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.registry import is_bundled

BEFORE_TRAINING = frozenset({"batch_size", "crop", "flip", "translate", "precision"})
"""Options of a plan that act where styles or features are computed too."""
IN_TRAINING = frozenset(f"method.plan.{spec.name}" for spec in fields(TrainingPlan) if spec.name not in BEFORE_TRAINING)
"""Assignments that act in training alone."""


def check_in_effect(config: RunConfig, assignments: Sequence[str]) -> None:
    """Raise UsageError for an assignment that acts in training, where no round is run.

    A method from elsewhere may train whenever it likes."""
    if config.rounds or not is_bundled(config.method):
        return
    for name in (item.partition("=")[0].strip() for item in assignments):
        if name in IN_TRAINING:
            raise UsageError(f"{name} acts in training, and rounds is 0; add --rounds N, or leave it out.")
