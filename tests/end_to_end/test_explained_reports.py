"""`fdgsec explain` knows every word that real reports use."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import fdgsec
from fdgsec.cli import main
from fdgsec.experiments.report.schema import AttackReport

SMALL: dict[str, Any] = {"per_domain": 84, "image_size": 32}
QUICK = (
    "attacks.membership.sizes=[20]", "attacks.membership.clients=12", "attacks.linkage.clients=10",
    "attacks.label-inference.folds=2",
)  # fmt: skip


def words(report: AttackReport) -> Iterator[str]:
    """The words of a report that have a meaning: no numbers, and no names that the dataset brings."""
    yield from (report.target, report.method, report.encoder, report.profile)
    yield from (str(defense["name"]) for defense in report.defenses)
    for message in (*report.artifacts, *report.model_traffic):
        yield from (str(message["kind"]), str(message["stage"]))
    data = {str(name) for key in ("domains", "classes", "class_names") for name in _listed(report.dataset.get(key))}
    for attack in report.attacks:
        yield attack.name
        yield str(attack.adversary["name"])
        yield from _listed(attack.adversary["knows"])
        controls = [control.measurement for found in attack.controls.values() for control in found]
        for row in (*attack.measurements, *controls):
            yield from (row.name, *row.slice, row.chance_kind, *filter(None, [row.method]))
            values = [str(value) for key, value in row.slice.items() if key not in ("domain", "not answered")]
            yield from (value for value in values if value not in data and not re.search(r"\d", value))


def _listed(value: object) -> Sequence[str]:
    return [str(each) for each in value] if isinstance(value, list | tuple | set | frozenset) else []


def unexplained(report: AttackReport, capsys: pytest.CaptureFixture[str]) -> list[str]:
    asked = sorted({*words(report)} - {"none", ""})
    assert len(asked) > 20
    found = [word for word in asked if main(["explain", word]) != 0]
    capsys.readouterr()
    return found


@pytest.mark.medium
def test_every_word_of_a_report_is_explained(own_cache: Path, capsys: pytest.CaptureFixture[str]):
    report = fdgsec.attack(
        "ccst-single", attacks=["differencing", "membership", "reidentification", "label-inference"],
        defenses=["style-noise:scale=0.1"], assignments=QUICK, **SMALL,
    )  # fmt: skip

    assert unexplained(report, capsys) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "settings"),
    [
        ("fisc", {"adversary": "client", "attacks": ["interpolation-leakage", "inter-client"]}),
        ("fedalign", {"attacks": ["pool-exposure", "linkage"]}),
        ("fediir", {"rounds": 1, "attacks": ["property-inference", "poisoning"], "adversary": "client"}),
        ("ccst-overall", {"attacks": ["set-reconstruction", "style-inversion"]}),
    ],
    ids=str,
)
def test_every_word_of_other_attacks_is_explained(
    target: str, settings: dict[str, Any], own_cache: Path, capsys: pytest.CaptureFixture[str]
):
    report = fdgsec.attack(target, assignments=QUICK, **SMALL, **settings)

    assert unexplained(report, capsys) == []


def test_a_word_that_no_report_has_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]):
    assert main(["explain", "membershp"]) == 2

    assert "did you mean 'membership'?" in capsys.readouterr().err
