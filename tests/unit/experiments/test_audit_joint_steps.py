"""`fdgsec audit` of networks that step together (feddag-dp): gradient canaries with a weight in each of them."""

import json
from pathlib import Path

import pytest
import torch

from fdgsec.cli.app import main
from fdgsec.experiments.audit.gradient_canaries import networks_of
from fdgsec.experiments.audit.one_run import GradientCanaries
from fdgsec.experiments.audit.run_audit import AuditPlan, site_of
from fdgsec.experiments.run_config import attack_settings
from fdgsec.runtime.progress import NoProgress
from fdgsec.runtime.registry import DEFENSES

COUNT = 512
OPTIONS = [
    "--per-domain", "20", "--image-size", "32", "--norm", "group", "--canaries", str(COUNT), "--guesses", "200", "--distinct-releases", "0",
]  # fmt: skip
WHOLE = ["--set", f"method.plan.batch_size={COUNT}"]
TOGETHER = ["--set", "method.warm_up=0"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path / "cache"))


def audit(out: Path, defense: str, *options: str) -> int:
    return main(["audit", "--target", "feddag-dp", "--defense", defense, "--out", str(out), *OPTIONS, *options])


def document(out: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((out / "audit.json").read_text())
    return found


def canaries(count: int, *, noise: float) -> GradientCanaries:
    """Of two rounds, the first of them for warming up: one network, then two."""
    config = attack_settings(
        "feddag-dp",
        {"per_domain": 20, "image_size": 32, "norm": "group", "device": "cpu", "rounds": 2,
         "defenses": (f"dp-sgd:noise_multiplier={noise},max_grad_norm=0.5",)},
        assignments=[f"method.plan.batch_size={count}", "method.plan.epochs=2", "method.warm_up=1"],
    )  # fmt: skip
    site = site_of(config, AuditPlan(canaries=count), data_root=None, progress=NoProgress())
    return GradientCanaries(site=site, count=count)


def test_a_canary_shows_alike_in_one_network_and_in_two_that_step_together():
    found = canaries(40, noise=1e-5)
    included = torch.arange(40) % 3 == 0

    seen = found.observed(included, found.site.defense_stack)

    assert [networks_of(found.site.method, clock) for clock in found.site.clocks] == [1, 2]
    expected = included.double().expand(4, 40)  # two steps in each of two rounds
    evidence = seen.evidence.sum(1) / seen.evidence.shape[1] ** 0.5
    torch.testing.assert_close(evidence, expected, atol=2e-4, rtol=0)  # a bound with a margin of 1e-5, float32
    assert seen.spreads.tolist() == pytest.approx([1e-5] * 4)


@pytest.mark.medium
def test_noise_in_two_networks_scatters_the_evidence_as_much_as_in_one():
    found = canaries(300, noise=2.0)

    seen = found.observed(torch.zeros(300, dtype=torch.bool), found.site.defense_stack).evidence

    for step in seen.flatten(0, 1):
        assert float(step.std()) == pytest.approx(2.0, rel=5 / (2 * 300) ** 0.5)  # the sd of an sd


@pytest.mark.medium
def test_sound_joint_steps_pass_with_a_bound_that_says_something(tmp_path: Path):
    code = audit(tmp_path, "dp-sgd:epsilon=8", *WHOLE, *TOGETHER)

    found = document(tmp_path)
    assert code == 0
    assert 1 < float(str(found["lower_bound"])) <= 8
    assert "of each of 2 small networks that step together" in str(found["canary"])


@pytest.mark.parametrize(
    "broken",
    [
        "DPSGDWithoutClip",
        pytest.param("DPSGDWithATenthOfTheNoise", marks=pytest.mark.slow),
        pytest.param("DPSGDWithOneNoise", marks=[pytest.mark.slow, pytest.mark.nightly]),
    ],
)
def test_broken_joint_steps_end_with_1(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(DEFENSES, "dp-sgd", f"tests.support.broken_defenses:{broken}")  # type: ignore[arg-type]

    code = audit(tmp_path, "dp-sgd:epsilon=1", *WHOLE, *TOGETHER)

    assert code == 1
    assert float(str(document(tmp_path)["lower_bound"])) > 1


def test_wrong_labels_are_refused_where_no_single_network_learns_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    code = audit(tmp_path, "dp-sgd:epsilon=8", "--canary", "mislabeled")

    assert code == 2
    assert "feddag-dp steps several jointly; use --canary gradient" in capsys.readouterr().err
