"""Every page of fdgsec: one base, landmarks, captions, anchors that exist, everything escaped and in one file."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from fdgsec.cli.tables import print_claims, print_seeds, print_sweep
from fdgsec.experiments.bench.protocols import Protocol
from fdgsec.experiments.bench.seeds import summary as seeds_summary
from fdgsec.experiments.bench.seeds_page import page as seeds_page
from fdgsec.experiments.bench.tables import summary as bench_summary
from fdgsec.experiments.bench.web_page import page as bench_page
from fdgsec.experiments.claims.tables import markdown
from fdgsec.experiments.claims.web_page import page as claims_page
from fdgsec.experiments.compare.compare_runs import compare
from fdgsec.experiments.report.bars import curves
from fdgsec.experiments.report.html import render
from fdgsec.experiments.report.pages import source
from fdgsec.experiments.report.words import rate
from fdgsec.experiments.sweep.plots import figures
from fdgsec.experiments.sweep.tables import verdict
from fdgsec.experiments.sweep.web_page import page as sweep_page
from tests.support.html_page import read
from tests.support.swept import curve as swept
from tests.unit.experiments.test_report_page import attacked, trained

HOSTILE = "<b>&amp;"
KINDS = ("report", "training", "comparison", "bench", "sweep", "claims", "seeds")


def cell(arm: str, seed: int, value: float, **accuracy: Any) -> dict[str, Any]:
    scores = {"value": value, "low": value - 0.1, "high": value + 0.1, "n": 100, "f1": {"value": 0.25, "n": 100},
              "per_domain": {"art": {"value": 0.8, "n": 30}}, "steps": {"per_client_and_round": 9.0, "total": 180.0},
              **accuracy}  # fmt: skip
    rounds = [{"round": float(number), "loss": 2 - value * number, "steps": 9.0, "clients": 2.0} for number in range(3)]
    return {
        "arm": arm, "validation": "", "domain": "sketch", "seed": seed, "accuracy": scores, "seconds": 2.0,
        "traffic": {"up": {"ModelState": 1000.0}, "down": {"ModelState": 1000.0}}, "curve": rounds, "guarantees": [],
        "rounds": 3, "participants": 2,
    }  # fmt: skip


def benched(*cells: dict[str, Any]) -> dict[str, Any]:
    return bench_summary(Protocol(title="A table", source="A paper"), "shapes", cells, planned=9)


def claimed() -> dict[str, Any]:
    claim = {
        "id": "ccst-1", "paper": "CCST", "section": "3.2", "quotes": [HOSTILE], "context": [], "holds_if": "", "scope": {},
        "criteria": [], "compared": None, "decided_by": "", "verdict": "contradicted", "otherwise": [], "command": "fdgsec",
        "adjusted_p_value": 0.01, "beyond": [],
    }  # fmt: skip
    seed = {"seed": 0, "value": 0.9, "low": 0.8, "high": 1.0, "chance": 0.5, "n": 50, "measurement": "auc", "gap": None,
            "excess": None, "slice": {"domain": "photo"}, "populations": 1, "chance_p_value": 0.01, "controlled": True}  # fmt: skip
    column = {"encoder": "mini", "decides": True, "seeds": [seed]}
    return {
        "dataset": "shapes", "profile": "quick", "encoders": ["mini"], "seeds": [0], "agreeing": 1, "registration": None,
        "claims": [{**claim, "columns": [column]}],
    }  # fmt: skip


def pages(tmp_path: Path) -> dict[str, str]:
    one, other = attacked(target=HOSTILE), attacked(target="fisc", encoder="pixels")
    for name, report in (("one", one), ("other", other), ("third", replace(one, target="ccst-single"))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(report.json())
    compare([tmp_path / name for name in ("one", "other", "third")], out=tmp_path / "out")
    sweep = {**swept({None: 1.0, 0.1: 0.9, 1.0: 0.05}, {None: [0.6, 0.7], 1.0: [0.5, 0.6]}), "target": HOSTILE}
    points = [{"round": 0.0, "loss": 2.0}, {"round": 1.0, "loss": 1.0}]
    return {
        "report": render(attacked(target=HOSTILE)), "training": render(replace(trained(), method=HOSTILE), points=points),
        "comparison": (tmp_path / "out" / "comparison.html").read_text(), "sweep": sweep_page(sweep, figures(sweep)),
        "bench": bench_page(benched(cell(HOSTILE, 0, 0.5), cell(HOSTILE, 1, 0.6), cell("fedavg", 0, 0.4))),
        "claims": claims_page(claimed()),
        "seeds": seeds_page(seeds_summary([5, 6], [replace(trained(), method=HOSTILE)] * 2)),
    }  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return pages(tmp_path_factory.mktemp("pages"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.medium
def test_a_page_has_landmarks_captions_heads_with_a_scope_and_anchors_that_exist_once(kind: str, made: dict[str, str]):
    page = read(made[kind])

    assert [page.counts.get(name) for name in ("header", "nav", "main", "footer", "h1")] == [1] * 5
    assert page.counts["caption"] == page.counts["table"]
    assert set(page.headings) == {"col", "row"}
    assert len(set(page.ids)) == len(page.ids)
    assert page.targets
    assert {target.removeprefix("#") for target in page.targets} <= set(page.ids)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.medium
def test_a_page_escapes_names_loads_nothing_and_fits_a_phone(kind: str, made: dict[str, str]):
    page = made[kind]

    assert "&lt;b&gt;&amp;amp;" in page
    assert HOSTILE not in page
    assert not re.search(r"(src|href)=\"(?!#|data:image/)", page)
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in page
    assert page.count("<table") == page.count('<div class="scroll" tabindex="0" role="region"')  # wide tables scroll


def test_one_style_sheet_serves_dark_screens_phones_and_print(made: dict[str, str]):
    css = source("page.css")

    assert all(f"<style>{css}</style>" in page for page in made.values())
    for wanted in ("prefers-color-scheme: dark", "max-width: 40rem", "@media print", "overflow-x: auto"):
        assert wanted in css


def test_a_table_of_accuracies_has_bars_with_intervals_a_curve_with_labels_and_steps(made: dict[str, str]):
    page = read(made["bench"])

    assert page.counts["path"] > 2  # whiskers
    assert ">fedavg</text>" in made["bench"]
    for words in ("9 (180)", "round 2", "none: no defense", "ModelState", "no finding"):
        assert words in page.text


def test_ends_of_a_curve_that_hardly_moves_are_told_apart():
    still, hardly, moving = (
        str(curves({"": [{"round": float(n), "loss": value} for n, value in enumerate(values)]}, "loss"))
        for values in ([4 / 3, 4 / 3], [4 / 3, 4 / 3 + 1e-9], [1.9604, 1.9597, 1.9596])
    )
    assert re.findall(r">(1\.\d*)</text>", still) == ["1.33"]
    assert re.findall(r">(1\.\d*)</text>", hardly) == ["1.3333", "1.3333"]
    assert re.findall(r">(1\.9\d*)</text>", moving) == ["1.9596", "1.9604"]


def test_a_page_of_seeds_says_what_guessing_a_class_reaches(made: dict[str, str]):
    report = trained()
    page = read(made["seeds"])

    assert f"guessing a class reaches {rate(report.guessing)}" in page.text
    assert 'class="baseline"' in made["seeds"]
    assert report.guessing == pytest.approx(1 / len(cast(list[str], report.dataset["classes"])))


def test_bars_of_seeds_start_at_the_share_of_the_most_frequent_class(capsys: pytest.CaptureFixture[str]):
    reports = [
        replace(one, accuracy={**(one.accuracy or {}), "majority_share": 0.208}) for one in (trained(), trained())
    ]
    found = seeds_summary((0, 1), reports)

    assert found["accuracy"]["majority_share"] == pytest.approx(0.208)  # type: ignore[index]
    assert "always naming the most frequent class of these images reaches .21" in seeds_page(found)
    print_seeds(found, as_json=False, out=None)
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(r"\(unseen\).* 0\.208 ", said)


def test_the_share_of_own_domains_is_the_mean_of_the_domains():
    one = trained()
    domains = {"art": {"value": 0.5, "majority_share": 0.2}, "photo": {"value": 0.7, "majority_share": 0.3}}
    own = {**(one.accuracy or {}), "majority_share": 0.208, "per_domain": domains}
    older = {**own, "per_domain": {**domains, "photo": {"value": 0.7}}}

    known, unknown = (seeds_summary((0, 1), [replace(one, accuracy=each)] * 2) for each in (own, older))

    assert known["own_domains"]["majority_share"] == pytest.approx(0.25)  # type: ignore[index]
    assert "majority_share" not in unknown["own_domains"]  # type: ignore[operator]


@pytest.mark.parametrize(("dataset", "drawn"), [("shapes", True), ("swatches", True), ("pacs", False)])
@pytest.mark.medium
def test_verdicts_on_drawn_images_are_no_finding_wherever_they_are_said(
    dataset: str, drawn: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    claims = {**claimed(), "dataset": dataset}
    sweep = {**swept({None: 1.0, 0.1: 0.9, 1.0: 0.05}), "dataset": dataset}
    print_claims(claims, out=tmp_path)
    print_sweep(sweep, out=tmp_path)
    terminal = capsys.readouterr().out

    said = [terminal, claims_page(claims), markdown(claims), sweep_page(sweep, figures(sweep)), verdict(sweep)]

    assert ["Mechanics only" in each for each in said] == [drawn] * 5
    assert terminal.count("Mechanics only") == 2 * drawn


def test_curves_are_means_over_the_runs_that_recorded_them():
    old = {key: said for key, said in cell("fedavg", 2, 0.4).items() if key not in ("curve", "guarantees")}
    arm = benched(cell("fedavg", 0, 0.4), cell("fedavg", 1, 0.6), old)["arms"]["fedavg"]

    assert [point["loss"] for point in arm["curve"]] == pytest.approx([2.0, 1.5, 1.0])
    assert benched(old)["arms"]["fedavg"]["curve"] == []
    assert "No number was recorded in two or more rounds." in bench_page(benched(old))


def test_an_interval_beyond_what_a_rate_can_be_is_cut_on_the_page_alone():
    found = benched(cell("fedavg", 0, 0.1), cell("fedavg", 1, 0.9))

    assert found["arms"]["fedavg"]["accuracy"]["average"]["low"] < 0
    assert "[0, 1]" in read(bench_page(found)).text


def test_a_comparison_says_what_does_not_compare_before_its_sentence_and_draws_groups_apart(made: dict[str, str]):
    page = made["comparison"]

    assert page.index("Not all of these runs are comparable") < page.index('class="sentence"')
    assert "other encoders: mini" in page
    assert page.count("<table><caption>Questions by run") == 2


def test_a_sweep_without_points_still_has_a_page():
    found = swept({})

    assert "Fewer than two values have finished." in sweep_page(found, figures(found))
    assert json.dumps(found)


def test_a_number_beyond_a_claim_that_no_run_measured_has_no_empty_table():
    document = claimed()
    note = {
        "says": "what else",
        "target": "feddag",
        "attack": "generator-leakage",
        "measurement": "psnr_gain",
        "rows": [],
    }
    document = {**document, "claims": [{**claim, "beyond": [note]} for claim in document["claims"]]}

    for said in (claims_page(document), markdown(document)):
        assert "what else. No run measured it." in said
        assert "Beyond ccst-1" not in said
        assert not said.rstrip().endswith("---|")
