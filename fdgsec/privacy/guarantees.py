"""The guarantees that defenses plan for a method's releases, and whether they compose to one guarantee.

The ledger (fdgsec.privacy.ledger) composes actual releases. Only after training would it find that two defenses protect
different units, or use different neighboring relations."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from fdgsec.privacy.accounting import AdjacencyError, Relation, Unit
from fdgsec.runtime.errors import UsageError

Stage = Literal["share", "update", "review"]

VETTED: frozenset[str] = frozenset()
"""The bundled mechanisms that a second reader has checked: docs/defenses/NAME.md names the reader and the date.

Every other mechanism, bundled or of a plug-in, is marked as unvetted wherever its epsilon is stated."""


@dataclass(frozen=True, kw_only=True)
class PlannedGuarantee:
    """The planned guarantee of the defense `by` (with the options that matter) for the releases of `stage`.

    It protects one `unit` between neighbors under each of `relations`."""

    by: str
    stage: Stage
    unit: Unit
    relations: frozenset[Relation]


@dataclass(frozen=True, kw_only=True)
class RecordMixing:
    """The defense `by` mixes one record into several rows, so that no later defense can count a row as one record."""

    by: str


def check_composable(said: Sequence[PlannedGuarantee | RecordMixing | None]) -> None:
    """Raise AdjacencyError where two guarantees have no unit or no relation in common, naming both and what to choose.

    `said` is what the defenses plan, in the order in which they act: the first one gives a stage its guarantee, and
    later ones process what is already protected. Raises UsageError for rows that were mixed before."""
    paying: dict[Stage, PlannedGuarantee] = {}
    mixing = ""
    for guarantee in said:
        if isinstance(guarantee, RecordMixing):
            mixing = guarantee.by
        if not isinstance(guarantee, PlannedGuarantee):
            continue
        if mixing and (guarantee.stage, guarantee.unit) == ("share", "record"):
            raise UsageError(
                f"{guarantee.by} counts one row per record, but {mixing} before it mixes a record into several rows; "
                f"put {mixing} after it, or protect clients."
            )
        paying.setdefault(guarantee.stage, guarantee)
    for one, other in combinations(paying.values(), 2):
        _check_pair(one, other)


def _check_pair(one: PlannedGuarantee, other: PlannedGuarantee) -> None:
    if one.unit != other.unit:
        raise AdjacencyError(
            f"{one.by} protects {one.unit}s and {other.by} {other.unit}s, which do not compose; let both protect "
            "records (dp-sgd, private-scores, private-styles:unit=record) or both clients "
            "(dp-fedavg, private-styles:unit=client)."
        )
    if not one.relations & other.relations:
        raise AdjacencyError(
            f"{one.by} holds under {_listed(one)} and {other.by} under {_listed(other)}, which do not compose; take "
            "neighbors=zero-out, which every defense supports."
        )


def _listed(guarantee: PlannedGuarantee) -> str:
    return " and ".join(sorted(guarantee.relations))
