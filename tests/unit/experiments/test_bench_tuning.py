"""Learning rates: chosen for each arm and column on the clients' own domains, before the table is trained."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fdgsec.experiments.bench import run_bench as verb
from fdgsec.experiments.bench.protocols import Protocol, Tuning
from fdgsec.experiments.bench.run_bench import BenchRequest, bench, time_left
from fdgsec.experiments.report.schema import AttackReport
from fdgsec.experiments.run_config import RunConfig
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import NoProgress

TABLE = Protocol(
    title="A table", seeds=2, tuning=Tuning(rates=(1e-4, 1e-3)), plan={"learning_rate": 0.5}, arms={"fedavg": {}, "mixstyle": {}}
)  # fmt: skip
REQUEST = BenchRequest(dataset="shapes", domains=("sketch", "photo"))
BEST = {
    ("fedavg", "sketch"): 1e-3,
    ("fedavg", "photo"): 1e-4,
    ("mixstyle", "sketch"): 1e-4,
    ("mixstyle", "photo"): 1e-3,
}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """Stand in for training: own domains prefer the rate in BEST, the unseen domain always the other one."""
    seen: list[RunConfig] = []

    def train(config: RunConfig, **_: object) -> AttackReport:
        seen.append(config)
        best = config.options["plan"]["learning_rate"] == BEST[config.method, str(config.target_domain)]
        own, unseen = (0.9, 0.1) if best else (0.4, 0.8)
        accuracy = {
            "unseen_domain": config.target_domain, "value": unseen, "low": 0.0, "high": 1.0, "n": 10, "auc": {"value": unseen},
            "per_domain": {"cartoon": {"value": own, "n": 10}}, "steps": {"per_client_and_round": 9.0, "total": 90.0},
        }  # fmt: skip
        return AttackReport(
            target="", method=config.method, preset="", dataset={"roles": {"train": {"client:0": 5}}}, encoder="none",
            backbone="tiny", seed=config.seed, profile="full", reused=False, defenses=[], guarantees=[], accuracy=accuracy,
            attacks=[], artifacts=[], model_traffic=[], transcript_sha256="0", environment={}, seconds=1.0,
        )  # fmt: skip

    monkeypatch.setattr(verb, "train", train)
    monkeypatch.setattr(BenchRequest, "table", lambda _: TABLE)
    return seen


def filled(
    out: Path, request: BenchRequest = REQUEST, *, told: list[str] | None = None, **options: Any
) -> dict[str, Any]:
    tell = (lambda _: None) if told is None else told.append
    return bench(request, data_root=None, out=out, progress=NoProgress(), tell=tell, **options)


def rates_of(configs: Iterable[RunConfig]) -> set[tuple[str, str, float]]:
    return {(each.method, str(each.target_domain), each.options["plan"]["learning_rate"]) for each in configs}


@pytest.mark.medium
def test_each_arm_and_column_is_trained_at_the_rate_that_its_own_domains_prefer(
    trained: list[RunConfig], tmp_path: Path
):
    found = filled(tmp_path)

    trials, cells = trained[:8], trained[8:]
    assert {each.seed for each in trials} == {100}
    assert {each.seed for each in cells} == {0, 1}
    assert rates_of(trials) == {(*column, rate) for column in BEST for rate in (1e-4, 1e-3)}
    assert rates_of(cells) == {(*column, rate) for column, rate in BEST.items()}
    assert (found["finished"], found["planned"]) == (8, 8)
    assert found["arms"]["fedavg"]["accuracy"]["average"]["value"] == pytest.approx(0.1, abs=1e-12)


def test_a_run_that_chooses_a_rate_stores_nothing_of_the_unseen_domain(trained: list[RunConfig], tmp_path: Path):
    filled(tmp_path, limit=8)

    rows = json.loads((tmp_path / "results.json").read_text())["cells"]
    assert len(rows) == 8
    assert all(set(row["accuracy"]) == {"per_domain", "steps"} for row in rows)


@pytest.mark.medium
def test_the_choices_are_written_before_a_cell_is_trained(
    trained: list[RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    before: list[bool] = []
    plain = verb.compute

    def compute(data_root: Path | None, planned: verb.Planned) -> dict[str, Any]:
        if planned[0].seed != 100:
            before.append((tmp_path / "rates.json").exists())
        return plain(data_root, planned)

    monkeypatch.setattr(verb, "compute", compute)
    filled(tmp_path)

    assert len(before) == 8
    assert all(before)
    chosen = json.loads((tmp_path / "rates.json").read_text())["chosen"]
    assert {(each["arm"], each["unseen"]): each["rate"] for each in chosen} == BEST
    assert chosen[0]["own_domains"] == {"0.0001": 0.9, "0.001": 0.4}  # photo


def test_of_equally_good_rates_the_lowest_is_chosen(
    trained: list[RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(BEST, ("fedavg", "sketch"), -1.0)  # no rate is better than another

    filled(tmp_path, replace(REQUEST, arms=("fedavg",), domains=("sketch",)))

    assert trained[-1].options["plan"]["learning_rate"] == 1e-4


@pytest.mark.medium
def test_a_table_goes_on_where_it_stopped_in_either_part(trained: list[RunConfig], tmp_path: Path):
    shown = [filled(tmp_path, limit=number)["finished"] for number in (3, 6, 0, 5)]

    assert shown == [0, 1, 1, 6]
    assert filled(tmp_path)["finished"] == 8
    assert len(trained) == 16
    assert filled(tmp_path)["finished"] == 8
    assert len(trained) == 16


def test_a_rate_that_the_user_sets_is_not_chosen(trained: list[RunConfig], tmp_path: Path):
    found = filled(tmp_path, replace(REQUEST, assignments=("method.plan.learning_rate=0.25",)))

    assert found["finished"] == 8
    assert {each.options["plan"]["learning_rate"] for each in trained} == {0.25}
    assert not (tmp_path / "rates.json").exists()


def test_the_seed_of_the_choice_is_not_one_of_the_table(trained: list[RunConfig], tmp_path: Path):
    with pytest.raises(UsageError, match="seed 100 chooses the learning rates"):
        filled(tmp_path, replace(REQUEST, seeds=(0, 100)))
    with pytest.raises(UsageError, match="tuning needs learning rates above 0, each once"):
        Tuning(rates=(1e-3, 1e-3))


@pytest.mark.medium
def test_the_time_left_is_told_before_the_first_run_and_after_each(trained: list[RunConfig], tmp_path: Path):
    told: list[str] = []

    filled(tmp_path, told=told)

    assert len(told) == 1 + 8 + 1 + 8
    assert told[0] == "16 runs to do; no run so far to tell the time left from"
    assert told[1] == "fedavg, photo, seed 100: 0 s; 15 runs and about 0 min left"
    assert told[-1].endswith("0 runs and about 0 min left")


def test_a_run_takes_as_long_as_others_of_its_arm_and_else_as_the_mean_of_arms():
    rows = [{"arm": "a", "seconds": 60}, {"arm": "a", "seconds": 180}, {"arm": "b", "seconds": 3600}]

    assert time_left(["a", "a"], rows, 1) == "about 4 min left"
    assert time_left(["b", "b", "c"], rows, 1) == "about 2.5 h left"  # c: (120 + 3600) / 2
    assert time_left(["b", "b", "c"], rows, 2) == "about 76 min left"
