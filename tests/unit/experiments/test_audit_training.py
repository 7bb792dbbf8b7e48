"""`fdgsec audit` of DP-SGD: one run with canaries, one without, through the trainer that the defense hands out."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fdgsec.cli.app import main
from fdgsec.experiments.audit.one_run import GradientCanaries, MislabelledCanaries, Observed
from fdgsec.experiments.audit.run_audit import AuditPlan, site_of
from fdgsec.experiments.run_config import attack_settings
from fdgsec.privacy.gaussian_one_run_bounds import gaussian_ceiling
from fdgsec.privacy.one_run_bounds import ceiling
from fdgsec.runtime.progress import NoProgress
from fdgsec.runtime.registry import DEFENSES

OPTIONS = ["--per-domain", "20", "--image-size", "32", "--norm", "group", "--distinct-releases", "0"]
COUNT = 1024
WHOLE = ["--set", f"method.plan.batch_size={COUNT}"]  # every record in every step: the auditor sees most


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path / "cache"))


def audit(out: Path, defense: str, *options: str, target: str = "fedavg") -> int:
    return main(["audit", "--target", target, "--defense", defense, "--out", str(out), *OPTIONS, *options])


def document(out: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((out / "audit.json").read_text())
    return found


def gradient_canaries(count: int, *, batch: int, noise: float, frozen: str = "none") -> GradientCanaries:
    config = attack_settings(
        "fedavg",
        {"per_domain": 20, "image_size": 32, "norm": "group", "device": "cpu", "rounds": 2,
         "defenses": (f"dp-sgd:noise_multiplier={noise},max_grad_norm=0.5",)},
        assignments=[f"method.plan.batch_size={batch}", "method.plan.epochs=2", f"method.plan.frozen={frozen}"],
    )  # fmt: skip
    site = site_of(config, AuditPlan(canaries=count), data_root=None, progress=NoProgress())
    return GradientCanaries(site=site, count=count)


def test_every_step_shows_the_noisy_sum_of_each_canary_in_units_of_the_bound():
    canaries = gradient_canaries(40, batch=40, noise=1e-5)
    included = torch.arange(40) % 3 == 0

    found = canaries.observed(included, canaries.site.defense_stack)

    expected = included.double().expand(4, 40)  # two epochs of one step, in two rounds
    assert found.evidence.shape == (4, 17, 40)  # as much in each of 17 tensors
    for tensor in found.evidence.unbind(1):  # a bound with a margin of 1e-5, float32
        torch.testing.assert_close(math.sqrt(17) * tensor, expected, atol=2e-4, rtol=0)
    assert found.rates.tolist() == [1.0] * 4
    assert found.spreads.tolist() == pytest.approx([1e-5] * 4)


def test_sampled_steps_show_a_canary_as_often_as_it_is_drawn():
    canaries = gradient_canaries(200, batch=20, noise=1e-5)

    found = canaries.observed(torch.ones(200, dtype=torch.bool), canaries.site.defense_stack)

    evidence = found.evidence.sum(1) / math.sqrt(17)
    assert evidence.shape == (40, 200)
    assert float((evidence - evidence.round()).abs().max()) < 1e-3
    assert float(evidence.mean()) == pytest.approx(0.1, abs=0.015)  # 8,000 coins: standard error .0034


def test_canaries_train_whole_networks_where_the_plan_freezes_parts_of_its_own():
    canaries = gradient_canaries(4, batch=4, noise=1e-5, frozen="stage4")

    found = canaries.observed(torch.ones(4, dtype=torch.bool), canaries.site.defense_stack)

    assert float((found.evidence.sum(1) / math.sqrt(17) - 1).abs().max()) < 1e-3


def test_evidence_is_added_up_as_log_likelihood_ratios():
    canaries = gradient_canaries(30, batch=10, noise=1.0)
    found = canaries.observed(torch.arange(30) % 2 == 0, canaries.site.defense_stack)

    scores = found.scores(torch.full((17,), 17**-0.5, dtype=torch.float64))

    def density(x: torch.Tensor, center: float) -> torch.Tensor:
        return (-((x - center) ** 2) / 2).exp()

    rate = float(found.rates[0])
    evidence = found.evidence.sum(1) / math.sqrt(17)
    ratios = (1 - rate) + rate * density(evidence, 1.0) / density(evidence, 0.0)
    torch.testing.assert_close(scores, ratios.log().sum(0))


def test_tensors_count_by_the_noise_that_they_have():
    noise = torch.tensor([1.0, 2.0, 0.0]).view(1, 3, 1) * torch.tensor([1.0, -1.0]).repeat(50)
    ones = torch.ones(1, dtype=torch.float64)
    found = Observed(evidence=noise.double(), rates=ones, spreads=ones, uses=())

    assert found.shares().tolist() == pytest.approx(
        [0, 0, math.sqrt(3)], abs=1e-6
    )  # a tensor without noise tells it all
    some = replace(found, evidence=found.evidence[:, :2])
    assert some.shares().tolist() == pytest.approx([math.sqrt(2) * 0.8, math.sqrt(2) * 0.2])


@pytest.mark.slow
@pytest.mark.parametrize(
    "epsilon", [pytest.param(0.5, marks=pytest.mark.nightly), 2.0, pytest.param(8.0, marks=pytest.mark.nightly)]
)
def test_sound_training_passes(epsilon: float, tmp_path: Path):
    code = audit(tmp_path, f"dp-sgd:epsilon={epsilon}", *WHOLE, "--repeats", "2")

    found = document(tmp_path)
    assert code == 0
    assert (found["relation"], found["unit"], found["auditor"]) == ("zero-out", "record", "one-run")
    assert found["above"] == 0
    assert float(str(found["ceiling"])) == pytest.approx(ceiling(COUNT, 102, 1e-5, 0.975))


@pytest.mark.slow
def test_unsampled_training_is_also_bounded_by_the_whole_gaussian_curve_and_sampled_training_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    whole, sampled = tmp_path / "whole", tmp_path / "sampled"

    assert audit(whole, "dp-sgd:epsilon=4", *WHOLE) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert audit(sampled, "dp-sgd:epsilon=4") == 0

    found = document(whole)
    bound, curve = float(str(found["lower_bound"])), float(str(found["gaussian_bound"]))
    assert 0 < bound < curve <= 4
    assert float(str(found["gaussian_ceiling"])) == pytest.approx(gaussian_ceiling(COUNT, 102, 1e-5, 0.975))
    assert float(str(found["ceiling"])) < 4 < float(str(found["gaussian_ceiling"]))
    assert f"of the Gaussian curve: epsilon {curve:.3f}" in printed
    assert "could not have failed" not in printed
    assert (document(sampled)["gaussian_bound"], document(sampled)["gaussian_bounds"]) == (None, [])


@pytest.mark.slow
def test_two_fifths_of_the_noise_are_found_by_the_curve_and_not_by_the_single_epsilon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(DEFENSES, "dp-sgd", "tests.support.broken_defenses:DPSGDWithTwoFifthsOfTheNoise")  # type: ignore[arg-type]

    code = audit(tmp_path, "dp-sgd:epsilon=4", *WHOLE)  # at 102 guesses no bound at one epsilon exceeds 3.26

    found = document(tmp_path)
    assert code == 1
    assert float(str(found["lower_bound"])) < 4 < float(str(found["gaussian_bound"]))


@pytest.mark.slow
def test_the_bound_grows_with_what_is_claimed(tmp_path: Path):
    audit(tmp_path, "dp-sgd:epsilon=8", *WHOLE)

    assert float(str(document(tmp_path)["lower_bound"])) > 1.5


@pytest.mark.parametrize(
    "broken",
    [
        "DPSGDWithoutClip",
        pytest.param("DPSGDWithATenthOfTheNoise", marks=pytest.mark.slow),
        pytest.param("DPSGDWithOneNoise", marks=pytest.mark.slow),
    ],
)
def test_broken_training_ends_with_1(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(DEFENSES, "dp-sgd", f"tests.support.broken_defenses:{broken}")  # type: ignore[arg-type]

    code = audit(tmp_path, "dp-sgd:epsilon=2", *WHOLE)

    assert code == 1
    assert float(str(document(tmp_path)["lower_bound"])) > 2


@pytest.mark.slow
def test_sampled_training_without_a_clip_is_caught_under_the_methods_own_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(DEFENSES, "dp-sgd", "tests.support.broken_defenses:DPSGDWithoutClip")  # type: ignore[arg-type]

    code = audit(tmp_path, "dp-sgd:noise_multiplier=1.0")

    found = document(tmp_path)
    assert code == 1
    assert 0.5 < float(str(found["claimed_epsilon"])) < float(str(found["lower_bound"]))


@pytest.mark.medium
def test_mislabeled_canaries_go_through_the_runs_own_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    code = audit(tmp_path, "dp-sgd:epsilon=8", "--canary", "mislabeled", *WHOLE, target="ccst-overall")

    found = document(tmp_path)
    assert code == 0
    assert str(found["canary"]).startswith("20 images of the client with wrong labels")
    assert float(str(found["ceiling"])) < 8
    assert "could not have failed" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_wrong_labels_that_are_in_are_learned_and_those_that_are_out_are_not():
    config = attack_settings(
        "fedavg",
        {"per_domain": 60, "image_size": 32, "norm": "group", "device": "cpu", "rounds": 1,
         "defenses": ("dp-sgd:noise_multiplier=1e-3,max_grad_norm=10.0",)},
        assignments=["method.plan.batch_size=60", "method.plan.steps=40", "method.plan.learning_rate=0.1"],
    )  # fmt: skip
    site = site_of(config, AuditPlan(canary="mislabeled"), data_root=None, progress=NoProgress())
    included = torch.arange(60) % 2 == 0

    falls = MislabelledCanaries(site=site).observed(included, site.defense_stack).evidence[0, 0]

    assert float(falls[included].mean()) > float(falls[~included].mean()) + 0.1


def test_more_guesses_than_canaries_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    code = audit(tmp_path, "dp-sgd:epsilon=2", "--canaries", "10", "--guesses", "11")

    assert code == 2
    assert "--guesses is 11, more than the 10 canaries" in capsys.readouterr().err
