"""Whether two arms of a table may be compared: equal optimizer steps, the same test images, and own domains that both
have learned."""

from collections.abc import Mapping, Sequence
from typing import Any

from fdgsec.experiments.report.accuracy import own_domain_accuracy

Row = Mapping[str, Any]

MARGIN = 0.03
"""How far below the baseline's an arm's own-domain accuracy may be."""
TOLERANCE = 0.05
"""Relative difference up to which numbers of steps count as equal: three epochs end in three short batches, one epoch
over three times the images in one (72 against 71 steps, CCST's Table 3 on photo)."""
NOT_LEARNED = "has not learned its own domains: not comparable"
NOT_RECORDED = "steps not recorded"
OTHER_IMAGES = "other test images: not comparable"
NOT_MEASURED = "own domains not measured"


def own_domains_of(row: Row) -> float | None:
    """A cell's accuracy on validation images of its clients' own domains, the mean over these domains."""
    return own_domain_accuracy({"per_domain": {}, **row["accuracy"]})


def steps_of(rows: Sequence[Row]) -> dict[str, float] | None:
    """Optimizer steps per participant and round, and in all; means over cells, None where one did not record them."""
    recorded = [row["accuracy"]["steps"] for row in rows if "steps" in row["accuracy"]]
    if not rows or len(recorded) < len(rows):
        return None
    return {name: sum(steps[name] for steps in recorded) / len(rows) for name in ("per_client_and_round", "total")}


def paired(own: Sequence[Row], base: Sequence[Row]) -> list[tuple[Row, Row]]:
    """The cells of the same domain and seed."""
    against = {(row["domain"], row["seed"]): row for row in base}
    return [(row, against[key]) for row in own if (key := (row["domain"], row["seed"])) in against]


def unequal_steps(own: Sequence[Row], base: Sequence[Row]) -> str:
    """Say how the optimizer steps of two arms differ over the cells that both have: "27 steps against 9".

    Empty where they are equal in every such cell, both per participant and round and in all."""
    pairs = paired(own, base)
    mine, other = steps_of([row for row, _ in pairs]), steps_of([row for _, row in pairs])
    if not pairs:
        return ""
    if mine is None or other is None:
        return NOT_RECORDED
    cells = [(steps_of([row]) or {}, steps_of([against]) or {}) for row, against in pairs]
    if all(_equal(first[name], second[name]) for first, second in cells for name in first):
        return ""
    name = "total" if _equal(mine["per_client_and_round"], other["per_client_and_round"]) else "per_client_and_round"
    in_all = " in all" if name == "total" else ""
    return f"{plain_count(mine[name])} steps{in_all} against {plain_count(other[name])}"


def on_other_images(own: Sequence[Row], base: Sequence[Row]) -> bool:
    """Whether two arms were measured on different numbers of images, in a cell that both have."""
    return any(row["accuracy"].get("n") != against["accuracy"].get("n") for row, against in paired(own, base))


def own_domains_unknown(own: Sequence[Row], base: Sequence[Row]) -> bool:
    """Whether the baseline's own-domain accuracy is known in a cell in which the arm's is not."""
    known = [(own_domains_of(row), own_domains_of(against)) for row, against in paired(own, base)]
    return any(mine is None and other is not None for mine, other in known)


def has_learned(own: Sequence[Row], base: Sequence[Row]) -> bool:
    """Whether an arm's own-domain accuracy is at most MARGIN below the baseline's, over the cells that both have.

    True where nothing was measured."""
    measured = [(own_domains_of(row), own_domains_of(against)) for row, against in paired(own, base)]
    gaps = [mine - other for mine, other in measured if mine is not None and other is not None]
    return not gaps or sum(gaps) / len(gaps) >= -MARGIN - 1e-12


def plain_count(value: float) -> str:
    """Write a mean number of steps: 9, 9.25, 2,160."""
    return f"{value:,.2f}".rstrip("0").rstrip(".")


def _equal(first: float, second: float) -> bool:
    return abs(first - second) <= TOLERANCE * max(first, second)
