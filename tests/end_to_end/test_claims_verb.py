"""`fdgsec claims` on shapes: mechanics only."""

import json
import shlex
from html import unescape
from pathlib import Path
from shutil import copytree

import pytest

from fdgsec.attacks.style_inversion.attack import StyleInversion
from fdgsec.cli.app import main
from fdgsec.experiments.claims.catalogue import ledger
from fdgsec.experiments.claims.measured_runs import ClaimsRequest
from fdgsec.experiments.claims.run_claims import chosen_claims, reproducing_command
from tests.support.short_inversion import BRIEF

pytestmark = pytest.mark.medium

SMALL = ["--dataset", "shapes", "--per-domain", "60", "--image-size", "32"]
DECIDED = "ccst-client-reconstruction"
ASKED = ["--claim", DECIDED, "--claim", "fedalign-summaries", "--seeds", "0,1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("claims") / "ledger"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(StyleInversion, "PROFILES", {**StyleInversion.PROFILES, "quick": BRIEF})
        assert main(["claims", *SMALL, *ASKED, "--out", str(out)]) == 0
    return out


def test_a_claim_has_a_verdict_with_the_rows_behind_it_and_the_command(folder: Path):
    document = json.loads((folder / "claims.json").read_text())
    claim, summaries = document["claims"]

    assert (document["schema"], document["seeds"], document["registration"]) == (2, [0, 1], None)
    assert (claim["id"], claim["family"]) == (DECIDED, 1)
    assert claim["verdict"] == "undecided"  # mini is not of the VGG family
    assert "VGG family" in claim["reason"]
    (column,) = claim["columns"]
    assert (column["encoder"], column["decides"]) == ("mini", False)
    assert [seed["seed"] for seed in column["seeds"]] == [0, 1]
    for seed in column["seeds"]:
        assert seed["low"] <= seed["value"] <= seed["high"]
        assert seed["n"] >= 10
    assert claim["command"].startswith("fdgsec attack --target ccst-single --dataset shapes --attack style-inversion")
    assert (summaries["verdict"], "columns" in summaries) == ("not a testable claim", False)
    assert [len(note["rows"]) for note in summaries["beyond"]] == [2, 2]


@pytest.mark.parametrize("name", [claim.id for claim in ledger() if claim.measured and claim.encoder != "network"])
def test_the_command_of_a_row_is_one_that_runs_its_attack(name: str, capsys: pytest.CaptureFixture[str]):
    request = ClaimsRequest(dataset="shapes", given={"per_domain": 240, "image_size": 16})
    (claim,) = chosen_claims([name])

    fdgsec, *words = shlex.split(reproducing_command(claim, request))

    assert fdgsec == "fdgsec"
    assert main([*words, "--dry-run"]) == 0
    assert claim.measured is not None
    assert claim.measured.attack in capsys.readouterr().out


def test_what_an_encoder_alone_would_have_decided_is_told(folder: Path):
    claim, _ = json.loads((folder / "claims.json").read_text())["claims"]
    alone = {(one["encoder"], one["seed"]): one["verdict"] for one in claim["otherwise"]}
    seeds = claim["columns"][0]["seeds"]

    for seed in seeds:
        leaks = seed["p_value"] <= 0.05
        said = alone.get(("mini", seed["seed"]), "undecided")
        assert (said == "contradicted") == leaks
    assert (alone.get(("mini", None)) == "contradicted") == all(seed["p_value"] <= 0.05 for seed in seeds)


def test_the_pages_have_the_papers_words_the_verdicts_and_the_command(folder: Path):
    claims = json.loads((folder / "claims.json").read_text())["claims"]

    for page in ((folder / "claims.md").read_text(), unescape((folder / "claims.html").read_text())):
        for claim in claims:
            assert all(quote in page for quote in claim["quotes"])
            assert claim["verdict"] in page
            assert all(note["says"] in page for note in claim["beyond"])
        assert claims[0]["command"] in page
        assert claims[0]["holds_if"] in page


def test_a_second_call_reads_the_reports_and_gives_the_same_table(folder: Path, capsys: pytest.CaptureFixture[str]):
    before = (folder / "claims.json").read_text()
    stamps = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/report.json")}
    assert len(stamps) == 4

    assert main(["claims", *SMALL, *ASKED, "--out", str(folder)]) == 0

    assert (folder / "claims.json").read_text() == before
    assert {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/report.json")} == stamps
    assert DECIDED in capsys.readouterr().out


def test_without_runs_beyond_the_claims_the_verdicts_are_the_same(folder: Path, tmp_path: Path):
    before = json.loads((folder / "claims.json").read_text())
    other = tmp_path / "claims"
    copytree(folder, other)

    assert main(["claims", *SMALL, *ASKED, "--without-beyond", "--out", str(other)]) == 0

    after = json.loads((other / "claims.json").read_text())
    (claim, summaries), (one, few) = before["claims"], after["claims"]
    assert (one | {"beyond": []}, few | {"beyond": []}) == (claim | {"beyond": []}, summaries | {"beyond": []})
    assert (before["beyond"], after["beyond"], len(summaries["beyond"]), few["beyond"]) == (True, False, 2, [])
    assert {path.name for path in (other / "runs").iterdir()} == {path.name for path in (folder / "runs").iterdir()}
    assert "shown where they are of runs that decide" in (other / "claims.md").read_text()


def test_a_registration_is_written_and_its_ledger_and_options_are_binding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "registration.json"
    assert main(["claims", *SMALL, "--encoder", "mini", "--seeds", "3,4", "--register", str(path)]) == 0
    written = json.loads(path.read_text())
    assert (written["encoders"], written["seeds"], len(written["ledger_sha256"])) == (["mini"], [3, 4], 64)
    assert written["claims"] == [claim.id for claim in ledger()]

    assert main(["claims", "--registration", str(path), "--seeds", "5"]) == 2
    assert "leave the other options out" in capsys.readouterr().err
    path.write_text(json.dumps(written | {"ledger_sha256": "0" * 64}))
    assert main(["claims", "--registration", str(path)]) == 2
    assert "are not those registered" in capsys.readouterr().err


@pytest.mark.parametrize("seeds", ["", "1,,2", "one", "1,1"])
def test_seeds_that_cannot_be_read_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], seeds: str):
    assert main(["claims", *SMALL, "--seeds", seeds, "--out", str(tmp_path / "x")]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_an_unknown_claim_is_one_line_with_the_nearest_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["claims", "--dataset", "shapes", "--claim", "ccst-contents", "--out", str(tmp_path / "x")]) == 2

    said = capsys.readouterr().err
    assert "ccst-content" in said
    assert len(said.strip().splitlines()) == 1


def test_every_claim_is_listed(capsys: pytest.CaptureFixture[str]):
    assert main(["list", "claims"]) == 0

    shown = capsys.readouterr().out
    assert all(claim.id in shown for claim in ledger())


def test_data_that_are_not_found_are_an_error_before_any_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "claims"

    assert main(["claims", "--data-root", str(tmp_path), "--claim", DECIDED, "--out", str(out)]) == 3

    told = capsys.readouterr()
    assert (told.out, out.exists()) == ("", False)
    assert "PACS not found" in told.err


def test_a_ledger_of_which_nothing_could_be_run_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FDGSEC_WEIGHTS", str(tmp_path / "none"))
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "claims"

    assert main(["claims", *SMALL, "--claim", DECIDED, "--encoder", "vgg19", "--out", str(out)]) == 1

    (claim,) = json.loads((out / "claims.json").read_text())["claims"]
    assert claim["verdict"] == "not run"
