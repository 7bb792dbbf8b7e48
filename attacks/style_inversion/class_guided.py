"""Class-guided inversion: the public picture that shows the class which the style gives away, in the predicted colors.

A generator that is trained on squared error draws the mean of all pictures that fit a style, in which no class is
recognized, even where the style tells the class. Here the adversary's own classifier of styles (a logistic regression
from the prior's styles to the labels of its images) names the likeliest class of every row. Of the prior's images of
that class, the one with the nearest style is taken, and its coarse colors are moved half way to those that the linear
inverse predicts. Each row thus shows the class that its style is taken to tell, and no network sees a picture.

Under a defense the classifier learns from noisy rows, while distances are from the images' own styles: of these, the
nearest one is the likeliest behind a row with noise that is alike in all directions."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fdgsec.attacks.style_inversion.inverter import LinearInverse
from fdgsec.attacks.style_inversion.recognition import LEAST_PER_CLASS, LinearClasses, fit_classes, trainable
from fdgsec.attacks.style_inversion.retrieval import color_gap
from fdgsec.attacks.style_inversion.training_images import Prior, colorless
from fdgsec.data.domains import DomainDataset

CLASS_GUIDED = "class-guided"
SHARE = 0.5
"""How far coarse colors are moved toward those of the linear inverse."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassGuidedInverter:
    """Answers styles by the images of one prior, without gradients; every row is answered by itself.

    `styles` (n, 2C) are the features of `images` (n, 3, S, S), in [0, 1], and `labels` (n,) their classes. Every class
    that `classes` may name is among them."""

    classes: LinearClasses
    linear: LinearInverse
    styles: Tensor
    images: Tensor
    labels: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """Reconstruct (N, 3, S, S) in [0, 1] for style features (N, 2C)."""
        pictures = self.images[self.chosen(features)]
        return (pictures + SHARE * color_gap(pictures, self.linear(features))).clamp(0, 1)

    def chosen(self, features: Tensor) -> Tensor:
        """The number of the image with the nearest style among those of each row's likeliest class, (N,)."""
        distance = torch.cdist(self.linear.standardized(features), self.linear.standardized(self.styles))
        other = self.labels != self.classes.predict(features)[:, None]
        return distance.masked_fill(other, torch.inf).argmin(1)


def class_guided(prior: Prior) -> ClassGuidedInverter | None:
    """The inverter that takes the images of `prior`; None for colorized line drawings and without classes."""
    if prior.painted or not trainable(prior.labels):
        return None
    return ClassGuidedInverter(
        classes=fit_classes(prior.training.features, prior.labels[prior.training.groups]), linear=prior.linear,
        styles=prior.styles, labels=prior.labels,
        images=prior.training.images[: len(prior.images)],  # before their mirrored, cropped and noisy copies
    )  # fmt: skip


def unguided(images: DomainDataset) -> str:
    """Why no prior of these images answers a style by its class; empty where it does."""
    if colorless(images):
        return "pictures are real images; this prior's are colorized line drawings"
    if not trainable(images.labels):
        return f"the prior does not have {LEAST_PER_CLASS} labeled images of each of two classes or more"
    return ""
