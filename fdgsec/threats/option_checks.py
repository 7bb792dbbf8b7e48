"""Checks of an attack's options when it is built, so that a run and its dry run refuse the same."""

import math
from collections.abc import Mapping, Sequence

from fdgsec.runtime.errors import UsageError


def check_at_least(least: float, options: Mapping[str, float | Sequence[float]]) -> None:
    """Raise UsageError for an option, or one of its values, that is below `least` or not finite."""
    for name, given in options.items():
        values = given if isinstance(given, Sequence) else (given,)
        wrong = [value for value in values if not (math.isfinite(value) and value >= least)]
        if wrong:
            raise UsageError(f"{name} must be finite and at least {least:g}; got {wrong[0]}.")
