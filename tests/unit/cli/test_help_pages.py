"""Help pages and the options that every verb has."""

from pathlib import Path

import pytest

from fdgsec.cli.app import VERBS, main


@pytest.mark.parametrize("verb", VERBS)
def test_help_is_plain_text_without_backslashes_and_names_fdgsec(verb: str, capsys: pytest.CaptureFixture[str]):
    assert main([verb, "-h"]) == 0

    page = capsys.readouterr().out
    assert page.startswith(f"Usage: fdgsec {verb}")
    assert "\\[" not in page


def test_every_verb_can_be_quiet_verbose_or_write_a_log(capsys: pytest.CaptureFixture[str]):
    for command in (["attack"], ["sweep"], ["weights", "list"]):
        main([*command, "--help"])
        page = capsys.readouterr().out
        assert all(option in page for option in ("--quiet", "--verbose", "--log-file"))


def test_a_usage_error_points_to_the_help_of_fdgsec(capsys: pytest.CaptureFixture[str]):
    assert main(["attack", "--nonsense"]) == 2
    assert "(see `fdgsec attack --help`)" in capsys.readouterr().err


def test_a_log_file_that_is_a_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["list", "attacks", "--log-file", str(tmp_path)]) == 2
    assert "is a directory" in capsys.readouterr().err
