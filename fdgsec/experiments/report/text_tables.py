"""Tables as Markdown and LaTeX: the one writer of both."""

from collections.abc import Sequence
from typing import Literal

Rows = Sequence[Sequence[str]]


def markdown_table(columns: Sequence[str], rows: Rows, *, numbers: Literal["left", "right"] = "left") -> str:
    """A table in Markdown, a line per row; with `numbers` "right" all columns but the first are set right."""
    rule = ["---", *(["---:" if numbers == "right" else "---"] * (len(columns) - 1))]
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in (columns, *rows)]
    return "".join("| " + " | ".join(row) + " |\n" for row in (escaped[0], rule, *escaped[1:]))


def latex_table(columns: Sequence[str], rows: Rows) -> str:
    """A table in LaTeX (booktabs), all columns but the first set right."""
    body = [" & ".join(map(_escaped, row)) + r" \\" for row in (columns, *rows)]
    layout = "l" + "r" * (len(columns) - 1)
    parts = [rf"\begin{{tabular}}{{{layout}}}", r"\toprule", body[0], r"\midrule", *body[1:], r"\bottomrule"]
    return "\n".join([*parts, r"\end{tabular}"]) + "\n"


def _escaped(text: str) -> str:
    for plain, written in (("&", r"\&"), ("%", r"\%"), ("_", r"\_"), ("±", r"$\pm$")):
        text = text.replace(plain, written)
    return text
