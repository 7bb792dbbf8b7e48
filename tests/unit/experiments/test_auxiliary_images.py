"""The number of auxiliary images of a run: as asked for, disjoint from candidates, refused where too few are left."""

from pathlib import Path
from typing import Any

import pytest

import fdgsec
from fdgsec.data.roles import Roles
from fdgsec.experiments.run_config import attack_settings
from fdgsec.experiments.setup.run_inputs import LEFT, load_world, roles_of
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import NoProgress

SMALL: dict[str, Any] = {"image_size": 16, "encoder": "pixels"}


def roles(asked: str, *, per_domain: int = 280) -> Roles:
    given = {"dataset": "shapes", "per_domain": per_domain, "image_size": 16}
    config = attack_settings("ccst-single", given, assignments=[f"auxiliary={asked}"])
    return roles_of(load_world(config, data_root=None, progress=NoProgress()), config)


@pytest.mark.parametrize(("asked", "expected"), [("7", 7), ("70", 70), ("80", 80), ("all", 80), ("none", 42)])
def test_source_domains_have_as_many_auxiliary_images_as_asked_for(asked: str, expected: int):
    made = roles(asked)

    counts = made.summary()
    *sources, unseen = counts["auxiliary"]
    assert [counts["auxiliary"][name] for name in sources] == [expected] * len(sources)
    assert counts["auxiliary"][unseen] == 42  # which nobody attacks
    assert all(counts["federation"][name] + counts["held_out"][name] == 280 - expected for name in sources)
    assert not set(made.auxiliary.ids) & {*made.federation.ids, *made.held_out.ids}


@pytest.mark.parametrize("asked", ["0", "-3", "81", "280", "5000"])
def test_too_few_images_left_are_an_error_that_says_how_many_there_may_be(asked: str):
    with pytest.raises(UsageError, match=rf"auxiliary={asked} is impossible: .* has 280 images.*1 to {280 - LEFT}"):
        roles(asked)


def test_a_small_domain_may_give_its_usual_share():
    assert set(roles("all", per_domain=140).summary()["auxiliary"].values()) == {21}


@pytest.mark.parametrize("asked", ["some", "1.5", "true"])
def test_other_words_and_fractions_are_refused(asked: str):
    with pytest.raises(UsageError, match="auxiliary cannot be"):
        attack_settings("ccst-single", {}, assignments=[f"auxiliary={asked}"])


def test_a_training_run_that_keeps_none_aside_has_no_auxiliary_images_to_count():
    with pytest.raises(UsageError, match="roles aside"):
        fdgsec.train("fedavg", dataset="shapes", per_domain=42, **SMALL, rounds=0, assignments=["auxiliary=4"])


@pytest.mark.medium
def test_a_run_with_many_auxiliary_images_is_attacked_again_with_the_same_ones(own_cache: Path, tmp_path: Path):
    one = fdgsec.attack(
        "ccst-single", per_domain=280, **SMALL, attacks=["label-inference"], out=tmp_path / "run",
        assignments=["auxiliary=all", "attacks.label-inference.auxiliary=[20, 80, 81]"],
    )  # fmt: skip
    again = fdgsec.attack_run(tmp_path / "run", attacks=["label-inference"])

    assert one.dataset["roles"] == again.dataset["roles"]
    rows = {
        (row.slice.get("auxiliary"), row.value is None)
        for row in one.attacks[0].measurements
        if row.name == "balanced_accuracy" and row.slice["rows"] == "as_if_released"
    }
    assert rows == {(None, False), (20, False), (80, False), (81, True)}
