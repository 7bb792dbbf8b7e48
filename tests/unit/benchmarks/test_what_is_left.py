"""What pages say is left behind defenses is what was measured."""

import json

from benchmarks.what_is_left import CASES, RESULTS, in_words
from fdgsec.experiments.report.remedies import MEASURED, REMEDIES, SWEPT
from fdgsec.experiments.run_config import defense_of

STORED = json.loads(RESULTS.read_text())


def test_pages_quote_the_stored_rows():
    assert {key: in_words(STORED["rows"], *key) for key in MEASURED} == dict(MEASURED)


def test_every_case_was_measured_and_every_defended_one_is_quoted():
    stored = {(row["target"], row["defense"]) for row in STORED["rows"]}

    assert stored == {(case.target, case.defense) for case in CASES}
    assert set(MEASURED) == {key for key in stored if key[1]}


def test_cases_are_of_the_defenses_that_pages_offer():
    offered = {one.defense for _, one in REMEDIES} | {one.defense for one in SWEPT.values()}

    for case in CASES:
        assert not case.defense or case.defense in offered
        assert not case.defense or defense_of(case.defense)
