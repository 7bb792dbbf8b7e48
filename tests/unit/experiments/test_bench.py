"""The papers' tables: which cells a protocol plans, what a results file resumes, and how a table is put together."""

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fdgsec.defenses.secure_aggregation import SecureAggregation
from fdgsec.experiments.bench import run_bench as verb
from fdgsec.experiments.bench.protocols import Protocol
from fdgsec.experiments.bench.run_bench import BenchRequest, bench, plan, traffic
from fdgsec.experiments.bench.tables import latex, markdown, mean_of, spreadsheet, summary
from fdgsec.experiments.failed_runs import FailedRunsError
from fdgsec.experiments.report.schema import AttackReport
from fdgsec.experiments.run_config import RunConfig, train_settings
from fdgsec.experiments.train import train
from fdgsec.runtime.errors import DataError, UsageError
from fdgsec.runtime.progress import NoProgress

REQUEST = BenchRequest(dataset="shapes", arms=("fedavg", "ccst-overall"), domains=("sketch", "cartoon"), seeds=(0, 1))
TABLE = Protocol(title="A table", source="A paper, Table 1", published={"shapes": {"fedavg": {"sketch": 55.7}}})


STEPS = {"per_client_and_round": 9.0, "total": 180.0}


def report(value: float, **changes: object) -> AttackReport:
    accuracy = {
        "value": value,
        "low": value - 0.1,
        "high": value + 0.1,
        "n": 100,
        "auc": {"value": 0.5, "n": 100},
        "per_domain": {},
        "steps": STEPS,
    }
    plain = AttackReport(
        target="fedavg", method="fedavg", preset="", dataset={"roles": {"train": {"client:0": 5, "client:1": 5}}},
        encoder="none", backbone="tiny", seed=0, profile="full", reused=False, defenses=[], guarantees=[], accuracy=accuracy,
        attacks=[], artifacts=[], model_traffic=[], transcript_sha256="0", environment={}, seconds=1.0,
    )  # fmt: skip
    return replace(plain, **changes)


def row(
    arm: str, domain: str, seed: int, value: float, *, own: float = 0.8, steps: int = 9, rounds: int = 20
) -> dict[str, Any]:
    accuracy = {
        "value": value, "low": value - 0.1, "high": value + 0.1, "n": 100, "f1": {"value": 0.25, "n": 100},
        "per_domain": {"art": {"value": own, "n": 30}, "photo": {"value": own + 0.1, "n": 10}},
        "steps": {"per_client_and_round": float(steps), "total": float(steps * rounds)},
    }  # fmt: skip
    sent = {"up": {"ModelState": 1000.0}, "down": {"ModelState": 1000.0}}
    return {
        "arm": arm, "validation": "", "domain": domain, "seed": seed, "accuracy": accuracy, "traffic": sent, "seconds": 2.0,
        "processor_seconds": 1.5,
    }  # fmt: skip


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """Stand in for training: every run ends at once, at .5 plus a hundredth of its seed."""
    seen: list[RunConfig] = []

    def train(config: RunConfig, **_: object) -> AttackReport:
        seen.append(config)
        return report(0.5 + config.seed / 100)

    monkeypatch.setattr(verb, "train", train)
    return seen


def test_cells_come_seed_by_seed_with_every_domain_and_arm():
    cells = [cell for cell, _ in plan(REQUEST, REQUEST.table(), data_root=None)]

    assert [(cell.seed, cell.domain, cell.arm) for cell in cells[:4]] == [
        (0, "cartoon", "fedavg"), (0, "cartoon", "ccst-overall"), (0, "sketch", "fedavg"), (0, "sketch", "ccst-overall"),
    ]  # fmt: skip
    assert len({cell.key for cell in cells}) == len(cells) == 8


def test_a_finished_cell_is_not_run_again(trained: list[RunConfig], tmp_path: Path):
    first = bench(REQUEST, data_root=None, out=tmp_path, progress=NoProgress(), limit=3)
    second = bench(REQUEST, data_root=None, out=tmp_path, progress=NoProgress())

    assert (first["finished"], second["finished"], second["planned"], len(trained)) == (3, 8, 8, 8)
    assert bench(REQUEST, data_root=None, out=tmp_path, progress=NoProgress()) == second
    assert len(trained) == 8


def failing(monkeypatch: pytest.MonkeyPatch, *failed: int) -> None:
    """Have the runs with these numbers, in turn, end with an error."""
    run, begun = verb.train, list[RunConfig]()

    def train(config: RunConfig, **given: Any) -> AttackReport:
        begun.append(config)
        if len(begun) - 1 in failed:
            raise UsageError("the weights are not finite.")
        return run(config, **given)

    monkeypatch.setattr(verb, "train", train)


def test_a_cell_that_fails_stops_no_other_one(
    trained: list[RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    failing(monkeypatch, 2, 5)
    told = list[str]()

    with pytest.raises(
        FailedRunsError, match="runs that failed: 2; the same command tries them again: fedavg, sketch, seed 0"
    ):
        bench(REQUEST, data_root=None, out=tmp_path, progress=NoProgress(), tell=told.append)

    assert len(trained) == len(json.loads((tmp_path / "results.json").read_text())["cells"]) == 6
    assert json.loads((tmp_path / "bench.json").read_text())["finished"] == 6
    assert told[3].startswith("fedavg, sketch, seed 0: failed (the weights are not finite.); 5 runs and ")
    assert bench(REQUEST, data_root=None, out=tmp_path, progress=NoProgress())["finished"] == 8
    assert len(trained) == 8


def test_where_the_first_cell_fails_none_follows(
    trained: list[RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    failing(monkeypatch, 0)

    with pytest.raises(UsageError, match=r"^the weights are not finite\.$"):
        bench(REQUEST, data_root=None, out=tmp_path, progress=NoProgress())

    assert not trained


@pytest.mark.medium
def test_other_settings_are_other_cells(trained: list[RunConfig], tmp_path: Path):
    bench(REQUEST, data_root=None, out=tmp_path, progress=NoProgress())
    bench(replace(REQUEST, given={"rounds": 3}), data_root=None, out=tmp_path, progress=NoProgress())

    assert len(trained) == 16
    assert len(json.loads((tmp_path / "results.json").read_text())["cells"]) == 16


@pytest.mark.parametrize("content", ["[]", "{", '{"schema": 7, "cells": []}', '{"schema": 1}'], ids=str)
def test_a_file_that_holds_no_results_is_refused_and_kept(content: str, tmp_path: Path, trained: list[RunConfig]):
    (tmp_path / "results.json").write_text(content)

    with pytest.raises(DataError, match=r"results\.json"):
        bench(REQUEST, data_root=None, out=tmp_path, progress=NoProgress())
    assert (tmp_path / "results.json").read_text() == content


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (replace(REQUEST, arms=("fedavgg",)), "did you mean 'fedavg'"),
        (replace(REQUEST, domains=("skech",)), "skech is not a test domain here"),
        (replace(REQUEST, seeds=(1, 1)), "seeds must differ"),
        (replace(REQUEST, protocol="fast"), "unknown protocol 'fast'"),
        (replace(REQUEST, ablation="everything"), "unknown ablation 'everything'"),
    ],
    ids=["arm", "domain", "seeds", "protocol", "ablation"],
)
def test_what_is_not_there_is_refused_before_anything_runs(
    request_: BenchRequest, said: str, tmp_path: Path, trained: list[RunConfig]
):
    with pytest.raises(UsageError, match=re.escape(said)):
        bench(request_, data_root=None, out=tmp_path, progress=NoProgress())
    assert not trained
    assert not list(tmp_path.iterdir())


def test_differences_are_paired_by_seed():
    rows = [
        row("fedavg", "sketch", 0, 0.50), row("fedavg", "sketch", 1, 0.60), row("fedavg", "sketch", 2, 0.70),
        row("fisc", "sketch", 0, 0.52), row("fisc", "sketch", 1, 0.62), row("fisc", "sketch", 2, 0.72),
    ]  # fmt: skip

    arm = summary(TABLE, "shapes", rows, planned=6)["arms"]["fisc"]

    assert (arm["difference"]["sketch"]["low"], arm["difference"]["sketch"]["high"]) == (None, None)  # seeds that tie
    assert arm["accuracy"]["sketch"]["high"] - arm["accuracy"]["sketch"]["value"] == pytest.approx(
        4.302653 * 0.1 / 3**0.5, rel=1e-6
    )


def test_the_average_is_of_seeds_that_have_every_domain():
    rows = [row("fedavg", "sketch", 0, 0.4), row("fedavg", "photo", 0, 0.6), row("fedavg", "sketch", 1, 0.9)]

    accuracy = summary(TABLE, "shapes", rows, planned=4)["arms"]["fedavg"]["accuracy"]

    assert accuracy["average"] == {"value": 0.5, "low": None, "high": None, "n": 1}
    assert accuracy["sketch"]["n"] == 2


def test_a_tables_metric_fills_its_columns_and_the_others_stand_beside():
    rows = [row("fedavg", "sketch", 0, 0.4), row("fedavg", "photo", 0, 0.5)]
    rows[0]["accuracy"]["auc"] = {"value": 0.75, "n": 100}

    table = Protocol(title="A table", metric="auc")
    found = summary(table, "shapes", rows, planned=2)
    arm = found["arms"]["fedavg"]

    assert arm["accuracy"] == {"sketch": {"value": 0.75, "low": None, "high": None, "n": 1}}  # undefined on photo
    assert arm["other_metrics"] == {"accuracy": pytest.approx(0.45, abs=1e-12), "f1": 0.25}
    assert "weighted AUC on the unseen domain" in markdown(found)


def test_an_arm_that_adapts_counts_with_its_accuracy_after_that():
    plain, adapting = row("fedavg", "sketch", 0, 0.4), row("fedavg+tent", "sketch", 0, 0.4)
    adapting["accuracy"]["adapted"] = {"adaptation": "tent", "value": 0.6, "low": 0.5, "high": 0.7, "n": 100}

    arm = summary(TABLE, "shapes", [plain, adapting], planned=2)["arms"]["fedavg+tent"]

    assert arm["accuracy"]["sketch"]["value"] == 0.6
    assert arm["difference"]["sketch"]["value"] == pytest.approx(0.2, abs=1e-12)
    assert arm["other_metrics"]["accuracy"] == 0.4
    written = list(csv.DictReader(io.StringIO(spreadsheet([plain, adapting]))))
    assert [line["adapted"] for line in written] == ["", "0.6"]


def test_the_papers_average_stands_only_beside_one_over_the_same_domains():
    printed = {"shapes": {"fedavg": {"sketch": 50.0, "photo": 70.0, "average": 60.0}}}
    table = Protocol(title="A table", published=printed)
    rows = [row("fedavg", "sketch", 0, 0.4), row("fedavg", "photo", 0, 0.6)]

    part = summary(table, "shapes", rows[:1], planned=2)["arms"]["fedavg"]["paper"]
    whole = summary(table, "shapes", rows, planned=2)["arms"]["fedavg"]["paper"]

    assert part == {"sketch": 50.0, "photo": 70.0}
    assert whole == {"sketch": 50.0, "photo": 70.0, "average": 60.0}


def test_what_differs_from_the_protocol_is_said_wherever_the_paper_is_quoted():
    given = {"rounds": 3, "backbone": None, "device": "cpu"}
    changed = BenchRequest(given=given, assignments=("run.splits=official",)).changed()
    rows = [row("fedavg", "sketch", 0, 0.4)]

    assert changed == ["rounds=3", "run.splits=official"]
    quoted = markdown(summary(TABLE, "shapes", rows, planned=1, changed=changed))
    assert "Not the protocol's: rounds=3, run.splits=official; so the paper's numbers are no reference here." in quoted
    assert "Not the protocol's" not in markdown(summary(TABLE, "shapes", rows, planned=1))
    without = markdown(summary(TABLE, "pacs", rows, planned=1, changed=changed))
    assert "Not the protocol's: rounds=3, run.splits=official." in without
    assert "paper" not in without


def test_a_table_has_the_accuracy_of_always_naming_the_most_frequent_class():
    rows = [row("fedavg", domain, 0, 0.4) for domain in ("photo", "sketch")]
    for each, share in zip(rows, (0.258, 0.208), strict=True):
        each["accuracy"]["majority_share"] = share

    assert "| most frequent class | 25.8 | 20.8 | 23.3 |" in markdown(summary(TABLE, "shapes", rows, planned=2))


def test_shares_of_the_most_frequent_class_are_averaged_over_the_cells_that_recorded_them():
    rows = [row("fedavg", "photo", seed, 0.4) for seed in range(3)]
    for each, share in zip(rows, (0.2, 0.3), strict=False):
        each["accuracy"]["majority_share"] = share

    for order in (rows, rows[::-1]):
        assert "| most frequent class | 25.0 | 25.0 |" in markdown(summary(TABLE, "shapes", order, planned=3))


def changed_row(arm: str, **changes: Any) -> dict[str, Any]:
    made = row(arm, "photo", 0, 0.4)
    return {**made, "accuracy": {**made["accuracy"], **changes}}


def test_an_arm_that_was_measured_on_other_images_is_not_compared():
    rows = [changed_row("fedavg", n=400), changed_row("ccst", n=50)]

    arm = summary(TABLE, "shapes", rows, planned=2)["arms"]["ccst"]

    assert arm["notes"] == ["other test images: not comparable"]
    assert arm["difference"] == {}


def test_an_arm_without_own_domain_accuracy_says_so():
    rows = [changed_row("fedavg", per_domain={"art": {"value": 0.9, "n": 9}}), changed_row("ccst", per_domain={})]

    assert summary(TABLE, "shapes", rows, planned=2)["arms"]["ccst"]["notes"] == ["own domains not measured"]


def test_a_table_says_where_its_cells_are_of_several_versions_and_how_many_seeds_a_mean_has():
    rows = [{**row(arm, "photo", seed, 0.4), "environment": {"code_sha256": arm}} for arm, seed in
            (("fedavg", 0), ("fedavg", 1), ("ccst", 0))]  # fmt: skip

    said = markdown(summary(TABLE, "shapes", rows, planned=4))

    assert "Its cells were computed by 2 versions of fdgsec or torch." in said
    assert "40.0, 2 seeds" in said
    assert "40.0, 1 seed" in said
    assert "versions" not in markdown(summary(TABLE, "shapes", rows[:2], planned=2))


def test_a_table_of_cells_without_shares_of_classes_has_no_such_line():
    assert "most frequent class" not in markdown(summary(TABLE, "shapes", [row("fedavg", "photo", 0, 0.4)], planned=1))


def test_one_seed_has_no_interval_and_none_is_an_error():
    assert (mean_of([0.5]).low, mean_of([0.5]).high) == (None, None)
    with pytest.raises(ValueError, match="at least one"):
        mean_of([])


def test_traffic_is_per_round_and_participant_and_names_its_direction():
    sent = report(
        0.5,
        artifacts=[
            {"stage": "share", "kind": "StyleStatistics", "sender": "client:1", "receiver": "server", "bytes": 40},
            {"stage": "combine", "kind": "StyleBank", "sender": "server", "receiver": "client:1", "bytes": 80},
        ],
        model_traffic=[
            {"stage": "model", "kind": "ModelState", "sender": "server", "receiver": "clients", "bytes": 4000},
            {"stage": "update", "kind": "ModelState", "sender": "clients", "receiver": "server", "bytes": 4000},
        ],
    )  # fmt: skip

    assert traffic(sent, rounds=2, participants=2) == {
        "up": {"StyleStatistics": 10.0, "ModelState": 1000.0}, "down": {"StyleBank": 20.0, "ModelState": 1000.0},
    }  # fmt: skip


def test_every_participant_sends_as_much_as_the_sum_that_the_server_gets():
    sent = report(
        0.5,
        artifacts=[{"stage": "share", "kind": "Amplitudes", "sender": "clients", "receiver": "server", "bytes": 40}],
        model_traffic=[
            {"stage": "update", "kind": "ModelState", "sender": "sum over clients", "receiver": "server", "bytes": 4000}
        ],
    )  # fmt: skip

    assert traffic(sent, rounds=1, participants=5)["up"] == {"Amplitudes": 40.0, "ModelState": 4000.0}


def test_every_format_holds_the_same_numbers_and_marks_the_papers():
    rows = [row("fedavg", "sketch", seed, value) for seed, value in ((0, 0.5), (1, 0.6))]
    found = summary(TABLE, "shapes", rows, planned=2)

    assert "| fedavg | 55.0 ± 63.5 (paper 55.7) | 55.0 ± 63.5 | 85.0 | 9 (180) |  | 1,000 | 2 | 2 |" in markdown(found)
    assert r"fedavg & 55.0 $\pm$ 63.5 (paper 55.7) & 55.0 $\pm$ 63.5 &" in latex(found)
    assert "what the paper prints (A paper, Table 1)" in markdown(found)
    written = list(csv.DictReader(io.StringIO(spreadsheet(rows))))
    assert [(line["arm"], line["accuracy"], line["f1"], line["up"]) for line in written] == [
        ("fedavg", "0.5", "0.25", "1000"), ("fedavg", "0.6", "0.25", "1000"),
    ]  # fmt: skip


def test_another_baseline_is_compared_with_and_must_be_in_the_table(trained: list[RunConfig], tmp_path: Path):
    full = bench(REQUEST, data_root=None, out=tmp_path, progress=NoProgress())

    request = replace(REQUEST, baseline="ccst-overall")
    shown = bench(request, data_root=None, out=tmp_path, progress=NoProgress(), limit=0)

    assert len(trained) == 8  # nothing is run again
    assert full["baseline"] == "fedavg"
    assert shown["baseline"] == "ccst-overall"
    assert isinstance(shown["arms"], dict)
    assert "average" in shown["arms"]["fedavg"]["difference"]
    assert not shown["arms"]["ccst-overall"]["difference"]
    with pytest.raises(UsageError, match="unknown baseline 'mixstyle'"):
        bench(replace(REQUEST, baseline="mixstyle"), data_root=None, out=tmp_path, progress=NoProgress())


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As many threads here as each worker has, so that sums are made in the same order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow  # two processes that import everything anew
def test_workers_fill_the_table_that_one_process_fills(tmp_path: Path, one_thread: None):
    request = replace(
        REQUEST, arms=("fedavg", "mixstyle"), domains=(), seeds=(0,),
        given={"per_domain": 28, "rounds": 1, "image_size": 16, "backbone": "tiny", "pretrained": False},
    )  # fmt: skip

    one = bench(request, data_root=None, out=tmp_path / "one", progress=NoProgress())
    two = bench(request, data_root=None, out=tmp_path / "two", progress=NoProgress(), workers=2)

    assert one["finished"] == one["planned"] == 8
    assert timeless(one) == timeless(two)
    first, second = (json.loads((tmp_path / name / "results.json").read_text())["cells"] for name in ("one", "two"))
    assert {cell["key"]: cell["transcript_sha256"] for cell in first} == {
        cell["key"]: cell["transcript_sha256"] for cell in second
    }


@pytest.mark.medium
def test_a_cell_names_the_threads_that_it_was_computed_on_whatever_the_process_has(tmp_path: Path):
    request = replace(
        REQUEST, arms=("fedavg",), domains=("sketch",), seeds=(0,),
        given={"per_domain": 28, "rounds": 1, "image_size": 16, "backbone": "tiny", "pretrained": False},
    )  # fmt: skip
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        bench(request, data_root=None, out=tmp_path, progress=NoProgress())
    finally:
        torch.set_num_threads(before)

    (cell,) = json.loads((tmp_path / "results.json").read_text())["cells"]
    assert cell["environment"]["threads"] == 1


def timeless(found: Mapping[str, Any]) -> str:
    """A summary without seconds."""
    return json.dumps(
        {
            name: {key: value for key, value in arm.items() if "seconds" not in key}
            for name, arm in found["arms"].items()
        }
    )


@pytest.mark.medium
def test_steps_behind_a_sum_are_those_of_all_clients():
    given = {"dataset": "shapes", "per_class": 3, "image_size": 32, "rounds": 2, "device": "cpu"}
    plain, summed = (
        train_settings("fedavg", {**given, "defenses": defenses}) for defenses in ((), (SecureAggregation(),))
    )

    one, other = (train(each, data_root=None, out=None, progress=NoProgress()) for each in (plain, summed))

    assert one.accuracy is not None
    assert other.accuracy is not None
    assert other.accuracy["steps"] == one.accuracy["steps"]
