"""`fdgsec data`, as its users type it, and a folder of one's own attacked."""

import io
import socket
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fdgsec.cli import main
from fdgsec.data.catalog import DATASETS


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FDGSEC_DATA", raising=False)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for d, domain in enumerate(("autumn", "spring", "summer", "winter")):
        for c, name in enumerate(("birch", "oak")):
            for number in range(30):
                path = tmp_path / "mine" / domain / name / f"{number:02d}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                level = 40 * d + 60 * c + rng.integers(0, 60, (24, 40, 3))
                buffer = io.BytesIO()
                Image.fromarray(level.clip(0, 255).astype(np.uint8)).save(buffer, "PNG")
                path.write_bytes(buffer.getvalue())
    return tmp_path / "mine"


def test_the_list_names_every_dataset_with_its_licence_and_source(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["data", "list"]) == 0

    printed = capsys.readouterr().out
    for name, entry in DATASETS.items():
        assert any(line.split()[:1] == [name] for line in printed.splitlines())
        assert entry.license.split(";")[0].split(" ")[0] in printed
        assert not entry.page or f"{name}: {entry.page}" in printed


def test_a_check_counts_domains_and_classes(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "folder", "--data-root", str(mine)]) == 0

    words = capsys.readouterr().out.split()
    assert words[words.index("winter") : words.index("winter") + 4] == ["winter", "30", "30", "60"]


@pytest.mark.medium
def test_a_folder_of_ones_own_can_be_attacked(mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = [
        "attack",
        "--target",
        "ccst-overall",
        "--dataset",
        "folder",
        "--data-root",
        str(mine),
        "--image-size",
        "32",
    ]

    assert main([*command, "--attack", "differencing", "--out", str(out)]) == 0

    assert "differencing" in capsys.readouterr().out
    assert '"unseen_domain"' not in (out / "report.json").read_text()
    assert '"winter"' in (out / "report.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["data", "fetch", "vlcs"], 3, ["VLCS cannot be fetched automatically", DATASETS["vlcs"].page]),
        (["data", "fetch", "shapes"], 2, ["there is nothing to fetch"]),
        (["data", "fetch", "paccs"], 2, ["did you mean 'pacs'"]),
        (["data", "check", "iwildcam"], 3, ["iWildCam-WILDS not found", DATASETS["iwildcam"].page]),
        (["data", "check", "folder"], 2, ["name its root with --data-root"]),
    ],
)
def test_what_cannot_be_had_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: list[str]
) -> None:
    assert main(arguments) == code

    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert all(word in captured.err for word in words)


def test_without_a_network_a_fetch_ends_in_one_line_with_the_page_to_get_it_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)

    assert main(["data", "fetch", "camelyon17"]) == 3

    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert "Network is unreachable. Get it from https://wilds.stanford.edu/datasets/#camelyon17" in captured.err
