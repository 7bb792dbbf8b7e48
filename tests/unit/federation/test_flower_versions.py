"""Which flwr and ray are accepted, and what the others are told."""

import sys
from pathlib import Path

import pytest

from fdgsec.cli import main
from fdgsec.federation.engines.flower.versions import TESTED, FlowerUnavailableError, installed_versions, require_flower


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Make `versions` all that is installed; flwr 1.x asks for ray 2.55.1."""
    for name, version in versions.items():
        metadata = folder / f"{name}-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        asks = 'Requires-Dist: ray==2.55.1; extra == "simulation"\n' if name == "flwr" else ""
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{asks}")
    monkeypatch.setattr(sys, "path", [str(folder)])


@pytest.mark.parametrize("version", ["1.41.0", "1.41.7", "1.42.0"])
def test_versions_inside_the_range_are_accepted(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    installed(tmp_path, monkeypatch, flwr=version, ray="2.55.1")

    require_flower(simulation=True)

    assert installed_versions() == [("flwr", version, TESTED), ("ray", "2.55.1", TESTED)]


@pytest.mark.parametrize("version", ["1.40.9", "1.43.0", "1.43.0rc1", "2.0.0", "0.41.0"])
def test_versions_outside_the_range_are_refused_with_the_line_to_run(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    installed(tmp_path, monkeypatch, flwr=version)

    with pytest.raises(FlowerUnavailableError, match=r"outside the tested range >=1\.41,<1\.43") as refusal:
        require_flower(simulation=False)

    assert f"flwr {version}" in str(refusal.value)
    assert 'pip install "fdgsec[flower]"' in str(refusal.value)
    assert refusal.value.exit_code == 3


def test_the_simulation_needs_the_very_ray_that_flwr_asks_for_and_the_deployment_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    installed(tmp_path, monkeypatch, flwr="1.41.0", ray="2.60.0")

    require_flower(simulation=False)

    with pytest.raises(FlowerUnavailableError, match=r'ray 2\.60\.0 .*2\.55\.1.*"fdgsec\[flower-sim\]"'):
        require_flower(simulation=True)


def test_without_flwr_the_simulation_names_the_one_extra_that_brings_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    installed(tmp_path, monkeypatch)

    with pytest.raises(FlowerUnavailableError, match=r'flwr is not installed; run: pip install "fdgsec\[flower-sim\]"'):
        require_flower(simulation=True)


@pytest.mark.parametrize("arguments", [["serve"], ["join", "--new-key", "node0"]])
def test_serve_and_join_without_flwr_end_with_exit_3_and_write_nothing(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    installed(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)

    code = main(arguments)

    assert code == 3
    assert capsys.readouterr().err == 'fdgsec: flwr is not installed; run: pip install "fdgsec[flower]"\n'
    assert list(tmp_path.iterdir()) == []


@pytest.mark.medium
def test_doctor_prints_what_there_is_and_refuses_what_was_not_tested_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    installed(tmp_path, monkeypatch, flwr="1.50.0")

    code = main(["doctor"])

    told = capsys.readouterr()
    assert code == 3
    assert ["flwr", "1.50.0,", "refused"] in [line.split() for line in told.out.splitlines()]
    refusal = 'flwr 1.50.0 is outside the tested range >=1.41,<1.43; run: pip install "fdgsec[flower]"'
    assert told.err == f"fdgsec: {refusal}\n"


def test_doctor_has_nothing_against_a_machine_without_flower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    installed(tmp_path, monkeypatch)

    code = main(["doctor"])

    told = capsys.readouterr()
    assert code == 0
    assert 'flwr is not installed; run: pip install "fdgsec[flower]"' in told.out.splitlines()
    assert told.err == ""
