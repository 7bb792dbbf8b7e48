"""A training run that is interrupted goes on at its last round and ends with the bytes of an undisturbed one."""

import json
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fdgsec.defenses.dp_fedavg import DPFedAvg
from fdgsec.experiments.bench.seeds import train_seeds
from fdgsec.experiments.flower.jobs import FlowerFederation
from fdgsec.experiments.run_config import RunConfig, train_settings
from fdgsec.experiments.setup.run_federation import FederationRun, RoundSettings, RunRequest, federate, run_rounds
from fdgsec.experiments.train import kept_so_far, train
from fdgsec.federation.checkpoints import UNFINISHED, Checkpoints, rounds_in
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.engines.state import MemoryStates
from fdgsec.federation.method import Method
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.file_locks import InUseError
from fdgsec.runtime.progress import NoProgress
from fdgsec.runtime.secret_streams import new_key
from tests.support.lock_holder import holder
from tests.support.toy_federation import FULL_BATCH, PeerReviewed, PixelStyles, members, start

SMALL = {"dataset": "shapes", "per_class": 3, "image_size": 32, "rounds": 3, "device": "cpu"}


@dataclass(frozen=True)
class Interrupt:
    """Ctrl-C when so many rounds are done."""

    rounds: int

    def update(self, description: str, done: int, total: int) -> None:
        if description == "rounds" and done == self.rounds:
            raise KeyboardInterrupt


def settings(method: str, **given: Any) -> RunConfig:
    return train_settings(method, {**SMALL, **given})


def interrupted(config: RunConfig, out: Path, *, after: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(config, data_root=None, out=out, progress=Interrupt(after))


def finished(config: RunConfig, out: Path) -> dict[str, Any]:
    """Train to the end; everything that the run's folder says, without times."""
    train(config, data_root=None, out=out, progress=NoProgress())
    report = json.loads((out / "report.json").read_text())
    del report["seconds"], report["environment"]["date"], report["environment"]["command"]
    names = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    bytes_of = {name: (out / name).read_bytes() for name in names if not name.startswith(("report.", "SHA256SUMS"))}
    return {"report": report, "names": names, "files": bytes_of}


CASES = {
    "styles once, images in the state": ("ccst", {}),
    "scores, a generator and teachers in the state": ("feddag", {"clients": 3}),
    "a review that moves weights on the server": ("feddg-ga", {}),
    "DP-SGD and private styles": (
        "ccst", {"norm": "group", "defenses": ("private-styles:epsilon=8,delta=1e-5", "dp-sgd:epsilon=8,delta=1e-5")},
    ),
    "noise of the server": ("fedavg", {"defenses": ("dp-fedavg:noise_multiplier=1,trust=server,buffers=received",)}),
    "every model kept": ("fpl", {"keep": "models=all"}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_has_the_bytes_of_an_undisturbed_one(case: str, tmp_path: Path):
    method, given = CASES[case]
    config = settings(method, **given)
    interrupted(config, tmp_path / "cut", after=2)
    assert rounds_in(tmp_path / "cut" / UNFINISHED) == [1]

    assert finished(config, tmp_path / "cut") == finished(config, tmp_path / "whole")


@pytest.mark.medium
def test_a_finished_run_keeps_no_rounds_and_an_interrupted_one_says_how_to_go_on(tmp_path: Path):
    config = settings("fedavg")
    assert kept_so_far(tmp_path) == "no round was finished, and nothing is kept"
    interrupted(config, tmp_path, after=3)

    said = kept_so_far(tmp_path)
    assert f"kept in {tmp_path / UNFINISHED} (" in said
    assert "after round 2; the same command goes on there, --fresh starts anew" in said
    with pytest.raises(UsageError, match=r"unfinished run with other settings \(rounds 3, not 4\).*--fresh"):
        train(replace(config, rounds=4), data_root=None, out=tmp_path, progress=NoProgress())
    train(replace(config, rounds=1), data_root=None, out=tmp_path, progress=NoProgress(), fresh=True)
    assert not (tmp_path / UNFINISHED).exists()
    assert json.loads((tmp_path / "config.json").read_text())["rounds"] == 1


TOYS = {
    "styles once": PixelStyles(when="once", plan=FULL_BATCH),
    "styles every round": PixelStyles(when="every", plan=FULL_BATCH),
    "peers' scores": PeerReviewed(plan=FULL_BATCH),
}
ROUNDS = 4


def kept_in(folder: Path, *, key: str = "this run", **settings: object) -> Checkpoints:
    return Checkpoints(folder=folder, key=key, settings=settings)


def ran(method: Method, checkpoints: Checkpoints, *, until: int = -1, key: bytes | None = None) -> FederationRun:
    """Run four rounds with noise on updates, kept in `checkpoints`; `until` interrupts when so many are done."""
    states, stack = MemoryStates(), DefenseStack(defenses=(DPFedAvg(noise_multiplier=0.1, buffers="received"),))
    engine = LocalEngine(members=members(6, 8, 4), method=method, seed=0, states=states, defense_stack=stack)
    run = RoundSettings(seed=0, rounds=ROUNDS, participation=0.7, keep="models=last", key=key, delta=1e-5)
    return run_rounds(
        method, engine, start(), run, defense_stack=stack, states=states, checkpoints=checkpoints,
        progress=Interrupt(until),
    )  # fmt: skip


def result(run: FederationRun) -> dict[str, Any]:
    return {
        "transcript": run.transcript.sha256, "payloads": {d: a.sha256 for d, a in run.transcript.payloads.items()},
        "model": run.final.state.sha256, "curve": run.curve, "kept": run.kept_round, "guarantees": run.guarantees,
    }  # fmt: skip


@pytest.mark.parametrize("until", [2, ROUNDS])
@pytest.mark.parametrize("name", TOYS)
@pytest.mark.medium
def test_rounds_that_are_not_done_again_leave_the_same_run(name: str, until: int, tmp_path: Path):
    whole = ran(TOYS[name], kept_in(tmp_path / "whole"))
    with pytest.raises(KeyboardInterrupt):
        ran(TOYS[name], kept_in(tmp_path / "cut"), until=until)
    assert rounds_in(tmp_path / "cut")[-1] == until - 1

    assert result(ran(TOYS[name], kept_in(tmp_path / "cut"))) == result(whole)


@pytest.mark.medium
def test_a_run_whose_last_round_was_kept_trains_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = ran(TOYS["styles once"], kept_in(tmp_path))
    monkeypatch.setattr(LocalEngine, "ask", None)

    assert result(ran(TOYS["styles once"], kept_in(tmp_path))) == result(whole)


@pytest.mark.medium
def test_two_rounds_are_kept_with_what_they_name_and_nobody_else_may_read_them(tmp_path: Path):
    ran(TOYS["styles once"], kept_in(tmp_path / "kept"))

    folder = tmp_path / "kept"
    assert rounds_in(folder) == [ROUNDS - 1, ROUNDS]
    named = "".join(path.read_text() for path in folder.glob("round-*.json"))
    assert all(path.name in named for path in (folder / "objects").iterdir())
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def damage_newest(folder: Path) -> None:
    flip(folder / f"round-{ROUNDS}.json")


def cut_newest(folder: Path) -> None:
    path = folder / f"round-{ROUNDS}.json"
    path.write_bytes(path.read_bytes()[:100])


def damage_all(folder: Path) -> None:
    for path in (folder / "objects").iterdir():
        flip(path)


def delete_contents(folder: Path) -> None:
    for path in (folder / "objects").iterdir():
        path.unlink()


@pytest.mark.parametrize(
    ("damage", "left"), [(damage_newest, 1), (cut_newest, 1), (damage_all, 0), (delete_contents, 0)]
)
@pytest.mark.medium
def test_a_damaged_round_is_told_in_one_line_and_the_run_goes_on_before_it(
    damage: Callable[[Path], None], left: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    whole = ran(TOYS["styles once"], kept_in(tmp_path))
    damage(tmp_path)
    capsys.readouterr()

    assert result(ran(TOYS["styles once"], kept_in(tmp_path))) == result(whole)

    told = capsys.readouterr().err.splitlines()
    damaged = [line for line in told if "is damaged (" in line]
    assert len(damaged) == 2 - left
    assert f"round {ROUNDS}" in damaged[0]
    assert [line for line in told if "going on after" in line] == [
        f"fdgsec: going on after round {ROUNDS - 1} of {ROUNDS}, kept in {tmp_path}"
    ] * left


@pytest.mark.medium
def test_every_flipped_byte_of_a_small_index_is_noticed(tmp_path: Path):
    whole = result(ran(TOYS["styles once"], kept_in(tmp_path)))
    index = tmp_path / f"round-{ROUNDS}.json"
    content = index.read_bytes()

    for place in range(0, len(content), max(len(content) // 100, 1)):
        index.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(ValueError, match="another content"):
            kept_in(tmp_path)._read(ROUNDS, start().blueprint)

    index.write_bytes(content)
    assert result(ran(TOYS["styles once"], kept_in(tmp_path))) == whole


@pytest.mark.medium
def test_another_run_in_the_folder_is_refused_and_names_what_differs(tmp_path: Path):
    ran(TOYS["styles once"], kept_in(tmp_path, rounds=4, seed=0))

    with pytest.raises(UsageError, match=r"other settings \(seed 0, not 1\); give another --out, or --fresh"):
        ran(TOYS["styles once"], kept_in(tmp_path, key="another", rounds=4, seed=1))
    with pytest.raises(UsageError, match="other data, weights, code or hardware"):
        ran(TOYS["styles once"], kept_in(tmp_path, key="another", rounds=4, seed=0))
    (tmp_path / "run.json").write_text("[" * 5000)
    with pytest.raises(UsageError, match=r"cannot be read.*--fresh starts anew"):
        ran(TOYS["styles once"], kept_in(tmp_path))


@pytest.mark.medium
def test_a_run_that_ended_before_its_first_round_keeps_nobody_out(tmp_path: Path):
    kept_in(tmp_path, rounds=4, seed=0).begin()

    whole = ran(TOYS["styles once"], kept_in(tmp_path, key="another", rounds=4, seed=1))

    assert result(whole) == result(ran(TOYS["styles once"], kept_in(tmp_path / "whole", rounds=4, seed=1)))


@pytest.mark.medium
def test_a_disk_that_refuses_costs_the_kept_round_and_not_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    whole = ran(TOYS["styles once"], kept_in(tmp_path / "whole"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "objects").write_text("no folder can be made here")

    assert result(ran(TOYS["styles once"], kept_in(tmp_path / "full"))) == result(whole)
    assert capsys.readouterr().err.count("could not be kept in") == ROUNDS


def test_a_server_with_a_key_of_its_own_keeps_no_rounds_and_says_why(tmp_path: Path):
    with pytest.raises(UsageError, match="same noise to another sum; start the run anew"):
        ran(TOYS["styles once"], kept_in(tmp_path), key=new_key())


def test_another_quorum_is_another_run(tmp_path: Path):
    config = replace(settings("fedavg"), rounds=1)
    request = RunRequest(
        method=TOYS["styles once"], members=members(4, 5), model=start(), config=config, checkpoints=kept_in(tmp_path)
    )
    federate(request)

    with pytest.raises(UsageError, match=r"other settings \(quorum 1.0, not 0.5\)"):
        federate(request, quorum=0.5)


@pytest.mark.medium
def test_an_unfinished_local_run_is_not_overwritten_by_one_on_flower(tmp_path: Path):
    ran(TOYS["styles once"], kept_in(tmp_path))

    def never(folder: Path, job: object) -> None:
        raise AssertionError(folder, job)

    request = RunRequest(
        method=TOYS["styles once"], members=members(4), model=start(), config=settings("fedavg"),
        checkpoints=kept_in(tmp_path),
    )  # fmt: skip
    with pytest.raises(UsageError, match="unfinished run of --engine local"):
        FlowerFederation(runner=never)(request)


def one_seed(out: Path) -> object:
    return train(settings("fedavg"), data_root=None, out=out, progress=NoProgress())


def two_seeds(out: Path) -> object:
    return train_seeds(settings("fedavg"), [0, 1], data_root=None, out=out, progress=NoProgress())


@pytest.mark.parametrize("run", [one_seed, two_seeds])
def test_a_folder_in_which_another_process_trains_is_left_alone(run: Callable[[Path], object], tmp_path: Path):
    interrupted(settings("fedavg"), tmp_path / "out" / "seed0", after=1)
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    held = tmp_path / "out" / "seed0" if run is one_seed else tmp_path / "out"

    with holder(held), pytest.raises(InUseError, match="in use by another process"):
        run(held)

    assert {path: path.read_bytes() for path in kept} == kept
