"""Samples of private training that are not what its cost counts on, and sound ones."""

from functools import partial
from itertools import pairwise

import pytest
import torch

from fdgsec.defenses.dp_sgd import DPSGD
from fdgsec.experiments.audit.counted_steps import Counted
from fdgsec.experiments.audit.neighboring_clients import Site
from fdgsec.experiments.audit.sampled_records import Sampled, sampling_faults
from fdgsec.federation.defense import Defense
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.method import Clock
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.testing.contracts import BrokenPromiseError
from fdgsec.testing.defenses import check_defense
from fdgsec.testing.small_federation import CLIENTS, four_clients, start_of
from tests.support.misstated_costs import DPSGDWith
from tests.support.misstated_samples import SAMPLES, Sampling, in_public, in_secret

pytestmark = pytest.mark.usefixtures("within_an_audit")

PARTICIPANTS = tuple(f"client:{number}" for number in range(CLIENTS))
METHOD = FedAvg(plan=TrainingPlan(batch_size=8, learning_rate=0.01, steps=2))
EVERY_DAY = ("in public", "in fixed batches", "more often")
"""Samples that are tried under much noise before every landing; all are every night."""


def said_of(defense: Defense, *, rounds: int = 1, name: str = "run") -> list[str]:
    stack = DefenseStack(defenses=(defense,), name=name)
    clocks = [Clock(round=number, rounds=rounds, participants=PARTICIPANTS) for number in range(rounds)]
    site = Site(
        method=METHOD, client=four_clients()[0], model=start_of(METHOD, norm="group"), defense_stack=stack,
        clocks=clocks, seed=0,
    )  # fmt: skip
    return list(sampling_faults(site, stack).faults)


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.medium
def test_a_sample_that_is_not_what_is_stated_is_found(sample: str):
    drawn, words = SAMPLES[sample]

    said = said_of(DPSGDWith(noise_multiplier=1.0, made=partial(Sampling, sample=drawn)))

    assert any(words in one for one in said), said


@pytest.mark.parametrize(
    "sample", [pytest.param(one, marks=() if one in EVERY_DAY else pytest.mark.nightly) for one in SAMPLES]
)
@pytest.mark.slow
def test_it_is_found_under_much_noise(sample: str):
    drawn, words = SAMPLES[sample]

    said = said_of(DPSGDWith(noise_multiplier=16.0, made=partial(Sampling, sample=drawn)), rounds=2)

    assert any(words in one for one in said), said


@pytest.mark.parametrize(
    "sound",
    [
        DPSGD(noise_multiplier=0.5), DPSGD(epsilon=1.0), DPSGD(epsilon=8.0),
        DPSGDWith(noise_multiplier=1.0, made=partial(Sampling, sample=in_secret)),
    ],
    ids=["little noise", "epsilon 1", "epsilon 8", "another trainer"],
)  # fmt: skip
@pytest.mark.medium
def test_a_secret_sample_is_not(sound: Defense):
    assert said_of(sound, rounds=2) == []


@pytest.mark.parametrize("noise", [0.3, 1.0, 16.0])
@pytest.mark.medium
def test_no_sound_sample_of_many_is_called_otherwise(noise: float):
    simulated = [_poisson(seed, records=256, rate=0.25, noise=noise) for seed in range(100)]

    assert not any(one.dependent or one.related or one.more_often for one in simulated)
    assert not any(one.known_from(other) for one, other in pairwise(simulated))


def _poisson(seed: int, *, records: int, rate: float, noise: float) -> Sampled:
    """Numbers of records of two classes in 256 steps, with noise, as a sound trainer shows them."""
    rng = torch.Generator().manual_seed(seed)
    sizes = torch.tensor([records * 3 // 4, records // 4], dtype=torch.float64)
    drawn = torch.binomial(sizes.expand(256, 2), torch.full((256, 2), rate, dtype=torch.float64), generator=rng)
    return Sampled(
        counts=drawn / noise + torch.randn(256, 2, generator=rng, dtype=torch.float64), means=sizes * rate / noise,
        variances=sizes * rate * (1 - rate) / noise**2, rate=rate, taken=Counted(steps=256, paid=256),
    )  # fmt: skip


@pytest.mark.medium
def test_no_defense_draws_its_records_in_public():
    liar = DPSGDWith(epsilon=4.0, made=partial(Sampling, sample=in_public))

    with pytest.raises(BrokenPromiseError, match="the same records"):
        check_defense(liar, method="fedavg")
