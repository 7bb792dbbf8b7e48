"""What perturbations show of their images, beside those of a generator that never trained."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch

from fdgsec.attacks.generator_leakage.control import pass_through_weights
from fdgsec.attacks.generator_leakage.decoder import DecoderCache, prepare_decoders
from fdgsec.attacks.generator_leakage.generator_membership import GeneratorUpdate
from fdgsec.attacks.statistics.noise_image_classifiers import noise_images
from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.federation.artifacts import GeneratorState
from fdgsec.metrics.image_similarity import psnr
from fdgsec.nn.networks.perturbation_generator import PerturbationNetwork
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.answers import Reconstructions
from tests.support.perturbation_generators import state_of


def carrying(seed: int = 0) -> GeneratorUpdate:
    """A generator that lets its image through, and came from one that did not."""
    start = PerturbationNetwork(8, rng=stream(seed, "attack", "given"))
    through = pass_through_weights(stream(seed, "attack", "through"))
    return GeneratorUpdate(given=state_of(start), returned=GeneratorState(state=through))


def gain_over_untrained(answers: Sequence[Reconstructions], images: DomainDataset) -> float:
    true = as_float(images.pixels())
    (answer,) = answers
    return float((psnr(answer.images, true) - psnr(answer.controls["B3"], true)).mean())


@dataclass(frozen=True, kw_only=True)
class AttackContext:
    public: DomainDataset
    shown: DomainDataset
    decoders: DecoderCache


@pytest.fixture(scope="module")
def scene() -> AttackContext:
    """Noise images, and decoders of which that of the untrained generator is fitted once for all tests."""
    images = noise_images(160, side=8, classes=2, rng=stream(0, "attack"))
    public = images.subset(torch.arange(128))
    return AttackContext(
        public=public,
        shown=images.subset(128 + torch.arange(32)),
        decoders=prepare_decoders(public, stream(0, "attack")),
    )


@pytest.mark.medium
def test_a_generator_that_lets_its_image_through_is_decoded_better_than_one_that_never_trained(scene: AttackContext):
    answers = scene.decoders.answers({0: carrying()}, {0: scene.shown})

    assert gain_over_untrained(answers, scene.shown) > 2  # dB


@pytest.mark.medium
def test_another_generator_that_never_trained_is_decoded_no_better_than_the_control(scene: AttackContext):
    never = replace(carrying(), returned=state_of(PerturbationNetwork(8, rng=stream(0, "attack", "another"))))

    answers = scene.decoders.answers({0: never}, {0: scene.shown})

    assert abs(gain_over_untrained(answers, scene.shown)) < 1  # dB


@pytest.mark.medium
def test_perturbations_of_other_images_reconstruct_nothing(scene: AttackContext):
    (answer,) = scene.decoders.exchanged({0: carrying()}, {0: scene.shown})

    mean = as_float(scene.public.pixels()).mean(0, keepdim=True)
    true = as_float(scene.shown.pixels())
    assert float(psnr(answer.images, true).mean()) < float(psnr(mean.expand_as(true), true).mean())
    assert answer.descriptive
