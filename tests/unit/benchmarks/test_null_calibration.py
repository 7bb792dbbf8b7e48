from pathlib import Path

import pytest
import torch

from benchmarks.null_calibration import Answered, document, judged, redrawn, setting_of, settings_of, stored, summary
from benchmarks.null_calibration import answered as answers_of
from fdgsec.data.shapes import shapes
from fdgsec.experiments.attack.loop import attack_named
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.attack import Case, Truth

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "null-calibration.jsonl"


def test_redrawn_truths_are_of_the_same_kind_and_independent_of_the_old_ones():
    gallery = shapes(image_size=16, per_domain=20).of_domain(0)
    case = Case(question="halves", views=(), victim="client:1", slice={"domain": "photo"}, candidates=gallery)
    truths = [
        Truth(
            rows=torch.arange(5), members=torch.arange(20) < 8, labels=torch.tensor([0, 0, 1, 1, 2]), partner=i,
            proportions=torch.tensor([i / 10, 1 - i / 10]),
        )
        for i in range(10)
    ]  # fmt: skip
    found = Answered(attack="any", answers=[], cases=[case] * 10, truths=truths)

    drawn = redrawn(found, stream(0, "attack"))

    assert [int(truth.members.sum()) for truth in drawn if truth.members is not None] == [8] * 10
    assert sorted(truth.partner for truth in drawn if truth.partner is not None) == list(range(10))
    assert all(truth.labels is not None and sorted(truth.labels.tolist()) == [0, 0, 1, 1, 2] for truth in drawn)
    rows = torch.cat([truth.rows for truth in drawn if truth.rows is not None])
    assert len(rows) == 50
    assert int(rows.max()) > 4  # drawn among all candidates
    assert [truth.partner for truth in drawn] != list(range(10))
    shares = [float(truth.proportions[0]) for truth in drawn if truth.proportions is not None]
    assert shares == pytest.approx([truth.partner / 10 for truth in drawn if truth.partner is not None])


def test_the_stored_reports_have_false_alarms_in_at_most_a_twentieth_of_them():
    reports = stored(RESULTS)

    assert len(reports) >= 200
    assert sum(bool(report["leaks"]) for report in reports) <= 0.05 * len(reports)
    assert any("after Holm" in line for line in summary(reports))


@pytest.mark.slow
def test_a_report_on_redrawn_truths_is_made_by_the_runs_own_attacks_and_judge():
    config = settings_of("ccst-overall", 100)
    setting = setting_of(config)
    found = [one for name in ("membership", "linkage") if (one := answers_of(attack_named(name, config), setting))]

    rows = judged(found, setting, 0)
    report = document("ccst-overall", 100, 0, rows)

    assert {attack for attack, _ in rows} == {"membership", "linkage"}
    assert all(row.family == len(rows) for _, row in rows)
    assert report["rows"] == len(rows)
