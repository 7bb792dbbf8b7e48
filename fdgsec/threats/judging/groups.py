"""Answers grouped by the population that one row of the report is about, and how such rows are made."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar, cast

import torch
from torch import Tensor

from fdgsec.metrics.bootstrap import Bounds
from fdgsec.metrics.interval import Interval
from fdgsec.metrics.intervals import bootstrap, cluster_bootstrap
from fdgsec.metrics.measurement import ChanceKind, Measurement, Slice
from fdgsec.metrics.proportion_intervals import clustered_proportion, median_interval
from fdgsec.threats.answers import Answer, Prediction
from fdgsec.threats.attack import Answers, Case, Truth

FEW_GIVEN = 20
"""Given vectors, fewer than which are judged one by one: resampling them says little, and they are no sample."""
HALVES = ("half",)
"""Slice keys that distinguish the two halves of one client, not one population from another."""

A_co = TypeVar("A_co", bound=Answer, covariant=True)
A = TypeVar("A", bound=Answer)


@dataclass(frozen=True, kw_only=True, eq=False)
class Entry(Generic[A_co]):
    """One answer beside its case and the truth about it."""

    answer: A_co
    case: Case
    truth: Truth


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """Answers of one type about one population; together they make one set of rows."""

    slice: Slice
    question: str
    subject: str
    entries: tuple[Entry[Answer], ...]

    @property
    def kind(self) -> type[Answer]:
        """The type of the answers."""
        return type(self.entries[0].answer)

    @property
    def name(self) -> str:
        """What distinguishes this group from all others; names its random stream."""
        return f"{self.kind.kind} {self.subject} {self.question} {sorted(self.slice.items())}"

    @property
    def few_given(self) -> bool:
        """Whether these are a few vectors of a user's own: what is found is said of them, and of no other clients."""
        return len(self.entries) < FEW_GIVEN and all(entry.case.question == "given" for entry in self.entries)

    def of(self, kind: type[A]) -> list[Entry[A]]:
        """The entries, which must all be of `kind`."""
        wrong = [entry for entry in self.entries if not isinstance(entry.answer, kind)]
        if wrong:
            raise TypeError(f"group {self.name} holds a {type(wrong[0].answer).__name__}; expected {kind.__name__}.")
        return [cast(Entry[A], entry) for entry in self.entries]


def grouped(answers: Answers, cases: Sequence[Case], truths: Sequence[Truth]) -> list[Group]:
    """Sort answers by type, subject, question and merged slice, in the order in which each first appears.

    Where only the question or the subject distinguishes two slices, the slice names it (`request`, `of`). Raises
    ValueError for an answer about a case that does not exist, or a second one about the same case in the same slice."""
    if len(cases) != len(truths):
        raise ValueError(f"every case needs its truth; got {len(cases)} cases and {len(truths)} truths.")
    found: dict[tuple[str, str, str, tuple[tuple[str, str | int], ...]], list[tuple[int, Answer]]] = {}
    for answer in answers:
        if not 0 <= answer.case < len(cases):
            raise ValueError(f"an answer names case {answer.case}; there are {len(cases)} (0..{len(cases) - 1}).")
        case = cases[answer.case]
        key = (answer.kind, answer.subject, case.question, _merged(case.slice, answer.slice))
        found.setdefault(key, []).append((answer.case, answer))
    groups = []
    for (_, subject, question, merged), same in found.items():
        numbers = [number for number, _ in same]
        if len(set(numbers)) != len(numbers):
            raise ValueError(
                f"the attack answers a case twice in slice {dict(merged)}; give each variant its own slice."
            )
        entries = tuple(Entry(answer=answer, case=cases[number], truth=truths[number]) for number, answer in same)
        groups.append(Group(slice=dict(merged), question=question, subject=subject, entries=entries))
    return [_with_distinct_slice(group, groups) for group in groups]


def _merged(case: Slice, answer: Slice) -> tuple[tuple[str, str | int], ...]:
    return tuple((key, value) for key, value in {**case, **answer}.items() if key not in HALVES)


def _with_distinct_slice(group: Group, groups: Sequence[Group]) -> Group:
    """Name question and subject in the slice where another group of the type has the same slice.

    Predictions need no subject there: it is the name of their row."""
    same = [other for other in groups if other.kind.kind == group.kind.kind and other.slice == group.slice]
    extra: dict[str, str | int] = {}
    if len({other.question for other in same}) > 1:
        extra["request"] = group.question
    if not issubclass(group.kind, Prediction) and len({other.subject for other in same}) > 1:
        extra["of"] = group.subject
    return replace(group, slice={**group.slice, **extra})


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How one statistic is to be read: against which chance, in which direction and unit."""

    chance: float | None
    chance_kind: ChanceKind = "exact"
    higher_is: Literal["leak", "safe", "descriptive"] = "leak"
    unit: str = ""


def row(
    name: str,
    where: Slice,
    value: float,
    interval: Interval | None,
    n: int,
    scale: Scale,
    *,
    method: str = "",
) -> Measurement:
    """Make a measurement, with the p-value that agrees with its interval where it can show a leak.

    `method` names what made the interval where it is none of `intervals`' methods."""
    p_value = None
    if interval is not None and scale.chance is not None and scale.higher_is != "descriptive":
        p_value = interval.p_value(scale.chance, higher=scale.higher_is == "leak")
    return Measurement(
        name=name, value=value, low=None if interval is None else interval.low,
        high=None if interval is None else interval.high, chance=scale.chance, chance_kind=scale.chance_kind, n=n,
        unit=scale.unit, higher_is=scale.higher_is, slice=where,
        method=method or ("" if interval is None else interval.method), p_value=p_value,
    )  # fmt: skip


def unavailable(names: Sequence[str], where: Slice, reason: str, *, n: int = 0) -> list[Measurement]:
    """Make the rows that say why a statistic could not be had."""
    return [
        Measurement(
            name=name, value=None, low=None, high=None, chance=None, chance_kind="none", n=n, slice=where,
            unavailable=" ".join(reason.split()),
        )
        for name in names
    ]  # fmt: skip


def described(rows: Sequence[Measurement]) -> list[Measurement]:
    """The rows without a verdict; they keep chance and interval."""
    return [replace(measured, higher_is="descriptive", p_value=None) for measured in rows]


def median_row(
    name: str,
    where: Slice,
    values: Tensor,
    scale: Scale,
    *,
    bounds: tuple[float, float | None],
    sizes: Sequence[int] = (),
    without: Tensor | None = None,
    p_value: float = 0.0,
) -> Measurement:
    """Measure a median; `bounds` are the least and greatest value possible, `sizes` those of clusters of values.

    `p_value` is another test's, that values are no smaller than by chance: the interval excludes chance only where that
    test does too. Too few values have no interval where there is no greatest possible value. Where chance is the median
    of the errors `without` the release, of the same records, it is as uncertain as the value: the interval excludes it
    only where also the share of records with a smaller error than without exceeds one half (the sign test, by
    clusters)."""
    least, most = bounds
    interval = median_interval(values, bounds=(least, math.inf if most is None else most), sizes=sizes)
    if interval is not None and without is not None and scale.chance is not None:
        smaller = (values < without).to(torch.float64) + (values == without).to(torch.float64) / 2
        parts = smaller.split(list(sizes) or [1] * len(values))
        share = clustered_proportion([float(part.sum()) for part in parts], [len(part) for part in parts])
        interval = interval.reaching(scale.chance, share.p_value(0.5), higher=False)
    if interval is not None and scale.chance is not None:
        interval = interval.reaching(scale.chance, p_value, higher=False)
    return row(name, where, float(values.quantile(0.5)), interval, len(values), scale)


def mean_interval(
    values: Tensor, sizes: Sequence[int], *, rng: torch.Generator, repeats: int, bounds: Bounds | None
) -> Interval | None:
    """Bound the mean of values that come in clusters of `sizes`, one after the other: the rows of a case.

    Clusters are resampled where there are several; one cluster's rows are independent, and the interval is about it
    alone. None where nothing varies and there are no `bounds`, or for a single value."""
    units = (
        values if len(sizes) in (1, len(values)) else torch.stack([part.mean() for part in values.split(list(sizes))])
    )
    if constant(units) and (bounds is None or len(units) < 2):
        return None
    if units is values:
        return bootstrap(values, rng=rng, repeats=repeats, bounds=bounds)
    owners = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return cluster_bootstrap(values, owners, rng=rng, repeats=repeats, bounds=bounds)


def gain_interval(
    own: Tensor, theirs: Tensor, sizes: Sequence[int], *, rng: torch.Generator, repeats: int, bounds: Bounds | None
) -> Interval | None:
    """Bound the mean of `own` - `theirs`, measured on the same rows, as `mean_interval` does."""
    found = mean_interval(own - theirs, sizes, rng=rng, repeats=repeats, bounds=bounds)
    return replace(found, method="paired-bootstrap") if found is not None and found.method == "bootstrap" else found


def finite(values: Mapping[str, Tensor]) -> str:
    """Say which of `values` is not finite, and how much of it; empty where all are."""
    for name, tensor in values.items():
        wrong = int((~torch.isfinite(tensor)).sum())
        if wrong:
            return f"{wrong} of {tensor.numel()} values of the {name} are not finite"
    return ""


def constant(values: Tensor) -> bool:
    """Whether no resampling could vary the mean of `values`: fewer than two, or all equal up to rounding."""
    return len(values) < 2 or math.isclose(float(values.min()), float(values.max()), rel_tol=1e-12, abs_tol=1e-12)
