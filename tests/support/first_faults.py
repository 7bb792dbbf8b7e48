"""Findings of an audit, all of them or until the one that a test planted, so that it pays for no further trainings."""

from collections.abc import Iterable

from fdgsec.experiments.audit.counted_steps import Findings


def faults_until(words: str, found: Iterable[Findings]) -> list[str]:
    """The faults in `found` up to the first one with these words; all of them where there is none."""
    said = list[str]()
    for one in found:
        said += one.faults
        if any(words in fault for fault in one.faults):
            break
    return said


def all_findings(found: Iterable[Findings]) -> Findings:
    """Join findings in their order."""
    kept = list(found)
    return Findings(
        faults=[words for one in kept for words in one.faults],
        untested=[words for one in kept for words in one.untested],
    )
