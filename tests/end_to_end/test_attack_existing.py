"""Attacking what exists already: a finished run, or vectors of one's own; and putting two runs side by side."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fdgsec
from fdgsec.cli import main
from fdgsec.experiments.attack_measurements import MEASUREMENTS
from fdgsec.experiments.report.headlines import DESCRIPTIVE
from tests.support.own_vectors import own

pytestmark = pytest.mark.medium

SMALL = ["--dataset", "shapes", "--per-domain", "210", "--image-size", "16", "--encoder", "pixels"]
FAST = ("reidentification", "membership", "differencing")
OPTIONS = ("attacks.membership.clients=8", "attacks.membership.row_size=40", "attacks.membership.sizes=[40]")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FDGSEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that `fdgsec train` finished."""
    out = tmp_path_factory.mktemp("runs") / "ccst"
    assert (
        main(["train", "--method", "ccst", *SMALL, "--rounds", "1", "--set", "method.style=single", "--out", str(out)])
        == 0
    )
    return out


def chosen(*names: str) -> list[str]:
    return [word for name in names for word in ("--attack", name)]


def without_seconds(document: Any) -> Any:
    if isinstance(document, dict):
        return {key: without_seconds(value) for key, value in document.items() if key != "seconds"}
    return [without_seconds(value) for value in document] if isinstance(document, list) else document


@pytest.mark.parametrize("target", ["ccst-single", "ccst-overall"])
def test_a_run_that_left_roles_aside_is_attacked_to_the_same_numbers(target: str, tmp_path: Path):
    first = fdgsec.attack(
        target, per_domain=120, image_size=16, encoder="pixels", attacks=FAST, assignments=OPTIONS,
        out=tmp_path / "run",
    )  # fmt: skip

    again = fdgsec.attack_run(tmp_path / "run", attacks=FAST, assignments=OPTIONS)

    one, other = (json.loads(report.json())["attacks"] for report in (first, again))
    for attack in other:  # what the challenger had too few images for, it now says
        attack["measurements"] = [row for row in attack["measurements"] if "not answered" not in row["slice"]]
    assert without_seconds(one) == without_seconds(other)
    assert first.transcript_sha256 == again.transcript_sha256
    assert again.environment["notes"] == ""
    for attack in one:
        assert {row["name"] for row in attack["measurements"]} <= set(MEASUREMENTS[attack["name"]])
        assert {row["verdict"] for row in attack["measurements"] if row["name"] in DESCRIPTIVE} <= {"descriptive"}


def test_a_training_run_is_attacked_from_the_command_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "attack"
    command = [
        "attack",
        "--run",
        str(run),
        *chosen("reidentification", "membership"),
        "--set",
        OPTIONS[0],
        "--out",
        str(out),
    ]

    assert main(command) == 0

    told, report = capsys.readouterr(), json.loads((out / "report.json").read_text())
    results = {result["name"]: result for result in report["attacks"]}
    known = [
        row["value"] for row in results["reidentification"]["measurements"]
        if row["name"] == "top1" and row["slice"].get("transform") == "known"
    ]  # fmt: skip
    assert known == [1.0] * 6
    assert (report["target"], report["method"], report["reused"]) == ("ccst-single", "ccst", True)
    assert report["accuracy"] == json.loads((run / "report.json").read_text())["accuracy"]
    assert {"train", "held_out", "auxiliary"} <= set(report["dataset"]["roles"])
    assert "notes: all images of the source domains took part" in told.out
    assert told.err == ""
    for result in results.values():
        assert all(control["passed"] for side in result["controls"].values() for control in side)


def test_a_training_run_may_leave_roles_aside_for_a_later_attack(tmp_path: Path):
    small: dict[str, Any] = {"per_domain": 60, "image_size": 16, "encoder": "pixels", "roles": "aside"}
    trained = fdgsec.train("ccst", rounds=1, **small, assignments=["method.style=single"], out=tmp_path / "run")

    again = fdgsec.attack_run(tmp_path / "run", attacks=["reidentification"])

    roles, counted = trained.dataset["roles"], again.dataset["roles"]
    assert isinstance(roles, dict)
    assert isinstance(counted, dict)
    for role in ("federation", "held_out", "auxiliary"):
        assert roles[role] == counted[role]
    shares = zip(roles["train"].values(), roles["validation"].values(), strict=True)
    assert [one + other for one, other in shares] == [
        roles["federation"][name] for name in ("photo", "painting", "cartoon")
    ]
    assert min(*roles["held_out"].values(), *roles["auxiliary"].values()) > 0
    assert again.environment["notes"] == ""


def test_the_attack_on_a_run_is_a_run_that_can_be_attacked(run: Path, tmp_path: Path):
    once = fdgsec.attack_run(run, attacks=["reidentification"], out=tmp_path / "once", seed=3)

    twice = fdgsec.attack_run(tmp_path / "once", attacks=["reidentification"], seed=3)

    assert without_seconds([one.document() for one in once.attacks]) == without_seconds(
        [one.document() for one in twice.attacks]
    )
    assert once.environment["attack_seed"] == 3
    assert once.seed == 0


def test_a_tampered_run_is_refused_in_one_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    lines = (copy / "transcript.jsonl").read_text().splitlines()
    (copy / "transcript.jsonl").write_text("\n".join([lines[0].replace("client:0", "client:9"), *lines[1:]]) + "\n")

    assert main(["attack", "--run", str(copy), "--out", str(tmp_path / "out")]) == 2

    told = capsys.readouterr()
    assert told.err.startswith("fdgsec: ")
    assert "transcript.jsonl is not the file that was written; it was altered" in told.err
    assert told.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_dry_run_says_what_a_run_lets_run(run: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["attack", "--run", str(run), "--dry-run"]) == 0
    styles = capsys.readouterr().out
    assert main(["attack", "--run", str(run), "--target", "fedavg", "--dry-run"]) == 0
    models = capsys.readouterr().out

    said = {line.split()[0]: line for line in styles.splitlines() if line.strip()}
    assert said["reidentification"].split()[-1] == "runs"
    assert "skipped: not applicable:" in said["model-membership"]
    assert "in part: this run kept no models; train it again with --keep models=last" in models


def test_own_vectors_are_attacked_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    vectors, out = own(tmp_path / "own"), tmp_path / "attack"
    given = ["--artifacts", str(vectors.npy()), "--encoder", "pixels", "--dataset", "shapes", "--per-domain", "35"]
    public = ["--image-size", "16", "--truth", str(vectors.truth()), "--out", str(out)]

    assert main(["attack", *given, *public, *chosen("reidentification", "membership")]) == 0

    told = capsys.readouterr()
    names = {file.name for file in out.iterdir()}
    assert {"report.json", "report.html", "measurements.csv", "guesses.csv", "transcript.jsonl", "payloads"} <= names
    assert "notes: 20 of 20 rows equal the style of their image" in told.out
    assert f"guesses: {out / 'guesses.csv'}" in told.out
    assert told.err == ""


def test_two_runs_are_put_side_by_side(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    other = tmp_path / "other"
    assert main(["train", "--method", "fedavg", *SMALL[:-2], "--rounds", "1", "--out", str(other)]) == 0
    capsys.readouterr()

    assert main(["compare", str(run), str(other), "--out", str(tmp_path / "side-by-side")]) == 0

    told = capsys.readouterr().out
    assert "not comparable" not in told
    assert "options.style" in told
    assert "accuracy on sketch (unseen)" in told
    assert fdgsec.compare(run, other)["unlike"] == []


TABLE = [
    ("a truth alone", ["attack", "--truth", "t.csv"], "give them with --artifacts"),
    ("vectors without their encoder", ["attack", "--artifacts", "v.csv"], "--artifacts needs --encoder"),
    ("vectors that are not there", ["attack", "--artifacts", "v.csv", "--encoder", "pixels"], "v.csv is not a file"),
    ("a method for vectors", ["attack", "--artifacts", "v.csv", "--encoder", "pixels", "--rounds", "2"], "--rounds has no place beside --artifacts"),
    ("a target for vectors", ["attack", "--artifacts", "v.csv", "--encoder", "pixels", "--target", "fisc"], "--target has no place beside --artifacts"),
    ("a run that is not there", ["attack", "--run", "nowhere"], "nowhere holds no finished run"),
    ("a run and vectors", ["attack", "--run", "nowhere", "--artifacts", "v.csv"], "--artifacts has no place beside --run"),
    ("a run on other data", ["attack", "--run", "nowhere", "--dataset", "pacs"], "--dataset has no place beside --run"),
    ("a run with other defenses", ["attack", "--run", "nowhere", "--defense", "shuffle"], "--defense has no place beside --run"),
    ("one run to compare", ["compare", "nowhere"], "two or more runs"),
    ("runs that are not there", ["compare", "nowhere", "elsewhere"], "nowhere holds no report.json"),
    ("nothing to explain", ["explain", "nothing-like-it"], "nothing is called 'nothing-like-it'"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "said"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_bad_usage_is_one_line(arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                               capsys: pytest.CaptureFixture[str]):  # fmt: skip
    monkeypatch.chdir(tmp_path)

    assert main(arguments) == 2

    told = capsys.readouterr()
    assert said in told.err
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert list(tmp_path.iterdir()) == []
