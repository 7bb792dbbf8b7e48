"""Tables are computed over months: a setting that comes later must not orphan what is stored by the hash of the others."""

from types import NoneType
from typing import get_args, get_type_hints

import pytest

from fdgsec.experiments.run_config import LATER, RunConfig, build
from fdgsec.experiments.settings import Settings
from fdgsec.runtime.errors import UsageError

BEFORE = "b5e903c4394f04c43f0ff5cb4e72d7aaf7fc4256709b942c104cf6794e259062"
"""What the settings below hashed to before `roles` was one of them."""


def test_a_setting_that_came_later_leaves_stored_names_as_they_were():
    assert RunConfig(method="ccst", options={"k": 2}).sha256 == BEFORE


def test_a_later_setting_that_is_used_gives_a_run_of_its_own():
    assert RunConfig(method="ccst", options={"k": 2}, roles="aside").sha256 != BEFORE


def test_every_later_setting_is_one_and_has_its_default_there():
    fresh = RunConfig(method="fedavg").document()

    assert {name: fresh[name] for name in LATER} == dict(LATER)


def test_settings_of_a_run_before_can_be_read():
    told = {name: value for name, value in RunConfig(method="fedavg").document().items() if name not in LATER}

    assert build(RunConfig, told, where="run") == RunConfig(method="fedavg")


def test_every_setting_that_verbs_take_is_one_of_a_run_and_of_the_same_type():
    stored = get_type_hints(RunConfig)

    for name, kind in get_type_hints(Settings).items():
        assert kind == stored[name] or set(get_args(stored[name])) == {kind, NoneType}, name


def test_frozen_norms_of_a_network_that_is_not_pretrained_are_refused():
    with pytest.raises(UsageError, match="add --pretrained"):
        RunConfig(method="fedavg", backbone="resnet18", norm="frozen")

    assert RunConfig(method="fedavg", backbone="resnet18", norm="frozen", pretrained=True).norm == "frozen"
