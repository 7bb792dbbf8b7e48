"""Stacks of defenses on the command line: what would undo a guarantee ends with exit code 2 and the reason."""

from pathlib import Path

import pytest

from fdgsec.cli.app import main

NOISY, RAW = "private-styles:epsilon=0.5", "private-styles:epsilon=inf,clip=1e9"
SMALL = ["--dataset", "shapes", "--per-domain", "20", "--image-size", "32"]


@pytest.mark.parametrize("order", [(NOISY, RAW), (RAW, NOISY)], ids=["raw last", "raw first"])
@pytest.mark.parametrize(
    "command",
    [
        ["attack", "--target", "ccst-overall", "--attack", "membership", "--encoder", "pixels"],
        ["attack", "--target", "ccst-overall", "--attack", "membership", "--encoder", "pixels", "--dry-run"],
        ["train", "--method", "ccst", "--rounds", "1"],
        ["audit", "--target", "ccst-overall", "--encoder", "pixels"],
    ],
    ids=["attack", "dry run", "train", "audit"],
)
def test_a_second_mechanism_on_the_same_styles_is_refused(
    command: list[str], order: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    stated = [part for text in order for part in ("--defense", text)]

    code = main([*command, *SMALL, *stated, "--out", str(tmp_path / "run")])

    said = capsys.readouterr().err
    assert code == 2
    assert "private-styles and private-styles are both mechanisms on what clients send (share)" in " ".join(
        said.split()
    )
    assert not (tmp_path / "run").exists()
