"""Measurements with chance level and confidence interval, and the outcomes of positive and negative controls."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

from fdgsec.metrics.effect_sizes import BEST, beyond, half_way, margin_of
from fdgsec.metrics.significance import normal_pvalue

ChanceKind = Literal["exact", "measured", "none"]
Slice = Mapping[str, str | int]
LEVEL = 0.05
"""The probability of any false "leaks" among the rows of one report."""

BOUNDED = (
    "top1", "top5", "auc", "tpr_at_1pct_fpr", "tpr_at_01pct_fpr", "balanced_accuracy", "accuracy", "gallery_top1",
    "gallery_top5", "honest_accuracy_drop", "exact_list", "precision",
)  # fmt: skip
"""Rates, and a loss of a rate: preferred in the verdict table, since a reader can interpret them without units."""
SIGNED = ("auc", "exposed_auc", "accuracy", "precision", "median_rank")
"""Measurements of answers that depend on the truth as soon as they are not at chance, on whichever side of it: an AUC
of .02 is an AUC of .98 with the wrong sign. The chance of a balanced accuracy is a bound from above: a guess of classes
that a client lacks falls below it."""


def lies_behind_chance(name: str, low: float, high: float, chance: float, *, higher: bool) -> bool:
    """Whether an interval excludes chance on the other side than a leak's, and reaches beyond the margin there.

    `higher` says that higher values are a leak. Always false for measurements that may miss chance without knowledge of
    the truth (all but `SIGNED`)."""
    if name not in SIGNED:
        return False
    limit = beyond(chance, margin_of(name), higher=not higher)
    return high < chance and low < limit if higher else low > chance and high > limit


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One number with its interval and its chance level: the same statistic without the victim's artifact.

    `p_value` is one-sided, of "no better than chance", and agrees with the interval; `adjusted_p_value` is Holm's over
    the `family` of all judged rows of the report. `not_adapted_to` names the defenses that the attack does not take
    into account, and `unread` says why the attack is not known to read the target's releases, or not all of them:
    without a leak, such rows are no evidence. `value`, `low`, `high` and `chance` are None only together
    with `unavailable`, the reason. `chance_kind` "none" is for descriptive rows, which never enter a verdict. Raises
    ValueError for a number that is not finite or an interval that does not contain its value."""

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
    unread: str = ""
    p_value: float | None = None
    adjusted_p_value: float | None = None
    family: int = 0

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
    def judged(self) -> bool:
        """Whether the row can show a leak: it has chance, interval and direction."""
        numbers = (self.value, self.low, self.high, self.chance)
        return None not in numbers and self.chance_kind != "none" and self.higher_is != "descriptive"

    @property
    def leaks(self) -> bool:
        """Whether the interval excludes chance in the direction of a leak, also after Holm over the report."""
        held = self.adjusted_p_value is None or self.adjusted_p_value <= LEVEL
        return held and self._excludes_chance

    @property
    def verdict(self) -> str:
        """What the row says about a leak, in words.

        "leaks slightly" (the interval excludes chance), "leaks" (also chance plus margin), "leaks strongly" (it lies at
        least half way from chance to a perfect attack), "no leak shown" (it contains chance and nothing beyond the
        margin), "undecided" (it contains both, or lies on the other side of chance where that too takes knowledge of
        the truth), "descriptive", "unavailable", or why the row is no evidence of protection."""
        if self.value is None:
            return "unavailable"
        if not self.judged:
            return "descriptive"
        if self.leaks:
            return self._size
        if self.unread:
            return f"{self.unread}: no evidence of protection"
        if self.not_adapted_to:
            return f"attack not adapted to {self.not_adapted_to}: no evidence of protection"
        if self._excludes_chance:
            return f"undecided: a leak, but not after Holm over {self.family} rows"
        if self.chance == BEST.get(self.name):
            return "undecided: chance is as good as a perfect attack"
        if self.worse_than_chance:
            return "undecided: worse than chance, so the answers do depend on the truth"
        if self._lies_behind_chance:
            return f"undecided: worse than chance, but not after Bonferroni over {self.family} rows"
        return f"undecided: the interval reaches {self._reach:.3g}" if self._may_leak else "no leak shown"

    @property
    def worse_than_chance(self) -> bool:
        """Whether answers of this kind are wrong more often than chance allows, also among all rows of the report.

        The p-value is that of a normal value with this interval, times the number of rows (Bonferroni)."""
        if not self._lies_behind_chance:
            return False
        assert self.value is not None
        assert self.low is not None
        assert self.high is not None
        assert self.chance is not None
        numbers = (self.value, self.low, self.high, self.chance)
        turned = (-self.value, -self.high, -self.low, -self.chance) if self.higher_is == "leak" else numbers
        return normal_pvalue(*turned) * max(self.family, 1) <= LEVEL

    @property
    def _lies_behind_chance(self) -> bool:
        if not self.judged:
            return False
        assert self.low is not None
        assert self.high is not None
        assert self.chance is not None
        return lies_behind_chance(self.name, self.low, self.high, self.chance, higher=self.higher_is == "leak")

    @property
    def _reach(self) -> float:
        """The end of the interval on the side of a leak."""
        assert self.low is not None
        assert self.high is not None
        return self.high if self.higher_is == "leak" else self.low

    @property
    def _may_leak(self) -> bool:
        """Whether the interval contains a leak that is more than slight; without a margin, any leak."""
        assert self.chance is not None
        margin, middle = margin_of(self.name), half_way(self.name, self.chance)
        ends = [beyond(self.chance, margin, higher=self.higher_is == "leak"), *([] if middle is None else [middle])]
        return self._reach > min(ends) if self.higher_is == "leak" else self._reach < max(ends)

    @property
    def _excludes_chance(self) -> bool:
        return self.chance is not None and self.judged and self._lies_beyond(self.chance)

    @property
    def _size(self) -> str:
        assert self.chance is not None
        middle = half_way(self.name, self.chance)
        if middle is not None and (self._lies_beyond(middle) or middle in (self.low, self.high)):
            return "leaks strongly"
        least = beyond(self.chance, margin_of(self.name), higher=self.higher_is == "leak")
        return "leaks" if self._lies_beyond(least) else "leaks slightly"

    def _lies_beyond(self, limit: float) -> bool:
        """Whether the whole interval lies beyond `limit` in the direction of a leak."""
        assert self.low is not None
        assert self.high is not None
        return self.low > limit if self.higher_is == "leak" else self.high < limit

    def document(self) -> dict[str, object]:
        """Give the row as in the report."""
        document = asdict(self) | {"slice": dict(self.slice), "verdict": self.verdict, "leaks": self.leaks}
        if self.unavailable is None:
            del document["unavailable"]
        for reservation in ("not_adapted_to", "unread"):
            if not document[reservation]:
                del document[reservation]
        return document


@dataclass(frozen=True, kw_only=True)
class Goal:
    """The threshold of a positive control: `at_least` in every row of the measurement whose slice matches `where`, and
    has no entry of `without`."""

    measurement: str
    at_least: float
    where: Slice = field(default_factory=dict)
    without: Slice = field(default_factory=dict)

    def fits(self, row: Measurement) -> bool:
        """Tell whether the threshold applies to a row."""
        fits = all(row.slice.get(key) == said for key, said in self.where.items())
        left_out = any(row.slice.get(key) == said for key, said in self.without.items())
        return row.name == self.measurement and fits and not left_out


@dataclass(frozen=True, kw_only=True)
class Control:
    """A measurement with an expected outcome; where it fails, the attack's other rows are not reliable."""

    measurement: Measurement
    expected: str
    passed: bool

    def document(self) -> dict[str, object]:
        """Give the row with the expected outcome."""
        return self.measurement.document() | {"expected": self.expected, "passed": self.passed}
