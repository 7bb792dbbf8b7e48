"""Which arms of a table are compared: at equal optimizer steps, and where the clients' own domains were learned."""

import csv
import io
from typing import Any

import pytest

from fdgsec.experiments.bench.comparability import NOT_LEARNED, has_learned, steps_of, unequal_steps
from fdgsec.experiments.bench.protocols import Protocol, protocol_named
from fdgsec.experiments.bench.tables import latex, markdown, spreadsheet, summary
from fdgsec.experiments.report.accuracy import own_domain_accuracy, steps_document
from fdgsec.nn.training.training_plan import TrainingPlan

TABLE = Protocol(title="A table")


def row(
    arm: str, seed: int, value: float, *, own: float = 0.8, steps: float | None = 9.0, rounds: int = 80
) -> dict[str, Any]:
    accuracy: dict[str, Any] = {"value": value, "low": 0.0, "high": 1.0, "n": 100}
    accuracy["per_domain"] = {"art": {"value": own - 0.1, "n": 90}, "photo": {"value": own + 0.1, "n": 10}}
    if steps is not None:
        accuracy["steps"] = {"per_client_and_round": steps, "total": steps * rounds}
    return {
        "arm": arm, "validation": "", "domain": "sketch", "seed": seed, "accuracy": accuracy, "seconds": 60.0,
        "processor_seconds": 42.0, "traffic": {"up": {"ModelState": 10.0}, "down": {}},
    }  # fmt: skip


def two_arms(**changes: Any) -> list[dict[str, Any]]:
    plain = [row("fedavg", 0, 0.5), row("fedavg", 1, 0.6)]
    return [*plain, row("ccst", 0, 0.6, **changes), row("ccst", 1, 0.7, **changes)]


def test_every_format_shows_own_domains_steps_and_processor_seconds_beside_the_unseen_domain():
    found = summary(TABLE, "shapes", two_arms(), planned=4)

    arm = found["arms"]["ccst"]
    assert arm["own_domains"]["value"] == pytest.approx(0.8, abs=1e-12)
    assert arm["steps"] == {"per_client_and_round": 9.0, "total": 720.0}
    assert arm["processor_seconds_per_run"] == 42.0
    assert "| own domains | steps (in all) | minus fedavg | bytes up | s per run | CPU s per run |" in markdown(found)
    assert "| 80.0 | 9 (720) | +10.0 | 10 | 60 | 42 |" in markdown(found)
    assert r"80.0 & 9 (720) & +10.0 & 10 & 60 & 42 \\" in latex(found)
    (line, *_) = csv.DictReader(io.StringIO(spreadsheet(two_arms())))
    told = ("own_domains", "steps_per_client_and_round", "steps", "processor_seconds")
    assert [float(line[name]) for name in told] == pytest.approx([0.8, 9, 720, 42], abs=1e-9)


def test_each_own_domain_counts_once_however_many_images_it_has():
    assert own_domain_accuracy(row("fedavg", 0, 0.5)["accuracy"]) == pytest.approx(0.8, abs=1e-12)  # pooled: .72
    assert own_domain_accuracy({"per_domain": {}}) is None


def test_arms_with_unequal_steps_are_marked_and_not_compared_unless_that_is_asked_for():
    rows = two_arms(steps=27.0)

    found = summary(TABLE, "shapes", rows, planned=4)
    asked = summary(TABLE, "shapes", rows, planned=4, unequal=True)

    assert found["arms"]["ccst"]["difference"] == {}
    assert "| 27 (2,160) | 27 steps against 9 | 10 |" in markdown(found)
    assert "| 27 (2,160) | +10.0; 27 steps against 9 | 10 |" in markdown(asked)


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({}, ""),
        ({"steps": 9.4}, ""),  # within one in twenty
        ({"steps": 9.5}, "9.5 steps against 9"),
        ({"rounds": 160}, "1,440 steps in all against 720"),
        ({"steps": None}, "steps not recorded"),
    ],
    ids=str,
)
def test_steps_are_equal_where_both_a_rounds_and_all_of_them_are(changes: dict[str, Any], note: str):
    rows = two_arms(**changes)

    assert unequal_steps(rows[2:], rows[:2]) == note
    assert summary(TABLE, "shapes", rows, planned=4)["arms"]["ccst"]["notes"] == [note] * bool(note)


def test_a_baseline_is_not_compared_with_itself_where_its_steps_are_not_recorded():
    rows = [row("fedavg", 0, 0.5, steps=None)]

    assert summary(TABLE, "shapes", rows, planned=1)["arms"]["fedavg"]["notes"] == []


def test_ccsts_baselines_with_three_epochs_take_as_many_steps_as_ccst():
    table = protocol_named("ccst-three-epochs")
    told = [table.config(arm, (None, "any"), 0, {"dataset": "pacs"}).options["plan"] for arm in ("fedavg", "ccst")]
    three, one = (TrainingPlan(epochs=plan["epochs"], batch_size=plan["batch_size"]) for plan in told)

    for images in (1503, 1843, 2110, 3536):  # PACS's domains without their validation images
        own, base = one.local_steps(3 * images), three.local_steps(images)
        assert not unequal_steps([row("ccst", 0, 0.5, steps=own)], [row("fedavg", 0, 0.5, steps=base)])
    assert three.local_steps(1503) == 72 != one.local_steps(4509)


def test_steps_are_compared_cell_by_cell_and_not_by_their_mean():
    base = [row("fedavg", 0, 0.5, steps=5.0), row("fedavg", 1, 0.5, steps=15.0)]
    own = [row("ccst", 0, 0.5, steps=15.0), row("ccst", 1, 0.5, steps=5.0)]

    assert steps_of(own) == steps_of(base)
    assert unequal_steps(own, base)


def test_arms_without_a_common_cell_are_not_marked():
    assert unequal_steps([row("ccst", 0, 0.5, steps=27.0)], [row("fedavg", 1, 0.5)]) == ""


@pytest.mark.parametrize(("own", "learned"), [(0.80, True), (0.77, True), (0.769, False), (0.5, False), (0.9, True)])
def test_an_arm_more_than_three_points_below_on_its_own_domains_is_labelled(own: float, learned: bool):
    rows = two_arms(own=own)

    found = summary(TABLE, "shapes", rows, planned=4)

    assert has_learned(rows[2:], rows[:2]) == learned
    assert (NOT_LEARNED in found["arms"]["ccst"]["notes"]) != learned
    assert (NOT_LEARNED in markdown(found)) != learned
    assert not found["arms"]["fedavg"]["notes"]


def test_a_runs_steps_are_the_sum_over_participants_and_their_mean():
    curve = [{"round": 0.0, "steps": 18.0, "clients": 2.0}, {"round": 1.0, "steps": 36.0, "clients": 4.0}]

    assert steps_document(curve) == {"per_client_and_round": 9.0, "total": 54.0}
    assert steps_document([*curve, {"round": 2.0}]) is None
    assert steps_document([]) is None


def test_the_accuracy_on_the_domain_kept_for_validation_stands_beside_the_papers():
    rows = two_arms()
    for each in rows:
        each["accuracy"]["validation_domain"] = {"domain": "photo", "value": 0.75, "low": 0.7, "high": 0.8, "n": 40}
    table = Protocol(title="A table", published_validation={"shapes": {"ccst": {"photo": 93.05}}})

    found = summary(table, "shapes", rows, planned=4)

    assert "| on the validation domain | photo |" in markdown(found)
    assert "| ccst | 75.0 (paper 93.05) |" in markdown(found)
    assert "on the validation domain" not in markdown(summary(TABLE, "shapes", two_arms(), planned=4))


def test_costs_stand_beside_those_that_the_paper_prints():
    rows = [{**each, "rounds": 10, "participants": 3} for each in two_arms()]
    table = Protocol(title="A table", published_costs={"shapes": {"ccst": {"s once": 2.89}}})

    found = summary(table, "shapes", rows, planned=4)

    assert "| costs | MB up per client and round | s per client and round | paper: s once |" in markdown(found)
    assert "| ccst | 0.00 | 2.00 | 2.89 |" in markdown(found)  # 10 bytes; 60 s over 10 rounds of 3 clients
    assert "| fedavg | 0.00 | 2.00 | - |" in markdown(found)
    assert r"ccst & 0.00 & 2.00 & 2.89 \\" in latex(found)
