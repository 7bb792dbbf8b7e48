"""What a sweep found, in numbers: how each attack fares at each value, the accuracy beside it, and what hiding costs.

Per attack one row is followed over all values: the one whose interval lies farthest beyond chance without the defense.
Choosing it on the undefended run alone keeps the choice from favoring the defense or the attack at any value."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scipy import stats

from fdgsec.experiments.bench.comparability import NOT_LEARNED, has_learned, unequal_steps
from fdgsec.experiments.bench.tables import mean_of, traffic_mean
from fdgsec.experiments.report.accuracy import own_domain_accuracy
from fdgsec.experiments.report.findings import PROCEDURAL
from fdgsec.experiments.report.text_tables import markdown_table
from fdgsec.experiments.sweep.hidden_clients import (
    ATTACK,
    FACTOR,
    NEAREST_ROW,
    NO_EVIDENCE,
    POPULATION,
    hidden,
    kin,
    populations,
)
from fdgsec.metrics.measurement import BOUNDED
from fdgsec.privacy.ledger import epsilon_text, review_mark
from fdgsec.runtime.csv_cells import csv_text

Row = Mapping[str, Any]
SPREAD = "between_client_sd"
"""The row of linkage that says how far clients lie apart."""


def summary(points: Sequence[Row]) -> dict[str, Any]:
    """Sort finished points into curves.

    `followed` says which row of each attack is meant; `privacy` and `accuracy` have a point per value, the undefended
    one (value None) first where it is finished, with linkage of every population (`linked`); `rising` says that larger
    values are stronger, `hidden` at which value linkage falls under twice chance in all of them, `codes` by how many
    versions of this code the points were made, and `versions` which and how many by each."""
    private = sorted((point for point in points if point["kind"] == "privacy"), key=_place)
    bare = next((point for point in private if point["value"] is None), None)
    followed = {} if bare is None else followed_rows(bare)
    privacy = [
        {
            "value": point["value"], "guarantees": point["guarantees"],
            "rows": {name: _same(point, name, row) for name, row in followed.items()},
            "expected": {name: _expected(point, name, row) for name, row in followed.items()},
            "linked": populations(point, followed.get(ATTACK)),
        }
        for point in private
    ]  # fmt: skip
    accuracy = _accuracy([point for point in points if point["kind"] == "accuracy"])
    rising = grows_stronger(privacy)
    versions = Counter(str(point["environment"].get("code_sha256"))[:12] for point in points)
    skipped = {} if bare is None else {a["name"]: a["reason"] for a in bare["attacks"] if a["status"] != "done"}
    return {
        "followed": {name: {"measurement": row["name"], "slice": row["slice"]} for name, row in followed.items()},
        "skipped": skipped, "between_client_sd": None if bare is None else _spread(bare), "privacy": privacy,
        "accuracy": accuracy, "rising": rising, "hidden": hidden(privacy, accuracy, rising=rising),
        "controls": {"failed": sum(_failed(point) for point in private), "points": len(private)},
        "environment": points[0]["environment"] if points else {},
        "codes": len(versions), "versions": dict(versions),
    }  # fmt: skip


def followed_rows(bare: Row) -> dict[str, Row]:
    """The row of each attack that the sweep follows, chosen on the undefended run."""
    chosen = [(each["name"], strongest(each["measurements"])) for each in bare["attacks"]]
    return {name: row for name, row in chosen if row is not None}


def strongest(rows: Sequence[Row]) -> Row | None:
    """The row whose interval lies farthest beyond chance, in units of the room between chance and certainty.

    Of equals the first: what an attack lists first is what it holds to be strongest. Linkage of releases that come back
    unchanged is descriptive without a defense; a sweep asks from which value on they are not linked."""
    judged = [
        row
        for row in rows
        if row["name"] in BOUNDED
        and (
            row["verdict"] not in ("descriptive", "unavailable")
            or (row["slice"].get("data") == "the same" and row["low"] is not None)
        )
    ]
    return max(judged, key=lambda row: (row["low"] - row["chance"]) / max(1 - row["chance"], 1e-9), default=None)


def grows_stronger(privacy: Sequence[Row]) -> bool:
    """Whether larger values of the option hide more, as noise does, or less, as epsilon does.

    Guarantees decide where they differ: a smaller epsilon is stronger, and none the weakest. Else the attacks do: rank
    correlations of success with the value, each by how far success moves, so that noise about chance has no say."""
    points = sorted((point for point in privacy if point["value"] is not None), key=lambda point: point["value"])
    if len(points) < 2:
        return True
    promised = [_epsilon(point["guarantees"]) for point in points]
    if len(set(promised)) > 1:
        return float(stats.spearmanr(range(len(promised)), promised).statistic) <= 0
    pull = 0.0
    for name in points[0]["rows"]:
        rows = [point["rows"].get(name) for point in points]
        success = [row["value"] for row in rows if row is not None and row["value"] is not None]
        if len(set(success)) > 1:
            moved = max(success) - min(success)
            pull += moved * float(stats.spearmanr(range(len(success)), success).statistic)
    return pull <= 0


def _epsilon(guarantees: Sequence[Row]) -> float:
    """The epsilon of the whole run; infinite without a guarantee."""
    found = [each["epsilon"] for each in guarantees if each["part"] == "run"]
    return math.inf if not found or found[0] is None else float(found[0])


def _accuracy(points: Sequence[Row]) -> list[dict[str, Any]]:
    """Means over seeds with t intervals, of one seed with that over its test images, and differences from the
    undefended runs of the same seeds where both took equally many optimizer steps; `notes` say what is unequal."""
    by_value: dict[float | None, dict[int, float]] = {}
    for point in points:
        by_value.setdefault(point["value"], {})[point["seed"]] = point["accuracy"]["value"]
    alone = {point["value"]: point["accuracy"] for point in points}
    bare, cells = (
        by_value.get(None, {}),
        {value: _cells([p for p in points if p["value"] == value]) for value in by_value},
    )
    found = []
    for value in sorted(by_value, key=lambda each: (each is not None, each or 0.0)):
        scores = by_value[value]
        both = [scores[seed] - bare[seed] for seed in sorted(scores) if seed in bare]
        score = _possible(mean_of([scores[seed] for seed in sorted(scores)]).document())
        steps = "" if value is None else unequal_steps(cells[value], cells.get(None, []))
        learned = has_learned(cells[value], cells.get(None, []))
        if len(scores) == 1:
            score |= {"low": alone[value].get("low"), "high": alone[value].get("high")}
        found.append(
            {
                "value": value, "seeds": sorted(scores), "score": score,
                "difference": mean_of(both).document() if both and value is not None and not steps else None,
                "notes": [note for note in (steps, "" if learned else NOT_LEARNED) if note],
                "guarantees": next(point["guarantees"] for point in points if point["value"] == value),
                **_beside_accuracy([point for point in points if point["value"] == value]),
            }
        )  # fmt: skip
    return found


def _cells(points: Sequence[Row]) -> list[Row]:
    """The trained runs of one value as cells of a table, which a seed and the unseen domain tell apart."""
    return [
        {"domain": point["accuracy"].get("unseen_domain", ""), "seed": point["seed"], "accuracy": point["accuracy"]}
        for point in points
    ]


def _beside_accuracy(points: Sequence[Row]) -> dict[str, Any]:
    """Means over the seeds of a value: accuracy on the clients' own domains, optimizer steps, bytes per client and
    round; None where a point did not record it."""
    own = [own_domain_accuracy({"per_domain": {}, **point["accuracy"]}) for point in points]
    steps = [point["accuracy"].get("steps") for point in points]
    sent = [point.get("traffic") for point in points]
    return {
        "own_domains": None if None in own else mean_of([each for each in own if each is not None]).document(),
        "steps": None if None in steps else mean_of([each["per_client_and_round"] for each in steps]).value,
        "bytes_per_round_and_client": None if None in sent else traffic_mean(points),
    }  # fmt: skip


def _possible(score: dict[str, Any]) -> dict[str, Any]:
    """The interval of an accuracy without what none can be: Student's t of few seeds knows of no 0 and 1."""
    limits = {end: min(max(score[end], 0.0), 1.0) for end in ("low", "high") if score.get(end) is not None}
    return {**score, **limits}


def _same(point: Row, attack: str, row: Row) -> Row | None:
    """The row of the same name and slice in another point's report.

    Where linkage could weigh a pair of releases by what the defense's noise is like, that distance is read: nobody who
    knows the defense would use another, and without one there is nothing to weigh. The nearest row has weighed it
    already."""
    weighed, same, _ = kin(row["name"], row["slice"])
    by_row = row["slice"].get("distance") == NEAREST_ROW
    found = (None if by_row else _found(point, attack, weighed)) or _found(point, attack, same)
    return None if found is None else {key: found[key] for key in ("value", "low", "high", "chance", "n", "verdict")}


def _found(point: Row, attack: str, wanted: tuple[str, Row]) -> Row | None:
    rows = (other for each in point["attacks"] if each["name"] == attack for other in each["measurements"])
    return next((other for other in rows if (other["name"], other["slice"]) == wanted), None)


def _expected(point: Row, attack: str, row: Row) -> float | None:
    """The AUC that the attack had in rehearsals under this noise, where it says so."""
    if row["name"] != "auc":
        return None
    law = _found(point, attack, kin(row["name"], row["slice"])[2])
    return None if law is None else float(law["value"])


def _spread(point: Row) -> float | None:
    """The standard deviation of a number between clients, as linkage reports it (median over its populations)."""
    found = sorted(row["value"] for each in point["attacks"] for row in each["measurements"] if row["name"] == SPREAD)
    return float(found[len(found) // 2]) if found else None


def _failed(point: Row) -> bool:
    """Whether a control of the attacks failed at this point; `passed`, where failed ones alone were kept, is a
    number."""
    sides = [side for each in point["attacks"] for side in each["controls"].values() if isinstance(side, Sequence)]
    return any(not row["passed"] for side in sides for row in side)


def _place(point: Row) -> tuple[bool, float]:
    return point["value"] is not None, 0.0 if point["value"] is None else float(point["value"])


def named(value: float | None) -> str:
    """A value of the option as tables write it."""
    return "undefended" if value is None else f"{value:g}"


def shown(row: Row | None) -> str:
    """A row as "0.94 [0.91, 0.96]"."""
    if row is None or row["value"] is None:
        return ""
    return f"{row['value']:.3f}" + ("" if row["low"] is None else f" [{row['low']:.3f}, {row['high']:.3f}]")


def spreadsheet(found: Row) -> str:
    """One line per number: kind, value, name, number, interval, chance, n."""
    columns = ["axis", found["option"], "what", "value", "low", "high", "chance", "n"]
    return csv_text(columns, _numbers(found))


def _numbers(found: Row) -> Iterator[list[object]]:
    for point in found["privacy"]:
        for name, row in point["rows"].items():
            if row is not None and row["value"] is not None:
                what = f"{name} {found['followed'][name]['measurement']}"
                numbers = [row[key] for key in ("value", "low", "high", "chance", "n")]
                yield ["privacy", named(point["value"]), what, *numbers]
    for point in found["accuracy"]:
        score = point["score"]
        numbers = [score["value"], score["low"], score["high"], "", score["n"]]
        yield ["accuracy", named(point["value"]), "unseen domain", *numbers]


def markdown(found: Row) -> str:
    """The curves as one table, and the verdict with notes."""
    return "\n".join([markdown_table(*cells_of(found)), *notes(found), ""])


def cells_of(found: Row) -> tuple[list[str], list[list[str]]]:
    """The curves as text: a header, and a line per value."""
    attacks = list(found["followed"])
    named_attacks = [f"{name} ({found['followed'][name]['measurement']})" for name in attacks]
    accuracy = {point["value"]: point for point in found["accuracy"]}
    lines = []
    for point in found["privacy"]:
        cells = [named(point["value"]), *(shown(point["rows"][name]) for name in attacks)]
        lines.append([*cells, _scored(accuracy.get(point["value"])), _promised(point["guarantees"])])
    return [found["option"], *named_attacks, "accuracy", "epsilon"], lines


def notes(found: Row) -> list[str]:
    """The verdict, what the epsilons are stated for, and what is to be known about the points."""
    said = [verdict(found), *reservations(found), *_promises(found)]
    if any(point["score"]["n"] == 1 and point["score"]["low"] is not None for point in found["accuracy"]):
        said.append("An accuracy of one seed has the 95% interval over its test images; other seeds vary more.")
    if found["controls"]["failed"]:
        said.append(f"Controls failed at {found['controls']['failed']} of {found['controls']['points']} points.")
    if found["codes"] > 1:
        each = ", ".join(f"{version} ({count})" for version, count in found["versions"].items())
        said.append(
            f"The points were made by {found['codes']} versions of the code: make them anew in another folder. By "
            f"code_sha256, with how many points: {each}."
        )
    return said


def reservations(found: Row) -> list[str]:
    """What the verdict leaves out: values at which linkage is no evidence, populations, and accuracies of models that
    are not comparable with the undefended ones."""
    unlike: dict[str, list[str]] = {}
    for point in found["accuracy"]:
        unlike.setdefault("; ".join(point.get("notes", ())), []).append(named(point["value"]))
    said = [f"Accuracy at {found['option']} = {', '.join(at)}: {notes}." for notes, at in unlike.items() if notes]
    return [*_reserved(found), *said]


def _reserved(found: Row) -> list[str]:
    """Values at which attacks are no evidence, and the population of linkage that alone is known."""
    crossing, said = found["hidden"], _no_evidence(found)
    if crossing is not None and crossing.get("populations", 1) == 1:
        where = found["followed"][ATTACK]["slice"]
        only = ", ".join(f"{key} {where[key]}" for key in POPULATION if key in where)
        said.append(f"Linkage is that of one population alone{f' ({only})' if only else ''}.")
    return said


def _no_evidence(found: Row) -> list[str]:
    """Where attacks say nothing, by attack and reason; linkage by its crossing, others by their followed rows."""
    blind: dict[tuple[str, str], list[str]] = {}
    for each in (found["hidden"] or {}).get("no_evidence", ()):
        blind.setdefault((f"Linkage under {FACTOR:g} times chance", each["reason"]), []).append(named(each["value"]))
    for point in found["privacy"]:
        for name, row in point["rows"].items():
            if name != ATTACK and row is not None and row["verdict"].endswith(NO_EVIDENCE):
                reason = row["verdict"].removesuffix(NO_EVIDENCE)
                blind.setdefault((name, reason), []).append(named(point["value"]))
    return [
        f"{what} is no evidence of protection at {found['option']} = {', '.join(values)}: {reason}."
        for (what, reason), values in blind.items()
    ]


def _promises(found: Row) -> list[str]:
    """What the column of epsilons is stated for, where it is, and what the runs behind the accuracies promise."""
    attacked = [each for point in found["privacy"] for each in _of_run(point["guarantees"])]
    said = [
        f"Epsilon is that of the attacked exchange, at delta {each['delta']:g} per {each['unit']} ({each['relation']})"
        f"{review_mark(each)}."
        for each in attacked
        if each["epsilon"] is not None
    ]
    for point in found["accuracy"]:
        for each in _of_run(point["guarantees"]) if point["value"] is not None and said else ():
            where = f"The trained run at {found['option']} = {named(point['value'])}"
            bare = ", ".join(each.get("uncovered", ()))
            said.append(
                f"{where} has no guarantee{f' (unprotected: {bare})' if bare else ''}."
                if each["epsilon"] is None
                else f"{where} has epsilon {epsilon_text(each['epsilon'])} at delta {each['delta']:g} "
                f"per {each['unit']} ({each['relation']}){review_mark(each)}."
            )
    return list(dict.fromkeys(said))


def _of_run(guarantees: Sequence[Row]) -> list[Row]:
    """The guarantees of a whole run."""
    return [each for each in guarantees if each["part"] == "run"]


def verdict(found: Row) -> str:
    """The value from which clients cannot be linked, and its cost; of drawn images, that it is no finding."""
    drawn = "Mechanics only (procedural images): " if found["dataset"] in PROCEDURAL else ""
    return f"{drawn}{_hidden(found)}"


def _hidden(found: Row) -> str:
    crossing = found["hidden"]
    if crossing is None:
        return "Linkage was not measured."
    left_out = crossing.get("no_evidence", ())
    measured = [each for each in found["privacy"] if each["value"] is not None]
    if crossing["value"] is None:
        if left_out and len(left_out) == len(measured):
            return f"Linkage is no evidence at any value ({left_out[0]['reason']})."
        rest = f"of the {len(measured) - len(left_out)} values at which it is evidence" if left_out else "value"
        return f"Linkage stays at {FACTOR:g} times chance or more at every {rest}."
    row, several = crossing["linkage"], crossing.get("populations", 1)
    numbers = f"{shown(row)}, chance {row['chance']:.3f}" + (
        f", largest of {several} populations" if several > 1 else ""
    )
    where = f"Linkage falls under {FACTOR:g} times chance at {found['option']} = {named(crossing['value'])} ({numbers})"
    cost = crossing["accuracy"]
    if not found["accuracy"]:
        return f"{where}."
    if cost is None:
        return f"{where}; the accuracy was measured at no value as strong."
    gap, score = cost["difference"], cost["score"]
    notes = cost.get("notes", [])
    lost = "" if gap is None else f", {100 * gap['value']:+.1f} points{_between(gap)} against no defense"
    seeds = "1 seed" if score["n"] == 1 else f"{score['n']} seeds"
    unlike = ", not compared with no defense: " if notes and gap is None else "; " if notes else ""
    end = f"{unlike}{'; '.join(notes)}."
    return f"{where}; at {named(cost['value'])} the accuracy is {100 * score['value']:.1f}%{lost} (n = {seeds}){end}"


def _between(gap: Row) -> str:
    return "" if gap["low"] is None else f" [{100 * gap['low']:+.1f}, {100 * gap['high']:+.1f}]"


def _scored(point: Row | None) -> str:
    if point is None:
        return ""
    low, high = point["score"]["low"], point["score"]["high"]
    return f"{point['score']['value']:.3f}" + ("" if low is None else f" [{low:.3f}, {high:.3f}]")


def _promised(guarantees: Sequence[Row]) -> str:
    values = [each["epsilon"] for each in guarantees if each["part"] == "run"]
    return "" if not values else "none" if values[0] is None else epsilon_text(float(values[0]))
