"""A hundred wrong inputs over all verbs: one line on stderr, the documented exit code, and nothing computed or written."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from fdgsec.cli import main
from tests.unit.experiments.test_gate import LOW, membership, run

SMALL = "--dataset shapes --per-domain 21 --image-size 32"
# {file}: a regular file; {empty}: an empty folder; {run}: a finished run; {text}: a text file; {other}: others' files
TABLE: Sequence[tuple[str, int, str]] = [
    # the program itself
    ("attck", 2, "did you mean 'attack'"),
    ("--colour", 2, "--colo"),
    ("attack --unknown", 2, "--unknown"),
    ("gaet {run}", 2, "did you mean 'gate'"),
    # attack
    (f"attack ccst-overal {SMALL}", 2, "did you mean 'ccst-overall'"),
    (f"attack ccst-overall fisc {SMALL}", 2, "fisc"),
    (f"attack ccst-overall {SMALL} --attack linkage --attack linkage", 2, "attack linkage is named twice"),
    (f'attack ccst-overall {SMALL} --set run.attacks=["linkage","linkage"]', 2, "attack linkage is named twice"),
    (f"attack ccst-overall --target fisc {SMALL}", 2, "fisc"),
    (f"attack {SMALL} --attack membershp", 2, "did you mean 'membership'"),
    (f"attack {SMALL} --adversary hacker", 2, "hacker"),
    (f"attack {SMALL} --profile fast", 2, "fast"),
    (f"attack {SMALL} --encoder vgg91", 2, "did you mean 'vgg19'"),
    (f"attack {SMALL} --seed many", 2, "many"),
    (f"attack {SMALL} --per-domain 0", 2, "per-domain"),
    (f"attack {SMALL} --image-size 8", 2, "image-size"),
    (f"attack {SMALL} --rounds -1", 2, "rounds"),
    (f"attack {SMALL} --clients 0", 2, "0"),
    (f"attack {SMALL} --clients 99", 2, "99"),
    (f"attack {SMALL} --partition random", 2, "random"),
    (f"attack {SMALL} --partition dirichlet --heterogeneity -1", 2, "-1"),
    (f"attack {SMALL} --partition dirichlet --heterogeneity nan", 2, "heterogeneity cannot be NaN"),
    (f"attack {SMALL} --target-domain etching", 2, "etching"),
    (f"attack {SMALL} --defense magic", 2, "magic"),
    (f"attack {SMALL} --defense private-styles:epsilon=0", 2, "epsilon"),
    (f"attack {SMALL} --defense private-styles:epsilon=-1", 2, "epsilon"),
    (f"attack {SMALL} --defense private-styles:epsilon=much", 2, "much"),
    (f"attack {SMALL} --defense private-styles:epsilom=8", 2, "did you mean 'epsilon'"),
    (f"attack {SMALL} --set method.k", 2, "method.k"),
    (f"attack {SMALL} --set metod.k=2", 2, "metod"),
    (f"attack {SMALL} --config nowhere.toml", 2, "nowhere.toml"),
    (f"attack {SMALL} --config {{text}}", 2, "text.txt"),
    (f"attack {SMALL} --preset ccst-papr", 2, "ccst-papr"),
    (f"attack {SMALL} --device gpu", 2, "gpu"),
    (f"attack {SMALL} --threads 0", 2, "threads"),
    (f"attack {SMALL} --rounds 1 --lr nan", 2, "learning_rate cannot be NaN"),
    (f"attack {SMALL} --rounds 1 --lr -1", 2, "got learning_rate = -1.0."),
    (f"attack {SMALL} --log-file {{file}}/log", 2, "--log-file"),
    (f"attack {SMALL} --epochs 0", 2, "epochs"),
    (f"attack {SMALL} --out {{file}}", 2, "file"),
    (f"attack {SMALL} --out {{other}}", 2, "did not write"),
    ("attack --dataset pcas", 2, "did you mean 'pacs'"),
    ("attack --dataset pacs --data-root {empty}", 3, "PACS"),
    ("attack --dataset pacs --data-root nowhere", 3, "nowhere"),
    ("attack --dataset folder --data-root {empty}", 2, "is not a folder of your own"),
    (f"attack {SMALL} --encoder vgg19", 3, "weights"),
    ("attack --run nowhere", 2, "nowhere"),
    ("attack --run {empty}", 2, "empty"),
    ("attack --artifacts nowhere.csv --encoder pixels", 2, "nowhere.csv"),
    ("attack --artifacts {text} --encoder pixels", 2, "text.txt"),
    ("attack --truth {text}", 2, "--artifacts"),
    # train
    (f"train --method fedavgg {SMALL}", 2, "did you mean 'fedavg'"),
    (f"train {SMALL} --backbone resnet19", 2, "resnet19"),
    (f"train {SMALL} --with ccts", 2, "ccts"),
    (f"train {SMALL} --seeds 0", 2, "seeds"),
    (f"train {SMALL} --seeds 2 --rounds 0", 2, "rounds"),
    (f"train {SMALL} --splits offical", 2, "offical"),
    (f"train {SMALL} --participation 0", 2, "participation"),
    (f"train {SMALL} --participation 2", 2, "participation"),
    (f"train {SMALL} --batch-size 0", 2, "batch-size"),
    (f"train {SMALL} --lr -1", 2, "-1"),
    (f"train {SMALL} --keep everything", 2, "everything"),
    (f"train {SMALL} --engine spark", 2, "spark"),
    (f"train {SMALL} --engine flower", 2, "--clients"),
    (f"train {SMALL} --quorum 2", 2, "quorum"),
    (f"train {SMALL} --workers 0", 2, "workers"),
    (f"train {SMALL} --validation-domain sketch", 2, "sketch"),
    (f"train {SMALL} --backbone resnet18 --pretrained", 3, "resnet18"),
    (f"train {SMALL} --defense dp-sgd:epsilon=nan", 2, "epsilon"),
    # sweep
    (f"sweep {SMALL} --over scale", 2, "scale"),
    (f"sweep {SMALL} --over scale=", 2, "scale"),
    (f"sweep {SMALL} --over scale=a,b", 2, "a"),
    (f"sweep {SMALL} --over scale=1,1", 2, "different"),
    (f"sweep {SMALL} --over scale=nan", 2, "nan"),
    (f"sweep {SMALL} --over scale=log:0:1:3", 2, "log"),
    (f"sweep {SMALL} --over size=1,2", 2, "size"),
    (f"sweep {SMALL} --over scale=1,2 --accuracy-at 3", 2, "3"),
    (f"sweep {SMALL} --protocol quik", 2, "quik"),
    (f"sweep {SMALL} --workers 0", 2, "workers"),
    (f"sweep {SMALL} --target fiscc", 2, "did you mean 'fisc'"),
    # audit
    (f"audit {SMALL} --defense style-noise", 2, "style-noise"),
    (f"audit {SMALL} --runs 1", 2, "runs"),
    (f"audit {SMALL} --confidence 2", 2, "confidence"),
    (f"audit {SMALL} --canary red", 2, "red"),
    (f"audit {SMALL} --device gpu", 2, "gpu"),
    # bench
    ("bench --dataset shapes --protocol quik", 2, "quik"),
    ("bench --dataset shapes --ablation nothing", 2, "nothing"),
    ("bench --dataset shapes --methods fedavgg --backbone tiny --no-pretrained", 2, "fedavgg"),
    ("bench --dataset shapes --domains etching", 2, "etching"),
    ("bench --dataset shapes --seeds 0", 2, "seeds"),
    ("bench --dataset shapes --rounds 0", 2, "--rounds 1"),
    ("bench --dataset shapes --baseline nothing", 2, "nothing"),
    ("bench --dataset shapes --methods fedavg --limit -1", 2, "limit"),
    # claims
    ("claims --dataset shapes --claim ccst-nothing", 2, "ccst-nothing"),
    ("claims --dataset shapes --seeds one", 2, "one"),
    ("claims --dataset shapes --seeds 1,1", 2, "1"),
    ("claims --dataset shapes --registration nowhere.json", 2, "nowhere.json"),
    ("claims --dataset shapes --encoder vgg91", 2, "vgg91"),
    # report, compare, gate, runs, plot
    ("report nowhere", 2, "nowhere"),
    ("report", 2, "RUNS"),
    ("report {run} --out {empty}", 2, "two or more"),
    ("compare {run}", 2, "two or more"),
    ("compare {run} {run}", 2, "given twice"),
    ("compare {run} nowhere", 2, "nowhere"),
    ("compare {run} {second} --out {other}", 2, "did not write"),
    ("compare {run} {broken}", 2, "broken"),
    ("gate {run}", 2, "limits"),
    ("gate nowhere --max membership.auc=1", 2, "nowhere"),
    ("gate {run} --max membershp.auc=1", 2, "did you mean 'membership'"),
    ("gate {run} --max membership.auc", 2, "LIMIT"),
    ("gate {run} --max membership.auc=1 --junit {file}/x.xml", 1, "is a file"),
    ("runs nowhere", 2, "nowhere"),
    ("runs {file}", 2, "file"),
    ("plot nothing {run}", 2, "nothing"),
    ("plot tsne", 2, "RUN"),
    ("plot tsne {run}", 2, "run"),
    # list, explain, data, weights, cache, serve, join
    ("list atacks", 2, "did you mean 'attacks'"),
    ("explain membershp", 2, "membershp"),
    ("data fetch pcas", 2, "pcas"),
    ("data check pcas", 2, "pcas"),
    ("data check pacs --data-root {empty}", 3, "PACS"),
    ("weights path resnet181", 2, "resnet18"),
    ("weights import resnet18 nowhere.pth", 2, "nowhere.pth"),
    ("weights import resnet181 {text}", 2, "resnet18"),
    ("weights import resnet18 {text}", 2, "text.txt"),
    ("cache size now", 2, "now"),
    ("serve --port 99999999", 2, "99999999"),
    ("join --server nowhere", 2, ""),
]


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path / "cache"))
    for name in ("FDGSEC_DATA", "FDGSEC_WEIGHTS"):
        monkeypatch.delenv(name, raising=False)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    found = {name: tmp_path / name for name in ("file", "empty", "other", "broken")}
    for name in ("empty", "other", "broken"):
        found[name].mkdir()
    found["file"].write_text("")
    (found["other"] / "thesis.tex").write_text("years of work")
    (found["broken"] / "report.json").write_text("{")
    (tmp_path / "text.txt").write_text("not what was wanted")
    return {**found, "text": tmp_path / "text.txt", "run": run(tmp_path / "run", membership(LOW)),
            "second": run(tmp_path / "second", membership(LOW))}  # fmt: skip


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    told = capsys.readouterr()
    assert told.out == ""
    assert len(told.err.splitlines()) == 1, told.err
    assert told.err.startswith("fdgsec: ")
    assert "Traceback" not in told.err
    assert "defect" not in told.err
    return told.err


def test_there_are_a_hundred_and_every_verb_has_some():
    from fdgsec.cli.app import VERBS

    assert len({command for command, _, _ in TABLE}) == len(TABLE) >= 100
    assert set(VERBS) - {"doctor"} <= {command.split()[0] for command, _, _ in TABLE}  # doctor takes nothing


@pytest.mark.parametrize(("command", "code", "word"), TABLE, ids=[command for command, _, _ in TABLE])
@pytest.mark.medium
def test_a_wrong_input_is_one_line_with_its_exit_code_and_writes_nothing(
    command: str, code: int, word: str, places: dict[str, Path], capsys: pytest.CaptureFixture[str]
):
    assert main(command.format(**places).split()) == code

    assert word in one_line(capsys)
    assert [path for path in Path().rglob("*") if path.is_file()] == []  # in the working folder


WORK = {
    "attack": f"attack {SMALL} --attack differencing",
    "train": f"train {SMALL} --rounds 1",
    "sweep": f"sweep {SMALL} --over scale=1 --accuracy-at none",
    "audit": f"audit {SMALL}",
    "bench": "bench --dataset shapes --methods fedavg --backbone tiny --no-pretrained --per-domain 21 --image-size 32",
    "claims": f"claims {SMALL}",
}  # fmt: skip
"""A command of each verb that computes, which would go on for a while."""


@pytest.mark.parametrize("verb", WORK)
def test_a_full_disk_is_said_before_anything_is_computed(
    verb: str, places: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    free = shutil.disk_usage(places["empty"])._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)

    assert main([*WORK[verb].split(), "--out", "out"]) == 1

    assert "0 MB free" in one_line(capsys)
    assert not Path("out").exists()


@pytest.mark.parametrize("verb", WORK)
@pytest.mark.parametrize("place", ["out", "cache"])
def test_a_place_that_cannot_be_written_is_said_before_anything_is_computed(
    verb: str, place: str, places: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    under = places["file"] / "deeper"
    out = under if place == "out" else Path("out")
    if place == "cache":
        monkeypatch.setenv("FDGSEC_CACHE", str(under))

    assert main([*WORK[verb].split(), "--out", str(out)]) == 1

    assert "cannot be written" in one_line(capsys)
    assert not Path("out").exists()


@pytest.mark.parametrize("verb", [verb for verb in WORK if verb != "claims" or not torch.cuda.is_available()])
@pytest.mark.medium
def test_a_gpu_that_is_not_there_is_said_before_anything_is_computed(
    verb: str, places: dict[str, Path], capsys: pytest.CaptureFixture[str]
):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")

    assert main([*WORK[verb].split(), "--device", "cuda", "--out", "out"]) == 2

    assert "cuda" in one_line(capsys)
    assert not Path("out").exists()
    assert json.loads((places["run"] / "report.json").read_text())
