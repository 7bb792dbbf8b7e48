"""What defenses will pay for a method's releases, said before any is made, and whether that adds up to one guarantee.

The ledger (fdgsec.privacy.ledger) composes what was paid; it finds out only when everything has been trained that two
defenses count in different units, or between different neighbors."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from fdgsec.privacy.accounting import AdjacencyError, Relation, Unit
from fdgsec.runtime.errors import UsageError

Stage = Literal["share", "update", "review"]


@dataclass(frozen=True, kw_only=True)
class PlannedGuarantee:
    """What the defense named `by` (with the options that decide it) pays for what leaves in `stage`.

    It protects one `unit` between neighbors under each of `relations`. `first` says that nobody may pay before it."""

    by: str
    stage: Stage
    unit: Unit
    relations: frozenset[Relation]
    first: bool = False


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """The defense named `by` gives one record a part in several rows: nobody behind it can count a row as one record."""

    by: str


def check_composable(said: Sequence[PlannedGuarantee | Mixing | None]) -> None:
    """Raise AdjacencyError where two promises have no unit or no relation in common, naming both and what to choose.

    What defenses have `said` is in the order in which they act: the first one pays for a stage, what comes behind it acts
    on what has been paid for. Raises UsageError for one that must be the first and is not, and for rows mixed before."""
    paying: dict[Stage, PlannedGuarantee] = {}
    mixing = ""
    for promise in said:
        if isinstance(promise, Mixing):
            mixing = promise.by
        if not isinstance(promise, PlannedGuarantee):
            continue
        if mixing and (promise.stage, promise.unit) == ("share", "record"):
            raise UsageError(
                f"{promise.by} counts one row per record, and {mixing} before it puts a record into several; put {mixing} "
                "behind it, or protect clients."
            )
        before = paying.setdefault(promise.stage, promise)
        if promise.first and before is not promise:
            raise UsageError(
                f"{promise.by} must count its steps with the model, which {before.by} before it pays for; "
                f"put {promise.by} first."
            )
    for one, other in combinations(paying.values(), 2):
        _check_pair(one, other)


def _check_pair(one: PlannedGuarantee, other: PlannedGuarantee) -> None:
    if one.unit != other.unit:
        raise AdjacencyError(
            f"{one.by} protects {one.unit}s and {other.by} {other.unit}s, which do not compose; let both protect records "
            "(dp-sgd, private-scores, private-styles:unit=record) or both clients (dp-fedavg, private-styles:unit=client)."
        )
    if not one.relations & other.relations:
        raise AdjacencyError(
            f"{one.by} holds under {_listed(one)} and {other.by} under {_listed(other)}, which do not compose; take "
            "neighbors=zero-out, which every defense knows."
        )


def _listed(promise: PlannedGuarantee) -> str:
    return " and ".join(sorted(promise.relations))
