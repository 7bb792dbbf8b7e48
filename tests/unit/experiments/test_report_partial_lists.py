"""The first sentence where members are told from others, though no whole list is right."""

from fdgsec.metrics.measurement import Measurement
from tests.unit.experiments.test_report_findings import done, found, row

PLACE: dict[str, str | int] = {"domain": "cartoon", "n_per_client": 40, "gallery": 80}
NONE_EXACT = row("exact_list", 0.0, 0.0, 0.218, 1e-23, n=15, **PLACE)
MOST_LISTED = row("precision", 0.866, 0.677, 0.895, 0.5, n=600, **PLACE)
MEMBERS = row("auc", 0.936, 0.918, 0.951, 0.5, n=15, **PLACE)


def test_members_that_are_told_from_others_are_said_where_no_whole_list_is_right() -> None:
    """As on shapes behind style-noise of s = .1: the AUC leaks strongly, and 0 of 15 lists are exact."""
    rows: list[Measurement] = [MEMBERS, NONE_EXACT, MOST_LISTED]
    assert MEMBERS.verdict == "leaks strongly"

    findings = found(done("set-reconstruction", *rows))

    assert findings.sentence.startswith("Yes")
    assert findings.yes
