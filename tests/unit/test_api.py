"""The functions of `fdgsec`: what the command line does, imported when they are called."""

import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import fdgsec
from fdgsec.attacks.linkage.attack import Linkage
from fdgsec.cli.app import main
from fdgsec.defenses.shuffle import Shuffle
from fdgsec.defenses.style_noise import StyleNoise
from fdgsec.experiments.sweep import run_sweep as verb
from fdgsec.experiments.sweep.run_sweep import Point
from fdgsec.methods.ccst import CCST
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.registry import target_named
from tests.support.swept import attack as measured
from tests.support.swept import guarantee, private, row

SMALL: dict[str, Any] = {"per_domain": 20, "image_size": 16}
CLAIM = "feddag-privacy"  # no testable claim: nothing is run
OPTIONS = ["--per-domain", "20", "--image-size", "16"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path / "cache"))


def finished(_: Path | None, point: Point) -> dict[str, Any]:
    """A privacy point whose linkage halves with every value, in place of a run."""
    found = private(point.value, measured("linkage", [row("top1", 1 / (1 + 10 * (point.value or 0.0)))]))
    return {**found, "guarantees": guarantee(None)}


def test_importing_fdgsec_loads_none_of_what_its_verbs_need():
    code = "import fdgsec, sys; print([name for name in ('torch', 'typer', 'matplotlib') if name in sys.modules])"

    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert told.stdout.strip() == "[]"


PUBLIC = {
    "attack", "attack_run", "attack_vectors", "train", "bench", "sweep", "audit", "claims", "compare",
    "Method", "Attack", "AttackReport", "Defense", "Artifact", "Target", "Question", "Measurement", "stream",
    "record", "record_mod", "load_dataset", "FdgsecError", "UsageError",
}  # fmt: skip


@pytest.mark.medium
def test_the_package_shows_its_public_names_and_nothing_else_before_and_after_a_call():
    code = (
        "import fdgsec; shown = lambda: [name for name in dir(fdgsec) if not name.startswith('_')]; before = shown(); "
        "fdgsec.train('fedavg', rounds=0, per_domain=14, image_size=16); print(before == shown(), *before)"
    )

    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()

    assert told[0] == "True"
    assert set(told[1:]) == PUBLIC == set(fdgsec.__all__)


def test_every_public_name_says_what_it_is_and_so_do_its_methods():
    silent = [name for name in fdgsec.__all__ if not inspect.getdoc(getattr(fdgsec, name))]
    silent += [
        f"{name}.{method}"
        for name in fdgsec.__all__
        for method, found in vars(getattr(fdgsec, name)).items()
        if inspect.isclass(getattr(fdgsec, name)) and not method.startswith("_")
        if (callable(found) or isinstance(found, property | classmethod | staticmethod))
        and not inspect.getdoc(getattr(getattr(fdgsec, name), method))
    ]

    assert silent == []


def test_what_extenders_need_are_the_types_of_the_product():
    assert [getattr(fdgsec, name).__module__ for name in ("Method", "Attack", "Defense", "Artifact", "stream")] == [
        "fdgsec.federation.method", "fdgsec.threats.attack", "fdgsec.federation.defense", "fdgsec.federation.artifacts",
        "fdgsec.runtime.random_streams",
    ]  # fmt: skip
    with pytest.raises(AttributeError, match="no attribute 'Metod'"):
        fdgsec.Metod  # type: ignore[attr-defined]  # noqa: B018


TYPED = """
import fdgsec
from fdgsec.defenses.quantize import Quantize

report = fdgsec.attack("ccst-single", defenses=[Quantize(bits=4), "shuffle"], per_domain=20, out="run")
reveal_type(report)
reveal_type(fdgsec.stream(0, "world"))
defense: fdgsec.Defense = Quantize()
fdgsec.attack(per_domian=20)
fdgsec.train(partition="domains")
"""


@pytest.mark.slow  # mypy reads the whole package
def test_type_checkers_see_what_the_functions_take_and_return(tmp_path: Path):
    (tmp_path / "user.py").write_text(TYPED)

    told = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-incremental", str(tmp_path / "user.py")], capture_output=True, text=True,
        check=False,
    ).stdout  # fmt: skip

    assert 'user.py:6: note: Revealed type is "fdgsec.experiments.report.attack_report.AttackReport"' in told
    assert 'user.py:7: note: Revealed type is "torch._C.Generator"' in told
    assert 'user.py:9: error: Unexpected keyword argument "per_domian" for "attack"; did you mean "per_domain"?' in told
    assert 'user.py:10: error: Argument "partition" to "train" has incompatible type' in told
    assert told.count("error: ") == 2


def test_nothing_is_printed_by_a_function_unless_it_is_asked_for(capfd: pytest.CaptureFixture[str]):
    fdgsec.train("fedavg", rounds=0, **SMALL)
    assert capfd.readouterr() == ("", "")

    with pytest.raises(UsageError, match="progress must be True, False or 'auto'; got 'yes'"):
        fdgsec.train("fedavg", rounds=0, progress="yes", **SMALL)  # type: ignore[arg-type]


def test_paths_may_be_strings(tmp_path: Path):
    made = fdgsec.train("fedavg", rounds=0, out=str(tmp_path / "run"), **SMALL)

    assert fdgsec.AttackReport.load(str(tmp_path / "run")).document() == made.document()


def test_a_defense_as_an_object_is_the_one_that_its_text_names(tmp_path: Path):
    for name, defenses in (
        ("text", ["style-noise:scale=0.5,p=0.1", "shuffle"]),
        ("object", [StyleNoise(scale=0.5), Shuffle()]),
    ):
        fdgsec.attack("ccst-single", defenses=defenses, attacks=["linkage"], out=str(tmp_path / name), **SMALL)

    first, second = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("text", "object"))
    assert first == second
    assert first["defenses"] == ["style-noise:scale=0.5", "shuffle"]
    assert json.loads((tmp_path / "object" / "report.json").read_text())["reused"] is True


def test_an_attack_as_an_object_runs_with_its_options(tmp_path: Path):
    fdgsec.attack("ccst-single", attacks=[Linkage(clients=6)], out=tmp_path / "run", **SMALL)

    settings = json.loads((tmp_path / "run" / "config.json").read_text())
    assert settings["attacks"] == ["linkage"]
    assert settings["attack_options"]["linkage"]["clients"] == 6


def test_a_method_as_an_object_trains_as_the_one_that_its_options_name():
    small = {"rounds": 0, **SMALL}

    named = fdgsec.train("ccst", assignments=["method.style=single", "method.k=2"], **small)
    given = fdgsec.train(CCST(style="single", k=2), **small)

    assert given.transcript_sha256 == named.transcript_sha256


def test_a_target_as_an_object_is_attacked_as_the_one_that_it_is():
    named = fdgsec.attack("ccst-single", attacks=["linkage"], **SMALL)

    for target in (target_named("ccst-single"), CCST(style="single")):
        assert fdgsec.attack(target, attacks=["linkage"], **SMALL).transcript_sha256 == named.transcript_sha256


def test_a_table_and_claims_come_as_the_documents_that_the_verbs_write(tmp_path: Path):
    table = fdgsec.bench("quick", dataset="shapes", methods=["fedavg"], seeds=[0], limit=0, out=tmp_path / "bench")
    found = fdgsec.claims("shapes", only=[CLAIM], out=tmp_path / "claims", **SMALL)

    assert table == json.loads((tmp_path / "bench" / "bench.json").read_text())
    assert found == json.loads((tmp_path / "claims" / "claims.json").read_text())
    assert [row["id"] for row in found["claims"]] == [CLAIM]


@pytest.mark.medium
def test_a_sweep_gives_the_document_that_the_verb_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(verb, "compute", finished)

    found = fdgsec.sweep(
        "ccst-overall", defenses=["style-noise:p=0.1"], values=[0.5, 5], out=tmp_path / "python", **SMALL
    )
    main(
        ["sweep", "--target", "ccst-overall", "--defense", "style-noise:p=0.1", "--over", "scale=0.5,5", "--accuracy-at",
         "none", "--out", str(tmp_path / "shell"), *OPTIONS]
    )  # fmt: skip

    python, shell = (json.loads((tmp_path / name / "sweep.json").read_text()) for name in ("python", "shell"))
    assert python == shell
    assert [point["value"] for point in found["privacy"]] == [None, 0.5, 5.0]
    assert found["hidden"]["value"] == 5.0
    assert (tmp_path / "python" / "noise.png").exists()


def test_a_sweep_without_a_folder_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(verb, "compute", finished)
    monkeypatch.chdir(tmp_path)

    found = fdgsec.sweep(values=[1.0], **SMALL, limit=1)

    assert (found["finished"], found["planned"]) == (1, 2)
    assert not list(tmp_path.iterdir())


def untimed(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """A document without seconds, date and command."""
    made = {name: value for name, value in document["environment"].items() if name not in ("date", "command")}
    return {**document, "seconds": 0, "environment": made}


@pytest.mark.medium
def test_an_audit_gives_the_document_that_the_verb_writes(tmp_path: Path):
    options = ["--runs", "40", "--repeats", "2", "--encoder", "pixels", "--norm", "group", "--distinct-releases", "64"]
    settings = {**SMALL, "encoder": "pixels", "norm": "group"}

    found = fdgsec.audit(
        "ccst-single", defenses=["private-styles:epsilon=8"], runs=40, repeats=2, distinct_releases=64, **settings,
        out=tmp_path / "a",
    )  # fmt: skip
    main(
        ["audit", "--target", "ccst-single", "--defense", "private-styles:epsilon=8", "--out", str(tmp_path / "b"),
         *OPTIONS, *options]
    )  # fmt: skip

    python, shell = (json.loads((tmp_path / name / "audit.json").read_text()) for name in ("a", "b"))
    assert untimed(python) == untimed(shell) == untimed(found)
    assert found["faults"] == []


@pytest.mark.medium
def test_targets_that_release_nothing_untrained_are_audited_after_a_round():
    settings = {**SMALL, "norm": "group"}

    found = fdgsec.audit("fedavg", defenses=["dp-fedavg:epsilon=4"], runs=10, distinct_releases=0, **settings)

    assert (found["rounds"], found["unit"], found["covers"]) == (1, "client", ["update/model"])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: fdgsec.sweep(values=[1.0], profile="slow"), "slow"),
        (lambda: fdgsec.sweep(values=[]), r"needs a defense \(defenses\)"),
        (lambda: fdgsec.sweep("ccst-overal", values=[1.0]), "ccst-overall"),
        (lambda: fdgsec.audit(runs=1), "an audit needs"),
        (lambda: fdgsec.audit(defenses=[]), "needs a defense"),
    ],
)
def test_wrong_arguments_are_refused_as_the_verbs_refuse_them(call: Callable[[], object], said: str):
    with pytest.raises(UsageError, match=said):
        call()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: fdgsec.attack("fedavg", rounds=0), "releases nothing before it trains; give rounds 1 or more"),
        (lambda: fdgsec.attack(norm="frozen"), "add pretrained, or use another"),
        (lambda: fdgsec.attack(defenses=["private-styles"], dataset="nonsense"), "unknown dataset 'nonsense'"),
        (lambda: fdgsec.train("fedavg", assignments=["with.p=1"]), "add local NAME"),
        (lambda: fdgsec.attack(assignments=["method.plan.learning_rate=.1"]), "acts in training, and rounds is 0"),
        (lambda: fdgsec.train(rounds=0, assignments=["method.plan.epochs=2"]), "acts in training, and rounds is 0"),
        (
            lambda: fdgsec.sweep(values=[1], accuracy_at=[], assignments=["method.plan.epochs=2"]),
            "acts in training, and rounds is 0",
        ),
        (
            lambda: fdgsec.audit(
                defenses=["private-styles:epsilon=8"], assignments=["method.plan={epochs=2}"], rounds=1
            ),
            "method.plan.epochs acts in training, and an audit trains for defenses of training alone (dp-sgd); leave",
        ),
        (
            lambda: fdgsec.audit("fedavg", defenses=["dp-fedavg"], assignments=["method.plan.epochs=2"]),
            "an audit trains for defenses of training alone",
        ),
    ],
)
def test_errors_of_functions_speak_of_keywords(call: Any, said: str):
    with pytest.raises(fdgsec.UsageError) as raised:
        call()

    assert said in str(raised.value)
    assert "--" not in str(raised.value)


def test_commands_in_errors_stay_commands():
    from fdgsec.experiments.python_api.error_words import in_keywords

    assert in_keywords("--unseen-domain is none; run `fdgsec attack --run X`, or leave --out out -- really") == (
        "target_domain is none; run `fdgsec attack --run X`, or leave out out -- really"
    )


def test_a_recording_without_a_name_gets_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with fdgsec.record() as first, fdgsec.record() as second:
        first.send("style", [0.1, 0.2, 0.3, 0.4], sender="hospital A")
        second.send("style", [0.1, 0.2, 0.3, 0.4], sender="hospital A")

    assert first.folder != second.folder
    assert {first.folder.parent, second.folder.parent} == {Path("runs")}
    assert (tmp_path / first.folder / "SHA256SUMS").is_file()
