"""The verb `runs`: the finished runs below a folder, newest first, each with what it found in one line."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fdgsec.experiments.compare.web_page import sentence
from fdgsec.experiments.report.findings import findings_of
from fdgsec.experiments.report.stored import report_of
from fdgsec.experiments.report.words import listed, rate
from fdgsec.runtime.checked_files import SUMS, check_listed
from fdgsec.runtime.errors import DataError

Document = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A folder with a finished run: its verb, what it is about, when it ended, and what it found."""

    folder: Path
    verb: str
    about: str
    finished: datetime
    found: str

    def document(self) -> dict[str, str]:
        """Plain data."""
        return {
            "folder": str(self.folder), "verb": self.verb, "about": self.about,
            "finished": self.finished.isoformat(timespec="seconds"), "found": self.found,
        }  # fmt: skip


def _reported(document: Document) -> tuple[str, str, str]:
    report = report_of(document)
    defenses = [str(defense["name"]) for defense in report.defenses]
    behind = f" behind {listed(defenses)}" if defenses else ""
    verb = "attack" if report.attacks else "train"
    name = report.target if report.attacks else report.method
    return verb, f"{name} on {report.dataset['name']}{behind}, seed {report.seed}", findings_of(report).sentence


def _swept(document: Document) -> tuple[str, str, str]:
    about = f"{document['target']} on {document['dataset']} over {document['option']}"
    return "sweep", about, f"{document['finished']} of {document['planned']} points"


def _audited(document: Document) -> tuple[str, str, str]:
    about = f"{document['target']} on {document['dataset']} behind {document['defense']['name']}"
    faults = "; ".join(document["faults"]) or "no fault found"
    return "audit", about, f"epsilon at least {rate(document['lower_bound'])}; {faults}"


def _claimed(document: Document) -> tuple[str, str, str]:
    verdicts = [claim["verdict"] for claim in document["claims"]]
    found = listed([f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts)])
    return "claims", f"{document['dataset']}, encoders {listed(document['encoders'])}", found


def _averaged(document: Document) -> tuple[str, str, str]:
    score = document["accuracy"]
    found = f"accuracy {rate(score['value'])} on {document['unseen_domain']}, mean of {len(document['seeds'])} seeds"
    return "train", f"{document['method']} on {document['dataset']}", found


def _benched(document: Document) -> tuple[str, str, str]:
    arms = {name: arm["accuracy"].get("average") for name, arm in document["arms"].items()}
    scores = listed([f"{name} {rate(mean['value'])}" for name, mean in arms.items() if mean is not None])
    found = f"{document['finished']} of {document['planned']} runs" + (f"; average {scores}" if scores else "")
    return "bench", f"{document['title']}, {document['dataset']}", found


def _compared(document: Document) -> tuple[str, str, str]:
    return "compare", listed([run["label"] for run in document["runs"]]), sentence(document)


READERS: Mapping[str, Callable[[Document], tuple[str, str, str]]] = {
    "report.json": _reported, "sweep.json": _swept, "audit.json": _audited, "claims.json": _claimed,
    "seeds.json": _averaged, "bench.json": _benched, "comparison.json": _compared,
}  # fmt: skip
"""How each verb's document is read, by the name of its file."""


def stored_runs(root: Path) -> Sequence[StoredRun]:
    """The finished runs directly below `root`, newest first; a document that cannot be read is said to be so."""
    found = [_run(path) for name in READERS for path in root.glob(f"*/{name}")]
    return sorted(found, key=lambda run: (run.finished, str(run.folder)), reverse=True)


def _run(path: Path) -> StoredRun:
    try:
        listed_there = check_listed(path)
        verb, about, found = READERS[path.name](json.loads(path.read_text()))
        if path.name == "report.json" and not listed_there:
            found += f" ({path.name} is in no {SUMS}: it may have been altered)"
    except DataError as error:
        verb, about, found = "?", "", str(error)
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        verb, about, found = "?", "", f"{path.name} cannot be read: {type(error).__name__} {error}"
    finished = datetime.fromtimestamp(path.stat().st_mtime).astimezone()
    return StoredRun(folder=path.parent, verb=verb, about=about, finished=finished, found=found)
