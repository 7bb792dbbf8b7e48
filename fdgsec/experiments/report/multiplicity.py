"""Multiplicity: the judged rows of one report are one family, whose p-values Holm's procedure adjusts."""

from collections.abc import Sequence
from dataclasses import replace

from fdgsec.experiments.report.schema import AttackResult
from fdgsec.metrics.measurement import Measurement
from fdgsec.metrics.significance import holm, normal_pvalue


def adjusted(results: Sequence[AttackResult]) -> list[AttackResult]:
    """The results with Holm's p-values over all judged rows of all attacks.

    Any row of the family could read "leaks"; without a leak, one does with a probability of at most 5%."""
    family = [row for result in results for row in result.measurements if row.judged]
    p_values = iter(holm([_p_value(row) for row in family]))
    return [
        replace(
            result,
            measurements=[
                replace(row, adjusted_p_value=next(p_values), family=len(family)) if row.judged else row
                for row in result.measurements
            ],
        )
        for result in results
    ]


def _p_value(row: Measurement) -> float:
    """The row's own p-value; of a row that was made without one, what its interval says of it."""
    if row.p_value is not None:
        return row.p_value
    numbers = (row.value, row.low, row.high, row.chance)
    value, low, high, chance = (0.0 if number is None else number for number in numbers)
    if row.higher_is == "safe":
        value, low, high, chance = -value, -high, -low, -chance
    return normal_pvalue(value, low, high, chance)
