"""`fdgsec.sweep` and `fdgsec.audit` from Python: what the command line does, imported when they are called."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fdgsec
from fdgsec.cli.app import main
from fdgsec.experiments.sweep import verb
from fdgsec.experiments.sweep.verb import Point
from fdgsec.runtime.errors import UsageError
from tests.support.swept import attack as measured
from tests.support.swept import guarantee, private, row

SMALL = {"per_domain": 20, "image_size": 16}
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


def test_a_sweep_gives_the_document_that_the_verb_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(verb, "compute", finished)

    found = fdgsec.sweep(
        "ccst-overall", defenses=["style-noise:p=0.1"], values=[0.5, 5], out=tmp_path / "python", settings=SMALL
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

    found = fdgsec.sweep(values=[1.0], settings=SMALL, limit=1)

    assert (found["finished"], found["planned"]) == (1, 2)
    assert not list(tmp_path.iterdir())


def test_an_audit_gives_the_document_that_the_verb_writes(tmp_path: Path):
    options = ["--runs", "40", "--repeats", "2", "--encoder", "pixels", "--norm", "group"]
    settings = {**SMALL, "encoder": "pixels", "norm": "group"}

    found = fdgsec.audit(
        "ccst-single", defenses=["private-styles:epsilon=8"], runs=40, repeats=2, settings=settings, out=tmp_path / "a"
    )
    main(
        ["audit", "--target", "ccst-single", "--defense", "private-styles:epsilon=8", "--out", str(tmp_path / "b"),
         *OPTIONS, *options]
    )  # fmt: skip

    python, shell = (json.loads((tmp_path / name / "audit.json").read_text()) for name in ("a", "b"))
    assert {**python, "seconds": 0} == {**shell, "seconds": 0} == {**found, "seconds": 0}
    assert found["exceeded"] is False


def test_targets_that_release_nothing_untrained_are_audited_after_a_round():
    settings = {**SMALL, "norm": "group"}

    found = fdgsec.audit("fedavg", defenses=["dp-fedavg:epsilon=4"], runs=10, settings=settings)

    assert (found["rounds"], found["unit"], found["covers"]) == (1, "client", ["update/model"])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: fdgsec.sweep(values=[1.0], profile="slow"), "slow"),
        (lambda: fdgsec.sweep(values=[]), "needs a --defense"),
        (lambda: fdgsec.sweep("ccst-overal", values=[1.0]), "ccst-overall"),
        (lambda: fdgsec.audit(runs=1), "an audit needs"),
        (lambda: fdgsec.audit(defenses=[]), "needs a defense"),
    ],
)
def test_wrong_arguments_are_refused_as_the_verbs_refuse_them(call: Callable[[], object], said: str):
    with pytest.raises(UsageError, match=said):
        call()
