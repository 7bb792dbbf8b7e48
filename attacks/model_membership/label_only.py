"""Membership from a model's answers alone: how often it answers right when an image is shifted, turned and mirrored.

Choquette-Choo et al., ICML 2021, arXiv:2007.14321: a model is right about more augmented copies of the images that it
was trained on. Their adversary learns a threshold from a shadow model; here the share of right answers is the score.
The baseline is the gap attack: an image whose class the model answers right counts as a member."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.data.domains import DomainDataset
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.training_loop import logits

SHIFT = 1 / 16
"""Length of the translations, a share of the image's side; one pixel at least."""
ANGLE = 5.0
"""Angle of the rotations, in degrees."""
QUERIES = 14
"""Number of augmented copies: the image, four translations and two rotations, each also mirrored."""


def augmented_copies(images: Tensor) -> Iterator[Tensor]:
    """The copies of images (n, 3, H, W) uint8 under each augmentation, the images themselves first.

    What comes in at an edge is mirrored at it; rotated pixels are interpolated and rounded."""
    for mirrored in (images, images.flip(-1)):
        yield mirrored
        for down, right in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            yield _shifted(mirrored, down, right)
        for angle in (ANGLE, -ANGLE):
            yield _rotated(mirrored, angle)


def _shifted(images: Tensor, down: int, right: int) -> Tensor:
    height, width = images.shape[-2:]
    rows, columns = (max(1, round(SHIFT * side)) for side in (height, width))
    wide = functional.pad(images.to(torch.float32), (columns, columns, rows, rows), mode="reflect").to(torch.uint8)
    top, left = rows * (1 - down), columns * (1 - right)
    return wide[..., top : top + height, left : left + width]


def _rotated(images: Tensor, angle: float) -> Tensor:
    height, width = images.shape[-2:]
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    turn = torch.tensor([[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]])
    grid = functional.affine_grid(turn.expand(len(images), 2, 3), list(images.shape), align_corners=False)
    turned = functional.grid_sample(
        images.to(torch.float32), grid, mode="bilinear", padding_mode="reflection", align_corners=False
    )
    return turned.round().to(torch.uint8)


def right_answers(model: Classifier, images: DomainDataset) -> Tensor:
    """Whether the model names the class of each augmented copy of each labeled image, (QUERIES, n) bool."""
    copies = augmented_copies(images.pixels())
    return torch.stack([logits(model, copy).argmax(1) == images.labels for copy in copies])


def label_only_scores(model: Classifier, images: DomainDataset) -> dict[str, tuple[int, Tensor]]:
    """By test the number of queries per image and the scores (n,): "gap" 0 or 1, "label-only" a share in [0, 1]."""
    right = right_answers(model, images).to(torch.float64)
    return {"gap": (1, right[0]), "label-only": (QUERIES, right.mean(0))}
