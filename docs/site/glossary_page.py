"""The glossary as Markdown, from the tables that reports and `fdgsec explain` read."""

import re
from collections.abc import Mapping

from fdgsec.experiments.explain import MEASUREMENTS as MEASURED
from fdgsec.experiments.report import glossary, vocabulary, words

BEGINNING = """# Glossary

The words of reports, in the same sentences as on a report's own page. `fdgsec explain WORD` prints one of them, and
explains attacks, defenses, methods, targets, presets and claims by their names.

"""


def page() -> str:
    """The whole page: words, measurements, slice entries, each an entry that links can point to."""
    return BEGINNING + "\n".join([
        "## Words of every report\n",
        *_entries(glossary.WORDS),
        "## Measurements\n\n[metrics.md](metrics.md) has the definitions and their intervals.\n",
        *_entries(glossary.MEASUREMENTS, measured=True),
        *_entries({pattern.replace(".+", "NAME"): said for pattern, said in glossary.PATTERNS.items()}),
        "## Entries of a slice\n\nA measurement's slice says of which images, clients and options it is.\n",
        *_entries(glossary.SLICES, kind="slice-"),
        "## Values in a slice\n",
        *_entries(vocabulary.VALUES, kind="value-"),
        "## Encoders\n\n[encoders.md](encoders.md) has their layers, weights and limits.\n",
        *_entries(vocabulary.ENCODERS, kind="encoder-"),
        "## Adversaries, and what they know\n\n[attacks.md](attacks.md) says what each sees.\n",
        *_entries({**words.ADVERSARY_WORDS, **words.KNOWLEDGE_WORDS}, kind="adversary-"),
        "## What is sent\n",
        *_entries({**words.KIND_WORDS, **vocabulary.STAGES}, kind="sent-"),
        "## Intervals and baselines\n",
        *_entries(vocabulary.INTERVALS, kind="interval-"),
    ])  # fmt: skip


def _entries(table: Mapping[str, str], *, kind: str = "", measured: bool = False) -> list[str]:
    """Definition lists, sorted, each term with an anchor; of measurements also the attacks that have them.

    `kind` begins the anchors of a table that shares words with others."""
    lines: list[str] = []
    for name, said in sorted(table.items(), key=lambda item: item[0].lower()):
        attacks = [attack for attack, rows in MEASURED.items() if name in rows] if measured else []
        links = ", ".join(f"[{attack}](attacks/{attack}.md)" for attack in attacks)
        lines += [
            f"`{name}`{{ #{kind}{re.sub(r'[^A-Za-z0-9_]+', '-', name)} }}",
            f":   {said}" + (f" Measured by {links}." if links else ""),
            "",
        ]
    return lines
