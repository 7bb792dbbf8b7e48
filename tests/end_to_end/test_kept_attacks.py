"""Finished attacks are kept as they finish: the same command goes on after them, to the same report."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import fdgsec
from fdgsec.attacks.pool_exposure.attack import PoolExposure
from fdgsec.experiments.attack import loop
from fdgsec.experiments.attack.attack_setting import AttackSetting, Outcome
from fdgsec.experiments.attack.kept_outcomes import read_kept, write_kept
from fdgsec.experiments.attack.run_attacks import attack
from fdgsec.experiments.report.schema import AttackReport
from fdgsec.experiments.run_config import RunConfig, attack_settings
from fdgsec.runtime.interruption import Interrupted
from fdgsec.runtime.progress import NoProgress
from fdgsec.threats.attack import Attack

ATTACKS = ("pool-exposure", "label-inference", "reidentification")
GIVEN = {"per_domain": 40, "image_size": 16, "attacks": ATTACKS}


@dataclass(frozen=True)
class StopsAt:
    """Ctrl-C when this attack begins."""

    name: str

    def update(self, description: str, done: int, total: int) -> None:
        if (description, done) == (self.name, 0):
            raise KeyboardInterrupt


def settings(**given: Any) -> RunConfig:
    return attack_settings(
        "ccst-single", {**GIVEN, **given}, profile="quick", assignments=["attacks.label-inference.folds=2"]
    )


def attacked(
    config: RunConfig, *, fresh: bool = False, kept_for: str = "", stop: str = "", workers: int = 1
) -> AttackReport:
    progress = StopsAt(stop) if stop else NoProgress()
    return attack(config, data_root=None, out=None, fresh=fresh, progress=progress, kept_for=kept_for, workers=workers)


def text(report: AttackReport) -> str:
    """report.json but for seconds, date and command."""
    same = [replace(each, seconds=0.0) for each in report.attacks]
    made = {name: value for name, value in report.environment.items() if name not in ("date", "command")}
    return replace(report, attacks=same, seconds=0.0, environment=made).json()


def kept(cache: Path) -> list[Path]:
    return sorted((cache / "attacks").glob("*.json"))


def altered(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Keep another result in place of a kept one, as if it had been computed."""
    document = read_kept(path)
    change(document)
    write_kept(path, document)


def renamed_unit(document: dict[str, Any]) -> None:
    for row in document["result"]["measurements"]:
        row["unit"] = "kept"


@pytest.mark.medium
def test_an_interrupted_command_goes_on_to_the_same_bytes(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = settings()
    with pytest.raises(Interrupted, match="2 of 3 attacks are finished and kept; the same command goes on after them"):
        attacked(config, stop="reidentification")
    assert len(kept(own_cache)) == 2
    resumed = attacked(config)

    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path / "another"))
    assert text(resumed) == text(attacked(config))
    assert not resumed.reused


@pytest.mark.medium
@pytest.mark.parametrize("fresh", [False, True])
def test_two_processes_that_share_out_the_attacks_make_the_same_report(
    fresh: bool, own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config, here = settings(), list[str]()

    def noted(attack: Attack, setting: AttackSetting) -> Outcome:
        here.append(attack.name)
        return run_attack(attack, setting)

    run_attack = loop._run_attack
    monkeypatch.setattr(loop, "_run_attack", noted)
    shared = attacked(config, fresh=fresh, workers=2)
    assert len(kept(own_cache)) == len(ATTACKS)
    assert 0 < len(here) < len(ATTACKS)  # the others were another process's

    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path / "another"))
    assert text(shared) == text(attacked(config))


@pytest.mark.medium
def test_a_kept_attack_is_used_again_where_everything_that_decides_it_is_the_same(own_cache: Path):
    config = settings(attacks=("pool-exposure",))
    first = attacked(config)
    altered(kept(own_cache)[0], renamed_unit)

    def used(other: RunConfig, **how: Any) -> bool:
        return any(row.unit == "kept" for row in attacked(other, **how).attacks[0].measurements)

    assert used(config)
    assert used(settings(attacks=("pool-exposure", "label-inference")))
    assert not used(config, kept_for="a registration")
    assert not used(replace(config, adversary="outsider"))
    assert not used(replace(config, seed=1))
    assert not used(replace(config, attack_options={"pool-exposure": {"clients": 5}}))
    assert not used(config, fresh=True)
    assert not used(config)  # what was made afresh is kept
    assert text(attacked(config)) == text(replace(first, reused=True))


@pytest.mark.medium
def test_a_damaged_one_is_said_and_made_again(own_cache: Path, capsys: pytest.CaptureFixture[str]):
    config = settings(attacks=("pool-exposure",))
    before = text(replace(attacked(config), reused=True))
    (path,) = kept(own_cache)
    whole = path.read_bytes()
    damaged = [whole[: len(whole) // 2], b"", whole.replace(b'"unit"', b'"Unit"', 1), b"\xff" + whole[1:], whole[:-1]]

    for content in damaged:
        path.write_bytes(content)
        assert text(attacked(config)) == before
        assert capsys.readouterr().err == (f"fdgsec: {path} is not used, it is computed anew: its seal does not hold\n")
        assert read_kept(path) is not None


@pytest.mark.medium
def test_one_attacks_file_is_not_read_for_another(own_cache: Path):
    attacked(settings(attacks=("pool-exposure", "label-inference")))
    one, other = kept(own_cache)
    one.write_bytes(other.read_bytes())

    assert read_kept(one) is None
    assert read_kept(other) is not None


class Elsewhere(PoolExposure):
    """An attack whose code fdgsec's own hash does not cover."""


@pytest.mark.medium
def test_an_attack_from_elsewhere_is_not_kept(own_cache: Path):
    report = fdgsec.attack("ccst-single", per_domain=40, image_size=16, attacks=[Elsewhere(sizes=(9,), clients=4)])

    assert report.attacks[0].status == "done"
    assert kept(own_cache) == []


@pytest.mark.medium
def test_a_cache_that_cannot_be_written_does_not_cost_the_report(own_cache: Path, capsys: pytest.CaptureFixture[str]):
    own_cache.mkdir()
    (own_cache / "attacks").touch()  # a file where the folder should be

    report = attacked(settings(attacks=("pool-exposure",)))

    assert report.attacks[0].status == "done"
    assert "the finished attack pool-exposure cannot be kept" in capsys.readouterr().err
