"""Options that would be without effect: they are refused, since who gives one believes that it acts."""

from collections.abc import Sequence

from fdgsec.experiments.run_config import RunConfig
from fdgsec.runtime.errors import UsageError

IN_TRAINING = tuple(
    f"method.plan.{name}" for name in ("learning_rate", "epochs", "steps", "optimizer", "momentum", "weight_decay")
)
"""Assignments that act in training alone."""


def check_in_effect(config: RunConfig, assignments: Sequence[str]) -> None:
    """Raise UsageError for an assignment that acts in training, where no round is run."""
    named = [item.partition("=")[0].strip() for item in assignments]
    for name in named:
        if name in IN_TRAINING and config.rounds == 0:
            raise UsageError(f"{name} acts in training, and rounds is 0; add --rounds N, or leave it out.")
