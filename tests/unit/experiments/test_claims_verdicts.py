"""The rule that turns rows into verdicts."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from fdgsec.experiments.claims.catalogue import ledger
from fdgsec.experiments.claims.verdicts import Criterion, Finding, adjusted_p_values, evidence_of, finding, verdicts
from fdgsec.metrics.proportion_intervals import wilson
from fdgsec.runtime.registry import TARGETS

AUC = Criterion(measurement="auc")


def row(
    value: float, half: float, *, name: str = "auc", chance: float = 0.5, n: int = 100, **where: str
) -> dict[str, Any]:
    return {
        "name": name, "value": value, "low": value - half, "high": value + half, "chance": chance, "n": n,
        "higher_is": "leak", "slice": where,
    }  # fmt: skip


def decided(
    rows: Sequence[Mapping[str, Any]], criteria: Sequence[Criterion] = (AUC,), *, controlled: bool = True
) -> str:
    return verdicts([finding("claim", rows, criteria, controlled=controlled)])["claim"]


def test_a_lower_bound_over_chance_plus_margin_refutes():
    assert decided([row(0.70, 0.10)]) == "refuted"


def test_a_lower_bound_over_chance_but_not_over_the_margin_does_not():
    assert decided([row(0.54, 0.02)]) == "undecided"


def test_an_upper_bound_under_the_margin_supports_where_the_positive_control_was_passed():
    assert decided([row(0.51, 0.03)]) == "supported"
    assert decided([row(0.51, 0.03)], controlled=False) == "undecided"


@pytest.mark.parametrize(
    ("reservation", "said"),
    [
        ({"unread": "reads 1 of 2 releases that differ"}, "reads 1 of 2 releases that differ"),
        ({"not_adapted_to": "k-anonymous"}, "the attack is not adapted to k-anonymous"),
    ],
)
def test_a_row_that_is_no_evidence_of_protection_supports_nothing_and_may_refute(
    reservation: Mapping[str, str], said: str
):
    assert decided([row(0.51, 0.03) | dict(reservation)]) == "undecided"
    assert decided([row(0.70, 0.10) | dict(reservation)]) == "refuted"
    evidence = evidence_of(row(0.51, 0.03) | dict(reservation), AUC)
    assert evidence is not None
    assert evidence.reservation == said


def test_one_population_refutes_and_all_must_be_quiet_to_support():
    quiet, loud, wide = row(0.5, 0.02, domain="a"), row(0.8, 0.02, domain="b"), row(0.5, 0.2, domain="c")

    assert decided([quiet, loud]) == "refuted"
    assert decided([quiet, wide]) == "undecided"
    assert decided([quiet]) == "supported"


def test_all_criteria_must_hold_in_the_same_population():
    gain, top1 = Criterion(measurement="psnr_gain", where={"over": "B0"}), Criterion(measurement="gallery_top1")
    beats = row(2.0, 0.5, name="psnr_gain", chance=0.0, domain="a", over="B0")
    elsewhere = row(0.5, 0.1, name="gallery_top1", chance=0.01, domain="b")
    here = {**elsewhere, "slice": {"domain": "a"}}
    lost = {**here, "value": 0.01, "low": 0.0, "high": 0.015}

    assert decided([beats, here], [gain, top1]) == "refuted"
    assert not finding("claim", [beats, elsewhere], [gain, top1], controlled=True).populations
    assert decided([beats, lost], [gain, top1]) == "supported"


def test_a_key_that_must_be_missing_leaves_out_the_rows_that_have_it():
    whole = Criterion(measurement="auc", where={"cluster_size": ""})

    found = finding("claim", [row(0.5, 0.02), row(0.9, 0.02, cluster_size="2-3")], [whole], controlled=True)

    assert [[evidence.row["value"] for evidence in population] for population in found.populations] == [[0.5]]


def test_hit_rates_must_exceed_twice_chance():
    hit = Criterion(measurement="top1")

    assert hit.threshold(0.01) == pytest.approx(0.02)
    assert Criterion(measurement="auc").threshold(0.5) == pytest.approx(0.55)
    assert Criterion(measurement="psnr_gain").threshold(0.0) == 0.0
    assert decided([row(0.018, 0.005, name="top1", chance=0.01)], [hit]) == "undecided"


def test_where_low_is_a_leak_the_row_is_turned_over():
    error = {**row(0.2, 0.1, name="relative_error", chance=1.0), "higher_is": "safe"}
    blind = {**row(1.1, 0.05, name="relative_error", chance=1.0), "higher_is": "safe"}

    assert decided([error], [Criterion(measurement="relative_error")]) == "refuted"
    assert decided([blind], [Criterion(measurement="relative_error")]) == "supported"


@pytest.mark.parametrize("change", [{"n": 9}, {"value": None}, {"chance": None}, {"low": None}])
def test_a_row_that_is_missing_descriptive_or_of_few_records_decides_nothing(change: Mapping[str, Any]):
    assert evidence_of({**row(0.9, 0.01), **change}, AUC) is None


def test_the_p_value_is_a_normal_laws_and_meets_the_interval():
    touching = evidence_of(row(0.65, 0.10), AUC)
    at_chance = evidence_of(row(0.55, 0.10), AUC)

    assert touching is not None
    assert at_chance is not None
    assert touching.p_value == pytest.approx(0.025, abs=1e-6)
    assert at_chance.p_value == pytest.approx(0.5, abs=1e-6)


def test_holm_asks_more_of_one_claim_among_many():
    alone = finding("alone", [row(0.65, 0.10)], [AUC], controlled=True)  # p = .025
    others = [finding(f"other {n}", [row(0.5, 0.2)], [AUC], controlled=True) for n in range(4)]

    assert verdicts([alone])["alone"] == "refuted"
    assert verdicts([alone, *others])["alone"] == "undecided"


def test_the_adjusted_pvalue_of_a_claim_says_whether_it_is_refuted():
    findings = [finding(f"claim {i}", [row(0.6, 0.1 - 0.02 * i)], [AUC], controlled=True) for i in range(5)]

    adjusted, decided_ = adjusted_p_values(findings), verdicts(findings)

    assert {name for name, p_value in adjusted.items() if p_value <= 0.05} == {
        name for name, verdict in decided_.items() if verdict == "refuted"
    }
    assert all(adjusted[one.claim] >= one.p_value for one in findings)


def test_true_claims_are_refuted_in_at_most_one_ledger_of_twenty():
    rng = torch.Generator().manual_seed(0)
    repeats, claims, domains, n = 400, 16, 3, 60
    alarms = 0
    for _ in range(repeats):
        hits = torch.binomial(torch.full((claims, domains), float(n)), torch.tensor(0.55), generator=rng)
        found: list[Finding] = []
        for number in range(claims):
            rows = []
            for domain in range(domains):
                interval = wilson(float(hits[number, domain]), n)
                value = float(hits[number, domain]) / n
                rows.append({**row(value, 0.0, n=n, domain=str(domain)), "low": interval.low, "high": interval.high})
            found.append(finding(str(number), rows, [AUC], controlled=True))
        alarms += "refuted" in verdicts(found).values()

    assert alarms <= 30  # Binomial(400, .05) exceeds 30 with probability .012


def test_the_ledger_names_each_claim_once_and_only_known_targets():
    rows = ledger()

    assert len(rows) >= 12
    assert len({claim.id for claim in rows}) == len(rows)
    assert {claim.paper for claim in rows} == {"CCST", "StableFDG", "FedDAG", "FISC", "FedAlign"}
    assert all(claim.target in TARGETS and claim.rows() for claim in rows)
