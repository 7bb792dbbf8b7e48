"""Options, presets and settings that nobody would type, or that a server sends: one error that says what is expected."""

from pathlib import Path
from typing import Any

import pytest

from fdgsec.experiments.flower.jobs import settings_read
from fdgsec.experiments.run_config import RunConfig, build, defense_of, load_preset, parse_value, train_settings
from fdgsec.experiments.setup.run_inputs import method_of
from fdgsec.runtime.errors import UsageError


def resolved(*assignments: str, **given: Any) -> RunConfig:
    return train_settings("ccst", given, assignments=assignments)


@pytest.mark.parametrize(
    ("assignments", "said"),
    [
        (["with=0.5"], "with is a table of options, as in with.NAME=VALUE; got 0.5"),
        (["method=ccst"], "method is a table of options"),
        (["attacks=[1]"], "attacks is a table of options"),
        (["clients=1", "clients.x=2"], "gives clients a value and options of its own"),
        ([".".join("a" * 30) + "=1"], "names an option 29 deep"),
        (["rounds=" + "[" * 5000], "run.rounds cannot be"),
        (["rounds=" + "9" * 5000], "run.rounds cannot be"),
        (["rounds=" + "9" * 20_000], "a value of 20000 characters"),
        (["rounds=3\nseed = 5"], "run.rounds cannot be"),
        (["method.style=\udcff"], "is not text in UTF-8"),
        (["defenses=5"], "defenses is a list"),
        (["defenses=[5]"], "a defense is given by name"),
    ],
    ids=range(12),
)  # fmt: skip
def test_a_bad_assignment_is_refused_with_the_reason(assignments: list[str], said: str):
    with pytest.raises(UsageError) as caught:
        resolved(*assignments)

    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"method = 5", "method is a table"), (b"with = []", "with is a table"), (b"[run]\ndefenses = [5]", "a defense is given by name"),
        (b"a = " + b"[" * 5000, "is not TOML"), (b"x = '\xff'", "is not TOML"), (b"[run]\nrounds = " + b"9" * 5000, "is not TOML"),
        (b"#" * 2**19, "has more than 262144 bytes"),
    ],
    ids=range(7),
)  # fmt: skip
def test_a_bad_preset_is_refused_with_the_reason(content: bytes, said: str, tmp_path: Path):
    (tmp_path / "preset.toml").write_bytes(content)

    with pytest.raises(UsageError) as caught:
        train_settings("ccst", {}, preset=str(tmp_path / "preset.toml"))

    assert said in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 5000, "[]", "3", '{"purpose": "train"}', '{"purpose": "train", "config": []}', '{"purpose": [], "config": {}}',
        '{"purpose": "train", "config": {"method": "ccst", "defenses": [5]}}',
        '{"purpose": "train", "config": {"method": "ccst", "delta": 1' + "0" * 400 + "}}",
        '{"purpose": "train", "config": {"method": "ccst", "seed": ' + "9" * 5000 + "}}",
    ],
    ids=range(9),
)  # fmt: skip
def test_bad_settings_of_a_server_are_refused(text: str):
    with pytest.raises(UsageError):
        settings_read(text)


@pytest.mark.parametrize("noise", ["1e-9", "1e-300", "9.99e-7"])
def test_noise_whose_cost_overflows_is_refused_before_training(noise: str):
    with pytest.raises(UsageError, match=r"must be 0 \(no guarantee\) or at least 1e-06"):
        defense_of(f"dp-sgd:noise_multiplier={noise}")


def test_an_integer_of_python_beyond_64_bits_is_refused_where_a_float_is_wanted():
    with pytest.raises(UsageError, match=r"run\.delta cannot be an integer of 1329 bits"):
        build(RunConfig, {"method": "ccst", "delta": 10**400}, where="run")


@pytest.mark.parametrize(
    ("text", "value"), [("3", 3), ("0.1", 0.1), ("true", True), ("[1, 2]", [1, 2]), ("overall", "overall"), ("none", None), ("", "")]
)  # fmt: skip
def test_ordinary_values_are_read_as_before(text: str, value: object):
    assert parse_value(text) == value


def test_bundled_presets_are_read_as_before():
    assert load_preset("ccst-paper")["method"]


@pytest.mark.parametrize(("text", "value"), [(".1", 0.1), ("-.5", -0.5), ("2.", 2.0), ("+.25", 0.25)])
def test_numbers_without_a_digit_beside_the_point_are_numbers(text: str, value: float):
    assert parse_value(text) == value


@pytest.mark.parametrize("value", ["none", '"none"'])
def test_none_is_a_choice_where_it_is_listed(value: str):
    plan = method_of(resolved(f"method.plan.frozen={value}")).client_plan

    assert plan is not None
    assert plan.frozen == "none"
