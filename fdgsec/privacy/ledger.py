"""The privacy ledger of a run: every release of a client and its cost, composed to one guarantee.

Clients hold different records, so a record's loss is that of the one client that holds it: costs compose within a
client, and the run's guarantee is that of the worst client. Where a release has no defense there is no guarantee, and
the release is named. A guarantee is stated in the strictest neighboring relation in which every use of a mechanism has
a known sensitivity."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, Decimal

from fdgsec.privacy.accounting import AdjacencyError, Relation, Unit, Use, epsilon
from fdgsec.runtime.registry import DEFENSES

Uses = tuple[Use, ...] | None
RELATIONS: tuple[Relation, ...] = ("replace-one", "add-remove", "zero-out")
"""From the strictest to the weakest: where several are known, the first one is stated."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One release: its client, the kind of artifact, its slot, and its cost (None: unprotected)."""

    client: str
    round: int
    stage: str
    slot: str
    kind: str
    uses: Uses


@dataclass(frozen=True, kw_only=True)
class SummedRelease:
    """The cost to each client of a slot's releases in a round, against `against`, who see only their sum."""

    round: int
    stage: str
    slot: str
    uses: Uses
    against: str


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """The guarantee for everything that one run released, or for a part of it.

    `epsilon` is None without a guarantee; then `uncovered` names the unprotected releases. `covers` lists the composed
    releases ("update/model"); `part` is "run", or the part of it. `by` names the mechanisms behind it; it is `vetted`
    where a second reader has checked each of them (docs/defenses.md)."""

    part: str
    epsilon: float | None
    delta: float
    unit: Unit
    relation: Relation | None
    mechanism: str
    assumptions: tuple[str, ...]
    covers: tuple[str, ...]
    uncovered: tuple[str, ...]
    by: tuple[str, ...] = ()
    vetted: bool = False

    def document(self) -> dict[str, object]:
        """Give the guarantee as in the report."""
        return {
            "part": self.part, "epsilon": _plain(self.epsilon), "delta": self.delta, "unit": self.unit,
            "relation": self.relation, "mechanism": self.mechanism, "assumptions": list(self.assumptions),
            "covers": list(self.covers), "uncovered": list(self.uncovered), "by": list(self.by), "vetted": self.vetted,
        }  # fmt: skip

    def line(self) -> str:
        """One line: "run: epsilon 3.98 at delta 1e-05 per record (zero-out), over update/model (unvetted: ...)"."""
        return guarantee_line(self.document())


LARGE_DELTA = 1e-3
"""A delta above which guarantees say what it allows: with 1,000 images, to send one of them as it is."""


def epsilon_text(epsilon: float) -> str:
    """Write an epsilon with four digits, rounded up: a guarantee is never stated smaller than it is.

    What an accountant's sums add in the twelfth digit is not a larger epsilon."""
    if not math.isfinite(epsilon) or epsilon <= 0:
        return f"{epsilon:g}"
    unit = Decimal(1).scaleb(math.floor(math.log10(epsilon)) - 3)
    return f"{float(Decimal(f'{epsilon:.12g}').quantize(unit, ROUND_CEILING)):.5g}"


def guarantee_line(guarantee: Mapping[str, object]) -> str:
    """Format a guarantee's document in one line: the epsilon, or the unprotected releases.

    An epsilon is marked unless a second reader has checked its mechanisms, with the pages that state them."""
    uncovered, covers = (list(map(str, _listed(guarantee[key]))) for key in ("uncovered", "covers"))
    if guarantee["epsilon"] is None:
        return f"{guarantee['part']}: none, unprotected: {', '.join(uncovered) or 'everything'}"
    value, little = float(str(guarantee["epsilon"])), _little(guarantee["delta"])
    return (
        f"{guarantee['part']}: epsilon {epsilon_text(value)} at delta {guarantee['delta']} per {guarantee['unit']} "
        f"({guarantee['relation']}){little}, over {', '.join(covers)}{review_mark(guarantee)}"
    )


def _little(delta: object) -> str:
    """What a large delta leaves open; nothing for a small one."""
    known = isinstance(delta, int | float) and delta > LARGE_DELTA
    return f", but with a probability of {delta:g} it may tell anything" if known else ""


def review_mark(guarantee: Mapping[str, object]) -> str:
    """Give " (unvetted: PAGE, ...)" for the document of a guarantee that is not vetted, else nothing.

    Mechanisms of plug-ins stand there by name. Documents of runs before this mark count as unvetted."""
    if guarantee.get("vetted"):
        return ""
    pages = [
        f"docs/defenses/{name}.md" if name in DEFENSES else name for name in map(str, _listed(guarantee.get("by")))
    ]
    return f" (unvetted: {', '.join(pages)})" if pages else " (unvetted)"


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()


@dataclass(kw_only=True)
class Ledger:
    """Entries in the order of the releases."""

    entries: list[Entry] = field(default_factory=list)
    restated: list[SummedRelease] = field(default_factory=list)

    def write(self, client: str, *, round: int, stage: str, kinds: Mapping[str, str], uses: Mapping[str, Uses]) -> None:
        """Add one reply: `kinds` by slot, and the uses of the slots that are defended."""
        for slot, kind in kinds.items():
            self.entries.append(
                Entry(client=client, round=round, stage=stage, slot=slot, kind=kind, uses=uses.get(slot))
            )

    def restate(self, round: int, *, stage: str, slot: str, uses: Uses, against: str) -> None:
        """Add the cost of a slot's releases in a round against observers who see only their sum."""
        self.restated.append(SummedRelease(round=round, stage=stage, slot=slot, uses=uses, against=against))

    def guarantees(
        self, *, delta: float, assumptions: Sequence[str] = (), own_return: bool = False
    ) -> tuple[Guarantee, ...]:
        """Give the run's guarantee, then each covered release's share of it where there are several.

        After these come the guarantees against observers who see only sums. `own_return` means that what a client
        shares comes back into its own training: an update is then no safer than what was shared, and is unprotected
        where that is. Without any use of a mechanism only the run's is given, as none. Raises AdjacencyError where
        units differ or no relation is common to all uses."""
        every: list[Entry | SummedRelease] = [*self.entries, *self.restated]
        if any(use.unit == "client" for entry in every for use in entry.uses or ()):
            assumptions = (*assumptions, _counted(len({entry.client for entry in self.entries})))
        found = list(self._seen_singly(delta=delta, assumptions=assumptions, own_return=own_return))
        for against in _unique(one.against for one in self.restated):
            summed = Ledger(entries=self._seen_by(against))._seen_singly(
                delta=delta, assumptions=assumptions, own_return=own_return
            )
            found += [replace(one, part=f"{one.part} against {against}") for one in summed if one.epsilon is not None]
        return tuple(found)

    def _seen_by(self, against: str) -> list[Entry]:
        costs = {(one.round, one.stage, one.slot): one.uses for one in self.restated if one.against == against}
        return [
            replace(entry, uses=costs.get((entry.round, entry.stage, entry.slot), entry.uses)) for entry in self.entries
        ]

    def _seen_singly(self, *, delta: float, assumptions: Sequence[str], own_return: bool) -> tuple[Guarantee, ...]:
        slots = _unique(_where(entry) for entry in self.entries)
        open_slots = _unique(_where(entry) for entry in self.entries if entry.uses is None)
        if own_return and any(slot.startswith("share/") for slot in open_slots):
            open_slots = _unique([*open_slots, *(slot for slot in slots if slot.startswith("update/"))])
        entered = [_where(entry) for entry in self.entries if entry.uses]
        paid = [slot for slot in slots if slot in entered and slot not in open_slots]
        covers = tuple(slot for slot in slots if slot not in open_slots)
        whole = self._composed(paid, delta) if paid else None
        if whole is None:
            return (_nothing("run", delta, open_slots, assumptions),)
        found, mechanism = whole
        if open_slots:
            name = " + ".join(_spoken(slot) for slot in paid) + " only"
            part = Guarantee(
                part=name, epsilon=found.value, delta=delta, unit=found.unit, relation=found.relation,
                mechanism=mechanism, assumptions=tuple(assumptions), covers=covers, uncovered=(),
            )  # fmt: skip
            return (_nothing("run", delta, open_slots, assumptions), part)
        run = Guarantee(
            part="run", epsilon=found.value, delta=delta, unit=found.unit, relation=found.relation, mechanism=mechanism,
            assumptions=tuple(assumptions), covers=covers, uncovered=(),
        )  # fmt: skip
        return (run, *(self._share(slot, found.relation, delta, assumptions) for slot in paid if len(paid) > 1))

    def _share(self, slot: str, relation: Relation, delta: float, assumptions: Sequence[str]) -> Guarantee:
        found, mechanism = self._composed([slot], delta, relation=relation)
        return Guarantee(
            part=slot, epsilon=found.value, delta=delta, unit=found.unit, relation=found.relation, mechanism=mechanism,
            assumptions=tuple(assumptions), covers=(slot,), uncovered=(),
        )  # fmt: skip

    def _composed(
        self, slots: Sequence[str], delta: float, *, relation: Relation | None = None
    ) -> tuple["_Found", str]:
        by_client: dict[str, list[Use]] = {}
        for entry in self.entries:
            if _where(entry) in slots and entry.uses:
                by_client.setdefault(entry.client, []).extend(entry.uses)
        every = [use for uses in by_client.values() for use in uses]
        units = _unique(use.unit for use in every)
        if len(units) > 1:
            raise AdjacencyError(
                f"this run's guarantees are of different units ({', '.join(units)}), which do not compose; "
                "let every defense protect records, or every one clients."
            )
        chosen = relation or _common(every)
        worst = max(epsilon(tuple(uses), delta=delta, relation=chosen) for uses in by_client.values())
        mechanism = " + ".join(_unique(_mechanism(use) for use in every))
        return _Found(value=worst, unit=every[0].unit, relation=chosen), mechanism


@dataclass(frozen=True, kw_only=True)
class _Found:
    value: float
    unit: Unit
    relation: Relation


def _common(uses: Sequence[Use]) -> Relation:
    for relation in RELATIONS:
        if all(relation in use.sensitivity for use in uses):
            return relation
    known = "; ".join(_unique(" or ".join(use.sensitivity) for use in uses))
    raise AdjacencyError(
        f"no neighboring relation is common to all of this run's mechanisms ({known}); give them the same `neighbors`."
    )


def _nothing(part: str, delta: float, uncovered: Sequence[str], assumptions: Sequence[str]) -> Guarantee:
    return Guarantee(
        part=part, epsilon=None, delta=delta, unit="record", relation=None, mechanism="none",
        assumptions=tuple(assumptions), covers=(), uncovered=tuple(uncovered),
    )  # fmt: skip


def _counted(clients: int) -> str:
    few = ": a demonstration" if clients < 10 else ""
    return f"N = {clients} clients, no amplification by sampling{few}"


def _where(entry: Entry) -> str:
    return f"{entry.stage}/{entry.slot}"


def _spoken(slot: str) -> str:
    return slot.partition("/")[2]


def _mechanism(use: Use) -> str:
    return f"Poisson-sampled {use.mechanism}" if use.sampling_rate < 1 else use.mechanism


def _plain(value: float | None) -> float | str | None:
    return "inf" if value is not None and math.isinf(value) else value


def _unique(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(items))
