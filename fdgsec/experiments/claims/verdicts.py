"""From measurements to verdicts: when a claim that something is private counts as refuted, supported or undecided.

Fixed here, before anything is measured (DESIGN 6.6). A claim names *criteria*; an attack has succeeded in one
population (a domain, say) where **all** of them exceed chance plus a margin there, which is an intersection-union test:
its p-value is the largest. A claim is *refuted* where that happens in some population, after Bonferroni over the
claim's populations and Holm over the ledger's claims. It is *supported* where in every population some criterion's
upper bound stays under chance plus margin in a row of an attack that reads all that was sent, and the attack's positive
control was passed. Everything else is *undecided*."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fdgsec.metrics.effect_sizes import Margin, beyond, margin_of
from fdgsec.metrics.significance import holm, normal_pvalue

Verdict = Literal["refuted", "supported", "undecided", "not run"]

LEVEL = 0.05
LEAST = 10
"""Minimum number of records or clients per row; intervals of fewer do not fit the normal approximation."""


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """A condition on rows: the measurement's name, and the required slice ({"rows": "as_if_released"}).

    The value "" requires that the key is absent; other keys of a slice distinguish populations. `margin` is added to
    chance ("twice" adds chance again, "tenth" a tenth of it); None is the default of `margin_of`."""

    measurement: str
    where: Mapping[str, str | int] = field(default_factory=dict)
    margin: Margin | None = None

    def fits(self, row: Mapping[str, Any]) -> bool:
        """Whether a row of a report document meets the condition."""
        return row["name"] == self.measurement and all(
            row["slice"].get(key, "") == value for key, value in self.where.items()
        )

    def threshold(self, chance: float, *, higher: bool = True) -> float:
        """The value that a leak must exceed, or fall below where lower values are a leak."""
        return beyond(chance, margin_of(self.measurement) if self.margin is None else self.margin, higher=higher)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One criterion in one population: the row, and its p-value for "at most chance plus margin".

    `under` says that the interval's upper bound is below the threshold, and that the attack is known to read all that
    was sent behind these defenses; else `reservation` says why it is not."""

    row: Mapping[str, Any]
    p_value: float
    under: bool
    reservation: str = ""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A claim's evidence by population; `controlled` says that all positive controls of the attack passed."""

    claim: str
    populations: Sequence[Sequence[Evidence]]
    controlled: bool

    @property
    def p_value(self) -> float:
        """Bonferroni over populations of the largest p-value in each; 1 without any."""
        found = [max(evidence.p_value for evidence in population) for population in self.populations]
        return min(1.0, min(found, default=1.0) * len(found))

    @property
    def quiet(self) -> bool:
        """Whether in every population some criterion is below its threshold, by its upper bound."""
        return bool(self.populations) and all(any(e.under for e in population) for population in self.populations)

    @property
    def decisive(self) -> Evidence | None:
        """The evidence to print: the weakest criterion of the population that is strongest against the claim."""
        weakest = [max(population, key=lambda evidence: evidence.p_value) for population in self.populations]
        return min(weakest, key=lambda evidence: evidence.p_value, default=None)


def evidence_of(row: Mapping[str, Any], criterion: Criterion) -> Evidence | None:
    """The evidence of one row; None if it is unavailable or descriptive, or has too few records.

    The p-value is from a normal distribution; the interval's half-width toward chance is 1.96 standard errors. If a
    lower value is a leak (an error), row and threshold are negated."""
    value, low, high, chance = (row.get(key) for key in ("value", "low", "high", "chance"))
    if value is None or low is None or high is None or chance is None or row["n"] < LEAST:
        return None
    if row["higher_is"] == "descriptive":
        return None
    limit = criterion.threshold(chance, higher=row["higher_is"] == "leak")
    if row["higher_is"] == "safe":
        value, low, high, limit = -value, -high, -low, -limit
    p_value = normal_pvalue(value, low, high, limit)
    defenses = row.get("not_adapted_to")
    reservation = row.get("unread") or (f"the attack is not adapted to {defenses}" if defenses else "")
    return Evidence(row=row, p_value=p_value, under=high < limit and not reservation, reservation=reservation)


def finding(
    claim: str, rows: Sequence[Mapping[str, Any]], criteria: Sequence[Criterion], *, controlled: bool
) -> Finding:
    """Group rows into populations by the slice keys that no criterion uses, and evaluate the criteria.

    Populations without evidence for every criterion are left out."""
    conditions = {key for criterion in criteria for key in criterion.where}
    found: dict[tuple[tuple[str, Any], ...], dict[int, Evidence]] = {}
    for number, criterion in enumerate(criteria):
        for row in rows:
            evidence = evidence_of(row, criterion) if criterion.fits(row) else None
            if evidence is not None:
                where = tuple(sorted((k, v) for k, v in row["slice"].items() if k not in conditions))
                found.setdefault(where, {})[number] = evidence
    complete = [list(population.values()) for population in found.values() if len(population) == len(criteria)]
    return Finding(claim=claim, populations=complete, controlled=controlled)


def adjusted_p_values(findings: Sequence[Finding]) -> dict[str, float]:
    """Holm's p-value of every claim; the claims are the family."""
    return dict(zip([one.claim for one in findings], holm([one.p_value for one in findings]), strict=True))


def verdicts(findings: Sequence[Finding], *, level: float = LEVEL) -> dict[str, Verdict]:
    """The verdict of every claim: refuted by Holm's step-down procedure, else supported or undecided."""
    adjusted = adjusted_p_values(findings)
    return {one.claim: _verdict(one, refuted=adjusted[one.claim] <= level) for one in findings}


def _verdict(one: Finding, *, refuted: bool) -> Verdict:
    if refuted:
        return "refuted"
    return "supported" if one.quiet and one.controlled else "undecided"
