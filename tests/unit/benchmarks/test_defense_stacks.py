"""The matrix of defense stacks: what counts as a fault, and what a cell says."""

import pytest
import torch

from benchmarks.defense_stacks import DEFENSES, KINDS, Bench, cell, faults, stacks
from fdgsec.runtime.registry import DEFENSES as BUNDLED

AUDITED = {"kind": "rows", "stack": ["PS"], "guarantee": "run: ...", "changed": 0.5, "claim": 4.0, "bound": 1.0}


@pytest.fixture(scope="module")
def styles() -> Bench:
    torch.set_num_threads(1)
    return Bench.of(KINDS["pooled styles"])


def test_every_bundled_defense_is_stacked_in_both_orders():
    every = list(stacks())

    assert {text.partition(":")[0] for text in DEFENSES.values()} == set(BUNDLED)
    assert {(one, other) for one in DEFENSES for other in DEFENSES} <= set(every)
    assert sum(len(stack) == 3 for stack in every) == 40


def test_a_bound_above_its_claim_and_a_raw_artifact_under_a_guarantee_are_faults():
    assert faults([{**AUDITED, "exceeded": False}]) == []
    assert faults([{**AUDITED, "exceeded": True}]) == ["PS on rows"]
    assert faults([{**AUDITED, "exceeded": False, "changed": 0.0}]) == ["PS on rows"]
    assert faults([{"kind": "rows", "stack": ["G"], "changed": 0.0}, {"kind": "rows", "refused": "no"}]) == []


def test_a_cell_is_refused_without_a_guarantee_or_the_bound_nearest_to_its_claim():
    assert cell([{"refused": "one"}, {"refused": "other"}]) == "refused"
    assert cell([{"refused": "one"}, {"changed": 0.0}]) == "-"
    assert cell([AUDITED, {**AUDITED, "bound": 3.0, "claim": 8.0}]) == "3.0 / 8"


@pytest.mark.medium
def test_the_stack_that_released_raw_styles_is_refused_and_what_is_accepted_is_audited(styles: Bench):
    refused = [str(styles.outcome(stack)["refused"]) for stack in (("PS", "PS0"), ("PS0", "PS"))]
    accepted = styles.outcome(("PS", "Q"))

    assert all("both mechanisms on what clients send" in reason for reason in refused)
    assert accepted["exceeded"] is False
    assert "epsilon 4 at delta 1e-05 per record (replace-one)" in str(accepted["guarantee"])
    assert float(str(accepted["changed"])) > 0
