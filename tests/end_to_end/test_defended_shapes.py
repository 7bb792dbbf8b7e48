"""Defended targets on the bundled data, small: attacks report what they no longer see, and judge what they still do."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import fdgsec
from fdgsec.experiments.report.schema import AttackReport, AttackResult

ATTACKS = ["differencing", "membership", "linkage", "domain-inference", "property-inference", "style-inversion"]
OPTIONS = [
    "attacks.membership.sizes=[20]", "attacks.membership.clients=12", "attacks.linkage.clients=10",
    "attacks.linkage.schemes=[]", 'attacks.linkage.sessions=["iid"]', "attacks.linkage.noise=[]", "attacks.linkage.noise_in_sds=[]",
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("FDGSEC_CACHE", str(folder))
        yield folder


def attacked(target: str, attacks: list[str], defense: str, *, adversary: str = "server") -> AttackReport:
    return fdgsec.attack(
        target,
        attacks=attacks,
        defenses=[defense] if defense else [],
        per_domain=84,
        image_size=32,
        assignments=OPTIONS,
        adversary=adversary,
    )


def result(report: AttackReport, name: str) -> AttackResult:
    return next(attack for attack in report.attacks if attack.name == name)


def linked(report: AttackReport) -> dict[str, float]:
    return {
        str(row.slice["domain"]): float(row.value)
        for row in result(report, "linkage").measurements
        if row.name == "top1" and row.slice.get("distance") == "plain" and row.slice.get("clients") == "iid"
        and "noise" not in row.slice and "matching" not in row.slice and row.value is not None
    }  # fmt: skip


@pytest.mark.parametrize("defense", ["secure-aggregation", "shuffle"])
@pytest.mark.parametrize("adversary", ["server", "client"])
@pytest.mark.medium
def test_what_a_policy_hides_is_a_reason_and_not_a_failure(defense: str, adversary: str):
    report = attacked("ccst-overall", ATTACKS, defense, adversary=adversary)

    assert {attack.name: attack.status for attack in report.attacks} == dict.fromkeys(ATTACKS, "skipped")
    assert "saw no" in (result(report, "linkage").reason or "")
    assert report.guarantees[0]["epsilon"] is None
    senders = {str(row["sender"]) for row in report.artifacts if row["receiver"] == "server"}
    assert senders == ({"clients"} if defense == "secure-aggregation" else {f"anonymous:{n}" for n in range(3)})


@pytest.mark.medium
def test_a_look_up_finds_an_image_in_its_groups_mean_once_in_k_times_at_most():
    plain = attacked("ccst-single", ["reidentification"], "")
    grouped = attacked("ccst-single", ["reidentification"], "k-anonymous:k=2")

    assert result(grouped, "reidentification").status == "done"
    before, after = _best(plain), _best(grouped)
    assert before.keys() == after.keys()
    assert all(value >= 0.9 for value in before.values())
    assert all(after[domain] <= 0.6 for domain in after)  # each of a pair is named for both rows: a half


def _best(report: AttackReport) -> dict[str, float]:
    """The best look-up of every domain, among rows as if all images had been released."""
    found: dict[str, float] = {}
    for row in result(report, "reidentification").measurements:
        if row.name == "top1" and row.n >= 20 and row.value is not None:
            domain = str(row.slice["domain"])
            found[domain] = max(found.get(domain, 0.0), float(row.value))
    return found


@pytest.mark.medium
def test_a_quiet_style_is_linked_and_a_loud_one_is_not():
    quiet = linked(attacked("ccst-overall", ["linkage"], "style-noise:p=0.1,scale=0.05"))
    loud = linked(attacked("ccst-overall", ["linkage"], "style-noise:p=0.1,scale=1000.0"))

    assert quiet.keys() == loud.keys()
    assert quiet
    assert all(value == 1.0 for value in quiet.values())  # Table 10's noise
    assert sum(loud.values()) / len(loud) <= 0.4  # chance is 1/10
