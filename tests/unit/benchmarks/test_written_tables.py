"""Tables between marks of a page."""

from pathlib import Path

import pytest

from benchmarks import written_tables
from benchmarks.written_tables import write_table


def test_a_table_replaces_what_stood_between_its_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(written_tables, "DOCS", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- one -->\nold\n<!-- end of one -->\nafter\n")

    write_table("page.md", "one", "| new \\1 |")

    assert page.read_text() == "before\n<!-- one -->\n| new \\1 |\n<!-- end of one -->\nafter\n"
    with pytest.raises(ValueError, match="must hold <!-- other --> and <!-- end of other --> once"):
        write_table("page.md", "other", "")


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("audit.md", "planted faults"),
        ("defenses.md", "defense stacks"),
        ("attacks.md", "attack matrix"),
        ("metrics.md", "false alarms"),
    ],
)
def test_the_pages_have_their_marks(page: str, name: str):
    text = (written_tables.DOCS / page).read_text()

    assert text.count(f"<!-- {name} -->") == text.count(f"<!-- end of {name} -->") == 1
