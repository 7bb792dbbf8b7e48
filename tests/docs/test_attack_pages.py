"""Every attack is documented: a page with the same five headings, and a row of the index that links to it."""

from pathlib import Path

import pytest

from fdgsec.runtime.registry import ATTACKS

DOCS = Path(__file__).parents[2] / "docs"
HEADINGS = (
    "Threat model", "Statistic", "Controls", "What success means, and what not", "Stronger adversaries, not built", "Cost",
)  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_has_a_page_with_the_five_headings_in_order(name: str):
    lines = (DOCS / "attacks" / f"{name}.md").read_text().splitlines()

    assert lines[0] == f"# {name}"
    sections = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
    assert [section for section in sections if section in HEADINGS] == list(HEADINGS)


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_has_a_row_in_the_index(name: str):
    rows = (DOCS / "attacks.md").read_text().splitlines()

    assert sum(row.startswith(f"| [`{name}`](attacks/{name}.md) |") for row in rows) == 1


def test_every_page_is_about_an_attack():
    pages = {page.stem for page in (DOCS / "attacks").glob("*.md")}

    assert pages <= set(ATTACKS)
    assert not [page for page in (DOCS / "attacks").glob("*.md") if "@COST@" in page.read_text()]
