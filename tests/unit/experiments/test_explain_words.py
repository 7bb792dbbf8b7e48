"""What `explain` says of the words of a report."""

import json

import pytest

from fdgsec.cli import main
from fdgsec.experiments.explain_words import explained_word
from fdgsec.experiments.report.glossary import SLICES, WORDS
from fdgsec.runtime.registry import names, targets


def test_a_measurement_is_explained_with_the_attacks_that_measure_it(capsys: pytest.CaptureFixture[str]):
    assert main(["explain", "exact_list"]) == 0

    said = capsys.readouterr().out
    assert said.startswith("word exact_list: a measurement. The share of clients")
    assert "set-reconstruction" in said


def test_a_word_of_a_report_is_plain_data_too(capsys: pytest.CaptureFixture[str]):
    assert main(["explain", "undecided", "--json"]) == 0

    assert json.loads(capsys.readouterr().out)["kind"] == "word"


def test_no_word_hides_a_method_an_attack_a_defense_or_a_target():
    taken = {*names("methods"), *names("attacks"), *names("defenses"), *targets()}

    assert [name for name in taken if explained_word(name) is not None] == []
    assert not taken & {*SLICES, *WORDS}
