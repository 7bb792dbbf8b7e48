"""Optimization steps of inversion attacks on noise images, for timing: `clients` images at once, `dimension` pixels a
side."""

from collections.abc import Callable

import torch

from benchmarks.attack_cases import Size
from fdgsec.attacks.style_inversion.inverter import Schedule, TrainingSet, fit_generator, fit_linear
from fdgsec.attacks.style_inversion.inverter_cache import loss_named
from fdgsec.attacks.style_inversion.inverter_gan import AdversarialOptions, train_conditional
from fdgsec.attacks.style_inversion.style_matching import Matching, match
from fdgsec.nn.networks.style_generator import adversarial_shape, small_shape
from fdgsec.nn.styles.encoders import load_encoder
from fdgsec.runtime.random_streams import stream

IMAGES = 60
NUMBERS = 512
"""Length of the styles that generators are shown: that of `mini`."""


def matching_step(size: Size) -> Callable[[int], object]:
    """Optimization inversion through `mini`, with all images in one batch."""
    encoder = load_encoder("mini")
    channels = 2 * int(encoder.encode(torch.zeros(1, 3, size.dimension, size.dimension)).shape[1])
    targets = torch.rand(size.clients, channels, generator=stream(0, "world", "styles"))
    spread = torch.ones(channels)

    def run(count: int) -> object:
        options = Matching(steps=count, roughness=(0.1,))
        return match(
            encoder, targets, spread, side=size.dimension, restarts=1, options=options, rng=stream(0, "attack")
        )

    return run


def _training(size: Size) -> TrainingSet:
    rng = stream(0, "world", "pictures", size.dimension)
    return TrainingSet(
        features=torch.randn(IMAGES, NUMBERS, generator=rng, dtype=torch.float64),
        images=torch.rand(IMAGES, 3, size.dimension, size.dimension, generator=rng), groups=torch.arange(IMAGES),
    )  # fmt: skip


def regression_step(size: Size) -> Callable[[int], object]:
    """Style inversion by mse: the generator of profiles quick and full."""
    training = _training(size)
    linear, unseen = fit_linear(training)
    loss = loss_named("mse", size.dimension, device=torch.device("cpu"))
    assert not isinstance(loss, str)

    def run(count: int) -> object:
        schedule = Schedule(steps=count, batch=size.clients, check=1000, patience=1)
        shape = small_shape(size.dimension)
        return fit_generator(
            training, linear, unseen, shape=shape, loss=loss, schedule=schedule, rng=stream(0, "attack")
        )

    return run


def adversarial_step(size: Size) -> Callable[[int], object]:
    """Style inversion by gan: generator and discriminator, with perceptual distance and style consistency."""
    training = _training(size)
    linear, unseen = fit_linear(training)
    loss = loss_named("gan", size.dimension, device=torch.device("cpu"))
    assert not isinstance(loss, str)

    def run(count: int) -> object:
        contest = AdversarialOptions(steps=count, batch=size.clients, lessons=1)
        shape = adversarial_shape(size.dimension)
        return train_conditional(
            training, linear, unseen, shape=shape, perceptual=loss, contest=contest, rng=stream(0, "attack")
        )

    return run
