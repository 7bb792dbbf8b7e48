from dataclasses import replace

import pytest

from fdgsec.experiments.report.multiplicity import adjusted
from fdgsec.experiments.report.schema import AttackResult
from fdgsec.experiments.report.strongest_rows import strongest
from fdgsec.metrics.measurement import Measurement


def row(value: float, p_value: float | None, **where: str) -> Measurement:
    return Measurement(
        name="auc", value=value, low=value - 0.02, high=value + 0.02, chance=0.5, chance_kind="exact", n=100,
        slice=where, p_value=p_value,
    )  # fmt: skip


def result(name: str, *rows: Measurement) -> AttackResult:
    return AttackResult(name=name, adversary={"name": "server"}, status="done", measurements=rows)


DESCRIBED = replace(row(0.9, None, of="described"), higher_is="descriptive")


def test_the_judged_rows_of_all_attacks_are_one_family() -> None:
    first, second = adjusted([
        result("one", row(0.6, 0.001, of="a"), DESCRIBED), result("two", row(0.53, 0.02, of="b"), row(0.5, 0.5, of="c"))
    ])  # fmt: skip

    rows = [*first.measurements, *second.measurements]
    assert [one.adjusted_p_value for one in rows] == [pytest.approx(0.003), None, pytest.approx(0.04), 0.5]
    assert [one.family for one in rows] == [3, 0, 3, 3]
    assert [one.verdict for one in rows] == ["leaks", "descriptive", "leaks slightly", "no leak shown"]


def test_one_of_many_rows_that_excludes_chance_by_luck_shows_no_leak() -> None:
    (found,) = adjusted([result("one", row(0.53, 0.02), *(row(0.5, 0.5, of=str(i)) for i in range(39)))])

    lucky = found.measurements[0]
    assert (lucky.leaks, lucky.verdict) == (False, "undecided: a leak, but not after Holm over 40 rows")
    assert lucky.p_value == 0.02


def test_a_row_without_a_pvalue_of_its_own_counts_with_that_of_its_interval() -> None:
    (found,) = adjusted([result("one", row(0.6, None))])

    assert found.measurements[0].adjusted_p_value == pytest.approx(0.0, abs=1e-6)


def test_the_headline_of_an_attack_is_not_the_linkage_of_the_same_data() -> None:
    same, halves = row(0.99, 1e-9, data="the same"), row(0.7, 1e-6, clients="domain")

    assert strongest(result("linkage", same, halves)) == halves
    assert strongest(result("linkage", same, row(0.5, 0.5, clients="iid"))) == same  # what leaks comes before


def test_the_headline_of_an_attack_without_a_leak_is_what_it_could_not_decide() -> None:
    calm, wide = row(0.51, 0.4, of="many"), replace(row(0.5, 0.5, of="few"), low=0.1, high=0.9)
    unread = replace(row(0.5, 0.5, of="one round"), unread="reads 1 of 3 releases that differ")

    assert strongest(result("membership", calm, wide)) == wide
    assert strongest(result("membership", calm, unread)) == unread
