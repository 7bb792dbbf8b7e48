"""Measurements with chance level and confidence interval, and the outcomes of positive and negative controls."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

ChanceKind = Literal["exact", "measured", "none"]
Slice = Mapping[str, str | int]

BOUNDED = (
    "top1", "top5", "auc", "tpr_at_1pct_fpr", "tpr_at_01pct_fpr", "balanced_accuracy", "accuracy", "gallery_top1",
    "gallery_top5", "honest_accuracy_drop",
)  # fmt: skip
"""Rates, and a loss of a rate: preferred in the verdict table, since a reader can interpret them without units."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One number with its interval and its chance level: the same statistic without the victim's artifact.

    `not_adapted_to` names the defenses that the attack does not take into account: without a leak, such a row is no
    evidence. `value`, `low`, `high` and `chance` are None only together with `unavailable`, the reason. `chance_kind`
    "none" is for descriptive rows, which never enter a verdict. Raises ValueError for a number that is not finite or an
    interval that does not contain its value."""

    name: str
    value: float | None
    low: float | None
    high: float | None
    chance: float | None
    chance_kind: ChanceKind
    n: int
    unit: str = ""
    higher_is: Literal["leak", "safe", "descriptive"] = "leak"
    method: str = ""
    slice: Slice = field(default_factory=dict)
    unavailable: str | None = None
    not_adapted_to: str = ""

    def __post_init__(self) -> None:
        numbers = (self.value, self.low, self.high, self.chance)
        if any(number is not None and not math.isfinite(number) for number in numbers):
            raise ValueError(
                f"{self.name} {dict(self.slice)} is not finite: {numbers}; say why it is unavailable instead."
            )
        if (self.value is None) != (self.unavailable is not None):
            raise ValueError(f"{self.name} must have either a value or a reason why it is unavailable.")
        if self.value is not None and self.chance_kind != "none" and self.chance is None:
            raise ValueError(
                f"{self.name} has no chance level; only descriptive rows (chance_kind 'none') may lack it."
            )
        if self.value is not None and self.low is not None and self.high is not None:
            slack = 1e-9 * max(1.0, abs(self.value))
            if not self.low - slack <= self.value <= self.high + slack:
                raise ValueError(f"{self.name} = {self.value} lies outside its interval [{self.low}, {self.high}].")

    @property
    def verdict(self) -> str:
        """Tell whether the interval excludes chance in the direction of a leak.

        "leaks", "no leak shown", "descriptive", "unavailable", or that the attack was not adapted to a defense."""
        if self.value is None:
            return "unavailable"
        if self.chance_kind == "none" or self.chance is None or self.low is None or self.high is None:
            return "descriptive"
        if self.higher_is == "leak":
            return "leaks" if self.low > self.chance else self._no_leak
        if self.higher_is == "safe":
            return "leaks" if self.high < self.chance else self._no_leak
        return "descriptive"

    @property
    def _no_leak(self) -> str:
        if self.not_adapted_to:
            return f"attack not adapted to {self.not_adapted_to}: no evidence of protection"
        return "no leak shown"

    @property
    def judged(self) -> bool:
        """Whether the verdict is about a leak."""
        return self.verdict not in ("descriptive", "unavailable")

    def document(self) -> dict[str, object]:
        """Give the row as in the report."""
        document = asdict(self) | {"slice": dict(self.slice), "verdict": self.verdict}
        if self.unavailable is None:
            del document["unavailable"]
        if not self.not_adapted_to:
            del document["not_adapted_to"]
        return document


@dataclass(frozen=True, kw_only=True)
class Goal:
    """The threshold of a positive control: `at_least` in every row of the measurement whose slice matches `where`."""

    measurement: str
    at_least: float
    where: Slice = field(default_factory=dict)

    def fits(self, row: Measurement) -> bool:
        """Tell whether the threshold applies to a row."""
        return row.name == self.measurement and all(row.slice.get(key) == said for key, said in self.where.items())


@dataclass(frozen=True, kw_only=True)
class Control:
    """A measurement with an expected outcome; where it fails, the attack's other rows are not reliable."""

    measurement: Measurement
    expected: str
    passed: bool

    def document(self) -> dict[str, object]:
        """Give the row with the expected outcome."""
        return self.measurement.document() | {"expected": self.expected, "passed": self.passed}
