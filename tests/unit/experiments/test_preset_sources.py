"""Where a preset's values come from: complete for the five papers, and no value of another origin without a reason."""

import json

import pytest

from fdgsec.cli import main
from fdgsec.experiments.explain import explain
from fdgsec.experiments.preset_sources import deviations, preset_values, sources, written
from fdgsec.experiments.run_config import presets
from fdgsec.runtime.errors import UsageError

METHODS = ("ccst", "stablefdg", "feddag", "fisc", "fedalign")
FIVE = [f"{method}-{kind}" for method in METHODS for kind in ("paper", "released") if f"{method}-{kind}" in presets()]
every_preset_of_the_five = pytest.mark.parametrize("name", FIVE)


def method_of(name: str) -> str:
    return name.rpartition("-")[0]


def test_the_five_papers_have_nine_presets_as_no_code_of_feddag_was_released():
    assert len(FIVE) == 9
    assert "feddag-released" not in FIVE


@every_preset_of_the_five
def test_every_value_has_a_source_with_the_papers_place_the_codes_value_or_a_reason(name: str):
    known = sources(method_of(name))

    assert set(preset_values(name)) - set(known) == set()
    for key in preset_values(name):
        source = known[key]
        assert source.paper is not None or source.code is not None or source.where or source.note, key
        assert source.paper is None or source.where, f"{key}: where does the paper say {source.paper}?"


@pytest.mark.parametrize("method", METHODS)
def test_every_source_is_of_a_value_that_a_preset_states(method: str):
    stated = {key for name in FIVE if method_of(name) == method for key in preset_values(name)}

    assert set(sources(method)) - stated == set()


@every_preset_of_the_five
def test_a_value_that_is_not_that_of_what_the_preset_follows_has_its_reason(name: str):
    assert {key for key, source in deviations(name).items() if not source.note} == set()


@pytest.mark.parametrize("name", [name for name in FIVE if name.endswith("-released")])
def test_a_released_preset_has_the_codes_value_wherever_that_is_known(name: str):
    assert set(deviations(name)) == set()


@every_preset_of_the_five
def test_explain_says_of_every_value_what_the_paper_the_code_and_the_preset_have(name: str):
    lines = dict(explain(name).sections)["values: ours, the paper's (where), the authors' code's"].splitlines()

    known = sources(method_of(name))
    assert len(lines) == len(preset_values(name))
    for line, (key, value) in zip(lines, preset_values(name).items(), strict=True):
        source = known[key]
        assert line.startswith(f"{key} = {written(value)}: paper ")
        assert (f"paper {written(source.paper)} ({source.where})" in line) == (source.paper is not None)
        assert (f"; code {written(source.code)}" in line) == (source.code is not None)
        assert source.note in line


@pytest.mark.parametrize("name", presets())
def test_every_preset_is_explained_in_words_and_as_a_document(name: str, capsys: pytest.CaptureFixture[str]):
    assert main(["explain", name, "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    text = "\n".join(found["sections"].values())
    assert found["name"] == name
    assert all(f"{key} = {written(value)}" in text for key, value in preset_values(name).items())
    if name.endswith("-dp"):  # a method's name, too
        assert found["kind"] == "method"
    else:
        assert found["kind"] == "preset"
        assert f"fdgsec train --preset {name}" in text


def test_an_unknown_presets_name_gets_the_nearest_one():
    for name, near in (("fisc-relased", "fisc-released"), ("stablefdg-papr", "stablefdg-paper")):
        with pytest.raises(UsageError, match=f"did you mean '{near}'"):
            explain(name)
