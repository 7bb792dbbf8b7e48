"""Every defense is documented: a page that states and proves it, functions that exist, and who has checked it."""

import pkgutil
import re
from pathlib import Path

import pytest

from fdgsec.privacy.guarantees import VETTED
from fdgsec.runtime.registry import DEFENSES

DOCS = Path(__file__).parents[2] / "docs"
HEADINGS = ("Statement", "Pseudo-code", "Proof", "Implementation", "Assumed", "Not covered", "Vetted")
FUNCTION = re.compile(r"`(fdgsec\.[\w.]+)`")
REVIEW = re.compile(r"Yes: .+, \d{4}-\d{2}-\d{2}")


def sections(name: str) -> dict[str, str]:
    """The text of a page by heading, in order."""
    _, *parts = re.split(r"^## ", (DOCS / "defenses" / f"{name}.md").read_text(), flags=re.MULTILINE)
    return {part.partition("\n")[0]: part.partition("\n")[2].strip() for part in parts}


def exists(name: str) -> bool:
    try:
        return pkgutil.resolve_name(name) is not None
    except (ImportError, AttributeError):
        return False


@pytest.mark.parametrize("name", DEFENSES)
def test_every_defense_has_a_page_with_the_seven_sections_in_order(name: str):
    found = sections(name)

    assert [heading for heading in found if heading in HEADINGS] == list(HEADINGS)
    assert all(found[heading] for heading in HEADINGS)


@pytest.mark.parametrize("name", DEFENSES)
def test_every_step_names_functions_that_exist(name: str):
    rows = [line for line in sections(name)["Implementation"].splitlines() if line.startswith("|")][2:]

    assert rows
    assert all(FUNCTION.findall(row) for row in rows)
    assert [function for row in rows for function in FUNCTION.findall(row) if not exists(function)] == []


@pytest.mark.parametrize("name", DEFENSES)
def test_a_page_names_the_reader_of_what_the_code_calls_vetted_and_of_nothing_else(name: str):
    said = sections(name)["Vetted"]

    assert bool(REVIEW.match(said)) == (name in VETTED)
    assert said.startswith("No (unvetted)") == (name not in VETTED)


def test_what_is_vetted_is_a_bundled_defense():
    assert set(DEFENSES) >= VETTED


@pytest.mark.parametrize("name", DEFENSES)
def test_every_defense_has_a_row_in_the_index(name: str):
    rows = (DOCS / "defenses.md").read_text().splitlines()

    assert sum(row.startswith(f"| [`{name}`](defenses/{name}.md) |") for row in rows) == 1


def test_a_function_that_is_gone_is_found():
    assert exists("fdgsec.privacy.clipping.Ball.inside")
    assert not exists("fdgsec.privacy.clipping.Ball.outside")
    assert not exists("fdgsec.privacy.gone.clip_rows")
