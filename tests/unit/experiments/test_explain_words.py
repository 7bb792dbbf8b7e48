"""What `explain` says of the words of a report."""

import json

import pytest

from fdgsec.cli import main
from fdgsec.experiments.explain import explain
from fdgsec.experiments.explain_words import explained_word
from fdgsec.experiments.report.glossary import SLICES, WORDS
from fdgsec.experiments.report.vocabulary import ENCODERS as ENCODER_WORDS
from fdgsec.experiments.report.vocabulary import INTERVALS, STAGES, VALUES
from fdgsec.experiments.report.words import ADVERSARY_WORDS, KIND_WORDS, KNOWLEDGE_WORDS
from fdgsec.experiments.run_config import presets
from fdgsec.federation.artifacts import KINDS
from fdgsec.nn.styles.encoders import ENCODERS
from fdgsec.runtime.registry import names, targets
from fdgsec.threats.adversary import ADVERSARIES, KNOWLEDGE


def test_a_measurement_is_explained_with_the_attacks_that_measure_it(capsys: pytest.CaptureFixture[str]):
    assert main(["explain", "exact_list"]) == 0

    said = capsys.readouterr().out
    assert said.startswith("word exact_list: a measurement. The share of clients")
    assert "set-reconstruction" in said


def test_a_word_of_a_report_is_plain_data_too(capsys: pytest.CaptureFixture[str]):
    assert main(["explain", "undecided", "--json"]) == 0

    assert json.loads(capsys.readouterr().out)["kind"] == "word"


def test_no_word_hides_a_method_an_attack_a_defense_or_a_target():
    taken = {*names("methods"), *names("attacks"), *names("defenses"), *targets(), *presets()}

    assert [name for name in taken if explained_word(name) is not None] == []
    assert not taken & {*SLICES, *WORDS, *VALUES, *INTERVALS, *STAGES}


def test_every_encoder_adversary_kind_of_artifact_and_thing_to_know_has_a_meaning():
    assert set(ENCODER_WORDS) - {"none"} == set(ENCODERS)
    assert set(ADVERSARY_WORDS) == set(ADVERSARIES)
    assert set(KIND_WORDS) == set(KINDS)
    assert set(KNOWLEDGE_WORDS) == set(KNOWLEDGE)


def test_a_word_with_several_meanings_is_given_all_of_them():
    found = explained_word("style")

    assert found is not None
    assert found.title == "an entry of a slice. Which style was published."
    assert ("a value in a slice", "A picture is optimized until it has the style.") in found.sections


def test_a_method_with_a_local_one_is_explained_by_both():
    found = explain("ccst+mixstyle")

    assert found.kind == "method"
    assert "fdgsec explain mixstyle" in dict(found.sections)["methods"]
