"""The table of planted faults: which class stands where, and the committed audits."""

import pytest

from benchmarks.audit_faults import CASES, CAUGHT, PASSED, registered, rows
from fdgsec.experiments.run_config import defense_of
from fdgsec.runtime.registry import DEFENSES


@pytest.mark.parametrize("name", CASES)
def test_a_fault_stands_in_the_place_of_the_sound_defense_for_one_audit(name: str):
    case, before = CASES[name], dict(DEFENSES)

    with registered(case):
        assert type(defense_of(case.defense)).__name__ == (case.broken or type(defense_of(case.defense)).__name__)
        assert (DEFENSES == before) is not bool(case.broken)

    assert before == DEFENSES


def test_of_the_committed_audits_faults_are_found_and_sound_defenses_pass():
    found = rows()

    assert found
    for name, case in CASES.items():
        codes = [row["code"] for row in found if row["case"] == name]
        few = 40 - CAUGHT if case.broken else PASSED
        assert sum(code != (1 if case.broken else 0) for code in codes) <= few, name
