"""What `fdgsec explain` says: enough to use whatever has a name, and the nearest name for any other."""

import inspect
import json
from dataclasses import fields

import pytest

from fdgsec.cli import main
from fdgsec.experiments.attack_measurements import MEASUREMENTS
from fdgsec.experiments.claims.catalogue import ledger
from fdgsec.experiments.explain import explain
from fdgsec.experiments.report.words import kind_in_words
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.registry import ATTACKS, DEFENSES, METHODS, TARGETS, resolve

CLAIMS = {claim.id: claim for claim in ledger()}


def sections(name: str) -> dict[str, str]:
    found = explain(name).sections
    assert len({heading for heading, _ in found}) == len(found)
    assert all(text.strip() for _, text in found)
    return dict(found)


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_is_explained_with_what_it_needs_and_how_it_is_controlled(name: str):
    cls = resolve("attacks", name)
    found = sections(name)

    assert all(kind_in_words(kind) in found["reads"] for kind in cls.reads)
    assert all(entry in found["needs"] for entry in cls.needs)
    assert found["positive control: planted information that it must find"] == inspect.getdoc(cls.positive_control)
    assert found["negative control: exchanged messages, in which it must find nothing"] == inspect.getdoc(
        cls.negative_control
    )
    assert found["measurements"].split(", ") == list(MEASUREMENTS[name])
    options = found[f"options (--set attacks.{name}.OPTION=VALUE)"]
    assert all(f"{spec.name} = " in options for spec in fields(cls))
    assert f"--attack {name}" in found["run it"]


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.medium
def test_the_command_that_runs_an_attack_is_one_that_would_run_it(name: str, capsys: pytest.CaptureFixture[str]):
    _, *command = sections(name)["run it"].split()

    assert main([*command, "--dataset", "shapes", "--per-domain", "84", "--image-size", "32", "--dry-run"]) == 0

    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.strip().startswith(name)]
    assert line.split()[-1] == "runs"


def test_targets_name_the_adversaries_who_can_and_why_nobody_can():
    found = dict(
        line.split(": ", 1) for line in sections("membership")["targets, and the adversaries who can"].splitlines()
    )

    assert found["ccst-overall"] == "server"
    assert found["ccst-single"] == "server, client, outsider"
    assert found["feddg"].startswith("nobody: reads styles that are means")
    assert sections("inter-client")["targets, and the adversaries who can"].splitlines()[0] == "ccst-overall: client"


@pytest.mark.parametrize("name", CLAIMS)
def test_every_claim_is_explained_with_its_paper_rule_and_command(name: str):
    claim, found = CLAIMS[name], sections(name)

    assert found["paper"] == f"{claim.paper}, {claim.section}"
    assert all(quote in found["the paper's words"] for quote in claim.quotes)
    assert ("not a testable claim" in found) == (claim.measured is None)
    if claim.measured is not None:
        assert found["holds if"] == claim.holds_if
        assert found["decided by"].startswith(f"{claim.measured.attack} by ")
        assert len(found["against it speak"].splitlines()) == len(claim.rows())
    assert f"--claim {name}" in found["command"]


def test_thresholds_are_those_of_the_verdicts():
    assert sections("stablefdg-labels")["against it speak"] == "auc > baseline + 0.05 (learned_on same domain)"
    assert (
        sections("fedalign-reconstruction")["against it speak"]
        .splitlines()[-1]
        .startswith("gallery_top1 > half way from the baseline to a perfect attack")
    )
    in_pictures = "(prior own, loss mse, rows as_if_released, class_from picture, domain not art_painting)"
    assert sections("ccst-content")["against it speak"].splitlines() == [
        f"balanced_accuracy > baseline + 0.05 {in_pictures}",
        f"balanced_accuracy > that of class_from exchanged picture + 0.05 {in_pictures}",
    ]
    assert sections("fisc-noise")["against it speak"] == "auc less than 0.05 lower"


@pytest.mark.parametrize("name", DEFENSES)
def test_every_defense_is_explained_with_its_options_and_where_it_acts(name: str):
    cls, found = resolve("defenses", name), sections(name)

    options = found[f"options (--defense {name}:OPTION=VALUE,...)"]
    assert all(f"{spec.name} = " in options for spec in fields(cls))
    assert found["acts"]
    assert f"--defense {name}" in found["run it"]


def test_where_defenses_act_is_told_apart():
    assert sections("style-noise")["acts"].splitlines()[0] == "on messages, where they leave a client"
    assert "on training, in every client" in sections("dp-sgd")["acts"]
    assert sections("secure-aggregation")["acts"] == "on the wire, on all clients' uploads together"
    assert "where messages are received" in sections("guards")["acts"]


def test_methods_that_a_defense_refuses_are_named_with_the_reason():
    assert "not stablefdg: " in sections("secure-aggregation")["methods"]
    assert sections("style-noise")["methods"] == "all, with their default options"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_explained_with_what_it_sends_and_its_options(name: str):
    found = sections(name)

    assert "update model: ModelState" in found["sends"]
    assert all(
        f"{spec.name} = " in found["options (--set method.OPTION=VALUE)"] for spec in fields(resolve("methods", name))
    )
    assert f"fdgsec train --method {name}" in found["run it"]


@pytest.mark.parametrize("name", [name for name in TARGETS if name not in METHODS])
def test_every_variant_is_explained_with_its_options_and_what_it_sends(name: str):
    found = sections(name)

    assert all(f"{option} = {value}" in found["its options here"] for option, value in TARGETS[name].options.items())
    assert f"share {'style' if 'overall' in name else 'styles'}: " in found["sends"]


@pytest.mark.parametrize(
    ("name", "near"),
    [("membershp", "membership"), ("private-style", "private-styles"), ("ccst-datasett", "ccst-dataset"),
     ("Linkage", "linkage")],
)  # fmt: skip
def test_another_name_gets_the_nearest_one_and_exit_2(name: str, near: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(UsageError, match=f"did you mean '{near}'"):
        explain(name)

    assert main(["explain", name]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)


def test_the_terminal_shows_no_line_wider_than_a_page_but_tables(capsys: pytest.CaptureFixture[str]):
    assert main(["explain", "membership"]) == 0

    lines = capsys.readouterr().out.splitlines()[1:]
    assert max(len(line) for line in lines if not line.strip().startswith("|")) <= 122


def test_the_document_has_the_same_sections(capsys: pytest.CaptureFixture[str]):
    assert main(["explain", "k-anonymous", "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["name"]) == ("defense", "k-anonymous")
    assert found["sections"] == sections("k-anonymous")
