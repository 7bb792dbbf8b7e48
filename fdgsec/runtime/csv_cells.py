"""Cells of CSV files that people open in spreadsheets, where a name that begins with = is a formula."""

from collections.abc import Iterable

FORMULA = "=+-@＝＋－＠"
"""What a cell begins with that a spreadsheet computes (OWASP, CSV Injection)."""


def safe_cells(row: Iterable[object]) -> list[object]:
    """The cells of a row, texts of others as text on one line: formulas get a leading ', control characters an escape.

    Numbers stay numbers, those that are written as text too."""
    return [_safe(cell) if isinstance(cell, str) else cell for cell in row]


def _safe(text: str) -> str:
    shown = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    computed = len(shown) > 1 and shown.lstrip()[:1] in FORMULA and shown.strip() and not _number(shown)
    return f"'{shown}" if computed else shown


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
