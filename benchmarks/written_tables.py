"""Tables that a command writes into a page of docs/, between two marks that name them."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def write_table(page: str, name: str, table: str) -> None:
    """Replace the text between `<!-- NAME -->` and `<!-- end of NAME -->` of a page by `table`.

    Raises ValueError for a page without these marks."""
    path, begin, end = DOCS / page, f"<!-- {name} -->", f"<!-- end of {name} -->"
    text = path.read_text()
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise ValueError(f"{path} must hold {begin} and {end} once.")
    path.write_text(pattern.sub(lambda _: f"{begin}\n{table}\n{end}", text))
