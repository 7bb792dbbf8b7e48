"""Two or more finished runs side by side, what differs between them said first, and rows beside each other only where
they are like for like."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from fdgsec.experiments.compare.comparability import groups_of, reasons, unlike_rows, unlike_training
from fdgsec.experiments.compare.compared_run import ComparedRun, Document, read_runs
from fdgsec.experiments.compare.web_page import page
from fdgsec.experiments.report.headlines import QUESTIONS
from fdgsec.experiments.report.schema import AttackReport
from fdgsec.federation.run_folder import check_replaceable, new_folder
from fdgsec.metrics.measurement import Measurement

SCHEMA = 2
Key = tuple[str, str, str, tuple[tuple[str, Any], ...]]
"""Attack, adversary, measurement and slice."""
ABSENT = "absent"


def compare(runs: Sequence[Path], *, out: Path | None = None) -> Document:
    """The runs' identities, why they do not compare, settings that differ, answers, accuracies and measurements.

    `groups` are the runs, by number, that may be compared with each other; numbers stand beside each other within a
    group alone. Differences are from the first run of the group that has the row; `overlap` is whether the 95%
    intervals overlap, None if one is missing. Where rows are not alike (`unlike`), both are None. With `out` the
    document is written there as comparison.json, and as a page."""
    if out is not None:
        check_replaceable(out, "comparison")
    found = read_runs(runs)
    document = _document(found)
    if out is not None:
        with new_folder(out, "comparison") as draft:
            (draft / "comparison.json").write_text(json.dumps(document, indent=1) + "\n")
            (draft / "comparison.html").write_text(page(document))
    return document


def _document(runs: Sequence[ComparedRun]) -> Document:
    groups = groups_of(runs)
    return {
        "schema": SCHEMA, "runs": [run.identity() for run in runs], "groups": groups, "unlike": reasons(runs),
        "settings": _settings(runs), "questions": _questions(runs),
        "accuracy": [row for group in groups for row in _accuracies(runs, group)],
        "attacks": _statuses(runs),
        "headlines": [row for group in groups for row in _headlines(runs, group)],
        "measurements": [row for group in groups for row in _measurements(runs, group)],
        "alone": [_alone(runs, groups, number) for number in range(len(runs))],
    }  # fmt: skip


def _settings(runs: Sequence[ComparedRun]) -> list[Document]:
    """Settings that differ, including the code version; a setting that an older run lacks is "absent"."""
    if not all(run.settings for run in runs):
        return []
    every = [dict(_flat(run.settings)) for run in runs]
    for values, run in zip(every, runs, strict=True):
        values["code"] = str(run.report.environment.get("code_sha256", "unknown"))[:16]
    rows = [
        {"name": name, "values": [values.get(name, ABSENT) for values in every]}
        for name in dict.fromkeys(name for values in every for name in values)
    ]
    return [row for row in rows if any(value != row["values"][0] for value in row["values"])]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _questions(runs: Sequence[ComparedRun]) -> list[Document]:
    """What each run answers to each question: the verdict, its first words, and the attack that it is of."""
    rows = []
    for question, asks in QUESTIONS.items():
        answers = [next((one for one in run.findings.answers if one.question == question), None) for run in runs]
        said = [
            {
                "verdict": "not run" if answer is None or not run.attacked else answer.verdict,
                "size": "not run" if answer is None or not run.attacked else answer.size,
                "attack": "" if answer is None or answer.lead is None else answer.lead.attack,
                "flagged": answer is not None and answer.lead is not None and answer.lead.holds,
            }
            for run, answer in zip(runs, answers, strict=True)
        ]
        if any(each["attack"] for each in said) or (question != "other" and any(run.attacked for run in runs)):
            rows.append({"question": question, "asks": asks, "answers": said})
    return rows


def _headlines(runs: Sequence[ComparedRun], group: Sequence[int]) -> list[Document]:
    """The rows that stand for attacks, by question: one per attack, measurement and slice, with every run's number."""
    keys: dict[Key, str] = {}
    verdicts: dict[tuple[int, Key], str] = {}
    for question, number in product(QUESTIONS, group):
        adversary = str(runs[number].adversary.get("name", ""))
        answers = [answer for answer in runs[number].findings.answers if answer.question == question]
        for one in (finding for answer in answers for finding in answer.findings):
            key = _key(one.attack, adversary, one.row)
            keys[key] = question
            verdicts[number, key] = one.verdict
    measured = {number: dict(_measured(runs[number].report)) for number in group}
    found = []
    for key, asked in keys.items():
        row = _beside(key, [measured[number].get(key) for number in group], group)
        for number, value in zip(group, row["values"], strict=True):
            if value is not None and (number, key) in verdicts:
                value["verdict"] = verdicts[number, key]
        ended = [_ended(runs[number].report, key[0]).partition(":")[0] for number in group]
        found.append({"question": asked, **row, "ended": ended})
    return found


def _accuracies(runs: Sequence[ComparedRun], group: Sequence[int]) -> list[Document]:
    every = [dict(_scores(runs[number].report.accuracy)) for number in group]
    unlike = unlike_training([runs[number] for number in group])
    return [
        {"score": name, "runs": list(group), "unlike": unlike,
         **_compared([_score(scores.get(name)) for scores in every], alike=not unlike)}
        for name in dict.fromkeys(name for scores in every for name in scores)
    ]  # fmt: skip


def _scores(accuracy: Mapping[str, Any] | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The scores of an accuracy document, by name."""
    if accuracy is None:
        return
    yield f"accuracy on {accuracy['unseen_domain']} (unseen)", accuracy
    for name in ("auc", "f1"):
        if name in accuracy:
            yield f"weighted {name} on {accuracy['unseen_domain']} (unseen)", accuracy[name]
    if "validation_domain" in accuracy:
        yield f"accuracy on {accuracy['validation_domain']['domain']} (validation)", accuracy["validation_domain"]
    if "adapted" in accuracy:
        yield f"accuracy on {accuracy['unseen_domain']}, adapted", accuracy["adapted"]
    for domain, found in accuracy.get("per_domain", {}).items():
        yield f"accuracy on {domain} (seen)", found


def _score(row: Mapping[str, Any] | None) -> Document | None:
    return None if row is None else {key: row.get(key) for key in ("value", "low", "high", "n")}


def _statuses(runs: Sequence[ComparedRun]) -> list[Document]:
    """Attacks whose status or reason differs between runs."""
    names = dict.fromkeys(attack.name for run in runs for attack in run.report.attacks)
    rows = [{"name": name, "values": [_ended(run.report, name) for run in runs]} for name in names]
    return [row for row in rows if len(set(row["values"])) > 1]


def _ended(report: AttackReport, name: str) -> str:
    attack = next((one for one in report.attacks if one.name == name), None)
    if attack is None:
        return "not asked for"
    reason = [attack.reason] if attack.reason else []
    return ": ".join(reason if attack.status == "skipped" and reason else [attack.status, *reason])


def _measurements(runs: Sequence[ComparedRun], group: Sequence[int]) -> list[Document]:
    """The rows that two or more runs of a group have."""
    every = [dict(_measured(runs[number].report)) for number in group]
    keys = dict.fromkeys(key for rows in every for key in rows)
    shared = [key for key in keys if sum(key in rows for rows in every) > 1]
    return [_beside(key, [rows.get(key) for rows in every], group) for key in shared]


def _alone(runs: Sequence[ComparedRun], groups: Sequence[Sequence[int]], number: int) -> int:
    """How many rows of a run no other run of its group has."""
    group = next(group for group in groups if number in group)
    others = {key for other in group if other != number for key, _ in _measured(runs[other].report)}
    return sum(key not in others for key, _ in _measured(runs[number].report))


def _key(attack: str, adversary: str, row: Measurement) -> Key:
    return attack, adversary, row.name, tuple(sorted(row.slice.items(), key=str))


def _measured(report: AttackReport) -> Iterator[tuple[Key, Measurement]]:
    for attack in report.attacks:
        for row in attack.measurements:
            yield _key(attack.name, str(attack.adversary.get("name", "")), row), row


def _beside(key: Key, rows: Sequence[Measurement | None], group: Sequence[int]) -> Document:
    """One row of every run of a group; differences only where they are alike."""
    attack, adversary, name, where = key
    unlike = unlike_rows([row for row in rows if row is not None])
    values = [None if row is None else _number(row) for row in rows]
    return {
        "attack": attack, "adversary": adversary, "name": name, "slice": dict(where), "runs": list(group),
        "unlike": unlike, **_compared(values, alike=not unlike),
    }  # fmt: skip


def _number(row: Measurement) -> Document:
    return {
        "value": row.value, "low": row.low, "high": row.high, "chance": row.chance, "n": row.n, "unit": row.unit,
        "verdict": row.verdict, "unavailable": row.unavailable,
    }  # fmt: skip


def _compared(values: list[Document | None], *, alike: bool) -> Document:
    """Numbers with their difference from the first that is there, and whether the intervals overlap."""
    first = next((number for number, value in enumerate(values) if value is not None), 0)
    base = values[first] if alike else None
    others = [None if number <= first else value for number, value in enumerate(values)]
    return {
        "values": values, "differences": [_difference(base, other) for other in others],
        "overlap": [_overlap(base, other) for other in others],
    }  # fmt: skip


def _difference(a: Document | None, b: Document | None) -> float | None:
    if a is None or b is None or a["value"] is None or b["value"] is None:
        return None
    return float(b["value"] - a["value"])


def _overlap(a: Document | None, b: Document | None) -> bool | None:
    if a is None or b is None or None in (a["low"], a["high"], b["low"], b["high"]):
        return None
    return bool(a["low"] <= b["high"] and b["low"] <= a["high"])
