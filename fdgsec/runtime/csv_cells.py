"""CSV files that people open in spreadsheets, where a name that begins with = is a formula."""

import csv
import io
from collections.abc import Iterable, Sequence

FORMULA = "=+-@＝＋－＠"
"""What a cell begins with that a spreadsheet computes (OWASP, CSV Injection)."""


def csv_text(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """A CSV file of `columns` and `rows`, whose cells are safe to open."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(map(safe_cells, rows))
    return buffer.getvalue()


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
