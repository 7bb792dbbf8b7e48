"""Settings from files and short options."""

import json
from pathlib import Path

import pytest

from fdgsec.cli.options import shortcuts, stored_settings
from fdgsec.experiments.run_config import attack_settings, train_settings
from fdgsec.runtime.errors import UsageError


def test_the_config_that_a_run_wrote_gives_the_same_settings(tmp_path: Path):
    first = train_settings(
        "ccst", {"rounds": 3, "defenses": ("style-noise:scale=1",), "local": "mixstyle", "seed": 7},
        assignments=["method.k=2", "with.alpha=0.3"],
    )  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(first.document(), default=str))

    again = train_settings("fedavg", {}, preset=str(tmp_path / "config.json"))

    assert again == first


def test_an_attacks_config_keeps_its_attacks_and_what_is_said_beside_it_wins(tmp_path: Path):
    first = attack_settings("ccst-single", {"attacks": ("membership",), "adversary": "client", "per_domain": 50})
    (tmp_path / "config.json").write_text(json.dumps(first.document(), default=str))

    again = attack_settings("ccst-single", {"per_domain": 60}, preset=str(tmp_path / "config.json"))

    assert (again.attacks, again.adversary, again.per_domain) == (("membership",), "client", 60)
    assert again.options == first.options
    assert again.preset == ""


def test_what_is_no_config_is_refused(tmp_path: Path):
    (tmp_path / "config.json").write_text("[1]")

    with pytest.raises(UsageError, match=r"is not the config\.json of a run"):
        stored_settings(None, tmp_path / "config.json")


def test_short_options_are_assignments():
    assert shortcuts(0.1, None, 32) == ("method.plan.learning_rate=0.1", "method.plan.batch_size=32")
    config = train_settings("fedavg", {}, assignments=shortcuts(0.1, 2, 32))
    assert config.options == {"plan": {"learning_rate": 0.1, "epochs": 2, "batch_size": 32}}
