"""`fdgsec claims` on shapes: mechanics only."""

import json
from pathlib import Path

import pytest

from fdgsec.cli.app import main
from fdgsec.experiments.claims.catalogue import ledger

ASKED = ("ccst-overall-update",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("claims") / "ledger"
    arguments = ["claims", "--dataset", "shapes", "--per-domain", "200", "--claim", ASKED[0], "--out", str(out)]
    assert main(arguments) == 0
    return out


def test_a_claim_has_a_verdict_with_the_row_behind_it_and_the_command(folder: Path):
    document = json.loads((folder / "claims.json").read_text())
    (row,) = document["claims"]

    assert document["schema"] == 1
    assert row["id"] == ASKED[0]
    assert row["verdict"] == "refuted"  # exact arithmetic names the added image
    assert row["low"] <= row["value"] <= row["high"]
    assert row["low"] > 2 * row["chance"]
    assert row["n"] >= 10
    assert (row["adjusted_p_value"], row["family"]) == (row["p_value"], 1)
    assert row["encoder"] == "mini"
    assert row["command"].startswith("fdgsec attack --target ccst-overall --dataset shapes --attack differencing")


def test_the_pages_name_the_rule_the_population_and_the_command(folder: Path):
    (row,) = json.loads((folder / "claims.json").read_text())["claims"]

    for page in ((folder / "claims.md").read_text(), (folder / "claims.html").read_text()):
        assert row["rule"] in page.replace("&#x27;", "'")
        assert row["command"] in page
        assert "refuted" in page


def test_a_second_call_reads_the_report_and_gives_the_same_table(folder: Path, capsys: pytest.CaptureFixture[str]):
    before = (folder / "claims.json").read_text()
    (report,) = folder.glob("runs/*/report.json")
    stamp = report.stat().st_mtime_ns

    arguments = ["claims", "--dataset", "shapes", "--per-domain", "200", "--claim", ASKED[0], "--out", str(folder)]
    assert main(arguments) == 0

    assert (folder / "claims.json").read_text() == before
    assert report.stat().st_mtime_ns == stamp
    assert "refuted" in capsys.readouterr().out


def test_an_unknown_claim_is_one_line_with_the_nearest_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["claims", "--dataset", "shapes", "--claim", "ccst-overall-updates", "--out", str(tmp_path / "x")]) == 2

    said = capsys.readouterr().err
    assert "ccst-overall-update" in said
    assert len(said.strip().splitlines()) == 1


def test_every_claim_is_listed(capsys: pytest.CaptureFixture[str]):
    assert main(["list", "claims"]) == 0

    shown = capsys.readouterr().out
    assert all(claim.id in shown for claim in ledger())
