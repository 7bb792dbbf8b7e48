"""The other methods as targets: the attacks that fit run with their controls, the others say why they do not."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

import fdgsec
from fdgsec.cli import main

SMALL = ["--dataset", "shapes", "--per-domain", "84", "--image-size", "32", "--seed", "0"]
FEW = [
    "attacks.membership.sizes=[20]", "attacks.membership.clients=10", "attacks.membership.simulated_sizes=[12]",
    "attacks.membership.shadows=10", "attacks.property-inference.sizes=[20]", "attacks.property-inference.clients=10",
    "attacks.property-inference.shadows=300", "attacks.property-inference.simulated=20", "attacks.linkage.clients=10",
    'attacks.linkage.schemes=["iid"]', 'attacks.linkage.sessions=["iid"]', "attacks.linkage.noise_in_sds=[]",
]  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FDGSEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def report_of(target: str, out: Path, attacks: Sequence[str], *, rounds: int = 0, settings: Sequence[str] = ()) -> dict:
    fdgsec.attack(
        target, attacks=attacks, rounds=rounds, per_domain=84, image_size=32, assignments=[*FEW, *settings], out=out
    )  # fmt: skip
    return json.loads((out / "report.json").read_text())


@pytest.mark.parametrize(
    ("target", "rounds", "kinds", "fitting"),
    [
        ("stablefdg", 0, {"StyleDistribution"}, {"membership", "property-inference"}),
        ("feddg", 0, {"Amplitudes"}, {"reidentification"}),
        ("ccst-amplitude-single", 0, {"Amplitudes"}, {"reidentification"}),
        ("ccst-amplitude-overall", 0, {"Amplitudes"}, {"membership", "property-inference"}),
        ("feddag", 1, set(), set()),
        ("fpl", 1, {"Prototypes"}, {"property-inference"}),
        ("fediir", 1, {"HeadGradient"}, {"property-inference"}),
    ],
)  # fmt: skip
@pytest.mark.medium
def test_attacks_that_read_what_is_sent_run_and_the_others_say_what_they_read(
    target: str, rounds: int, kinds: set[str], fitting: set[str], tmp_path: Path
):
    asked = {"membership", "property-inference", "reidentification"}

    report = report_of(target, tmp_path / "run", sorted(asked), rounds=rounds)

    told = {attack["name"]: attack for attack in report["attacks"]}
    assert {row["kind"] for row in report["artifacts"]} == kinds
    assert told.keys() == asked
    assert {name for name, attack in told.items() if attack["status"] == "done"} == fitting
    assert all(re.match(r"reads|looks|not applicable: \S+ sends no", told[name]["reason"]) for name in asked - fitting)
    assert all(control["passed"] for name in fitting for control in told[name]["controls"]["positive"])
    assert (report["accuracy"] is None) == (not rounds)


@pytest.mark.medium
def test_feddags_generators_and_teachers_are_traffic_of_the_report(tmp_path: Path):
    report = report_of("feddag", tmp_path / "run", ["reidentification"], rounds=1)

    sent = {(row["stage"], row["kind"]): row["messages"] for row in report["model_traffic"]}
    assert sent["update", "GeneratorState"] == 3
    assert sent["exhibit", "ModelState"] == 6


@pytest.mark.medium
def test_an_image_in_hand_is_found_by_its_colors_in_fedaligns_pool(tmp_path: Path):
    report = report_of("fedalign", tmp_path / "run", ["reidentification"])

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


@pytest.mark.medium
def test_fiscs_styles_are_no_means_over_images_and_are_not_parted_as_such(tmp_path: Path):
    parting, released_statistic = (
        ("differencing", "optimization-inversion"),
        ("membership", "linkage", "domain-inference"),
    )

    report = report_of("fisc", tmp_path / "run", parting + released_statistic)

    told = {attack["name"]: (attack["status"], attack["reason"]) for attack in report["attacks"]}
    assert all(told[name][0] == "done" for name in released_statistic)
    assert all("those of this target are not" in told[name][1] for name in parting)
    (membership,) = [attack for attack in report["attacks"] if attack["name"] == "membership"]
    assert {row["slice"].get("cluster_size") for row in membership["measurements"]} > {None, "2-3"}


@pytest.mark.medium
def test_fiscs_styles_without_clusters_are_means_that_every_attack_on_styles_reads(tmp_path: Path):
    reading = {"differencing", "linkage", "domain-inference", "membership", "set-reconstruction", "style-inversion"}
    settings = [
        "method.local_clustering=false",
        "attacks.set-reconstruction.sizes=[20]",
        "attacks.set-reconstruction.clients=5",
        "attacks.set-reconstruction.roundings=[]",
        "attacks.style-inversion.size=16",
    ]

    report = report_of("fisc", tmp_path / "run", sorted(reading), settings=settings)

    told = {attack["name"]: attack for attack in report["attacks"]}
    assert {name: attack["status"] for name, attack in told.items()} == dict.fromkeys(reading, "done")
    assert all(control["passed"] for attack in told.values() for control in attack["controls"]["positive"])
    rows = {name: attack["measurements"] for name, attack in told.items()}
    named = [row["value"] for row in rows["differencing"] if row["name"] == "top1"]
    lists = [
        row["value"] for row in rows["set-reconstruction"]
        if row["name"] == "exact_list" and row["slice"].get("held") == "100%"
    ]  # fmt: skip
    assert set(named) == set(lists) == {1.0}


@pytest.mark.parametrize("target", ["feddag", "fpl", "fediir", "fedadg", "fedavg"])
def test_what_is_released_by_training_alone_wants_rounds(
    target: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    assert main(["attack", "--target", target, *SMALL, "--out", str(tmp_path / "run")]) == 2

    assert "releases nothing before it trains" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
