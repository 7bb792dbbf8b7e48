"""Single styles behind style noise, the combination that the papers discuss most: every attack runs or says why not."""

import pytest

import fdgsec


@pytest.mark.slow
def test_no_attack_fails_on_rows_behind_style_noise(own_cache: object):
    report = fdgsec.attack(
        "ccst-single", defenses=["style-noise:p=0.1,scale=0.05"], per_domain=60, image_size=32, encoder="pixels",
        attacks=("linkage", "style-inversion", "reidentification"),
        assignments=("attacks.style-inversion.losses=['mse']", "attacks.style-inversion.size=8"),
    )  # fmt: skip

    assert {found.name: found.reason for found in report.attacks if found.status == "failed"} == {}
    assert {found.name: found.status for found in report.attacks}["style-inversion"] == "done"


@pytest.mark.parametrize("defense", ["guards", "k-anonymous:k=2"])
@pytest.mark.medium
def test_a_defense_without_noise_on_means_does_not_end_linkage(defense: str):
    report = fdgsec.attack(
        "ccst-overall", defenses=[defense], attacks=["linkage"], per_domain=84, image_size=16, encoder="pixels",
        assignments=["attacks.linkage.clients=6"],
    )  # fmt: skip

    assert [result.status for result in report.attacks] == ["done"]
