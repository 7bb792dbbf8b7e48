"""What a generator answers to an image, and what its change says of membership."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from fdgsec.attacks.generator_leakage.generator_membership import (
    GeneratorUpdate,
    Objective,
    generator_loss,
    membership_by_change,
    perturbation_generator,
    perturbations,
    response_size,
)
from fdgsec.attacks.statistics.noise_image_classifiers import noise_images
from fdgsec.data.domains import as_float
from fdgsec.federation.artifacts import GeneratorState
from fdgsec.methods.feddag import discrepancy, generated_images
from fdgsec.nn.networks.classifiers import build_classifier
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import View
from tests.support.perturbation_generators import generator, seen, state_of


def test_the_response_is_the_log_root_mean_square_of_the_perturbation():
    images, network = noise_images(3, side=8, classes=2, rng=stream(0, "attack")), generator(1)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])

    sizes = response_size(perturbations(network, images))

    for row in range(3):
        x = (as_float(images.pixels())[row : row + 1] - mean.view(3, 1, 1)) / std.view(3, 1, 1)
        drawn = network(x).detach().double()
        assert float(sizes[row]) == pytest.approx(float(drawn.square().mean().sqrt().log()), rel=1e-5)


def test_the_loss_is_what_feddag_trains_its_generator_by():
    images, network = noise_images(5, side=32, classes=7, rng=stream(0, "attack")), generator(1)
    with torch.no_grad():
        network.draw.weight.mul_(50)  # perturbations large enough for the margin to cut some
    model = build_classifier("tiny", 7, rng=stream(0, "attack")).eval()

    found = generator_loss(perturbations(network, images), images, model, Objective(a=0.3, margin=0.01))

    pixels = as_float(images.pixels())
    with torch.no_grad():
        moved = generated_images(network, pixels, a=0.3, normalize=model.normalize)
        classified = functional.cross_entropy(model(moved), images.labels, reduction="none")
        expected = classified - discrepancy(model.features(pixels), model.features(moved)).clamp_max(0.01)
    assert torch.allclose(found, expected.double(), atol=1e-5)


def test_a_generator_of_another_depth_is_refused():
    state = dict(state_of(generator(0)).tensors())
    state["blocks.3.first.weight"] = state["blocks.0.first.weight"]

    with pytest.raises(UsageError, match=r"blocks.3.first.weight is another"):
        perturbation_generator(GeneratorState(state=state))


def test_the_last_generator_that_a_client_was_given_is_compared_with_the_last_that_it_sent():
    early, late = seen(state_of(generator(0)), state_of(generator(1))), state_of(generator(2))
    first = tuple(replace(message, round=0) for message in early.messages)
    view = View(messages=(*first, *seen(late, state_of(generator(3))).messages))

    found = GeneratorUpdate.of(view, "client:1")

    assert found is not None
    assert torch.equal(found.given.tensors()["stem.weight"], generator(2).stem.weight)
    assert torch.equal(found.returned.tensors()["stem.weight"], generator(3).stem.weight)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_members_score_high_whichever_way_training_moves_them(sign: float):
    rng = stream(0, "attack")
    hardness = torch.randn(60, generator=rng, dtype=torch.float64)
    members = torch.rand(12, 60, generator=rng).argsort(0) < 6
    noise = 0.1 * torch.randn(13, 60, generator=rng, dtype=torch.float64)
    changes = hardness + noise[:12] + sign * members
    own = torch.arange(60) < 30

    scores = membership_by_change(hardness + noise[12] + sign * own, changes, members)
    scaled = membership_by_change(5 + 3 * (hardness + noise[12] + sign * own), changes, members)

    assert float(scores[own].min()) > float(scores[~own].max())
    assert torch.allclose(scores, scaled)
