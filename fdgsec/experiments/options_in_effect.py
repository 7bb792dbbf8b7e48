"""Options that would be without effect: they are refused, since who gives one believes that it acts."""

from collections.abc import Sequence
from dataclasses import fields

from fdgsec.experiments.run_config import RunConfig, parse_assignments
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.registry import is_bundled

BEFORE_TRAINING = frozenset({"batch_size", "crop", "flip", "translate", "precision"})
"""Options of a plan that act where styles or features are computed too."""
IN_TRAINING = frozenset(spec.name for spec in fields(TrainingPlan) if spec.name not in BEFORE_TRAINING)
"""Options of a plan that act in training alone."""
NO_ROUNDS = "rounds is 0; add --rounds N, or leave it out"


def check_in_effect(
    config: RunConfig, assignments: Sequence[str], *, trains: bool | None = None, otherwise: str = NO_ROUNDS
) -> None:
    """Raise UsageError for an assignment that acts in training, where nothing is trained.

    `trains` says whether something is (None: whether a round is run), and `otherwise` why not. A method from elsewhere
    may train whenever it likes."""
    if (bool(config.rounds) if trains is None else trains) or not is_bundled(config.method):
        return
    method = parse_assignments(assignments).get("method")
    plan = method.get("plan") if isinstance(method, dict) else None
    for name in plan if isinstance(plan, dict) else ():
        if name in IN_TRAINING:
            raise UsageError(f"method.plan.{name} acts in training, and {otherwise}.")
