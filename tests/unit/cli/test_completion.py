"""Shell completion knows verbs, options and choices, and colors can be switched off."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fdgsec.cli import main
from tests.unit.experiments.test_gate import LOW, membership, run


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("fdgsec ga", {"gate"}),
        ("fdgsec gate --by ", {"interval", "value"}),
        ("fdgsec gate --ju", {"--junit"}),
        ("fdgsec attack --partition s", {"single-domain"}),
        ("fdgsec sweep --profile ", {"quick", "full"}),
        ("fdgsec weights im", {"import", "import-package"}),
        ("fdgsec train --log-f", {"--log-file"}),
    ],
)
def test_verbs_options_and_choices_are_completed(
    words: str, found: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for name, value in (
        ("_FDGSEC_COMPLETE", "complete_bash"),
        ("COMP_WORDS", words),
        ("COMP_CWORD", str(words.count(" "))),
    ):
        monkeypatch.setenv(name, value)

    with pytest.raises(SystemExit) as ended:
        main([])

    assert (ended.value.code, set(capsys.readouterr().out.split())) == (0, found)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_is_printed(shell: str):
    fixed = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [sys.executable, "-m", "fdgsec.cli", "--show-completion", shell]

    done = subprocess.run(command, capture_output=True, text=True, env=fixed, check=True)

    assert "_FDGSEC_COMPLETE" in done.stdout


def test_no_color_switches_off_the_colors_of_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    found = run(tmp_path / "run", membership(LOW))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    colored = re.compile(r"\x1b\[(?:\d;)*3\d")

    assert main(["report", str(found)]) == 0
    assert colored.search(capsys.readouterr().out)

    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["report", str(found)]) == 0
    assert not colored.search(capsys.readouterr().out)
