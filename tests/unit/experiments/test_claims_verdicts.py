"""The rules that turn rows into verdicts."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from fdgsec.experiments.claims.verdicts import (
    VOID,
    Column,
    Criterion,
    Finding,
    agreeing,
    compared_evidence,
    evidence_of,
    finding,
    ledger_p_values,
    over_seeds,
    verdicts,
)
from fdgsec.metrics.proportion_intervals import clopper_pearson

AUC = Criterion(measurement="auc")


def row(
    value: float,
    half: float,
    *,
    name: str = "auc",
    chance: float = 0.5,
    n: int = 100,
    p_value: float = 1e-9,
    **where: str,
) -> dict[str, Any]:
    return {
        "name": name, "value": value, "low": value - half, "high": value + half, "chance": chance, "n": n,
        "higher_is": "leak", "slice": where, "p_value": p_value,
    }  # fmt: skip


def of(
    rows: Sequence[Mapping[str, Any]], criteria: Sequence[Criterion] = (AUC,), *, controlled: bool = True
) -> Finding:
    return finding(rows, criteria, controlled=controlled)


def decided(*findings: Finding) -> str:
    return verdicts({"claim": [Column(findings=findings)]})["claim"]


def test_an_interval_beyond_chance_and_margin_contradicts():
    assert decided(of([row(0.70, 0.10)])) == "contradicted"


def test_an_interval_beyond_chance_but_not_beyond_the_margin_does_not():
    assert decided(of([row(0.54, 0.02)])) == "undecided"


def test_an_interval_under_the_margin_supports():
    assert decided(of([row(0.51, 0.03)])) == "supported"


def test_a_run_whose_controls_failed_says_nothing():
    assert decided(of([row(0.51, 0.03)], controlled=False)) == "undecided"
    assert decided(of([row(0.70, 0.10)], controlled=False)) == "undecided"


def test_the_p_value_is_the_rows_own_and_one_where_the_margin_is_not_exceeded():
    assert of([row(0.70, 0.10, p_value=0.003)]).p_value == 0.003
    assert of([row(0.54, 0.02, p_value=0.003)]).p_value == 1


@pytest.mark.parametrize(
    ("reservation", "said"),
    [
        ({"unread": "reads 1 of 2 releases that differ"}, "reads 1 of 2 releases that differ"),
        ({"not_adapted_to": "k-anonymous"}, "the attack is not adapted to k-anonymous"),
    ],
)
def test_a_row_that_is_no_evidence_of_protection_supports_nothing_and_may_contradict(
    reservation: Mapping[str, str], said: str
):
    assert decided(of([row(0.51, 0.03) | dict(reservation)])) == "undecided"
    assert decided(of([row(0.70, 0.10) | dict(reservation)])) == "contradicted"
    evidence = evidence_of(row(0.51, 0.03) | dict(reservation), AUC)
    assert evidence is not None
    assert evidence.reservation == said


def test_one_population_contradicts_and_all_must_be_quiet_to_support():
    quiet, loud, wide = row(0.5, 0.02, domain="a"), row(0.8, 0.02, domain="b"), row(0.5, 0.2, domain="c")

    assert decided(of([quiet, loud])) == "contradicted"
    assert decided(of([quiet, wide])) == "undecided"
    assert decided(of([quiet])) == "supported"


def test_the_p_value_is_corrected_for_the_number_of_populations():
    assert of([row(0.8, 0.02, domain=name, p_value=0.01) for name in "abc"]).p_value == pytest.approx(0.03)


def test_all_criteria_must_hold_in_the_same_population():
    gain, top1 = Criterion(measurement="psnr_gain", where={"over": "B0"}), Criterion(measurement="gallery_top1")
    beats = row(2.0, 0.5, name="psnr_gain", chance=0.0, domain="a", over="B0")
    elsewhere = row(0.5, 0.1, name="gallery_top1", chance=0.01, domain="b")
    here = {**elsewhere, "slice": {"domain": "a"}}
    lost = {**here, "value": 0.01, "low": 0.0, "high": 0.015}

    assert decided(of([beats, here], [gain, top1])) == "contradicted"
    assert not of([beats, elsewhere], [gain, top1]).populations
    assert decided(of([beats, lost], [gain, top1])) == "supported"


def test_two_rows_that_no_criterion_tells_apart_are_refused():
    rows = [row(0.9, 0.01, domain="photo", rows="one"), row(0.5, 0.01, domain="photo", rows="two")]
    alike = [{**each, "slice": {"domain": "photo"}} for each in rows]

    assert len(of(rows).populations) == 2
    with pytest.raises(ValueError, match="tell them apart"):
        of(alike)


def test_a_key_that_must_be_missing_leaves_out_the_rows_that_have_it():
    whole = Criterion(measurement="auc", where={"cluster_size": ""})

    found = of([row(0.5, 0.02), row(0.9, 0.02, cluster_size="2-3")], [whole])

    assert [[evidence.row["value"] for evidence in population] for population in found.populations] == [[0.5]]


def test_margins_are_added_to_chance():
    assert Criterion(measurement="top1").threshold(0.01) == pytest.approx(0.02)
    assert AUC.threshold(0.5) == pytest.approx(0.55)
    assert Criterion(measurement="auc", margin="half").threshold(0.5) == 0.75
    assert Criterion(measurement="gallery_top1", margin="half").threshold(0.01) == pytest.approx(0.505)
    assert Criterion(measurement="psnr_gain").threshold(0.0) == 0.0
    with pytest.raises(ValueError, match="no perfect value"):
        Criterion(measurement="psnr_gain", margin="half").threshold(0.0)


def test_where_low_is_a_leak_the_row_is_turned_over():
    error = {**row(0.2, 0.1, name="relative_error", chance=1.0), "higher_is": "safe"}
    blind = {**row(1.1, 0.05, name="relative_error", chance=1.0), "higher_is": "safe"}

    assert decided(of([error], [Criterion(measurement="relative_error")])) == "contradicted"
    assert decided(of([blind], [Criterion(measurement="relative_error")])) == "supported"


@pytest.mark.parametrize("change", [{"n": 9}, {"value": None}, {"chance": None}, {"low": None}])
def test_a_row_that_is_missing_descriptive_or_of_few_records_decides_nothing(change: Mapping[str, Any]):
    assert evidence_of({**row(0.9, 0.01), **change}, AUC) is None


def test_a_protection_that_lowers_the_value_by_more_than_the_margin_is_supported():
    behind, without = row(0.60, 0.02, domain="a"), row(0.80, 0.02, domain="a")

    assert decided(finding([behind], [AUC], controlled=True, compared=[without])) == "supported"


def test_a_protection_that_hardly_lowers_the_value_is_contradicted():
    behind, without = row(0.79, 0.01, domain="a"), row(0.80, 0.01, domain="a")

    assert decided(finding([behind], [AUC], controlled=True, compared=[without])) == "contradicted"
    assert decided(finding([{**behind, "p_value": 0.2}], [AUC], controlled=True, compared=[without])) == "undecided"


def test_a_protection_whose_effect_may_be_the_margin_is_undecided():
    behind, without = row(0.74, 0.03, domain="a"), row(0.80, 0.03, domain="a")

    assert decided(finding([behind], [AUC], controlled=True, compared=[without])) == "undecided"


def test_holm_acts_on_the_gap_of_a_comparison():
    """A gap of exactly the margin, seen two and a half standard errors below it: no better than chance is refuted beyond
    all doubt, the claim is not, beside 13 others."""
    behind = row(0.95 + 2.5 * 0.01 / 1.96, 0.01, domain="a")
    found = finding([behind], [AUC], controlled=True, compared=1.0)

    assert found.populations[0][0].against
    assert found.p_value == pytest.approx(0.0062, abs=1e-4)
    others = {f"other {number}": [Column(findings=[VOID])] for number in range(13)}
    assert verdicts({"claim": [Column(findings=[found])], **others})["claim"] == "undecided"


def test_the_interval_of_a_gap_covers_that_of_independent_values():
    evidence = compared_evidence(row(0.6, 0.03), row(0.8, 0.04), AUC)

    assert evidence is not None
    assert evidence.gap is not None
    assert (evidence.gap.value, evidence.gap.low, evidence.gap.high) == pytest.approx((0.2, 0.15, 0.25))


def test_a_comparison_with_an_exact_value_has_the_width_of_the_measured_one():
    near, far = row(0.98, 0.01), row(0.7, 0.05)

    assert decided(finding([near], [AUC], controlled=True, compared=1.0)) == "contradicted"
    assert decided(finding([far], [AUC], controlled=True, compared=1.0)) == "supported"


def test_a_population_without_its_counterpart_is_left_out():
    found = finding([row(0.6, 0.02, domain="a")], [AUC], controlled=True, compared=[row(0.8, 0.02, domain="b")])

    assert not found.populations


def test_of_five_seeds_four_must_agree():
    loud, quiet, wide = of([row(0.8, 0.02)]), of([row(0.5, 0.02)]), of([row(0.55, 0.2)])

    assert [agreeing(runs) for runs in (1, 2, 3, 4, 5, 10)] == [1, 2, 3, 4, 4, 8]
    assert decided(loud, loud, loud, loud, quiet) == "contradicted"
    assert decided(loud, loud, loud, quiet, quiet) == "undecided"
    assert decided(quiet, quiet, quiet, quiet, wide) == "supported"
    assert decided(quiet, quiet, quiet, wide, wide) == "undecided"


def test_a_seed_that_did_not_run_agrees_with_nothing():
    loud = of([row(0.8, 0.02)])

    assert decided(loud, loud, loud, loud, VOID) == "contradicted"
    assert decided(loud, loud, loud, VOID, VOID) == "undecided"
    assert decided(VOID, VOID, VOID, VOID, VOID) == "undecided"


def test_all_encoders_that_decide_must_agree():
    loud, quiet = Column(findings=[of([row(0.8, 0.02)])]), Column(findings=[of([row(0.5, 0.02)])])

    assert verdicts({"a": [loud, loud], "b": [loud, quiet], "c": [quiet, quiet], "d": []}) == {
        "a": "contradicted", "b": "undecided", "c": "supported", "d": "undecided",
    }  # fmt: skip


def test_the_kth_smallest_p_value_times_its_share_is_valid_under_any_dependence():
    """The worst case: every arrangement of five p-values on a grid, all equal or all but one far apart."""
    assert over_seeds([0.04, 0.01, 0.03, 0.02, 0.9]) == pytest.approx(0.05)
    draws = torch.rand(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    equal = torch.tensor([over_seeds([p] * 5) for p in draws[:4000].tolist()])
    apart = torch.tensor([
        over_seeds([(p + shift / 5) % 1 for shift in range(5)]) for p in draws[:4000].tolist()
    ])  # fmt: skip
    for level, found in itertools.product((0.05, 0.2), (equal, apart)):
        assert float((found <= level).double().mean()) <= level + 0.02  # 0.02 is three standard errors at .2
    with pytest.raises(ValueError, match="no p-value"):
        over_seeds([])


def test_holm_asks_more_of_one_claim_among_many():
    alone = [Column(findings=[of([row(0.65, 0.05, p_value=0.025)])])]
    others = {f"other {number}": [Column(findings=[of([row(0.5, 0.2)])])] for number in range(4)}

    assert verdicts({"alone": alone})["alone"] == "contradicted"
    assert verdicts({"alone": alone, **others})["alone"] == "undecided"


def test_the_adjusted_p_value_says_whether_a_claim_is_contradicted():
    columns = {
        f"claim {number}": [Column(findings=[of([row(0.7, 0.05, p_value=p_value)])])]
        for number, p_value in enumerate((0.001, 0.011, 0.013, 0.02, 0.5))
    }

    adjusted, found = ledger_p_values(columns), verdicts(columns)

    assert {name for name, (_, p_value) in adjusted.items() if p_value <= 0.05} == {
        name for name, verdict in found.items() if verdict == "contradicted"
    }
    assert all(after >= before for before, after in adjusted.values())


@pytest.mark.medium
def test_true_claims_are_contradicted_in_at_most_one_ledger_of_twenty():
    rng = torch.Generator().manual_seed(0)
    repeats, claims, domains, n = 400, 14, 3, 60
    criterion = Criterion(measurement="accuracy", margin=0.0)
    alarms = 0
    for _ in range(repeats):
        hits = torch.binomial(torch.full((claims, domains), float(n)), torch.tensor(0.5), generator=rng)
        columns = {}
        for number in range(claims):
            rows = []
            for domain, successes in enumerate(hits[number].tolist()):
                interval = clopper_pearson(successes, n)
                one = row(successes / n, 0.0, name="accuracy", n=n, p_value=interval.p_value(0.5), domain=str(domain))
                rows.append({**one, "low": interval.low, "high": interval.high})
            columns[str(number)] = [Column(findings=[of(rows, [criterion])])]
        alarms += "contradicted" in verdicts(columns).values()

    assert alarms <= 30  # Binomial(400, .05) exceeds 30 with probability .012


def test_a_population_without_evidence_supports_nothing() -> None:
    quiet, unknown = row(0.50, 0.02, domain="a"), row(0.90, 0.05, domain="b", n=9)
    unavailable = {**unknown, "n": 0, "value": None, "low": None, "high": None}

    assert decided(of([quiet])) == "supported"
    assert decided(of([quiet, unknown])) == "undecided"
    assert decided(of([quiet, unavailable])) == "undecided"


def test_a_protection_of_what_hardly_leaks_is_not_contradicted() -> None:
    unprotected, protected = row(0.54, 0.007), row(0.512, 0.007, p_value=1e-4)

    found = finding([protected], (AUC,), controlled=True, compared=[unprotected])

    assert decided(*[found] * 5) == "undecided"


SEEN = Criterion(
    measurement="balanced_accuracy", where={"class_from": "picture", "loss": "mse"},
    over={"class_from": "exchanged picture", "loss": ""},
)  # fmt: skip


def pictures(picture: float, exchanged: float, half: float, *, n: int = 100) -> list[dict[str, Any]]:
    """What is recognized in pictures of one domain and in exchanged ones, where chance is .143."""
    shared = {"name": "balanced_accuracy", "chance": 1 / 7, "n": n}
    return [
        row(picture, half, **shared, class_from="picture", loss="mse", domain="a"),  # type: ignore[arg-type]
        row(exchanged, half, **shared, class_from="exchanged picture", domain="a"),  # type: ignore[arg-type]
        row(0.9, half, **shared, class_from="style alone", domain="a"),  # type: ignore[arg-type]
    ]


def test_a_row_is_held_against_its_control_and_not_against_chance():
    assert decided(of(pictures(0.40, 0.14, 0.04), [SEEN])) == "contradicted"
    assert decided(of(pictures(0.40, 0.38, 0.01), [SEEN])) == "supported"
    assert decided(of(pictures(0.40, 0.33, 0.04), [SEEN])) == "undecided"


def test_the_interval_over_a_control_is_that_of_a_difference_of_independent_values():
    (population,) = of(pictures(0.40, 0.14, 0.04), [SEEN]).populations

    assert population[0].excess is not None
    assert population[0].excess.value == pytest.approx(0.26)
    assert population[0].excess.high - 0.26 == pytest.approx(0.04 * 2**0.5)


@pytest.mark.parametrize("lacking", [{"n": 9}, {"value": None}])
def test_without_a_control_that_can_be_judged_nothing_is_decided(lacking: Mapping[str, Any]):
    picture, exchanged, style = pictures(0.40, 0.14, 0.04)

    for rows in ([picture, style], [picture, {**exchanged, **lacking}, style]):
        found = of(rows, [SEEN])
        assert (len(found.populations), found.incomplete) == (0, 1)
        assert decided(found) == "undecided"


def test_a_run_without_any_row_to_decide_by_contradicts_nothing():
    nothing = of([], controlled=True)

    assert nothing.p_value == 1
    assert decided(nothing, nothing, nothing) == "undecided"


def test_a_population_that_is_left_out_neither_contradicts_nor_supports():
    others = Criterion(measurement="auc", without={"domain": "own"})
    own, other = row(0.9, 0.02, domain="own"), row(0.5, 0.02, domain="other")

    assert decided(of([own, other], [others])) == "supported"
    assert decided(of([own], [others])) == "undecided"
