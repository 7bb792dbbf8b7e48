"""What the words of a report mean, for the verb `explain`: measurements, slices, encoders, verdicts, controls, ..."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fdgsec.experiments.attack_measurements import MEASUREMENTS
from fdgsec.experiments.report.glossary import SLICES, WORDS, meaning
from fdgsec.experiments.report.vocabulary import meanings
from fdgsec.experiments.report.words import CONTROL_WORDS


@dataclass(frozen=True, kw_only=True)
class ExplainedWord:
    """The explanation of one word, as `explain` gives those of names."""

    kind: ClassVar[str] = "word"
    name: str
    title: str
    sections: Sequence[tuple[str, str]]

    def document(self) -> dict[str, object]:
        """Plain data."""
        return {"schema": 1, "kind": self.kind, "name": self.name, "title": self.title, "sections": dict(self.sections)}


def explained_word(name: str) -> ExplainedWord | None:
    """Explain a word of a report; None for any other."""
    name = CONTROL_WORDS.get(name, name)
    tables: Mapping[str, str] = {
        "a measurement": meaning(name),
        "an entry of a slice": SLICES.get(name, ""),
        "a word of reports": WORDS.get(name, ""),
        **meanings(name),
    }
    found = [(what, text) for what, text in tables.items() if text]
    if not found:
        return None
    measured_by = [attack for attack, names in MEASUREMENTS.items() if name in names]
    sections = [("measured by", ", ".join(measured_by))] if measured_by else []
    sections += [(what, text) for what, text in found[1:]]
    return ExplainedWord(
        name=name, title=f"{found[0][0]}. {found[0][1]}", sections=[*sections, ("see", "docs/metrics.md")]
    )
