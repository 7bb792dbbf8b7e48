"""Forty audits of each kind: sound defenses are above their claim in six at most, broken ones in thirty-eight or more."""

import json
from pathlib import Path

import pytest

from fdgsec.cli.app import main
from fdgsec.runtime.registry import DEFENSES

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

REPEATS = 40
SMALL = [
    "--per-domain",
    "20",
    "--image-size",
    "32",
    "--encoder",
    "pixels",
    "--repeats",
    str(REPEATS),
    "--distinct-releases",
    "0",
]
WHOLE = ["--set", "method.plan.batch_size=1024"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path / "cache"))


def above(out: Path, target: str, defense: str, *options: str) -> tuple[int, int]:
    """The exit code, and how many of the bounds are above the claim."""
    code = main(["audit", "--target", target, "--defense", defense, "--out", str(out), *SMALL, *options])
    return code, int(json.loads((out / "audit.json").read_text())["above"])


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("target", ["ccst-overall", "ccst-single"])
def test_sound_styles_pass(target: str, epsilon: float, tmp_path: Path):
    code, count = above(tmp_path, target, f"private-styles:epsilon={epsilon}", "--runs", "200")

    assert (code, count <= 6) == (0, True)


@pytest.mark.parametrize("broken", ["StylesWithATenthOfTheNoise", "StylesWithoutClip", "StylesWithOneNoise"])
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_broken_styles_fail(broken: str, epsilon: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(DEFENSES, "private-styles", f"tests.support.broken_defenses:{broken}")  # type: ignore[arg-type]

    runs = "150" if epsilon == 0.5 else "100"  # two canaries share the error probability: 37 of 40 with 100

    code, count = above(tmp_path, "ccst-overall", f"private-styles:epsilon={epsilon}", "--runs", runs)

    assert (code, count >= 38) == (1, True)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_sound_training_passes(epsilon: float, tmp_path: Path):
    code, count = above(tmp_path, "fedavg", f"dp-sgd:epsilon={epsilon}", *WHOLE)

    assert (code, count <= 6) == (0, True)


@pytest.mark.parametrize("broken", ["DPSGDWithATenthOfTheNoise", "DPSGDWithoutClip", "DPSGDWithOneNoise"])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_broken_training_fails_under_the_ceiling(
    broken: str, epsilon: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(DEFENSES, "dp-sgd", f"tests.support.broken_defenses:{broken}")  # type: ignore[arg-type]

    code, count = above(tmp_path, "fedavg", f"dp-sgd:epsilon={epsilon}", *WHOLE)

    assert (code, count >= 38) == (1, True)


@pytest.mark.parametrize("broken", ["DPSGDWithATenthOfTheNoise", "DPSGDWithoutClip", "DPSGDWithOneNoise"])
def test_more_guesses_reach_a_larger_claim(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(DEFENSES, "dp-sgd", f"tests.support.broken_defenses:{broken}")  # type: ignore[arg-type]

    code, count = above(tmp_path, "fedavg", "dp-sgd:epsilon=4", *WHOLE, "--guesses", "512")

    assert (code, count >= 38) == (1, True)
