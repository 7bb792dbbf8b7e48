"""The table of private styles is that of the stored cells."""

from typing import Any

import pytest

from benchmarks import written_tables
from benchmarks.private_styles_table import RESULTS, difference, table
from fdgsec.experiments.bench.run_bench import stored


def row(arm: str, domain: str, value: float, n: int = 100) -> dict[str, Any]:
    own = {"per_domain": {"art": {"value": 0.9, "n": 9}, "photo": {"value": 0.8, "n": 9}}}
    score = {"value": value, "low": value - 0.1, "high": value + 0.1, "n": n, **own}
    return {"arm": arm, "domain": domain, "seed": 0, "accuracy": score, "processor_seconds": 90.0}


def test_the_page_shows_the_stored_cells():
    found = table(list(stored(RESULTS).values()))

    assert found in (written_tables.DOCS / "results.md").read_text()


def test_a_difference_is_over_the_domains_that_both_arms_have():
    rows = [row("fedavg", "a", 0.5), row("fedavg", "b", 0.6), row("ccst", "a", 0.6), row("ccst", "c", 0.9)]

    middle, low, high = difference(rows, "ccst")

    spread = ((0.25 + 0.24) / 100) ** 0.5
    assert (middle, low, high) == pytest.approx((10, 10 - 195.9964 * spread, 10 + 195.9964 * spread))


def test_an_arm_that_has_not_learned_its_own_domains_is_marked():
    weak = row("ccst", "a", 0.6)
    weak["accuracy"]["per_domain"] = {"art": {"value": 0.7, "n": 9}}

    assert "+10.0" in table([row("fedavg", "a", 0.5), weak])
    assert "has not learned its own domains: not comparable" in table([row("fedavg", "a", 0.5), weak])


def test_an_arm_without_a_domain_has_no_mean():
    rows = [row("fedavg", "a", 0.5), row("fedavg", "b", 0.6), row("ccst", "a", 0.6)]

    first, second = table(rows).splitlines()[2:]

    assert "| .500 [.40, .60], n = 100 | .600 [.50, .70], n = 100 | .550 | .850 |  | 2 |" in first
    assert "| .600 [.50, .70], n = 100 | - | - | .850 | +10.0 [-3.7, +23.7] | 2 |" in second
