"""Schema 1 of reports: figures, one attack's results, and the report (report.json, measurements.csv)."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fdgsec.metrics.measurement import Control, Measurement
from fdgsec.runtime.csv_cells import csv_text

SCHEMA = 1
COLUMNS = (
    "attack", "adversary", "measurement", "slice", "value", "low", "high", "chance", "chance_kind", "n", "unit",
    "higher_is", "method", "p_value", "adjusted_p_value", "leaks", "verdict", "unavailable",
)  # fmt: skip
"""The columns of measurements.csv."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of the report: PNG bytes, or the series of a plot; `data` is JSON and part of the document."""

    name: str
    title: str
    caption: str
    png: bytes | None = None
    data: Mapping[str, Sequence[float]] = field(default_factory=dict)


COULD_NOT_RUN = "not run: "
"""What the reason begins with of a skipped attack that reads what was sent, and could not be run on it."""
NOT_ANSWERED = "not answered"
"""The slice key of questions that an attack that ran asks, and that were not, or only partly, answered."""
TOO_LARGE = "too large"
"""The slice key of questions about clients of more images than the dataset has for them."""


@dataclass(frozen=True, kw_only=True)
class AttackResult:
    """One attack by one adversary: its measurements and controls, or the reason why it did not run.

    `target` is the control through the target; None where target and attack are fdgsec's own (docs/attacks.md).
    `variants` are positive controls of single variants: where one failed, that variant's rows say so themselves
    (`Measurement.unread`), and nothing else is put in doubt."""

    name: str
    adversary: Mapping[str, object]
    status: Literal["done", "skipped", "failed"]
    reason: str = ""
    seconds: float = 0.0
    figures: Sequence[Figure] = ()
    positive: Sequence[Control] = ()
    negative: Sequence[Control] = ()
    target: Control | None = None
    variants: Sequence[Control] = ()
    measurements: Sequence[Measurement] = ()

    @property
    def controls(self) -> Mapping[str, Sequence[Control]]:
        """The controls that speak for every row of the attack, by kind."""
        through = {} if self.target is None else {"through-the-target": [self.target]}
        return {"positive": self.positive, "negative": self.negative, **through}

    @property
    def could_not_run(self) -> bool:
        """Whether the attack applies to what was sent, but lacks images, models or further runs that it asks for,
        or would not read the release for what it is."""
        return self.status == "skipped" and self.reason.startswith(COULD_NOT_RUN)

    @property
    def unanswered(self) -> Mapping[str, str]:
        """The questions that the attack asks and that were not, or only partly, answered, with the reasons."""
        rows = [row for row in self.measurements if NOT_ANSWERED in row.slice]
        return {str(row.slice[NOT_ANSWERED]): row.unavailable or "" for row in rows}

    def document(self) -> dict[str, object]:
        """The attack as the report writes it. Raises ValueError when (measurement, slice) repeats."""
        keys = [(m.name, tuple(sorted(m.slice.items(), key=str))) for m in self.measurements]
        if len(set(keys)) != len(keys):
            repeated = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"attack {self.name} reports {repeated} twice.")
        return {
            "name": self.name,
            "adversary": dict(self.adversary),
            "status": self.status,
            "reason": self.reason,
            "seconds": round(self.seconds, 3),
            "figures": [
                {
                    "name": f.name,
                    "title": f.title,
                    "caption": f.caption,
                    "data": {k: list(v) for k, v in f.data.items()},
                }
                for f in self.figures
            ],
            "controls": {kind: [control.document() for control in found] for kind, found in self.controls.items()},
            "variant_controls": [control.document() for control in self.variants],
            "measurements": [measurement.document() for measurement in self.measurements],
        }


@dataclass(frozen=True, kw_only=True)
class AttackReport:
    """The report of one run; `document()` is report.json (DESIGN section 5).

    `unread_kinds` are the kinds of artifacts that the adversary saw and that no attack of the report read."""

    target: str
    method: str
    preset: str
    dataset: Mapping[str, object]
    encoder: str
    backbone: str | None
    seed: int
    profile: str
    reused: bool
    defenses: Sequence[Mapping[str, object]]
    guarantees: Sequence[Mapping[str, object]]
    accuracy: Mapping[str, object] | None
    attacks: Sequence[AttackResult]
    artifacts: Sequence[Mapping[str, object]]
    model_traffic: Sequence[Mapping[str, object]]
    transcript_sha256: str
    environment: Mapping[str, object]
    seconds: float
    unread_kinds: Sequence[str] = ()

    @property
    def guessing(self) -> float:
        """The accuracy of guessing a class: one over the number of classes that the dataset names."""
        named = self.dataset.get("classes", ())
        assert isinstance(named, Sequence)
        return 1 / max(1, len(named))

    def document(self) -> dict[str, object]:
        """report.json: schema 1."""
        return {
            "schema": SCHEMA,
            "target": self.target,
            "method": self.method,
            "preset": self.preset,
            "dataset": dict(self.dataset),
            "encoder": self.encoder,
            "backbone": self.backbone,
            "seed": self.seed,
            "profile": self.profile,
            "reused": self.reused,
            "defenses": [dict(defense) for defense in self.defenses],
            "guarantees": [dict(guarantee) for guarantee in self.guarantees],
            "accuracy": None if self.accuracy is None else dict(self.accuracy),
            "attacks": [attack.document() for attack in self.attacks],
            "artifacts": [dict(row) for row in self.artifacts],
            "model_traffic": [dict(row) for row in self.model_traffic],
            "unread_kinds": list(self.unread_kinds),
            "transcript_sha256": self.transcript_sha256,
            "environment": dict(self.environment),
            "seconds": round(self.seconds, 3),
        }

    def json(self) -> str:
        """The document as text; a number that is not finite raises ValueError."""
        return json.dumps(self.document(), indent=1, sort_keys=False, allow_nan=False) + "\n"

    def rows(self) -> Iterator[tuple[AttackResult, Measurement]]:
        """Every measurement with the attack that it is of."""
        return ((attack, row) for attack in self.attacks for row in attack.measurements)

    def csv(self) -> str:
        """Every measurement, one line each."""
        return csv_text(COLUMNS, itertools.starmap(cells, self.rows()))


def cells(attack: AttackResult, row: Measurement) -> tuple[object, ...]:
    """A measurement as a line of the table, in the order of COLUMNS."""
    described = ";".join(f"{key}={value}" for key, value in row.slice.items())
    return (
        attack.name, attack.adversary.get("name", ""), row.name, described, row.value, row.low, row.high,
        row.chance, row.chance_kind, row.n, row.unit, row.higher_is, row.method, row.p_value,
        row.adjusted_p_value, row.leaks, row.verdict,
        row.unavailable or "",
    )  # fmt: skip
