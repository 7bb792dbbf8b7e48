"""`fdgsec audit` of messages: canaries that attain what is claimed, sound releases that pass, broken ones that do not."""

import json
import math
from pathlib import Path

import pytest
import torch

from fdgsec.cli.app import main
from fdgsec.experiments.audit.neighboring_clients import worlds_of
from fdgsec.experiments.audit.run_audit import AuditPlan, message_of, site_of
from fdgsec.experiments.run_config import RunConfig, attack_settings, defense_of, defense_text
from fdgsec.privacy.mechanisms import noise_multiplier
from fdgsec.runtime.progress import NoProgress
from fdgsec.runtime.registry import DEFENSES

SMALL = {"per_domain": 20, "image_size": 32, "device": "cpu", "norm": "group", "encoder": "pixels"}
OPTIONS = [
    "--per-domain",
    "20",
    "--image-size",
    "32",
    "--encoder",
    "pixels",
    "--norm",
    "group",
    "--distinct-releases",
    "0",
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path / "cache"))


def settings(target: str, defense: str, *, rounds: int = 0) -> RunConfig:
    return attack_settings(target, {**SMALL, "rounds": rounds, "defenses": (defense,)})


def audit(out: Path, target: str, defense: str, *options: str) -> int:
    return main(
        ["audit", "--target", target, "--defense", defense, "--out", str(out), "--runs", "300", *OPTIONS, *options]
    )


def document(out: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((out / "audit.json").read_text())
    return found


def shown(config: RunConfig, *, runs: int, number: int = 0) -> tuple[float, float]:
    """By how many standard deviations of the noise a canary moves the score, and by how many it may."""
    site = site_of(config, AuditPlan(), data_root=None, progress=NoProgress())
    guarantee, canaries, releases, _ = message_of(site, config, 1e-5)
    assert guarantee.relation is not None
    worlds = worlds_of(canaries[number], releases, guarantee.relation)
    absent, present = (
        torch.tensor(worlds.scores(site.defense_stack, present=side, runs=runs, name="shown"), dtype=torch.float64)
        for side in (False, True)
    )
    assert guarantee.epsilon is not None
    measured = (present.mean() - absent.mean()) / ((absent.var() + present.var()) / 2).sqrt()
    return float(measured), 1 / noise_multiplier(guarantee.epsilon, 1e-5)


@pytest.mark.parametrize(
    ("target", "defense", "rounds"),
    [
        ("ccst-overall", "private-styles", 0),
        ("ccst-overall", "private-styles:neighbors=zero-out", 0),
        ("ccst-overall", "private-styles:center=zero,clip=2", 0),
        ("ccst-overall", "private-styles:unit=client", 0),
        ("ccst-single", "private-styles", 0),
        ("fedalign", "private-styles", 2),
        ("fisc", "private-styles:unit=client", 0),
        ("stablefdg", "private-styles", 0),
    ],
)
@pytest.mark.medium
def test_a_canary_moves_a_style_by_all_that_the_claim_allows(target: str, defense: str, rounds: int):
    measured, allowed = shown(settings(target, defense, rounds=rounds), runs=100)

    assert measured == pytest.approx(allowed, abs=0.6)  # standard error .16 at 1.67, 100 runs each


@pytest.mark.parametrize(
    ("target", "defense", "rounds", "share"),
    [
        ("ccst-overall", "private-styles:epsilon=8", 0, 0.5),  # its neighbor lies at the center, half the diameter away
        ("ccst-overall", "private-styles:epsilon=8,neighbors=zero-out", 0, 1.0),
        ("ccst-overall", "private-styles:epsilon=8,unit=client", 0, 0.5),
        ("ccst-single", "private-styles:epsilon=8", 0, 0.5),
        ("fedalign", "private-styles:epsilon=8", 2, 0.5),
        ("stablefdg", "private-styles:epsilon=8", 0, 0.5),
    ],
)
@pytest.mark.medium
def test_a_canary_in_all_other_numbers_moves_a_style_by_no_more_than_its_neighbor_allows(
    target: str, defense: str, rounds: int, share: float
):
    measured, allowed = shown(settings(target, defense, rounds=rounds), runs=100, number=1)

    assert 0.3 * share * allowed < measured < share * allowed + 0.6  # less where noise pushes a variance below 0


@pytest.mark.medium
def test_a_canary_that_joins_moves_the_mean_by_most_of_what_sum_and_count_allow():
    measured, allowed = shown(settings("ccst-overall", "private-styles:neighbors=add-remove"), runs=150)

    assert 0.5 * allowed < measured < allowed + 0.5


@pytest.mark.slow
def test_models_and_scores_have_canaries_that_attain_the_claim_too():
    models = shown(settings("fedavg", "dp-fedavg", rounds=1), runs=40)
    scores = shown(settings("feddag-dp", "private-scores", rounds=1), runs=40)

    assert models[0] == pytest.approx(models[1], abs=0.9)  # standard error .26
    assert scores[0] == pytest.approx(scores[1], abs=0.9)


@pytest.mark.parametrize("target", ["ccst-overall", "ccst-single"])
@pytest.mark.medium
def test_a_sound_release_passes_with_a_bound_that_says_something(target: str, tmp_path: Path):
    code = audit(tmp_path, target, "private-styles:epsilon=8")

    found = document(tmp_path)
    assert code == 0
    assert found["exceeded"] is False
    assert float(str(found["claimed_epsilon"])) == pytest.approx(8.0, rel=1e-6)
    assert 2 < float(str(found["lower_bound"])) <= 8  # 150 judged runs each: 4.6 in the middle


@pytest.mark.parametrize("broken", ["StylesWithATenthOfTheNoise", "StylesWithoutClip", "StylesWithOneNoise"])
@pytest.mark.parametrize("epsilon", [0.5, 8.0])
@pytest.mark.medium
def test_a_broken_release_ends_with_1(broken: str, epsilon: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(DEFENSES, "private-styles", f"tests.support.broken_defenses:{broken}")  # type: ignore[arg-type]

    code = audit(tmp_path, "ccst-overall", f"private-styles:epsilon={epsilon}")

    assert code == 1
    assert float(str(document(tmp_path)["lower_bound"])) > epsilon


@pytest.mark.parametrize("broken", ["StylesWithMeansClippedAlone", "StylesWithOneNumberUnclipped"])
@pytest.mark.medium
def test_numbers_that_are_not_clipped_end_with_1(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(DEFENSES, "private-styles", f"tests.support.broken_defenses:{broken}")  # type: ignore[arg-type]

    assert audit(tmp_path, "ccst-overall", "private-styles:epsilon=2", "--runs", "60") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "broken", ["StylesWithMeansClippedAlone", "StylesWithOneNumberUnclipped", "StylesClippedNumberByNumber"]
)
@pytest.mark.parametrize("target", ["ccst-overall", "ccst-single"])
@pytest.mark.parametrize("epsilon", [pytest.param(0.5, marks=pytest.mark.nightly), 8.0])
def test_a_clip_of_some_numbers_or_of_each_by_itself_ends_with_1(
    target: str, broken: str, epsilon: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(DEFENSES, "private-styles", f"tests.support.broken_defenses:{broken}")  # type: ignore[arg-type]

    code = audit(tmp_path, target, f"private-styles:epsilon={epsilon}", "--encoder", "mini")

    assert code == 1
    assert float(str(document(tmp_path)["lower_bound"])) > epsilon


@pytest.mark.parametrize("confidence", ["0.8", "0.99"])
@pytest.mark.medium
def test_one_audit_is_judged_at_its_own_confidence(confidence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(DEFENSES, "private-styles", "tests.support.broken_defenses:StylesWithoutClip")  # type: ignore[arg-type]

    code = audit(tmp_path, "ccst-overall", "private-styles:epsilon=2", "--runs", "60", "--confidence", confidence)

    assert code == 1


@pytest.mark.medium
def test_noise_that_comes_again_in_the_next_round_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(DEFENSES, "private-styles", "tests.support.broken_defenses:StylesWithOneNoisePerRun")  # type: ignore[arg-type]

    once, twice = (
        audit(tmp_path, "fedalign", "private-styles:epsilon=2", "--runs", "60", "--rounds", rounds) for rounds in "12"
    )

    assert (once, twice) == (0, 1)


@pytest.mark.medium
def test_the_document_and_the_terminal_say_what_a_bound_is_and_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    options = ("--repeats", "3", "--runs", "20")

    audit(tmp_path, "ccst-overall", "private-styles:epsilon=4,delta=1e-6", *options)
    told = capsys.readouterr().out
    audit(tmp_path, "ccst-overall", "private-styles:epsilon=4,delta=1e-6", *options, "--json")
    printed = json.loads(capsys.readouterr().out)

    found = document(tmp_path)
    assert {**printed, "seconds": 0} == {**found, "seconds": 0}
    plain = ("schema", "target", "delta", "unit", "relation", "confidence", "repeats", "auditor", "runs", "covers")
    expected = [1, "ccst-overall", 1e-6, "record", "replace-one", 0.95, 3, "gaussian", 80, ["share/style"]]
    assert [found[key] for key in plain] == expected
    assert found["defense"] == printed["defense"]
    assert (found["by"], found["vetted"]) == (["private-styles"], False)
    bounds = found["bounds"]
    assert isinstance(bounds, list)
    assert found["lower_bound"] == sorted(bounds)[1]
    words = " ".join(told.split())
    assert "over share/style (unvetted: docs/defenses/private-styles.md) lower bound: epsilon" in words
    assert f"ceiling {float(str(found['ceiling'])):.3f}" in words
    assert "no proof that the claim holds" in words
    assert "privacy loss" not in words + json.dumps(found)


@pytest.mark.parametrize(
    ("target", "defense"),
    [
        ("ccst-overall", "style-noise:p=0.1,scale=0.05"),
        ("ccst-overall", "quantize"),
        ("ccst-overall", "secure-aggregation"),
        ("ccst-overall", "private-styles:epsilon=inf"),
        ("ccst-overall", "dp-fedavg"),
        ("fedavg", "dp-fedavg:trust=server"),
        ("fedavg", "dp-sgd:noise_multiplier=0"),
    ],
)
def test_what_promises_nothing_cannot_be_audited(
    target: str, defense: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    code = audit(tmp_path, target, defense)

    assert code == 2
    assert f"{defense_text(defense_of(defense))} states no (epsilon, delta)" in capsys.readouterr().err
    assert not (tmp_path / "audit.json").exists()


@pytest.mark.parametrize(
    "options", [["--runs", "3"], ["--repeats", "0"], ["--confidence", "1"], ["--canaries", "1"], ["--canary", "yellow"],
                ["--guesses", "0"], ["--defense", "private-styles"]],
)  # fmt: skip
def test_plans_out_of_range_are_refused(options: list[str], tmp_path: Path):
    assert audit(tmp_path, "ccst-overall", "private-styles", *options) == 2


@pytest.mark.medium
def test_repeats_draw_their_own_secrets(tmp_path: Path):
    audit(tmp_path, "ccst-overall", "private-styles:epsilon=8", "--repeats", "4", "--runs", "40")

    bounds = document(tmp_path)["bounds"]
    assert isinstance(bounds, list)
    assert len(set(bounds)) > 1
    assert all(math.isfinite(bound) for bound in bounds)
