"""The papers' tables as data: how settings are laid over each other, and what every bundled table must keep to."""

import json
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from fdgsec.data.catalog import DATASETS
from fdgsec.experiments.bench.protocols import Protocol, protocol_named, protocols
from fdgsec.experiments.bench.run_bench import BenchRequest, bench
from fdgsec.experiments.run_config import RunConfig
from fdgsec.experiments.setup.run_inputs import method_of
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import NoProgress

BUNDLED = [("protocol", name) for name in protocols()] + [("ablation", name) for name in protocols("ablation")]
every_bundled_table = pytest.mark.parametrize(("kind", "name"), BUNDLED, ids=lambda value: value)


def test_an_arm_takes_its_options_the_protocols_plan_and_the_users_settings():
    table = Protocol(
        title="", run={"rounds": 7, "backbone": "tiny"}, plan={"learning_rate": 0.5},
        arms={"mine": {"method": "ccst", "options": {"k": 2, "plan": {"momentum": 0.9}}}},
    )  # fmt: skip

    config = table.config("mine", (None, "sketch"), 3, {"dataset": "shapes", "rounds": 9}, ("method.k=1",))

    assert (config.rounds, config.backbone, config.seed, config.target_domain) == (9, "tiny", 3, "sketch")
    assert config.options == {"k": 1, "plan": {"learning_rate": 0.5, "momentum": 0.9}}


def test_a_protocol_wins_over_a_preset_a_dataset_over_the_protocol_and_an_arm_over_both():
    table = Protocol(
        title="", run={"rounds": 7, "image_size": 96}, plan={"batch_size": 8, "flip": 0.25}, options={"weights": "size"},
        datasets={
            "shapes": {"run": {"rounds": 3}, "plan": {"batch_size": 4}, "arms": {"mine": {"k": 1}}},
            "pacs": {"run": {"rounds": 100}},
        },
        arms={"mine": {"method": "ccst", "preset": "ccst-paper", "options": {"style": "single", "k": 2}, "run": {"image_size": 64}}},
    )  # fmt: skip

    config = table.config("mine", (None, "sketch"), 0, {"dataset": "shapes"})

    assert (config.rounds, config.image_size, config.backbone) == (3, 64, "resnet50")
    assert (config.options["k"], config.options["style"], config.options["weights"]) == (1, "single", "size")
    assert (config.options["plan"]["batch_size"], config.options["plan"]["flip"]) == (4, 0.25)
    assert config.options["select"] == "validation"  # what nobody but the preset says


def test_an_arm_carries_a_local_method_with_its_options_and_settings_of_its_own():
    stacked = {"method": "ccst", "local": "jigen", "local_options": {"permutations": 5}, "run": {"adapt": "tent"}}
    table = Protocol(title="", arms={"both": stacked})

    config = table.config("both", (None, "sketch"), 0, {"dataset": "shapes"}, ("with.jigsaw_weight=0.5",))

    assert (config.method_name, config.adapt) == ("ccst+jigen", "tent")
    assert config.local_options == {"permutations": 5, "jigsaw_weight": 0.5}
    assert config.sha256 != table.config("both", (None, "sketch"), 0, {"dataset": "shapes"}).sha256


def test_a_protocol_that_leaves_two_domains_out_says_which():
    table = Protocol(title="A table", pairs={"shapes": [{"validation": "photo", "test": "sketch"}]})

    config = table.config("fedavg", table.splits("shapes", [])[0], 0, {"dataset": "shapes"})

    assert (config.validation_domain, config.target_domain) == ("photo", "sketch")
    with pytest.raises(UsageError, match="A table: there are no pairs of unseen domains for pacs, only for shapes"):
        table.splits("pacs", [])


def test_the_columns_are_those_a_paper_tests_on():
    table = Protocol(title="", datasets={"camelyon17": {"domains": ["hospital_3"]}})

    assert table.splits("camelyon17", ["hospital_2", "hospital_3"]) == [(None, "hospital_3")]
    assert table.splits("pacs", ["photo", "sketch"]) == [(None, "photo"), (None, "sketch")]


def test_a_table_like_another_has_its_settings_but_neither_its_arms_nor_its_numbers():
    base, table = protocol_named("feddag"), protocol_named("feddag-rho", "ablation")

    assert (table.run, table.plan, table.options, table.metric) == (base.run, base.plan, base.options, "auc")
    assert set(table.arms) == {"paper", "sam", "zero"}
    assert not table.published


@pytest.mark.parametrize("dataset", ["shapes", "iwildcam"])
def test_fisc_without_two_domains_has_no_pairs_for_other_datasets(dataset: str):
    with pytest.raises(
        UsageError, match=re.escape(f"for {dataset}, only for pacs, office-home; use one of these datasets")
    ):
        protocol_named("fisc-ltdo").splits(dataset, ["photo", "sketch"])


def test_fisc_trains_on_the_pairs_of_domains_that_its_section_names():
    """Section A.2.2: (C, S), (A, C), (P, S), (P, A) and (A, C), (C, R), (P, A), (P, R)."""
    domains = {
        "pacs": {"art_painting", "cartoon", "photo", "sketch"},
        "office-home": {"Art", "Clipart", "Product", "Real World"},
    }
    splits = {name: protocol_named("fisc-ltdo").splits(name, []) for name in domains}

    seen = {name: [sorted(domains[name] - set(pair)) for pair in pairs] for name, pairs in splits.items()}

    assert seen["pacs"] == [
        ["cartoon", "sketch"], ["art_painting", "cartoon"], ["photo", "sketch"], ["art_painting", "photo"],
    ]  # fmt: skip
    assert seen["office-home"] == [
        ["Product", "Real World"], ["Clipart", "Real World"], ["Art", "Product"], ["Art", "Clipart"],
    ]  # fmt: skip


@pytest.mark.medium
def test_an_ablations_arms_are_trained_stacked_and_adapted(tmp_path: Path):
    given = {
        "backbone": "tiny", "pretrained": False, "encoder": "mini", "image_size": 32, "per_class": 4, "rounds": 1,
    }  # fmt: skip
    request = BenchRequest(
        ablation="ccst-orthogonality", dataset="shapes", arms=("ccst+jigen", "overall-1+tent"), domains=("sketch",), seeds=(0,),
        given=given,
    )  # fmt: skip

    found = bench(request, data_root=None, out=tmp_path, progress=NoProgress())

    rows = {row["arm"]: row for row in json.loads((tmp_path / "results.json").read_text())["cells"]}
    assert (found["finished"], found["planned"]) == (2, 2)
    assert {kind for kind in rows["ccst+jigen"]["traffic"]["up"]} >= {"ModelState", "StyleStatistics"}
    assert rows["overall-1+tent"]["accuracy"]["adapted"]["adaptation"] == "tent-ccst"
    assert "adapted" not in rows["ccst+jigen"]["accuracy"]
    assert rows["ccst+jigen"]["accuracy"]["steps"] == {"per_client_and_round": 2.0, "total": 6.0}  # 75 images, batch 64
    assert rows["ccst+jigen"]["processor_seconds"] > 0


@pytest.mark.slow  # eleven trainings
def test_every_arm_of_the_cpu_protocol_takes_the_same_optimizer_steps_and_the_centralized_one_is_marked(tmp_path: Path):
    given = {"backbone": "tiny", "pretrained": False, "image_size": 32, "per_class": 12, "rounds": 1}
    request = BenchRequest(
        protocol="cpu", dataset="shapes", domains=("sketch",), seeds=(0,), given=given,
        assignments=("method.plan.learning_rate=0.001",),
    )  # fmt: skip

    arms = bench(request, data_root=None, out=tmp_path, progress=NoProgress())["arms"]

    steps = {name: (arm["steps"]["per_client_and_round"], arm["steps"]["total"]) for name, arm in arms.items()}
    assert steps.pop("centralized") == (120.0, 120.0)
    assert set(steps.values()) == {(40.0, 120.0)}
    assert "120 steps against 40" in arms["centralized"]["notes"]
    assert not arms["centralized"]["difference"]
    assert "average" in arms["ccst"]["difference"]


def test_every_arm_of_the_cpu_protocol_names_its_options():
    table = protocol_named("cpu")

    named = {name for name in table.arms if table.arm(name).preset or table.arm(name).options}
    assert named == set(table.arms) - {"fedavg"}  # which has no options but the table's
    assert {"weights", "select", "keep_optimizer"} == set(table.options)
    assert set(table.plan) == {field.name for field in fields(TrainingPlan)}


@every_bundled_table
def test_every_arm_of_a_table_can_be_run_by_clients_of_its_number(kind, name: str):
    table = protocol_named(name, kind)

    for dataset in _datasets(table):
        for arm in table.arms:
            config = _config(table, arm, dataset)
            method_of(config).check(config.clients or 3)
    assert table.baseline in table.arms
    assert not any("," in arm for arm in table.arms), "--methods separates by commas"


@every_bundled_table
def test_every_arm_trains_by_the_same_plan_on_the_same_clients_but_for_what_it_states_itself(kind, name: str):
    table = protocol_named(name, kind)
    keys = ("backbone", "pretrained", "image_size", "partition", "clients", "participation", "rounds", "splits")

    for dataset in _datasets(table):
        configs = {arm: _config(table, arm, dataset) for arm in table.arms}
        stated = {arm: table.arm(arm).run for arm in table.arms}
        plans = [_plan(config) for config in configs.values()]
        for key in keys:
            assert len({getattr(config, key) for arm, config in configs.items() if key not in stated[arm]}) <= 1, key
        own = {name for arm in table.arms for name in table.arm(arm).options.get("plan", {})}
        # fields that some arm states (CCST's Table 3: three epochs) are compared as if none did
        alike = [replace(plan, **{name: getattr(TrainingPlan(), name) for name in own}) for plan in plans]
        assert all(first == second for first, second in pairwise(alike)), (dataset, plans)


@every_bundled_table
def test_every_name_in_a_table_is_the_catalogues_or_an_arms(kind, name: str):
    table = protocol_named(name, kind)

    for dataset, own in table.datasets.items():
        assert set(table.setting(dataset).domains) <= _domains(dataset)
        base = protocol_named(table.like) if table.like else table
        assert set(own.get("arms", {})) <= {*table.arms, *base.arms}
    for dataset, pairs in table.pairs.items():
        assert all({pair["validation"], pair["test"]} <= _domains(dataset) for pair in pairs)
    for dataset, printed in table.published.items():
        assert set(printed) <= set(table.arms)
        for arm, values in printed.items():
            assert set(values) <= {*_domains(dataset), "average"}, (dataset, arm)
            assert all(0 < value < 100 for value in values.values())
    for dataset, validated in table.published_validation.items():
        assert all(set(values) <= _domains(dataset) for values in validated.values())
    for printed in (*table.published_validation.values(), *table.published_costs.values()):
        assert set(printed) <= set(table.arms)


@every_bundled_table
def test_a_printed_average_is_that_of_its_columns(kind, name: str):
    table = protocol_named(name, kind)

    for dataset, arm, values in _rows(table):
        columns = [value for domain, value in values.items() if domain != "average"]
        half = (
            0.005 if any(round(10 * value, 6) % 1 for value in values.values()) else 0.05
        )  # of the last digit printed
        assert columns
        if "average" in values:
            found = sum(columns) / len(columns)
            assert abs(found - values["average"]) <= 2 * half + 1e-9, (dataset, arm, found)


@every_bundled_table
def test_a_table_with_numbers_says_where_they_are_printed(kind, name: str):
    table = protocol_named(name, kind)

    assert bool(table.published or table.published_costs) == bool(re.search(r"Tables? ", table.source))


def test_every_headline_number_of_the_five_papers_is_in_its_protocol():
    """The average of each paper's own method on PACS (FedDAG: on Camelyon17), typed again from the papers."""
    headlines = [
        ("stablefdg-single", "pacs", "stablefdg", 82.70), ("stablefdg-multi", "pacs", "stablefdg", 83.75),
        ("fisc-ltdo", "pacs", "fisc", 71.02), ("fisc-lodo", "pacs", "fisc", 80.37),
        ("fedalign", "pacs", "fedalign", 82.96), ("ccst", "pacs", "ccst", 86.52), ("feddag", "camelyon17", "feddag", 96.1),
    ]  # fmt: skip

    for name, dataset, arm, average in headlines:
        assert protocol_named(name).printed(dataset, arm)["average"] == average, name


def _datasets(table: Protocol) -> set[str]:
    return {"pacs", *table.published, *table.datasets}


def _config(table: Protocol, arm: str, dataset: str) -> RunConfig:
    return table.config(arm, (None, "any"), 0, {"dataset": dataset})


def _plan(config: RunConfig) -> TrainingPlan:
    """The plan by which clients train: that of the method below, where one is on top of another."""
    method = method_of(config)
    return cast(TrainingPlan, (getattr(method, "base", None) or cast(Any, method)).plan)


def _rows(table: Protocol) -> Iterator[tuple[str, str, dict[str, float]]]:
    for dataset, printed in table.published.items():
        for arm in printed:
            yield dataset, arm, dict(table.printed(dataset, arm))


def _domains(dataset: str) -> set[str]:
    files = DATASETS[dataset].files
    assert files is not None
    return {*files.domains, *(f"@{split}" for split in DATASETS[dataset].official)}
