"""docs/command-line.md holds the table of options as the program has them, every gap with a reason."""

from pathlib import Path

from tests.support.option_table import REASONS, gaps, table

PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()


def test_the_page_holds_the_tables_that_the_command_prints():
    _, _, after = PAGE.partition("<!-- options: begin -->\n")

    assert after.partition("<!-- options: end -->")[0] == table()


def test_every_gap_has_a_reason_and_no_reason_is_left_of_a_gap_that_was_closed():
    assert {name: sorted(verbs) for name, verbs in REASONS.items()} == {
        name: sorted(verbs) for name, verbs in gaps().items()
    }
