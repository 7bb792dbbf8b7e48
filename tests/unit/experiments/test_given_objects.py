"""Methods and attacks handed in as objects are those that run, registered or not, and no stored run stands for them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import fdgsec
from fdgsec.attacks.differencing.attack import Differencing
from fdgsec.experiments.attack.run_attacks import dry_run
from fdgsec.experiments.run_config import attack_settings
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fedavg import FedAvg
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import NoProgress
from fdgsec.runtime.registry import given_classes, is_bundled, names, resolve
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.attack import Answers, Case

ASKED: list[int] = []


@dataclass(frozen=True, kw_only=True)
class CountedDifferencing(Differencing):
    """Differencing under its bundled name that counts how often it is run."""

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        ASKED.append(len(cases))
        return super().run(cases, knowledge, rng)


@dataclass(frozen=True, kw_only=True)
class Renamed(CCST):
    """A method that no registry knows."""


@pytest.mark.parametrize(
    "attacks", [["differencing", "differencing"], [Differencing(), "differencing"], [Differencing(), Differencing()]]
)
def test_an_attack_that_is_given_twice_is_refused_before_anything_runs(attacks: list[str | Differencing]):
    with pytest.raises(UsageError, match="attack differencing is named twice"):
        fdgsec.attack("ccst-overall", attacks=attacks, per_domain=60, image_size=32)
    with pytest.raises(UsageError, match="attack differencing is named twice"):
        fdgsec.attack_vectors({"A": [1.0, 2.0, 0.5, 0.5]}, attacks=attacks)  # type: ignore[arg-type]


@pytest.mark.parametrize("named", ["run.toml", "config.json"])
def test_an_attack_that_a_file_of_settings_names_twice_is_refused(named: str, tmp_path: Path):
    path = tmp_path / named
    twice = ["linkage", "linkage"]
    path.write_text(json.dumps({"attacks": twice}) if path.suffix == ".json" else f"[run]\nattacks = {twice}\n")

    with pytest.raises(UsageError, match="attack linkage is named twice"):
        attack_settings("ccst-overall", {}, preset=str(path))


@pytest.mark.medium
def test_an_attack_object_runs_in_place_of_the_bundled_one_of_its_name(own_cache: object):
    fdgsec.attack("ccst-overall", attacks=[CountedDifferencing()], per_domain=60, image_size=32)

    assert ASKED


@pytest.mark.medium
def test_a_method_that_no_registry_knows_is_attacked_afresh_every_time(own_cache: object):
    reports = [fdgsec.attack(Renamed(), attacks=["differencing"], per_domain=60, image_size=32) for _ in range(2)]

    assert [report.reused for report in reports] == [False, False]
    assert reports[0].target == "Renamed"
    assert reports[0].transcript_sha256 == reports[1].transcript_sha256


@pytest.mark.medium
def test_a_bundled_run_is_reused(own_cache: object):
    reports = [fdgsec.attack("ccst-overall", attacks=["differencing"], per_domain=60, image_size=32) for _ in range(2)]

    assert [report.reused for report in reports] == [False, True]


def test_names_of_given_classes_hold_inside_the_call_only():
    with given_classes("methods", Renamed()):
        assert resolve("methods", "Renamed") is Renamed
        assert "Renamed" in names("methods")

    with pytest.raises(UsageError, match="unknown method 'Renamed'"):
        resolve("methods", "Renamed")


def test_two_given_classes_of_one_name_are_refused():
    with (
        pytest.raises(UsageError, match="two classes of attacks are called differencing"),
        given_classes("attacks", Differencing(), CountedDifferencing()),
    ):
        pass


def test_what_is_bundled_is_of_fdgsec_through_and_through():
    assert is_bundled(CCST())
    assert not is_bundled(Renamed())


@pytest.mark.medium
def test_what_a_target_releases_follows_its_options():
    given = {"dataset": "shapes", "per_domain": 42, "image_size": 32}
    ccst = attack_settings("cross-evaluation", given, assignments=["method.base=ccst"])
    fisc = attack_settings("fisc", given, assignments=["method.contrastive=ordinary"])
    fediir = attack_settings("cross-evaluation", {**given, "rounds": 1}, assignments=["method.base=fediir"])

    assert ("domain-inference", "runs") in dry_run(ccst, data_root=None, progress=NoProgress())
    assert ("gradient-inversion", "runs") in dry_run(fediir, data_root=None, progress=NoProgress())
    with pytest.raises(UsageError, match="fisc releases nothing before it trains"):
        dry_run(fisc, data_root=None, progress=NoProgress())


def test_options_of_an_unknown_attack_are_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match="did you mean 'optimization-inversion'"):
        attack_settings("ccst-overall", {}, assignments=["attacks.optimisation-inversion.steps=3"])


def test_fedavg_trains_as_the_class_that_was_given(own_cache: object):
    @dataclass(frozen=True, kw_only=True)
    class Counted(FedAvg):
        """FedAvg under another class."""

    report = fdgsec.train(Counted(), per_domain=20, image_size=16, rounds=1, backbone="tiny")

    assert report.method == "Counted"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"attacks": [3]}, "attacks are given by name or as objects"),
        ({"attacks": "linkage"}, r"attacks is a list; write \['linkage'\]"),
        ({"defenses": [3]}, "a defense is given by name or as an object"),
        ({"defenses": "style-noise"}, r"defenses is a list; write \['style-noise'\]"),
    ],
    ids=str,
)
def test_what_is_no_attack_or_defense_is_refused_with_what_to_give(given: dict[str, Any], said: str):
    with pytest.raises(UsageError, match=said):
        fdgsec.attack("ccst-overall", **given)
