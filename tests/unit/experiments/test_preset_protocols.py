"""Presets and protocols: `train --preset` is the experiment of `bench --protocol`, setting by setting."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import pytest

from fdgsec.cli import main
from fdgsec.experiments.bench.protocols import protocol_named
from fdgsec.experiments.preset_sources import PresetExperiment, preset_experiment
from fdgsec.experiments.run_config import RunConfig, presets, train_settings
from fdgsec.experiments.setup.run_inputs import method_of
from fdgsec.experiments.train import train
from fdgsec.runtime.errors import WeightsUnavailableError
from fdgsec.runtime.progress import NoProgress

OF_A_CELL = {"preset", "options", "target", "target_domain", "validation_domain", "seed"}
"""Settings that name a column, a seed or a label; `options` are compared as the method that they make."""


def experiment_of(name: str) -> PresetExperiment:
    found = preset_experiment(name)
    assert found is not None, f"{name} does not say what it is a setting of"
    return found


def settings(config: RunConfig) -> dict[str, Any]:
    """Every setting of a run by its dotted name: those of the run, of its method and of its plan."""
    run = {f"run.{key}": value for key, value in config.document().items() if key not in OF_A_CELL}
    made = options(method_of(config), "method")
    return {
        **run,
        **{key: made[key] for key in made if key not in ("method.encoder", "method.style_size")},
    }  # the run's


def options(made: Any, where: str) -> dict[str, Any]:  # any dataclass
    found: dict[str, Any] = {}
    for spec in dataclasses.fields(made):
        value = getattr(made, spec.name)
        found |= (
            options(value, f"{where}.{spec.name}")
            if dataclasses.is_dataclass(value)
            else {f"{where}.{spec.name}": value}
        )
    return found


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {key: (one.get(key), other.get(key)) for key in {*one, *other} if one.get(key) != other.get(key)}


@pytest.mark.parametrize("name", presets())
def test_every_preset_resolves_to_its_protocols_arm_but_for_what_it_declares(name: str):
    experiment = experiment_of(name)
    assert bool(experiment.protocol) != bool(experiment.why)
    if not experiment.protocol:
        return
    table, dataset = protocol_named(experiment.protocol), {"dataset": experiment.dataset}
    arm = {**table.arms[experiment.arm], "preset": name}
    arms = {**table.arms, experiment.arm: arm}

    alone = train_settings(experiment.method, dataset, preset=name)
    cell = dataclasses.replace(table, arms=arms).config(experiment.arm, (None, "any"), 0, dataset)

    assert alone.method == cell.method
    assert set(differences(settings(alone), settings(cell))) == set(experiment.differs)


@pytest.mark.parametrize("name", [name for name in presets() if name.endswith("-paper")])
def test_a_papers_preset_is_the_one_that_its_protocol_uses_and_declares_no_difference(name: str):
    experiment = experiment_of(name)

    if experiment.protocol:
        assert protocol_named(experiment.protocol).arm(experiment.arm).preset == name
    assert not experiment.differs


def test_each_of_the_five_papers_has_a_preset_with_a_protocol():
    found = {
        experiment_of(name).method for name in presets() if name.endswith("-paper") and experiment_of(name).protocol
    }

    assert {"ccst", "stablefdg", "feddag", "fisc", "fedalign"} <= found


@pytest.mark.parametrize("name", [name for name in presets() if not name.endswith("-dp")])
def test_presets_train_in_float32_on_every_processor(name: str):
    method = method_of(train_settings(experiment_of(name).method, {}, preset=name))

    assert method.client_plan is not None
    assert method.client_plan.precision == "float32"


@pytest.mark.parametrize("name", ["ccst-paper", "fisc-paper", "ccst-released", "fisc-released"])
def test_a_preset_whose_weights_are_missing_names_all_of_them_and_no_image_is_read(name: str, own_cache: object):
    config = train_settings(experiment_of(name).method, {"dataset": "no such dataset"}, preset=name)

    with pytest.raises(WeightsUnavailableError, match=re.escape("resnet50, adain_vgg, adain_decoder")) as raised:
        train(config, data_root=None, out=None, progress=NoProgress())

    assert name in str(raised.value)
    for weights in ("resnet50", "adain_vgg", "adain_decoder"):
        assert f"`fdgsec weights fetch {weights}`" in str(raised.value)


@pytest.mark.parametrize("name", [name for name in presets() if name.endswith(("-paper", "-released"))])
def test_train_with_a_papers_preset_alone_ends_with_exit_3_and_the_command_that_stores_its_weights(
    name: str, own_cache: object, capsys: pytest.CaptureFixture[str]
):
    backbone = train_settings(experiment_of(name).method, {}, preset=name).backbone

    code = main(["train", "--preset", name])

    assert code == 3
    said = capsys.readouterr().err
    assert f"preset {name} needs weights" in said
    assert f"fdgsec weights fetch {backbone}" in said


@pytest.mark.parametrize(
    ("protocol", "dataset"),
    [("ccst", "pacs"), ("fedalign", "pacs"), ("feddag", "camelyon17"), ("fisc-ltdo", "pacs"), ("stablefdg-multi", "pacs"), ("stablefdg-single", "pacs")],
)  # fmt: skip
def test_every_arm_of_a_papers_protocol_trains_in_float32(protocol: str, dataset: str):
    table = protocol_named(protocol)

    for arm in table.arms:
        plan = method_of(table.config(arm, (None, "any"), 0, {"dataset": dataset})).client_plan
        assert plan is not None
        assert plan.precision == "float32", arm
