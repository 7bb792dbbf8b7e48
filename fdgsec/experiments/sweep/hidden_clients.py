"""Where a defense hides clients: the value at which linkage falls under twice chance, in every population.

One row of linkage is followed in tables and figures. That clients of photo cannot be linked says nothing about those
of sketch, so that the crossing is read from the largest value over populations; and an attack that may not read the
release at all says nothing about it, so that rows which are no evidence show no crossing."""

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
NEAREST_ROW = "nearest row"
"""Linkage by the two most alike rows, which are compared through the defense's noise."""
FACTOR = 2.0
"""A client counts as hidden where linkage finds it less than this many times as often as chance."""
POPULATION = ("clients", "domain", "n_per_client")
"""The slice entries that say which clients are linked; others say how."""
NO_EVIDENCE = ": no evidence of protection"
ATTACK = "linkage"


def kin(name: str, where: Row) -> tuple[tuple[str, Row], tuple[str, Row], tuple[str, Row]]:
    """The names and slices that belong to a followed row: by likelihood ratio, the row itself, and what is expected."""
    weighed, law = {**where, "distance": "likelihood ratio"}, {**where, "line": "rehearsal"}
    return (name, weighed), (name, where), ("one_candidate_auc", law)


def alike(row: Row, name: str, where: Row) -> bool:
    """Whether a row is the one of this name and slice, of whatever population."""
    return bool(row["name"] == name and _method(row["slice"]) == _method(where))


def populations(point: Row, followed: Row | None) -> list[dict[str, Any]]:
    """Linkage of every population at a point, measured as the followed row is: by likelihood ratio where it can be."""
    if followed is None:
        return []
    rows = [row for each in point["attacks"] if each["name"] == ATTACK for row in each["measurements"]]
    weighed, same, _ = kin(followed["name"], followed["slice"])
    by_row = followed["slice"].get("distance") == NEAREST_ROW
    found: dict[tuple[object, ...], Row] = {}
    for name, where in (same,) if by_row else (same, weighed):
        found |= {_population(row): row for row in rows if alike(row, name, where)}
    keys = ("value", "low", "high", "chance", "n", "verdict")
    return [
        {"population": {key: row["slice"][key] for key in POPULATION if key in row["slice"]},
         **{key: row[key] for key in keys}}
        for row in found.values()
    ]  # fmt: skip


def _population(row: Row) -> tuple[object, ...]:
    return tuple(row["slice"].get(key) for key in POPULATION)


def _method(where: Row) -> Row:
    return {key: said for key, said in where.items() if key not in POPULATION}


def hidden(privacy: Sequence[Row], accuracy: Sequence[Row], *, rising: bool) -> dict[str, Any] | None:
    """The mildest value at which linkage is below FACTOR times chance in every population, and the accuracy there.

    With some tens of clients, one link is a multiple of chance; therefore linkage, in units of chance, is the isotonic
    fit over all values, in which stronger defenses (larger values where `rising`) never increase it. A value at which
    some population is unavailable or no evidence, and none is linked, is left out: `no_evidence` says why. The accuracy
    is that of the mildest measured value at least as strong. None if linkage was not measured; the value is None if
    linkage never falls below."""
    curve = sorted(_linked(privacy), key=lambda pair: pair[0], reverse=not rising)
    if not curve:
        return None
    count = max(len(rows) for _, rows in curve)
    unread = {value: said for value, rows in curve if (said := _unread(rows, count))}
    known = [(value, max(rows, key=_times_chance)) for value, rows in curve if value not in unread]
    common = {"factor": FACTOR, "no_evidence": [{"value": value, "reason": said} for value, said in unread.items()],
              "populations": count}  # fmt: skip
    falls: Sequence[float] = ()
    if known:
        from sklearn.isotonic import IsotonicRegression  # takes a second to import

        fit = IsotonicRegression(increasing=False)
        falls = fit.fit_transform(range(len(known)), [_times_chance(row) for _, row in known])
    first = next((place for place, times in enumerate(falls) if times < FACTOR), None)
    if first is None:
        return {"value": None, "accuracy": None, **common}
    value, row = known[first]
    values = sorted((point["value"] for point in privacy if point["value"] is not None), reverse=not rising)
    as_strong = values[values.index(value) :]
    cost = [point for each in as_strong for point in accuracy if point["value"] == each]
    return {"value": value, "linkage": dict(row), "accuracy": dict(cost[0]) if cost else None, **common}


def _linked(privacy: Sequence[Row]) -> list[tuple[float, Sequence[Row]]]:
    """Linkage by value, where any was measured; of a point that holds the followed row alone, that one."""
    found = []
    for point in privacy:
        row = point["rows"].get(ATTACK)
        rows = point.get("linked") or ([] if row is None else [row])
        if point["value"] is not None and any(each["value"] is not None for each in rows):
            found.append((point["value"], rows))
    return found


def _unread(rows: Sequence[Row], count: int) -> str:
    """Why the rows of a value, of `count` populations, show no crossing; empty where they may, or where some clients
    are linked anyway."""
    if max(map(_times_chance, rows)) >= FACTOR:
        return ""
    if len(rows) < count:
        return f"{count - len(rows)} of {count} populations were not measured"
    open_ones = [row["verdict"] for row in rows if row["value"] is None or row["verdict"].endswith(NO_EVIDENCE)]
    return str(open_ones[0]).removesuffix(NO_EVIDENCE) if open_ones else ""


def _times_chance(row: Row) -> float:
    """Linkage as a multiple of chance; nothing where it was not measured."""
    return 0.0 if row["value"] is None else float(row["value"]) / float(row["chance"])
