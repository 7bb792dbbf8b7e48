import json
from pathlib import Path

import pytest

from benchmarks.false_alarms import RESULTS, Rate, designs, measured, stored, table, worst


def rates(kind: str, name: str, nulls: int) -> dict[str, float]:
    design = next(one for one in designs() if (one.kind, one.name) == (kind, name))
    return {rate.measurement: rate.alarms / rate.nulls for rate in measured(design, nulls)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "rows"),
    [
        ("recovered", "12 clients x 20 records, a guess per record", ["relative_error"]),  # 17% against chance alone
        ("size", "30 clients", ["relative_error"]),  # 7.7%
        ("palettes", "3 clients x 10 rows, one guess each", ["palette_emd_gain public median"]),  # 16% by rows
        ("domains", "3 clients of 3 domains x 40 rows, 100% of the variance by client", ["balanced_accuracy"]),  # 27%
        ("domains", "4 clients of 3 domains x 40 rows, 50% of the variance by client", ["balanced_accuracy"]),  # 16%
        (
            "labels",
            "12 clients x 20 rows, each mostly of one of 7 classes, guessed likewise",
            ["balanced_accuracy", "accuracy"],  # 8% and .8%
        ),
        ("reconstructions", "3 clients x 10 rows, one guess each", ["psnr_gain B3", "psnr", "ssim_gain B3", "ssim"]),
    ],
)
def test_what_is_guessed_without_information_rarely_reads_as_a_leak(kind: str, name: str, rows: list[str]):
    found = rates(kind, name, 200)

    assert max(found[row] for row in rows) <= 0.05  # of 200 nulls, 2.5% is 5 +- 2.2


@pytest.mark.medium
def test_accuracy_is_compared_with_what_a_guess_reaches_that_knows_the_shares_of_classes():
    found = rates("labels", "1 clients x 40 rows, 7 classes up to 14%, guessed each row", 400)

    assert 0.0025 <= found["accuracy"] <= 0.04  # never against the majority's share; of 400, 2.5% is 10 +- 3.1


def test_always_to_predict_the_commonest_class_is_no_leak():
    found = rates("labels", "1 clients x 200 rows, 7 classes up to 50%, guessed the majority", 20)

    assert found["accuracy"] == 0.0


def test_no_stored_rate_is_above_the_nominal_one_beyond_chance():
    found = stored(RESULTS)

    assert {(rate.kind, rate.design) for rate in found} == {(design.kind, design.name) for design in designs()}
    assert len({(rate.kind, rate.design, rate.measurement) for rate in found}) == len(found)
    assert all(rate.nulls >= 2000 for rate in found)
    assert [rate for rate in found if rate.too_high] == []
    assert (
        max(rate.alarms / rate.nulls for rate in worst(found).values()) > 0.015
    )  # a rate of zero shows no test at work


def test_a_rate_is_too_high_where_its_interval_lies_above_the_nominal_one(tmp_path: Path):
    alike = {"kind": "x", "design": "y", "measurement": "z", "nulls": 2000, "judged": 1900}
    made = [Rate(**alike, alarms=64), Rate(**alike, alarms=65)]  # 64 of 2,000: [2.47%, 4.07%]
    path = tmp_path / "rates.jsonl"
    path.write_text("".join(json.dumps(vars(rate)) + "\n" for rate in made))

    assert [rate.too_high for rate in stored(path)] == [False, True]
    assert worst(made) == {("x", "z"): made[1]}
    assert table(made).splitlines()[2] == "| x | z | y | 2,000 | 1,900 | 3.20% [2.47%, 4.07%] |"
