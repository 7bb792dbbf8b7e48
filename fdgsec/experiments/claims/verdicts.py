"""From measurements to verdicts: when a paper's claim counts as contradicted, supported or undecided.

A claim names *criteria*. In one run, an attack has *succeeded* in one population (a domain, say) where the 95% interval
of **every** criterion's row lies beyond chance plus the criterion's margin. The p-value of a population is the largest
of its criteria's, an intersection-union test of "no better than chance"; a run's is the least of its populations',
times their number (Bonferroni). Where an interval does not exceed the margin, the p-value counts as 1, so that the
margin can only prevent a contradiction. Rows bring their p-values with them: exact ones of hit rates, and otherwise
those that agree with the row's interval.

Runs of several seeds share images, so their p-values depend on each other. Of K seeds the k-th smallest p-value, times
K / k, is valid under any dependence (Rueger 1978; the median times 2 is the case k = K / 2), with k the least whole
number that is four fifths of K or more: of five seeds, four must agree. Where several encoders decide, the largest
p-value counts. Holm's adjustment is over all testable claims that were asked for.

*contradicted*: the adjusted p-value is at most .05. *supported*: in at least as many seeds, in every population, the
upper end of the interval of some criterion that can support lies below its threshold, in a row that is evidence of
protection; a population without evidence leaves it open, and so does a question that the attack could not answer. An
attack that is wrong more often than chance is no evidence: its answers depend on the truth. In both cases a run counts
only if all controls of its attack passed, that through the target included. *undecided*: anything else."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fdgsec.experiments.report.schema import NOT_ANSWERED, TOO_LARGE
from fdgsec.metrics.effect_sizes import Margin, beyond, half_way, margin_of
from fdgsec.metrics.measurement import lies_behind_chance
from fdgsec.metrics.significance import holm, normal_pvalue

Verdict = Literal["contradicted", "supported", "undecided", "not a testable claim", "not run"]
Row = Mapping[str, Any]
"""A measurement as in a report document."""
Population = tuple[tuple[str, Any], ...]
"""The keys of a slice that no criterion names, with their values."""

LEVEL = 0.05
LEAST = 10
"""Minimum number of records or clients per row."""
AGREEING = 0.8
"""The share of seeds that must agree."""


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """A condition on rows: the measurement's name, and the required slice ({"rows": "as_if_released"}).

    The value "" requires that the key is absent; other keys of a slice distinguish populations. `margin` is added to
    chance ("twice" adds chance again, "tenth" a tenth of it, "half" goes half way to a perfect attack); None is the
    default of `margin_of`. `without` leaves out rows that have one of its values ({"domain": "photo"}). `over` holds
    the keys in which the row of a control differs that was measured in the same run ({"class_from": "exchanged
    picture"}); its value then takes the place of chance. One that `supports` nothing is needed for a contradiction, and
    its absence is no evidence for the claim: a picture may show its image, and be farther from it than the mean image
    in squared error."""

    measurement: str
    where: Mapping[str, str | int] = field(default_factory=dict)
    margin: Margin | Literal["half"] | None = None
    over: Mapping[str, str | int] = field(default_factory=dict)
    without: Mapping[str, str | int] = field(default_factory=dict)
    supports: bool = True

    @property
    def control(self) -> "Criterion | None":
        """What the row of the control meets; None where the row is compared with chance."""
        return replace(self, where={**self.where, **self.over}, over={}) if self.over else None

    def fits(self, row: Row) -> bool:
        """Whether a row of a report document meets the condition."""
        where = row["slice"]
        fits = all(where.get(key, "") == value for key, value in self.where.items())
        left_out = any(where.get(key) == value for key, value in self.without.items())
        return row["name"] == self.measurement and fits and not left_out

    def threshold(self, chance: float, *, higher: bool = True) -> float:
        """The value that a leak must exceed, or fall below where lower values are a leak.

        Raises ValueError for "half" of a measurement without a perfect value."""
        if self.margin == "half":
            middle = half_way(self.measurement, chance)
            if middle is None:
                raise ValueError(f"{self.measurement} has no perfect value; give its criterion another margin.")
            return middle
        return beyond(chance, margin_of(self.measurement) if self.margin is None else self.margin, higher=higher)

    def least_gap(self) -> float:
        """The margin of a comparison, in the measurement's units. Raises ValueError for one that is no number."""
        margin = margin_of(self.measurement) if self.margin is None else self.margin
        if not isinstance(margin, str):
            return margin
        raise ValueError(f"a comparison needs a number as its margin; got {margin!r} for {self.measurement}.")


@dataclass(frozen=True, kw_only=True)
class Gap:
    """The difference of two values with its 95% interval: of the unprotected minus the protected, or over a control."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One criterion in one population: its row, and what that says.

    `against` says that the row's interval speaks against the claim by more than the margin, `under` that it speaks for
    it by its whole length and is evidence of protection; else `reservation` says why it is not. `gap` is what a
    comparison measured, `excess` by how much the row exceeds its control, and `difference_p_value` that of what the
    claim says of them: that the gap is the margin or more, that the excess is none."""

    row: Row
    against: bool
    under: bool
    reservation: str = ""
    gap: Gap | None = None
    excess: Gap | None = None
    difference_p_value: float = 0.0

    @property
    def p_value(self) -> float:
        """The larger of the p-values of "no better than chance" and of the difference (an intersection-union test); 1
        where the margin is not exceeded."""
        return max(self.chance_p_value, self.difference_p_value) if self.against else 1.0

    @property
    def chance_p_value(self) -> float:
        """The row's p-value of "no better than chance"."""
        found = self.row.get("p_value")
        return 1.0 if found is None else float(found)

    @property
    def order(self) -> tuple[float, float]:
        """The strength of the evidence against the claim, strongest first."""
        return self.p_value, self.chance_p_value


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A claim's evidence in one run, by population; `controlled` says that all controls of the attack passed.

    `incomplete` populations have rows that fit a criterion, and lack evidence for one. `unanswered` are the questions
    that the attack asks and could not answer, which may be about further populations, and domains without any row."""

    populations: Sequence[Sequence[Evidence]]
    controlled: bool
    incomplete: int = 0
    unanswered: tuple[str, ...] = ()

    @property
    def p_value(self) -> float:
        """Bonferroni over populations of the largest p-value in each; 1 without any, or where a control failed."""
        found = [max(evidence.p_value for evidence in population) for population in self.populations]
        return min(1.0, min(found) * len(found)) if found and self.controlled else 1.0

    @property
    def quiet(self) -> bool:
        """Whether in every population some criterion that can support is below its threshold, by its upper bound."""
        below = all(any(e.under for e in population) for population in self.populations)
        whole = bool(self.populations) and not self.incomplete and not self.unanswered
        return self.controlled and whole and below

    @property
    def reservation(self) -> str:
        """Why a run without a leak is no evidence of protection; empty where it is."""
        decisive = self.decisive
        said = [decisive.reservation] if decisive and decisive.reservation else []
        return "; ".join([*said, *(f"not answered: {question}" for question in self.unanswered)])

    @property
    def decisive(self) -> Evidence | None:
        """The evidence to print: the weakest criterion of the population that is strongest against the claim."""
        weakest = [max(population, key=lambda evidence: evidence.order) for population in self.populations]
        return min(weakest, key=lambda evidence: evidence.order, default=None)


VOID = Finding(populations=(), controlled=False)
"""A run that says nothing: it did not run, or had no rows to decide by."""


def finding(
    rows: Sequence[Row],
    criteria: Sequence[Criterion],
    *,
    controlled: bool,
    compared: float | Sequence[Row] | None = None,
    domains: Sequence[str] = (),
) -> Finding:
    """Group rows into populations by the slice keys that no criterion uses, and evaluate the criteria.

    `compared` is the value that the same question has without the protection, or the rows of a run without it; then
    the criteria are about the gap. Populations without evidence for every criterion are counted as incomplete. Where
    populations are domains, those of `domains` of which there is no row, and that no criterion leaves out, are not
    answered."""
    found: dict[Population, dict[int, Evidence]] = {}
    for number, criterion in enumerate(criteria):
        unprotected = _by_population(compared, criteria, criterion) if isinstance(compared, Sequence) else {}
        control = criterion.control
        controls = {} if control is None else _by_population(rows, criteria, control)
        for where, row in _by_population(rows, criteria, criterion).items():
            found.setdefault(where, {})
            other = unprotected.get(where) if isinstance(compared, Sequence) else compared
            if control is not None:
                evidence = controlled_evidence(row, controls.get(where), criterion)
            elif compared is None:
                evidence = evidence_of(row, criterion)
            else:
                evidence = None if other is None else compared_evidence(row, other, criterion)
            if evidence is not None:
                found[where][number] = evidence
    complete = [list(population.values()) for population in found.values() if len(population) == len(criteria)]
    gaps = [str(row["slice"][key]) for row in rows for key in (NOT_ANSWERED, TOO_LARGE) if key in row["slice"]]
    gaps += [f"no row about {name}" for name in _without_rows(found, criteria, domains)]
    return Finding(
        populations=complete, controlled=controlled, incomplete=len(found) - len(complete), unanswered=tuple(gaps)
    )


def _without_rows(found: Iterable[Population], criteria: Sequence[Criterion], domains: Sequence[str]) -> Sequence[str]:
    """Those of `domains` that none of the populations is, where populations are domains."""
    seen = {value for where in found for key, value in where if key == "domain"}
    asked = [name for name in domains if any(criterion.without.get("domain") != name for criterion in criteria)]
    return [name for name in asked if seen and name not in seen]


def _by_population(
    rows: Sequence[Row], criteria: Sequence[Criterion], criterion: Criterion
) -> Mapping[Population, Row]:
    """The rows that meet `criterion`, by the keys of their slice that none of `criteria` names."""
    named = {key for each in criteria for key in (*each.where, *each.over)}
    found: dict[Population, Row] = {}
    for row in filter(criterion.fits, rows):
        where = tuple(sorted((key, value) for key, value in row["slice"].items() if key not in named))
        if where in found:
            raise ValueError(
                f"two rows of {row['name']} have the slice {row['slice']}; a criterion must tell them apart."
            )
        found[where] = row
    return found


def evidence_of(row: Row, criterion: Criterion) -> Evidence | None:
    """The evidence of one row; None if it is unavailable or descriptive, or has too few records."""
    if not _judged(row):
        return None
    higher, reservation = row["higher_is"] == "leak", reservation_of(row)
    limit = criterion.threshold(row["chance"], higher=higher)
    against = row["low"] > limit if higher else row["high"] < limit
    below = row["high"] < limit if higher else row["low"] > limit
    under = below and criterion.supports and not reservation
    return Evidence(row=row, against=against, under=under, reservation=reservation)


def compared_evidence(row: Row, other: float | Row, criterion: Criterion) -> Evidence | None:
    """The evidence of a comparison: by how much `row` lies below `other`, a row without the protection or its value.

    The gap's interval is that of `difference`; rows of the same clients and images agree more than independent ones,
    so that it is too wide rather than too narrow. The claim says that the gap is at least the margin; where the
    unprotected value does not exceed chance by the margin itself, no protection could show it, and nothing speaks
    against the claim; nor where a part of the unprotected run was not read, since the gap may be larger. The p-value is
    the larger of two: that the attack behind the protection is no better than chance, and that the gap is the margin.
    None where a row is no evidence, or is not of values that are higher where more
    leaks."""
    if not _judged(row) or row["higher_is"] != "leak":
        return None
    if isinstance(other, int | float):
        other = {"value": other, "low": other, "high": other}
    elif not _judged(other):
        return None
    incomplete = "name" in other and bool(reservation_of(other))
    gap, reservation, least = difference(other, row), reservation_of(row), criterion.least_gap()
    reachable = other["low"] > row["chance"] + least
    return Evidence(
        row=row,
        against=gap.high < least and reachable and not incomplete,
        under=gap.low > least and criterion.supports and not reservation,
        reservation=reservation,
        gap=gap,
        difference_p_value=normal_pvalue(-gap.value, -gap.high, -gap.low, -least),
    )


def controlled_evidence(row: Row, control: Row | None, criterion: Criterion) -> Evidence | None:
    """The evidence of a row that must exceed `control`, which knows nothing of its records, by the margin.

    A control that exchanges records draws them without regard to the answer, so that the two are as good as
    independent. The p-value is the larger of two: that the row is no better than chance, and no better than its
    control. None where one of them is no evidence, or is not of values that are higher where more leaks."""
    if control is None or not _judged(row) or not _judged(control) or row["higher_is"] != "leak":
        return None
    excess, reservation, least = difference(row, control), reservation_of(row), criterion.least_gap()
    return Evidence(
        row=row,
        against=excess.low > least,
        under=excess.high < least and criterion.supports and not reservation,
        reservation=reservation,
        excess=excess,
        difference_p_value=normal_pvalue(excess.value, excess.low, excess.high, 0.0),
    )


def difference(one: Row, other: Row) -> Gap:
    """`one` minus `other`, with an interval made of theirs as if they were independent.

    This is the method of variance estimates recovery (Zou & Donner 2008)."""
    value = one["value"] - other["value"]
    return Gap(
        value=value,
        low=value - math.hypot(one["value"] - one["low"], other["high"] - other["value"]),
        high=value + math.hypot(one["high"] - one["value"], other["value"] - other["low"]),
    )


def _judged(row: Row) -> bool:
    """Whether a row can be evidence: it has all its numbers, a direction, and enough records."""
    known = all(row.get(key) is not None for key in ("value", "low", "high", "chance"))
    return known and row["n"] >= LEAST and row["higher_is"] != "descriptive"


def reservation_of(row: Row) -> str:
    """Why a row without a leak is no evidence of protection; empty where it is."""
    interval = row["low"], row["high"], row["chance"]
    if lies_behind_chance(row["name"], *interval, higher=row["higher_is"] == "leak"):
        return "worse than the baseline, so the answers do depend on the truth"
    defenses = row.get("not_adapted_to")
    return row.get("unread") or (f"the attack is not adapted to {defenses}" if defenses else "")


def agreeing(runs: int) -> int:
    """How many of so many runs must agree: the least whole number that is four fifths or more."""
    return math.ceil(AGREEING * runs - 1e-9)


def over_seeds(p_values: Sequence[float]) -> float:
    """Combine p-values that may depend on each other in any way: the k-th smallest of K, times K / k (Rueger 1978).

    k is `agreeing(K)`. Raises ValueError for none."""
    if not p_values:
        raise ValueError("there is no p-value to combine.")
    k = agreeing(len(p_values))
    return min(1.0, sorted(p_values)[k - 1] * len(p_values) / k)


@dataclass(frozen=True, kw_only=True)
class Column:
    """What one encoder found about a claim: a finding per seed, VOID where there is none."""

    findings: Sequence[Finding]

    @property
    def p_value(self) -> float:
        """The combined p-value of its seeds."""
        return over_seeds([one.p_value for one in self.findings])

    @property
    def quiet(self) -> bool:
        """Whether enough seeds support the claim."""
        return sum(one.quiet for one in self.findings) >= agreeing(len(self.findings))


def ledger_p_values(columns: Mapping[str, Sequence[Column]]) -> Mapping[str, tuple[float, float]]:
    """Per claim, its p-value (the largest of its columns'; 1 without any) and Holm's over all claims of `columns`."""
    own = {claim: max((one.p_value for one in found), default=1.0) for claim, found in columns.items()}
    adjusted = holm(list(own.values()))
    return {claim: (own[claim], each) for claim, each in zip(own, adjusted, strict=True)}


def verdicts(columns: Mapping[str, Sequence[Column]]) -> Mapping[str, Verdict]:
    """The verdict of every claim by the columns of the encoders that decide it; "undecided" where none does."""
    p_values = ledger_p_values(columns)
    return {claim: _verdict(found, p_values[claim][1]) for claim, found in columns.items()}


def _verdict(columns: Sequence[Column], adjusted: float) -> Verdict:
    if columns and adjusted <= LEVEL:
        return "contradicted"
    return "supported" if columns and all(one.quiet for one in columns) else "undecided"
