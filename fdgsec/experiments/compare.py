"""The verb `compare`: two finished runs side by side, and the reasons why they are not comparable."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fdgsec.data.catalog import dataset_entry, dataset_names
from fdgsec.runtime.errors import DataError, UsageError
from fdgsec.runtime.untrusted_text import read_json_object

SCHEMA = 1
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Run:
    """One run's documents; `settings` is empty if the folder has none."""

    folder: str
    report: Mapping[str, Any]
    settings: Mapping[str, Any]

    @classmethod
    def read(cls, run: Path) -> "_Run":
        """Read a folder or its report.json. Raises UsageError if it is missing, DataError if it is invalid."""
        path = run if run.is_file() else run / "report.json"
        if not path.is_file():
            raise UsageError(f"{run} holds no report.json; give a folder that `fdgsec attack` or `fdgsec train` wrote.")
        config = path.parent / "config.json"
        return cls(
            folder=str(run), report=_checked(read_json_object(path), path),
            settings=read_json_object(config) if config.is_file() else {},
        )  # fmt: skip

    @property
    def unseen(self) -> str:
        """The unseen domain: from the accuracy, the settings, or the dataset's default."""
        accuracy, dataset = self.report["accuracy"], self.report["dataset"]
        if accuracy or self.settings.get("target_domain"):
            return str(accuracy["unseen_domain"] if accuracy else self.settings["target_domain"])
        entry = dataset_entry(dataset["name"]) if dataset["name"] in dataset_names() else None
        last = dataset["domains"][-1] if dataset.get("domains") else "none"
        return entry.target_domain if entry is not None and entry.target_domain else str(last)

    def identity(self) -> Row:
        """The run's identifying fields."""
        said = {
            key: self.report[key] for key in ("target", "method", "preset", "encoder", "backbone", "seed", "profile")
        }
        return {
            "folder": self.folder, **said, "dataset": self.report["dataset"]["name"], "unseen_domain": self.unseen,
            "transcript_sha256": self.report["transcript_sha256"],
        }  # fmt: skip


def _checked(report: dict[str, Any], path: Path) -> dict[str, Any]:
    try:
        complete = (
            report["schema"] == SCHEMA,
            [report[key] for key in ("target", "method", "preset", "encoder")],
            [report[key] for key in ("backbone", "seed", "profile", "accuracy")],
            [report["dataset"][key] for key in ("name", "manifest_sha256", "images")],
            [(a["name"], a["status"], a["measurements"]) for a in report["attacks"]],
            [(m["name"], m["slice"], m["value"]) for a in report["attacks"] for m in a["measurements"]],
            report["transcript_sha256"],
        )  # fmt: skip
    except (KeyError, TypeError) as error:
        raise DataError(f"{path} is not a report of schema {SCHEMA}: {type(error).__name__} {error}.") from error
    if not complete[0]:
        raise DataError(f"{path} has schema {report['schema']!r}; {SCHEMA} can be read.")
    return report


def compare(first: Path, second: Path) -> Row:
    """Both runs' identities, settings that differ, accuracies and measurements, and reasons against a comparison.

    A difference is second minus first; `overlap` is whether the 95% intervals overlap, None if one is missing."""
    one, other = _Run.read(first), _Run.read(second)
    measured = _measurements(one, other)
    return {
        "schema": SCHEMA,
        "runs": [one.identity(), other.identity()],
        "unlike": _unlike(one, other),
        "settings": _settings(one, other),
        "accuracy": _accuracies(one, other),
        "attacks": _statuses(one, other),
        "measurements": [row for row in measured if row["first"] and row["second"]],
        "only_first": [_key(row) for row in measured if not row["second"]],
        "only_second": [_key(row) for row in measured if not row["first"]],
    }


def _unlike(one: _Run, other: _Run) -> list[str]:
    """Reasons why the two runs are not comparable; empty if only settings differ."""
    a, b = one.report["dataset"], other.report["dataset"]
    found = []
    if a["name"] != b["name"]:
        found.append(f"they are of other datasets: {a['name']} and {b['name']}")
    elif a["manifest_sha256"] != b["manifest_sha256"]:
        found.append(f"they are of other images of {a['name']}: {a['images']} and {b['images']} (another manifest)")
    if one.unseen != other.unseen:
        found.append(f"their unseen domains differ: {one.unseen} and {other.unseen}")
    encoders = one.report["encoder"], other.report["encoder"]
    if encoders[0] != encoders[1] and one.report["attacks"] and other.report["attacks"]:
        found.append(f"styles are of other encoders: {encoders[0]} and {encoders[1]}")
    roles = [set(document.get("roles", {})) for document in (a, b)]
    if roles[0] != roles[1]:
        found.append("their images have other roles: one trained on all of them, or left others aside")
    return found


def _settings(one: _Run, other: _Run) -> list[Row]:
    """Settings that differ, including the code version; a setting that an older run lacks is "absent"."""
    if not (one.settings and other.settings):
        return []
    a, b = (dict(_flat(run.settings)) for run in (one, other))
    for values, run in ((a, one), (b, other)):
        values["code"] = str(run.report.get("environment", {}).get("code_sha256", "unknown"))[:16]
    names = [*a, *(name for name in b if name not in a)]
    return [
        {"name": name, "first": a.get(name, "absent"), "second": b.get(name, "absent")}
        for name in names if a.get(name, "absent") != b.get(name, "absent")
    ]  # fmt: skip


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _accuracies(one: _Run, other: _Run) -> list[Row]:
    a, b = (dict(_scores(run.report["accuracy"])) for run in (one, other))
    names = [*a, *(name for name in b if name not in a)]
    return [{"score": name, **_beside(a.get(name), b.get(name))} for name in names]


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


def _statuses(one: _Run, other: _Run) -> list[Row]:
    """Attacks whose status or reason differs."""
    a, b = ({attack["name"]: attack for attack in run.report["attacks"]} for run in (one, other))
    names = [*a, *(name for name in b if name not in a)]
    rows = [{"name": name, "first": _ended(a.get(name)), "second": _ended(b.get(name))} for name in names]
    return [row for row in rows if row["first"] != row["second"]]


def _ended(attack: Mapping[str, Any] | None) -> str:
    if attack is None:
        return "not asked for"
    return str(attack["status"]) + (f": {attack['reason']}" if attack["reason"] else "")


def _measurements(one: _Run, other: _Run) -> list[Row]:
    a, b = (dict(_measured(run.report)) for run in (one, other))
    keys = [*a, *(key for key in b if key not in a)]
    return [
        {"attack": attack, "adversary": adversary, "name": name, "slice": dict(where),
         **_beside(a.get((attack, adversary, name, where)), b.get((attack, adversary, name, where)))}
        for attack, adversary, name, where in keys
    ]  # fmt: skip


_Key = tuple[str, str, str, tuple[tuple[str, Any], ...]]


def _measured(report: Mapping[str, Any]) -> Iterator[tuple[_Key, Mapping[str, Any]]]:
    for attack in report["attacks"]:
        for row in attack["measurements"]:
            where = tuple(sorted(row["slice"].items()))
            yield (attack["name"], str(attack["adversary"].get("name", "")), row["name"], where), row


def _beside(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> Row:
    """Two numbers, their difference, and whether their intervals overlap; None if it cannot be computed."""
    a, b = _number(first), _number(second)
    return {"first": a, "second": b, "difference": _difference(a, b), "overlap": _overlap(a, b)}


def _difference(a: Row | None, b: Row | None) -> float | None:
    if a is None or b is None or a["value"] is None or b["value"] is None:
        return None
    return float(b["value"] - a["value"])


def _overlap(a: Row | None, b: Row | None) -> bool | None:
    if a is None or b is None or None in (a["low"], a["high"], b["low"], b["high"]):
        return None
    return bool(a["low"] <= b["high"] and b["low"] <= a["high"])


def _number(row: Mapping[str, Any] | None) -> Row | None:
    if row is None:
        return None
    also = {key: row[key] for key in ("chance", "n", "verdict", "unavailable") if key in row}
    return {key: row.get(key) for key in ("value", "low", "high")} | also


def _key(row: Row) -> Row:
    return {key: row[key] for key in ("attack", "adversary", "name", "slice")}
