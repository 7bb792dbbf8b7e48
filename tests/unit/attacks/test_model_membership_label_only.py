"""Label-only membership: the augmented copies, and the shares of right answers."""

import math

import pytest
import torch
from torch import Tensor

from fdgsec.attacks.model_membership.control import fit_interpolating_classifier
from fdgsec.attacks.model_membership.label_only import (
    ANGLE,
    QUERIES,
    augmented_copies,
    label_only_scores,
    right_answers,
)
from fdgsec.attacks.statistics.noise_image_classifiers import linear_classifier, noise_images
from fdgsec.nn.networks.classifiers import Normalization
from fdgsec.runtime.random_streams import stream

SIDE = 16


def mirrored_index(place: int, size: int) -> int:
    """Where a coordinate outside of an image points to, mirrored at the edge pixel."""
    place = abs(place)
    return place if place < size else 2 * (size - 1) - place


def shifted_slowly(image: Tensor, down: int, right: int) -> Tensor:
    height, width = image.shape[-2:]
    result = torch.empty_like(image)
    for row in range(height):
        for column in range(width):
            source = mirrored_index(row - down, height), mirrored_index(column - right, width)
            result[:, row, column] = image[:, source[0], source[1]]
    return result


def rotated_slowly(image: Tensor, angle: float, row: int, column: int) -> Tensor:
    """One pixel of an image that is turned about its center, by bilinear interpolation."""
    center, cos, sin = (SIDE - 1) / 2, math.cos(math.radians(angle)), math.sin(math.radians(angle))
    across, along = column - center, row - center
    y, x = center + sin * across + cos * along, center + cos * across - sin * along
    top, left = math.floor(y), math.floor(x)
    down, right = y - top, x - left
    pixels = image.double()
    return (
        pixels[:, top, left] * (1 - down) * (1 - right)
        + pixels[:, top, left + 1] * (1 - down) * right
        + pixels[:, top + 1, left] * down * (1 - right)
        + pixels[:, top + 1, left + 1] * down * right
    )


def test_copies_are_shifted_by_a_sixteenth_and_mirrored_at_the_edge():
    image = torch.randint(0, 256, (3, 32, 32), generator=stream(0, "attack"), dtype=torch.uint8)

    copies = [copy[0] for copy in augmented_copies(image.unsqueeze(0))]

    assert len(copies) == QUERIES
    assert torch.equal(copies[0], image)
    for place, (down, right) in enumerate(((2, 0), (-2, 0), (0, 2), (0, -2)), 1):
        assert torch.equal(copies[place], shifted_slowly(image, down, right))
    assert torch.equal(copies[7], image.flip(-1))
    assert torch.equal(copies[8], shifted_slowly(image.flip(-1), 2, 0))


def test_copies_are_turned_about_the_center():
    image = torch.randint(0, 256, (3, SIDE, SIDE), generator=stream(0, "attack"), dtype=torch.uint8)

    copies = [copy[0] for copy in augmented_copies(image.unsqueeze(0))]

    for place, angle in ((5, ANGLE), (6, -ANGLE)):
        for row, column in ((4, 4), (3, 12), (8, 2), (11, 9)):
            expected = rotated_slowly(image, angle, row, column)
            assert bool(((copies[place][:, row, column].double() - expected).abs() <= 0.51).all())


def test_a_small_image_is_shifted_by_a_pixel():
    image = torch.arange(3 * 8 * 8, dtype=torch.uint8).reshape(1, 3, 8, 8)

    _, below, *_ = augmented_copies(image)

    assert torch.equal(below[..., 1:, :], image[..., :-1, :])


def test_scores_are_the_shares_of_right_answers():
    images = noise_images(6, side=SIDE, classes=4, rng=stream(0, "attack"))
    state = fit_interpolating_classifier(images.subset(torch.arange(3)))

    found = label_only_scores(linear_classifier(state), images)

    for place in range(6):
        right = []
        for copy in augmented_copies(images.pixels()[place : place + 1]):
            answer = Normalization()(copy.float() / 255).flatten() @ state["head.weight"].T + state["head.bias"]
            right.append(int(answer.argmax()) == int(images.labels[place]))
        assert found["gap"][0] == 1
        assert float(found["gap"][1][place]) == right[0]
        assert found["label-only"][0] == len(right)
        assert float(found["label-only"][1][place]) == pytest.approx(sum(right) / len(right))


def test_answers_depend_on_the_named_class_alone():
    images = noise_images(6, side=SIDE, classes=4, rng=stream(0, "attack"))
    state = fit_interpolating_classifier(images.subset(torch.arange(3)))
    masked = {name: value / 1000 for name, value in state.items()}

    assert torch.equal(
        right_answers(linear_classifier(state), images), right_answers(linear_classifier(masked), images)
    )
