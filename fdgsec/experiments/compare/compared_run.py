"""One of the runs that are compared: its report, its settings, and what it is called beside the others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fdgsec.data.catalog import dataset_entry, dataset_names
from fdgsec.experiments.report.findings import Findings, findings_of
from fdgsec.experiments.report.schema import AttackReport
from fdgsec.experiments.report.stored import stored_path, stored_report
from fdgsec.experiments.report.text import promises
from fdgsec.experiments.report.words import ADVERSARY_WORDS, behind_in_words, released_words
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.untrusted_text import read_json_object

Document = dict[str, Any]
NONE = ("", "none")


@dataclass(frozen=True)
class ComparedRun:
    """A finished run; `settings` is empty if its folder has none."""

    path: Path
    report: AttackReport
    settings: Mapping[str, Any]
    label: str = field(default="")

    @classmethod
    def read(cls, run: Path) -> "ComparedRun":
        """Read a folder or its report.json. Raises UsageError if it is missing or no report."""
        config = stored_path(run).parent / "config.json"
        settings = read_json_object(config, error=UsageError) if config.is_file() else {}
        return cls(path=run, report=stored_report(run), settings=settings)

    @cached_property
    def findings(self) -> Findings:
        """What the report says."""
        return findings_of(self.report)

    @property
    def attacked(self) -> bool:
        """Whether attacks were run."""
        return bool(self.report.attacks)

    @property
    def name(self) -> str:
        """The target, of a training the method, with its defenses."""
        named = self.report.target if self.attacked else self.report.method
        return f"{named}{behind_in_words(self.report)}"

    @property
    def unseen(self) -> str:
        """The unseen domain: from the accuracy, the settings, or the dataset's default."""
        accuracy, dataset = self.report.accuracy, self.report.dataset
        if accuracy or self.settings.get("target_domain"):
            return str(accuracy["unseen_domain"] if accuracy else self.settings["target_domain"])
        entry = dataset_entry(str(dataset["name"])) if dataset["name"] in dataset_names() else None
        domains = dataset.get("domains")
        last = domains[-1] if isinstance(domains, Sequence) and domains else "none"
        return entry.target_domain if entry is not None and entry.target_domain else str(last)

    @property
    def adversary(self) -> Mapping[str, object]:
        """The adversary of the attacks; empty without attacks."""
        return self.report.attacks[0].adversary if self.attacked else {}

    @property
    def encoder(self) -> str:
        """The encoder of the attacked styles; empty where no styles were attacked."""
        return "" if not self.attacked or self.report.encoder in NONE else self.report.encoder

    def identity(self) -> Document:
        """What the run is, as plain data: the same fields for every run."""
        report, dataset = self.report, self.report.dataset
        adversary = str(self.adversary.get("name", ""))
        return {
            "label": self.label, "folder": str(self.path), "target": report.target, "method": report.method,
            "preset": report.preset, "dataset": dataset["name"], "images": dataset["images"],
            "image_size": self.settings.get("image_size"), "unseen_domain": self.unseen, "encoder": report.encoder,
            "backbone": report.backbone, "adversary": adversary, "profile": report.profile, "seed": report.seed,
            "sent": released_words(report), "defenses": [dict(each) for each in report.defenses],
            "guarantees": [dict(each) for each in report.guarantees], "promises": promises(report),
            "sentence": self.findings.sentence, "transcript_sha256": report.transcript_sha256,
            "command": report.environment.get("command", ""), "date": report.environment.get("date", ""),
        }  # fmt: skip


def read_runs(paths: Sequence[Path]) -> list[ComparedRun]:
    """Read the runs, and give each a label of its own: its name, with its folder where two have one name.

    Raises UsageError for fewer than two, one that is given twice, or one that holds no report."""
    if len(paths) < 2:
        raise UsageError("a comparison needs two or more runs.")
    real = [path.resolve() for path in paths]
    if twice := next((path for path, where in zip(paths, real, strict=True) if real.count(where) > 1), None):
        raise UsageError(f"{twice} is given twice; give different runs.")
    runs = [ComparedRun.read(path) for path in paths]
    names = [run.name for run in runs]
    folders = [(run.path.parent if run.path.is_file() else run.path).name for run in runs]
    short = len({*zip(names, folders, strict=True)}) == len(runs)
    return [
        ComparedRun(
            path=run.path, report=run.report, settings=run.settings,
            label=name if names.count(name) == 1 else f"{name} ({folder if short else run.path})",
        )
        for run, name, folder in zip(runs, names, folders, strict=True)
    ]  # fmt: skip


def adversary_words(run: ComparedRun) -> str:
    """Who attacked, in words."""
    name = str(run.adversary.get("name", ""))
    return ADVERSARY_WORDS.get(name, name)
