"""The table of a server's attacks in docs/deploy.md: every row names an answer and the tests that show it."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"
TOPICS = (
    "Paths", "Dataset names and data roots", "Defenses", "Seeds", "Settings", "Repetition", "Crafted models", "Guesses",
    "Code",
)  # fmt: skip


def rows() -> list[list[str]]:
    """The cells of the table."""
    section = PAGE.read_text().partition("## What a malicious server can try on a node")[2].partition("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "| **" in line]


def test_every_attack_has_an_answer_and_a_test_that_shows_it():
    """That the tests exist is checked for every place that a page names."""
    shown = [re.findall(r"`tests/[\w/]+\.py:test_\w+`", cells[2]) for cells in rows() if len(cells) == 3 and cells[1]]

    assert len(shown) == len(rows()) > 0
    assert all(shown)


def test_every_means_of_a_server_is_in_the_table():
    found = dict.fromkeys(re.findall(r"^\*\*([^*]+)\*\*", "\n".join(cells[0] for cells in rows()), re.MULTILINE))

    assert tuple(found) == TOPICS
