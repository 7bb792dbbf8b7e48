"""The main job on the bundled data, small: a report that repeats itself and that explains every number."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache as remembered
from pathlib import Path
from typing import Any

import pytest

import fdgsec
from fdgsec.cli import main
from fdgsec.experiments.report.schema import AttackReport
from fdgsec.federation.artifacts import StyleStatistics
from fdgsec.federation.method import Client, Inbox, State
from fdgsec.methods.ccst import CCST

SMALL: dict[str, Any] = {"per_domain": 84, "image_size": 32}
FAST = ["differencing", "membership", "linkage", "domain-inference", "reidentification", "label-inference"]
OPTIONS = [
    "attacks.membership.sizes=[20]", "attacks.membership.clients=12", "attacks.linkage.clients=10", "attacks.label-inference.folds=2",
]  # fmt: skip
Runs = Callable[[str], tuple[AttackReport, AttackReport, Path]]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("FDGSEC_CACHE", str(folder))
        yield folder


def attacked(target: str, out: Path | None, *, fresh: bool = False, adversary: str = "server") -> AttackReport:
    return fdgsec.attack(target, attacks=FAST, **SMALL, assignments=OPTIONS, out=out, fresh=fresh, adversary=adversary)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Runs:
    """Give a target's fresh report, the one made of what is stored, and the latter's directory; made once a target."""

    @remembered
    def of(target: str) -> tuple[AttackReport, AttackReport, Path]:
        out, fresh = tmp_path_factory.mktemp(target) / "run", attacked(target, None, fresh=True)
        shutil.rmtree(cache / "attacks")  # the run is kept, its attacks are not
        return fresh, attacked(target, out), out

    return of


def comparable(report: AttackReport) -> dict[str, object]:
    def stripped(value: object) -> object:
        if isinstance(value, dict):
            return {k: stripped(v) for k, v in value.items() if k not in ("seconds", "reused", "environment")}
        return [stripped(v) for v in value] if isinstance(value, list) else value

    found = stripped(json.loads(report.json()))
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("target", ["ccst-overall", pytest.param("ccst-single", marks=pytest.mark.slow)])
def test_a_fresh_run_and_a_cached_one_report_the_same(target: str, runs: Runs):
    first, cached, _ = runs(target)  # every attack runs anew on a stored run

    assert comparable(first) == comparable(cached)
    assert (first.reused, cached.reused) == (False, True)


def test_the_run_directory_holds_the_report_in_every_form(runs: Runs):
    _, report, out = runs("ccst-overall")

    names = {file.name for file in out.iterdir()}
    page = (out / "report.html").read_text()

    assert {"report.json", "report.html", "measurements.csv", "config.json", "transcript.jsonl", "payloads"} <= names
    assert json.loads((out / "report.json").read_text()) == json.loads(report.json())
    assert page.count("<script") == page.count("<script>") == 1  # inline: rows are sorted and filtered by it
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert not list(out.parent.glob(".run.*"))


@pytest.mark.medium
def test_every_measurement_has_chance_and_interval_or_says_why_not(runs: Runs):
    _, report, _ = runs("ccst-single")

    rows = [row for attack in report.attacks for row in attack.measurements]
    assert rows
    for row in rows:
        if row.judged:
            assert row.chance is not None
            assert row.low is not None
            assert row.method
        elif row.verdict == "unavailable":
            assert row.unavailable


@pytest.mark.parametrize("target", ["ccst-overall", "ccst-single"])
@pytest.mark.medium
def test_every_attack_that_ran_passed_its_controls(target: str, runs: Runs):
    _, report, _ = runs(target)

    ran = [attack for attack in report.attacks if attack.status == "done"]
    assert len(ran) >= 3
    for attack in ran:
        assert attack.positive
        assert all(control.passed for control in attack.positive), attack.name
        assert all(control.passed for control in attack.negative), attack.name


def test_two_releases_give_the_added_images_style_away(runs: Runs):
    _, report, _ = runs("ccst-overall")
    rows = next(attack for attack in report.attacks if attack.name == "differencing").measurements

    errors = [row.value for row in rows if row.name == "relative_error"]
    hits = [row.value for row in rows if row.name == "top1"]
    assert (len(errors), len(hits)) == (6, 3)  # per domain; a whole client that joins is found by its style alone
    assert all(error is not None and error < 1e-3 for error in errors)
    assert hits == [1.0, 1.0, 1.0]


def test_a_known_image_is_found_behind_its_single_style(runs: Runs):
    _, report, _ = runs("ccst-single")
    rows = next(attack for attack in report.attacks if attack.name == "reidentification").measurements

    known = [row.value for row in rows if row.name == "top1" and row.slice.get("transform") == "known"]
    assert known
    assert all(value is not None and value >= 0.95 for value in known)


@pytest.mark.medium
def test_an_attack_that_needs_more_than_the_adversary_knows_is_skipped_with_the_reason(cache: Path):
    report = attacked("ccst-overall", None, adversary="client")

    membership = next(attack for attack in report.attacks if attack.name == "membership")
    assert membership.status == "skipped"
    assert "auxiliary" in membership.reason


def test_the_transcript_of_the_exchange_lists_every_message(runs: Runs):
    _, report, _ = runs("ccst-overall")

    sent = [(row["sender"], row["receiver"], row["kind"], row["bytes"]) for row in report.artifacts]
    assert sent[:3] == [(f"client:{n}", "server", "StyleStatistics", 2048) for n in range(3)]
    assert [row[1] for row in sent[3:]] == ["client:0", "client:1", "client:2"]


@pytest.mark.medium
def test_the_command_line_prints_the_document_and_nothing_else(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    code = main(
        ["attack", "--per-domain", "42", "--image-size", "32", "--attack", "differencing", "--json", "--out", str(tmp_path / "r")]
    )  # fmt: skip

    captured = capsys.readouterr()
    assert code == 0
    assert json.loads(captured.out)["schema"] == 1
    assert captured.err == ""


@pytest.mark.medium
def test_a_dry_run_says_what_would_run_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    small = ["--per-domain", "84", "--image-size", "32"]
    code = main(["attack", "--target", "ccst-overall", *small, "--dry-run", "--out", str(tmp_path / "r")])

    assert code == 0
    assert "skipped" in capsys.readouterr().out
    assert not (tmp_path / "r").exists()


@pytest.mark.medium
def test_models_are_asked_about_images_without_an_option(capsys: pytest.CaptureFixture[str]):
    small = ["--per-domain", "84", "--image-size", "32"]
    assert main(["attack", "--target", "fedavg", "--rounds", "1", *small, "--dry-run"]) == 0

    (line,) = [line for line in capsys.readouterr().out.splitlines() if "model-membership" in line]
    assert line.split() == ["model-membership", "runs"]


@pytest.mark.parametrize("verb", [[], ["--dry-run"]])
def test_an_attack_asked_for_by_name_that_cannot_read_the_target_is_refused(
    verb: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "r"
    code = main(["attack", "--target", "ccst-overall", "--attack", "pool-exposure", *verb, "--out", str(out)])

    told = capsys.readouterr()
    assert code == 2
    assert told.err.startswith("fdgsec: attack pool-exposure cannot run on ccst-overall: not applicable: ")
    assert not out.exists()


@pytest.mark.parametrize("verb", [[], ["--dry-run"]])
@pytest.mark.medium
def test_an_attack_asked_for_by_name_that_has_nothing_to_ask_ends_with_exit_code_2(
    verb: list[str], cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    given = ["--per-domain", "21", "--image-size", "32", "--attack", "inter-client", "--attack", "differencing"]
    code = main(["attack", *given, *verb, "--out", str(tmp_path / "r")])

    told = capsys.readouterr()
    assert code == 2
    assert "attack inter-client did not run: asks what a client learns of the others" in told.err
    assert (tmp_path / "r" / "report.json").exists() is not bool(verb)


def test_a_dry_run_compares_the_release_with_what_attacks_take_it_for(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    share = CCST.share

    def halved(method: CCST, client: Client, **given: Any) -> tuple[Inbox, State]:
        sent, state = share(method, client, **given)
        style = sent["style"]
        assert isinstance(style, StyleStatistics)
        return {"style": replace(style, mean=style.mean / 2)}, state

    monkeypatch.setattr(CCST, "share", halved)

    code = main(["attack", "--per-domain", "21", "--image-size", "32", "--dry-run"])

    assert code == 0
    assert "not run: the release 'style' is not" in " ".join(capsys.readouterr().out.split())


@pytest.mark.medium
def test_training_reports_accuracy_on_the_unseen_domain(cache: Path, tmp_path: Path):
    report = fdgsec.train("ccst", rounds=1, out=tmp_path / "run", **dict(SMALL, per_domain=28))

    assert report.accuracy is not None
    assert report.accuracy["unseen_domain"] == "sketch"
    assert report.accuracy["n"] == 28
    assert {tuple(row[name] for name in ("stage", "sender", "receiver")) for row in report.model_traffic} == {
        ("model", "server", "clients"), ("update", "clients", "server"),
    }  # fmt: skip
    assert (tmp_path / "run" / "curve.json").exists()
    page = (tmp_path / "run" / "report.html").read_text()
    assert "accuracy on the unseen domain sketch" in page
    assert "Bars of accuracies start at always naming the most frequent class of these images" in page
    scores: Any = report.accuracy
    for score in (scores, *scores["per_domain"].values()):
        assert 1 / 7 <= score["majority_share"] <= 1


@pytest.mark.slow
def test_style_inversion_runs_with_all_its_controls(cache: Path):
    options = ['attacks.style-inversion.losses=["mse"]', "attacks.style-inversion.size=32"]
    options.append('attacks.style-inversion.priors=["intra", "inter"]')
    report = fdgsec.attack("ccst-single", attacks=["style-inversion"], per_domain=84, assignments=options)

    attack = report.attacks[0]
    names = {(row.name, str(row.slice.get("over", ""))) for row in attack.measurements}
    assert attack.status == "done"
    assert {("psnr_gain", f"B{n}") for n in range(5)} <= names
    assert {row.slice.get("prior") for row in attack.measurements if row.value is not None} >= {"intra", "inter"}
    assert all(control.passed for control in attack.positive)
    assert any(figure.png for figure in attack.figures)
