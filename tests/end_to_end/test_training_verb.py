"""`fdgsec train`: several seeds, two domains left out, the model that stays, and what cannot be."""

import json
from pathlib import Path

import pytest
import torch

from fdgsec.cli import main
from fdgsec.federation.artifacts import ModelState, decode

SMALL = ["--dataset", "shapes", "--per-class", "6", "--image-size", "32", "--rounds", "1"]


@pytest.mark.medium
def test_several_seeds_leave_a_folder_each_and_their_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["train", *SMALL, "--seeds", "2", "--seed", "5", "--out", str(tmp_path / "run")]) == 0

    found = json.loads((tmp_path / "run" / "seeds.json").read_text())
    single = [json.loads((tmp_path / "run" / f"seed{n}" / "report.json").read_text())["accuracy"] for n in (5, 6)]
    assert found["seeds"] == [5, 6]
    assert found["accuracy"]["value"] == pytest.approx((single[0]["value"] + single[1]["value"]) / 2)
    assert found["auc"]["value"] == pytest.approx((single[0]["auc"]["value"] + single[1]["auc"]["value"]) / 2)
    assert set(found["per_domain"]) == {"photo", "painting", "cartoon"}
    own = [domain["value"] for each in single for domain in each["per_domain"].values()]
    assert found["own_domains"]["value"] == pytest.approx(sum(own) / 6)
    assert found["steps"] == single[0]["steps"] == {"per_client_and_round": 1.0, "total": 3.0}  # 38 images, batch 64
    page = (tmp_path / "run" / "seeds.html").read_text()
    assert all(f"seed{run['seed']}/report.html" in page for run in found["runs"])
    assert [run["accuracy"]["value"] for run in found["runs"]] == [each["value"] for each in single]
    printed = capsys.readouterr().out
    assert "accuracy on sketch (unseen)" in printed
    assert "mean over own domains" in printed


@pytest.mark.medium
def test_several_seeds_average_a_second_unseen_domain_and_adaptation_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    split = ["--target-domain", "sketch", "--validation-domain", "photo", "--adapt", "tent", "--seeds", "2"]
    assert main(["train", *SMALL, *split, "--out", str(tmp_path / "run")]) == 0

    found = json.loads((tmp_path / "run" / "seeds.json").read_text())
    single = [json.loads((tmp_path / "run" / f"seed{n}" / "report.json").read_text())["accuracy"] for n in (0, 1)]
    page, printed = (tmp_path / "run" / "seeds.html").read_text(), capsys.readouterr().out
    for name, key, given in (("validation_domain", "domain", "photo"), ("adapted", "adaptation", "tent")):
        assert found[name][key] == given
        assert found[name]["value"] == pytest.approx(sum(each[name]["value"] for each in single) / 2)
    assert "unseen, for choosing between models" in page
    assert "adapted to it: tent" in page
    assert "accuracy on photo (unseen as well)" in printed
    assert "accuracy after tent" in printed


@pytest.mark.medium
def test_a_finished_seed_is_read_back_unless_it_or_its_settings_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = ["train", *SMALL, "--seeds", "2", "--out", str(tmp_path / "run")]
    assert main(run) == 0
    first = (tmp_path / "run" / "seeds.json").read_bytes()
    (tmp_path / "run" / "seeds.json").unlink()
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").glob("seed*/report.json")}

    assert main(run) == 0
    assert (tmp_path / "run" / "seeds.json").read_bytes() == first
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in written.items())
    assert capsys.readouterr().err.count("is finished and used again") == 2

    (tmp_path / "run" / "seed0" / "curve.json").write_text("[]")  # altered: trained anew
    assert main(run) == 0
    assert "it is trained anew" in capsys.readouterr().err
    assert main([*run, "--lr", "0.5"]) == 0
    assert "used again" not in capsys.readouterr().err
    assert main([*run, "--lr", "0.5", "--fresh"]) == 0
    assert "used again" not in capsys.readouterr().err


def test_two_domains_left_out_are_trained_on_by_nobody_and_both_measured(tmp_path: Path):
    split = ["--target-domain", "sketch", "--validation-domain", "photo"]
    assert main(["train", *SMALL, *split, "--out", str(tmp_path / "run")]) == 0

    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["accuracy"]["unseen_domain"] == "sketch"
    assert report["accuracy"]["validation_domain"]["domain"] == "photo"
    assert report["accuracy"]["validation_domain"]["n"] == 42
    assert set(report["accuracy"]["per_domain"]) == {"painting", "cartoon"}
    assert len(report["dataset"]["roles"]["train"]) == 2


def test_the_model_stays_in_the_runs_folder(tmp_path: Path):
    assert main(["train", *SMALL, "--out", str(tmp_path / "run")]) == 0

    kept = decode((tmp_path / "run" / "model.safetensors").read_bytes())
    assert isinstance(kept, ModelState)
    assert kept.tensors()["head.weight"].shape == (7, 96)
    assert all(torch.isfinite(value).all() for value in kept.tensors().values())


@pytest.mark.medium
def test_a_dry_run_measures_and_writes_nothing_and_its_bytes_are_those_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    options = ["train", *SMALL, "--rounds", "2", "--method", "ccst", "--device", "cpu"]
    assert main([*options, "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(tmp_path.iterdir()) == []

    assert main([*options, "--out", "run"]) == 0
    written = sum(
        path.stat().st_size for path in Path("run").rglob("*") if path.is_file() and "report" not in path.name
    )
    assert told["bytes_run"] == pytest.approx(written, rel=0.25)  # settings and curve are not counted
    assert told["bytes_kept"] > told["bytes_run"]
    assert 2**27 < told["bytes_memory"] < 2**34  # torch alone takes more than 128 MiB
    assert told["seconds"] == pytest.approx(told["seconds_first"] + told["seconds_round"])
    assert told["seconds_round"] > 0


@pytest.mark.medium
def test_two_workers_train_the_same_run_and_go_with_the_local_engine_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    options = ["train", *SMALL, "--device", "cpu"]
    assert main([*options, "--out", str(tmp_path / "one")]) == 0
    assert main([*options, "--workers", "2", "--out", str(tmp_path / "two")]) == 0
    for name in ("transcript.jsonl", "model.safetensors", "curve.json", "config.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()

    assert main([*options, "--workers", "2", "--engine", "flower-sim"]) == 2
    assert main([*options, "--workers", "2", "--threads", "2", "--out", str(tmp_path / "three")]) == 2
    told = capsys.readouterr().err
    assert "--workers must be at least 1, and goes with --engine local" in told
    assert "--workers forks processes of one thread each" in told


def test_a_dry_run_without_rounds_is_refused(capsys: pytest.CaptureFixture[str]):
    assert main(["train", *SMALL[:-1], "0", "--dry-run"]) == 2
    assert "this run has none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--target-domain", "sketch", "--validation-domain", "sketch"], "name two domains"),
        (["--validation-domain", "skech"], "skech"),
        (["--seeds", "2", "--rounds", "0"], "rounds to train"),
        (["--keep", "models"], "models=last"),
    ],
    ids=["one domain twice", "no such domain", "seeds without rounds", "keep"],
)
def test_what_cannot_be_trained_is_refused_in_one_line(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["train", *SMALL, *options, "--out", str(tmp_path / "run")]) == 2

    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.medium
def test_seeds_whose_clients_hold_different_domains_have_a_mean_over_those_of_all(tmp_path: Path):
    few = ["--per-class", "2", "--partition", "dirichlet", "--heterogeneity", "0.3", "--clients", "3"]
    given = ["--dataset", "shapes", "--image-size", "32", "--rounds", "1", "--backbone", "tiny", *few]
    assert main(["train", "--method", "fedavg", *given, "--seeds", "4", "--out", str(tmp_path / "run")]) == 0

    found = json.loads((tmp_path / "run" / "seeds.json").read_text())
    held = [
        set(json.loads((tmp_path / "run" / f"seed{seed}" / "report.json").read_text())["accuracy"]["per_domain"])
        for seed in found["seeds"]
    ]
    assert set(found["per_domain"]) == set.intersection(*held)
    assert len(set(map(frozenset, held))) > 1
    assert "own_domains" not in found
