"""The other methods as targets: the attacks that fit run with their controls, the others say why they do not."""

import json
from pathlib import Path

import pytest

from fdgsec.cli import main

SMALL = ["--dataset", "shapes", "--per-domain", "84", "--image-size", "32", "--seed", "0"]


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FDGSEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def report_of(target: str, out: Path, *more: str) -> dict:
    assert main(["attack", "--target", target, *SMALL, *more, "--out", str(out)]) == 0
    return json.loads((out / "report.json").read_text())


@pytest.mark.parametrize(
    ("target", "more", "kinds"),
    [
        ("stablefdg", [], {"StyleDistribution"}),
        ("feddg", [], {"Amplitudes"}),
        ("ccst-amplitude-overall", [], {"Amplitudes"}),
        ("feddag", ["--rounds", "1"], set()),
        ("fpl", ["--rounds", "1"], {"Prototypes"}),
        ("fediir", ["--rounds", "1"], {"HeadGradient"}),
    ],
)  # fmt: skip
def test_a_target_whose_artifacts_no_attack_reads_yet_says_so(
    target: str, more: list[str], kinds: set[str], tmp_path: Path
):
    report = report_of(target, tmp_path / "run", *more)

    assert {row["kind"] for row in report["artifacts"]} == kinds
    assert {attack["status"] for attack in report["attacks"]} == {"skipped"}
    assert all("reads" in attack["reason"] for attack in report["attacks"])
    assert (report["accuracy"] is None) == (not more)


def test_feddags_generators_and_teachers_are_traffic_of_the_report(tmp_path: Path):
    report = report_of("feddag", tmp_path / "run", "--rounds", "1")

    sent = {(row["stage"], row["kind"]): row["messages"] for row in report["model_traffic"]}
    assert sent["update", "GeneratorState"] == 3
    assert sent["exhibit", "ModelState"] == 6


def test_an_image_in_hand_is_found_by_its_colours_in_fedaligns_pool(tmp_path: Path):
    report = report_of("fedalign", tmp_path / "run", "--attack", "reidentification")

    (attack,) = report["attacks"]
    found = [
        row
        for row in attack["measurements"]
        if row["name"] == "top1" and row["slice"].get("shown") == "known transform"
    ]
    rows = [row for row in attack["measurements"] if row["name"] == "top1"]
    assert attack["status"] == "done"
    assert max(row["value"] for row in found or rows) == 1.0
    assert report["encoder"] == "pixels"


def test_fiscs_styles_are_no_means_over_images_and_are_not_parted_as_such(tmp_path: Path):
    report = report_of("fisc", tmp_path / "run")

    told = {attack["name"]: (attack["status"], attack["reason"]) for attack in report["attacks"]}
    assert {name for name, (status, _) in told.items() if status == "done"} == {"linkage", "domain-inference"}
    for name in ("membership", "differencing", "style-inversion"):
        assert "those of this target are not" in told[name][1]


@pytest.mark.parametrize("target", ["feddag", "fpl", "fediir", "fedadg", "fedavg"])
def test_what_is_released_by_training_alone_wants_rounds(
    target: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    assert main(["attack", "--target", target, *SMALL, "--out", str(tmp_path / "run")]) == 2

    assert "releases nothing before it trains" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
