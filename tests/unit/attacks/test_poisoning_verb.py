"""`fdgsec attack --attack poisoning`: reports that can be made again, targets of every kind, and reasons in place of crashes."""

import json
from pathlib import Path

import pytest

from fdgsec.cli import main

SMALL = ["--dataset", "shapes", "--per-domain", "42", "--image-size", "16", "--attack", "poisoning"]
FEW = [
    "attacks.poisoning.seeds=2",
    "attacks.poisoning.clients=5",
    "attacks.poisoning.records=3",
    "attacks.poisoning.hostile=[1]",
    "attacks.poisoning.guards=[]",
]


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FDGSEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def result_of(target: str, out: Path, *more: str, adversary: str = "client") -> dict:
    changed = {option.partition("=")[0] for option in more}
    few = [word for option in FEW if option.partition("=")[0] not in changed for word in ("--set", option)]
    command = ["attack", "--target", target, *SMALL, *few, "--adversary", adversary, *more, "--out", str(out)]
    assert main(command) == 0
    (result,) = json.loads((out / "report.json").read_text())["attacks"]
    return result


def values(result: dict, name: str, **where: str) -> list[float | None]:
    return [
        row["value"] for row in result["measurements"]
        if row["name"] == name and all(row["slice"].get(key) == said for key, said in where.items())
    ]  # fmt: skip


def test_a_server_forges_nothing_and_is_told_who_could(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["attack", "--target", "ccst-overall", *SMALL, "--out", str(tmp_path / "run")]) == 2

    assert "poisoning needs a malicious client (--adversary client)" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.medium
def test_an_exchange_alone_is_forged_refused_and_displaced(tmp_path: Path):
    result = result_of("fisc", tmp_path / "run")

    assert result["status"] == "done"
    assert all(one["passed"] for controls in result["controls"].values() for one in controls)
    assert values(result, "refused", forgery="nan") == [1.0]
    (moved,) = values(result, "displacement", forgery="x10", of="InterpolationStyle")
    assert moved is not None
    assert moved > 0.1
    assert values(result, "honest_accuracy_drop", forgery="x10") == [None]


@pytest.mark.medium
def test_a_breakdown_that_cannot_be_had_says_so(tmp_path: Path):
    more = ["--set", "attacks.poisoning.clients=300", "--set", 'attacks.poisoning.forgeries=["x100"]']

    result = result_of("fisc", tmp_path / "run", *more)

    (row,) = [row for row in result["measurements"] if row["slice"]["forgery"] == "breakdown"]
    assert row["unavailable"] == "too few images for 300 clients of 3 images each"


@pytest.mark.medium
def test_a_report_has_the_worst_forgery_behind_each_guard_beside_each_forgery(tmp_path: Path):
    more = ['guards=["the run\'s","norm","center=krum"]', "guarded_clients=6", "malicious=2", "selecting=1"]
    sets = [word for option in more for word in ("--set", f"attacks.poisoning.{option}")]

    result = result_of("ccst-overall", tmp_path / "run", *sets)

    rows = [row for row in result["measurements"] if "guard" in row["slice"]]
    for guard in ("the run's", "norm"):
        of_guard = {row["slice"]["forgery"]: row for row in rows if row["slice"]["guard"] == guard}
        worst = of_guard["worst of 10 by displacement"]
        assert len(of_guard) == 11
        assert of_guard[worst["slice"]["chosen"]]["value"] == worst["value"]
        assert worst["n"] == 2
    (misfit,) = [row for row in rows if row["slice"]["guard"] == "center=krum"]
    assert misfit["unavailable"].startswith("does not fit")


@pytest.mark.slow
def test_the_honest_run_of_the_first_seed_is_the_attacked_run(tmp_path: Path):
    whole = ["--rounds", "1", "--set", "attacks.poisoning.seeds=1", "--set", "attacks.poisoning.images=0"]

    result = result_of("fedavg", tmp_path / "run", *whole, "--set", 'attacks.poisoning.forgeries=["update x10"]')

    reported = json.loads((tmp_path / "run" / "report.json").read_text())["accuracy"]["value"]
    assert values(result, "accuracy", on="unseen domain", run="honest") == [reported]


@pytest.mark.slow
def test_equal_seeds_give_equal_reports(tmp_path: Path):
    forged = ["--rounds", "1", "--set", 'attacks.poisoning.forgeries=["update x-1", "x100", "nan"]']

    one = result_of("fedalign", tmp_path / "one", *forged)
    other = result_of("fedalign", tmp_path / "other", *forged, "--fresh")

    assert one["measurements"] == other["measurements"]
    assert one["controls"] == other["controls"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "target", ["ccst-single", "stablefdg", "feddag", "fedccrl", "feddg", "fpl", "fediir", "fedadg", "fedavg"]
)
def test_every_kind_of_artifact_can_be_forged(target: str, tmp_path: Path):
    result = result_of(target, tmp_path / "run", "--rounds", "1", "--set", "attacks.poisoning.seeds=1")

    assert result["status"] == "done"
    assert 1.0 in values(result, "refused", forgery="nan")
    assert all(one["passed"] for controls in result["controls"].values() for one in controls)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("defense", "refused"),
    [
        ("guards:schema=false,finite=false", 0.0),
        ("guards:center=median,acts_on=models", 1.0),
        ("secure-aggregation", 0.0),
    ],
)
def test_what_is_refused_is_said_of_the_runs_own_defenses(defense: str, refused: float, tmp_path: Path):
    result = result_of("fedavg", tmp_path / "run", "--rounds", "1", "--defense", defense)

    assert result["status"] == "done"
    assert set(values(result, "refused", forgery="nan")) == {refused}
