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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["attack", "--adversary", "hacker"], "'--adversary': 'hacker' is not one of 'server', 'client', 'outsider'"),
        (["train", "--partition", "even"], "'--partition': 'even' is not one of"),
        (["train", "--norm", "layer"], "'--norm'"),
        (["attack", "fisc", "--target", "ccst-overall"], "two answers for the target: fisc and ccst-overall"),
        (["train", "--config", "nowhere.toml"], "--config nowhere.toml is no file"),
        (["attack", "--config", "x.toml", "--preset", "ccst-paper"], "leave --preset out"),
        (["weights", "fetch", "vgg19"], "the weights that it reads are adain_vgg and adain_decoder"),
    ],
    ids=" ".join,
)
def test_wrong_words_are_answered_in_one_line_with_the_options_name(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
):
    assert main(arguments) == 2

    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_choices_panels_and_the_argument_stand_on_the_help_page(capsys: pytest.CaptureFixture[str]):
    main(["attack", "--help"])

    page = capsys.readouterr().out
    assert "--adversary [server|client|outsider]" in page
    assert "--unseen-domain, --target-domain TEXT" in page
    assert (
        page.index("\nArguments:\n") < page.index("\nOptions:\n") < page.index("\nData:\n") < page.index("\nOutput:\n")
    )
    assert "[TARGET]  What to attack, as --target." in page
    assert "[default: ccst-overall, or the run's]" in " ".join(page.split()).replace("ccst- overall", "ccst-overall")
