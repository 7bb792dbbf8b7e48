"""The glossary, as Markdown, from the tables that reports and `fdgsec explain` read."""

from collections.abc import Mapping

from fdgsec.experiments.explain import MEASUREMENTS as MEASURED
from fdgsec.experiments.report import glossary

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
        *_entries(glossary.SLICES),
    ])  # fmt: skip


def _entries(table: Mapping[str, str], *, measured: bool = False) -> list[str]:
    """Definition lists, sorted, each term with an anchor; of measurements also the attacks that have them."""
    lines = []
    for name, said in sorted(table.items(), key=lambda item: item[0].lower()):
        attacks = [attack for attack, rows in MEASURED.items() if name in rows] if measured else []
        links = ", ".join(f"[{attack}](attacks/{attack}.md)" for attack in attacks)
        lines += [
            f"`{name}`{{ #{name.replace(' ', '-')} }}",
            f":   {said}" + (f" Measured by {links}." if links else ""),
            "",
        ]
    return lines
