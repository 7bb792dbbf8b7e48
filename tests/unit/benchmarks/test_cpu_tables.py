"""The tables of the `cpu` protocol are those of the stored cells."""

from typing import Any

import pytest

from benchmarks import written_tables
from benchmarks.cpu_tables import TABLES, Shown, difference, table
from fdgsec.runtime.errors import DataError


def row(arm: str, domain: str, value: float, n: int = 100, *, seed: int = 0, steps: int = 40) -> dict[str, Any]:
    own = {"per_domain": {"art": {"value": 0.9, "n": 9}, "photo": {"value": 0.8, "n": 9}}}
    score = {"value": value, "low": value - 0.1, "high": value + 0.1, "n": n, **own}
    score["steps"] = {"per_client_and_round": steps, "total": 30 * steps}
    return {"arm": arm, "domain": domain, "seed": seed, "accuracy": score, "processor_seconds": 90.0}


@pytest.mark.parametrize("shown", TABLES, ids=lambda shown: shown.folder)
def test_the_page_shows_the_stored_cells(shown: Shown):
    assert table(shown.rows, shown.words) in (written_tables.DOCS / "results.md").read_text()


def test_only_private_styles_are_compared_with_public_ones():
    header, _, line = table([row("fedavg", "a", 0.5)], {"fedavg": "FedAvg"}).splitlines()

    assert header == "| arm | a | mean | own domains | minus FedAvg, points | CPU minutes |"
    assert line == "| FedAvg | .500 [.40, .60], n = 100 | .500 | .850 |  | 2 |"


def test_a_difference_is_over_the_domains_that_both_arms_have():
    rows = [row("fedavg", "a", 0.5), row("fedavg", "b", 0.6), row("ccst", "a", 0.6), row("ccst", "c", 0.9)]

    found = difference(rows, "ccst")

    spread = ((0.25 + 0.24) / 100) ** 0.5
    assert found == pytest.approx((10, 10 - 195.9964 * spread, 10 + 195.9964 * spread))


def test_an_arm_that_has_not_learned_its_own_domains_is_marked():
    weak = row("ccst", "a", 0.6)
    weak["accuracy"]["per_domain"] = {"art": {"value": 0.7, "n": 9}}

    assert "+10.0" in table([row("fedavg", "a", 0.5), weak])
    assert "has not learned its own domains: not comparable" in table([row("fedavg", "a", 0.5), weak])


def test_an_arm_without_a_domain_has_no_mean():
    rows = [row("fedavg", "a", 0.5), row("fedavg", "b", 0.6), row("ccst", "a", 0.6)]

    first, second = table(rows).splitlines()[2:]

    assert "| .500 [.40, .60], n = 100 | .600 [.50, .70], n = 100 | .550 | .850 |  |  | 2 |" in first
    assert "| .600 [.50, .70], n = 100 | - | - | .850 | +10.0 [-3.7, +23.7] |  | 2 |" in second


def test_a_difference_is_between_cells_of_the_same_seed():
    rows = [row("fedavg", "a", 0.5), row("ccst", "a", 0.5), row("ccst", "a", 0.9, seed=1)]  # a seed that is not whole

    found = difference(rows, "ccst")

    assert found is not None
    assert found[0] == 0


def test_two_settings_of_one_cell_are_refused():
    with pytest.raises(DataError, match="several cells of fedavg, a, seed 0"):
        table([row("fedavg", "a", 0.5), row("fedavg", "a", 0.9), row("ccst", "a", 0.6)])


def test_unequal_steps_are_said():
    assert "; 400 steps against 40" in table([row("fedavg", "a", 0.5), row("ccst", "a", 0.6, steps=400)])


def test_without_a_shared_cell_there_is_no_difference():
    assert "| - |  | 2 |" in table([row("fedavg", "b", 0.5), row("ccst", "a", 0.6)])
    assert "| - |  | 2 |" in table([row("ccst", "a", 0.6)])


def test_private_styles_are_compared_with_public_ones_too():
    rows = [row("fedavg", "a", 0.5), row("ccst", "a", 0.7), row("private-8", "a", 0.6)]

    assert difference(rows, "private-8", "ccst") == pytest.approx((-10, -23.148, 3.148), abs=0.001)
    assert "| +10.0 [-3.7, +23.7] | -10.0 [-23.1, +3.1] | 2 |" in table(rows).splitlines()[-1]


def test_own_domains_are_unknown_where_a_cell_has_none():
    bare = row("fedavg", "b", 0.5)
    bare["accuracy"]["per_domain"] = {}

    assert "| .500 | - |  |  | 2 |" in table([row("fedavg", "a", 0.5), bare])


def test_several_seeds_have_students_interval_and_are_shown_one_by_one():
    rows = [
        row(arm, domain, value, seed=seed)
        for seed, gains in enumerate([(0.1, 0.0), (0.0, 0.0), (-0.1, 0.0)])
        for domain, gain in zip("ab", gains, strict=True)
        for arm, value in (("fedavg", 0.5), ("ccst", 0.5 + gain))
    ]

    line = table([*rows, row("ccst", "a", 0.9, seed=3)]).splitlines()[3]  # a seed that is not whole counts for nothing

    assert "| .500 (3 seeds) | .500 (3 seeds) | .500 | .850 | +0.0 [-12.4, +12.4] (+5.0, +0.0, -5.0) |  | 2 |" in line
