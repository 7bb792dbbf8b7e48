"""What a fresh process of `fdgsec` loads, and what that costs, before a verb does any work."""

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fdgsec.cli import main
from fdgsec.cli.app import VERBS
from fdgsec.runtime.version import __version__

STATUS = Path("/proc/self/status")
HEAVY = {"torch", "torchvision", "numpy", "scipy", "sklearn", "matplotlib", "opacus", "flwr"}
MEASURED = """
import contextlib, io, json, re, sys, time
from pathlib import Path
from fdgsec.cli import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    code = main(sys.argv[1:])
status = Path("/proc/self/status")
peak = re.search(r"VmHWM:\\s+(\\d+) kB", status.read_text()) if status.exists() else None
print(json.dumps({
    "code": code, "seconds": time.process_time(), "megabytes": peak and int(peak[1]) / 1000,
    "loaded": sorted({name.partition(".")[0] for name in sys.modules}),
}))
"""


def measured(*arguments: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", MEASURED, *arguments], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["--version"], 0),
        (["nonsense"], 2),
        (["attack", "--nonsense"], 2),
        *(([verb, "--help"], 0) for verb in VERBS),
    ],
)
def test_nothing_heavy_is_loaded_before_a_verb_works(arguments: list[str], code: int):
    found = measured(*arguments)

    assert found["code"] == code
    assert HEAVY.isdisjoint(found["loaded"])


def test_words_of_reports_are_explained_without_torch():
    found = measured("explain", "auc")

    assert found["code"] == 0
    assert HEAVY.isdisjoint(found["loaded"])


@pytest.mark.parametrize("name", ["ccst", "linkage", "private-styles", "no-such-name"])
def test_names_are_explained_without_libraries_of_networks_and_learning(name: str):
    assert {"torchvision", "sklearn", "matplotlib"}.isdisjoint(measured("explain", name)["loaded"])


@pytest.mark.skipif(not STATUS.exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["nonsense"], ["attack", "--nonsense"]], ids=" ".join)
def test_starting_up_costs_a_fraction_of_a_second_and_little_memory(arguments: list[str]):
    found = measured(*arguments)  # 0.05 to 0.15 s and 17 to 25 MB on a 2-core machine; with torch 7 s and 1 GB

    assert "rich" not in found["loaded"]
    assert found["seconds"] < 0.6
    assert found["megabytes"] < 40


def test_the_help_page_lists_every_verb_with_a_line_of_its_own(capsys: pytest.CaptureFixture[str]):
    main(["--help"])

    rows = [line.split(maxsplit=1) for line in capsys.readouterr().out.partition("Commands:\n")[2].splitlines()]
    assert [row[0] for row in rows] == list(VERBS)
    assert all(len(row) == 2 for row in rows)


def test_an_unknown_verb_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]):
    assert main(["atack"]) == 2
    assert "unknown command 'atack'; did you mean 'attack'?" in capsys.readouterr().err


def test_the_package_is_the_command_line_as_well(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("sys.argv", ["fdgsec", "--version"])

    with pytest.raises(SystemExit) as ended:
        runpy.run_module("fdgsec", run_name="__main__")

    assert (ended.value.code, capsys.readouterr().out.strip()) == (0, __version__)
