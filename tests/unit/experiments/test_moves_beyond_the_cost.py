"""Releases, and trainings, that one image moves further than their cost allows, and sound ones that look alike."""

import pytest
import torch

from fdgsec.defenses.private_styles import PrivateStyles
from fdgsec.experiments.audit.moved_releases import moved_too_far
from fdgsec.experiments.audit.moved_weights import training_moves
from fdgsec.experiments.audit.neighboring_clients import Site
from fdgsec.experiments.audit.noise_tails import without_tails
from fdgsec.experiments.audit.step_distances import related
from fdgsec.experiments.run_config import RunConfig
from fdgsec.experiments.setup.defenses import statistic_source_of
from fdgsec.federation.defense import Defense
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.method import Clock, Method
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.testing.small_federation import CLIENTS, four_clients, start_of
from tests.support.first_faults import all_findings, faults_until
from tests.support.misstated_costs import (
    TRAINERS,
    ClientsWithTheNoiseOfAnImage,
    DPSGDWith,
    Patched,
    StylesAboutTheirMedianCut,
    StylesAboutTheirMedianRounded,
    StylesClippedAtTheirMedianLength,
    StylesOfTheMiddleHalf,
    StylesRoundedCoarsely,
    StylesSampled,
    StylesWhoseNoiseTellsTheirNumber,
    StylesWithLogarithms,
    StylesWithTwoKindsOfNoise,
)
from tests.support.misstated_trainings import STEPS, TellingNoStep

pytestmark = pytest.mark.usefixtures("within_an_audit")

PARTICIPANTS = tuple(f"client:{number}" for number in range(CLIENTS))
PLAN = TrainingPlan(batch_size=8, learning_rate=0.01, steps=2)


def site_of(method: Method, defense: Defense) -> Site:
    source = statistic_source_of(RunConfig(method="ccst"), method)
    stack = DefenseStack(defenses=(defense,), statistic_source=source)
    return Site(
        method=method, client=four_clients()[0], model=start_of(method, norm="group"), defense_stack=stack,
        clocks=[Clock(round=0, rounds=1, participants=PARTICIPANTS)], seed=0,
    )  # fmt: skip


def found(defense: Defense) -> list[str]:
    site = site_of(CCST(k=2), defense)
    return [one.words for one in moved_too_far(site, site.defense_stack)]


@pytest.mark.parametrize(
    ("liar", "words"),
    [
        (StylesAboutTheirMedianCut(epsilon=4.0), "tell"),
        (StylesAboutTheirMedianRounded(epsilon=4.0), "tell"),
        (ClientsWithTheNoiseOfAnImage(epsilon=4.0), "standard deviations of its noise"),
        (StylesWithTwoKindsOfNoise(epsilon=4.0), "of its Laplace noise; 2.0 are allowed"),
        (StylesClippedAtTheirMedianLength(epsilon=4.0), "standard deviations of its noise"),
        (StylesOfTheMiddleHalf(epsilon=4.0), "standard deviations of its noise"),
        (StylesWhoseNoiseTellsTheirNumber(epsilon=4.0, neighbors="add-remove"), "of the length of its noise"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
@pytest.mark.medium
def test_a_release_that_moves_further_is_found(liar: Defense, words: str):
    (said,) = found(liar)

    assert words in said


@pytest.mark.parametrize(
    "sound",
    [
        StylesRoundedCoarsely(epsilon=4.0), StylesWithLogarithms(epsilon=4.0), PrivateStyles(epsilon=8.0, unit="client"),
        PrivateStyles(epsilon=1.0, neighbors="add-remove"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
@pytest.mark.medium
def test_a_sound_release_is_not(sound: Defense):
    assert found(sound) == []


@pytest.mark.parametrize("trainer", [*TRAINERS, "sound"])
@pytest.mark.medium
def test_a_training_that_moves_further_is_found(trainer: str):
    defense = DPSGDWith(noise_multiplier=1.0, made=TRAINERS.get(trainer, Patched))
    site = site_of(FedAvg(plan=PLAN), defense)

    said = faults_until("", training_moves(site, site.defense_stack))

    assert bool(said) == (trainer != "sound"), said


@pytest.mark.parametrize("trainer", STEPS)
@pytest.mark.medium
def test_a_training_is_not_what_it_states(trainer: str):
    made, words = STEPS[trainer]
    site = site_of(FedAvg(plan=PLAN), DPSGDWith(noise_multiplier=1.0, made=made))

    said = faults_until(words, training_moves(site, site.defense_stack))

    assert any(words in one for one in said), said


def test_a_training_that_tells_of_no_step_is_refused_in_words():
    site = site_of(FedAvg(plan=PLAN), DPSGDWith(noise_multiplier=1.0, made=TellingNoStep))

    with pytest.raises(UsageError, match="never calls `on_step`"):
        all_findings(training_moves(site, site.defense_stack))


@pytest.mark.medium
def test_a_release_of_varying_size_is_refused_in_words():
    site = site_of(CCST(style="single", k=2, styles_per_client=8), StylesSampled(epsilon=4.0))

    with pytest.raises(UsageError, match="'styles' is of another size in other draws"):
        without_tails(site, site.defense_stack, draws=32)


def test_steps_with_noise_of_their_own_are_unrelated_whatever_its_size_in_a_tensor():
    for seed in range(20):
        noise = _noise_of_steps(seed)
        assert not related(noise)
        noise[9] = -noise[8]
        assert related(noise)
    assert not related(torch.zeros(4, 17, 11))


def _noise_of_steps(seed: int) -> torch.Tensor:
    """Noise of 64 steps in 17 tensors of 11 numbers, each tensor's a tenth of that of the one before it."""
    noise = torch.randn(64, 17, 11, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return noise * 10.0 ** -torch.arange(17).view(1, -1, 1)
