"""The package that docs/extending.md shows is real: it installs, trains, attacks and defends together, and keeps its promises."""

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from fdgsec.experiments.run_config import build
from fdgsec.runtime.errors import UsageError
from fdgsec.testing import check_attack, check_defense, check_method
from tests.support.plugin import installed
from tests.support.round_loop import federated, four_clients

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text()
BLOCKS = {
    language: re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL) for language in ("python", "toml", "bash")
}
MODULES: tuple[str, ...] = ("repainting", "color_tracing", "coarse_colors")
FILES: dict[str, str] = dict(zip(MODULES, BLOCKS["python"], strict=False))
LINES: dict[str, int] = {"repainting": 60, "color_tracing": 60, "coarse_colors": 40}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The page's three files on the import path, behind the entry points of the page's pyproject.toml."""
    folder = tmp_path_factory.mktemp("extension")
    for module, code in FILES.items():
        (folder / f"{module}.py").write_text(code)
    points = {
        "methods": {"repainting": "repainting:Repainting"},
        "attacks": {"color-tracing": "color_tracing:ColorTracing"},
        "defenses": {"coarse-colors": "coarse_colors:CoarseColors"},
    }
    with installed(folder, points, name="repainting"):
        yield
    for module in MODULES:
        sys.modules.pop(module, None)


def made(module: str, name: str, **options: object) -> Any:
    return build(getattr(import_module(module), name), options, where="extension")


@pytest.mark.parametrize("module", MODULES)
def test_each_file_is_short(module: str):
    assert len([line for line in FILES[module].splitlines() if line.strip()]) <= LINES[module]


@pytest.mark.medium
def test_the_pages_method_keeps_every_promise(package: None):
    check_method("repainting")


@pytest.mark.medium
def test_the_pages_attack_keeps_every_promise(package: None):
    check_attack("color-tracing", target="repainting")


@pytest.mark.medium
def test_the_pages_defense_keeps_every_promise(package: None):
    check_defense("coarse-colors", method="repainting")


def test_the_method_sends_what_the_page_says(package: None):
    outcome = federated(made("repainting", "Repainting"), four_clients(), recode=False)

    sent = [(m.round, m.stage, m.artifact.kind, m.artifact.bytes) for m in outcome.transcript.messages()]
    assert sent[:8] == [(0, "share", "StyleStatistics", 24)] * 4 + [(0, "combine", "StyleBank", 128)] * 4
    assert {kind for _, _, kind, _ in sent[8:]} == {"ModelState", "Scores"}


@pytest.mark.medium
def test_the_method_trains_on_other_pixels_only_where_it_repaints(package: None):
    members = four_clients()
    never = federated(made("repainting", "Repainting", share_repainted=0.0), members, recode=False)
    always = federated(made("repainting", "Repainting", share_repainted=1.0), members, recode=False)

    own = members[0].data.pixels()
    assert torch.equal(never.states["client:0"]["repainted"], own)
    assert not torch.equal(always.states["client:0"]["repainted"], own)


def test_a_wrong_option_is_answered_with_the_nearest(package: None):
    with pytest.raises(UsageError, match="did you mean 'share_repainted'"):
        made("repainting", "Repainting", share_repaint=0.5)


def borrowing(folder: Path) -> Path:
    """A fresh environment that borrows this one's libraries, and finds fdgsec in this tree; its Python."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
    own = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    for stale in Path(own).glob("setuptools*"):  # older than the one that is borrowed
        shutil.rmtree(stale)
    (Path(own) / "borrowed.pth").write_text(f"{ROOT}\n{sysconfig.get_paths()['purelib']}\n")
    (folder / "bin" / "fdgsec").write_text(f'#!/bin/sh\nexec {python} -m fdgsec.cli "$@"\n')
    (folder / "bin" / "fdgsec").chmod(0o755)
    return python


def ran(command: Sequence[str], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.nightly
@pytest.mark.slow
def test_the_page_installs_in_a_fresh_environment_and_its_commands_run(tmp_path: Path):
    python = borrowing(tmp_path / "venv")
    package = tmp_path / "package"
    package.mkdir()
    for module, code in FILES.items():
        (package / f"{module}.py").write_text(code)
    (package / "pyproject.toml").write_text(BLOCKS["toml"][0])
    (package / "check.py").write_text(BLOCKS["python"][3])
    environment = {
        "PATH": f"{python.parent}:/usr/bin:/bin", "FDGSEC_CACHE": str(tmp_path / "cache"), "COLUMNS": "200",
        "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }  # fmt: skip
    said = ""
    for line in BLOCKS["bash"][0].splitlines():
        command = line.split()
        if command[:2] == ["pip", "install"]:
            command = [str(python), "-m", "pip", *command[1:], "--quiet", "--no-deps", "--no-build-isolation"]
        said += ran(command, package, environment)
    ran([str(python), "check.py"], package, environment)

    assert "repainting" in said
    for folder in ("attacked-run", "attacked"):
        report = (package / folder / "report.json").read_text()
        assert '"target": "repainting"' in report
        assert '"name": "color-tracing"' in report
        assert '"status": "done"' in report
    assert '"name": "coarse-colors"' in report
