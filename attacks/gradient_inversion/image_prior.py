"""A generator of images like the adversary's own, in whose latent space the pictures behind a gradient are searched.

Jeon et al. (NeurIPS 2021, arXiv:2110.14962) search the latents of a pretrained generator for images with the given
gradient, and then its weights, for each batch anew. The generator here is trained on the adversary's images alone, few
of them: with one free latent for each image, both learned together (Bojanowski et al., ICML 2018, arXiv:1707.05776),
by the absolute error at three scales. Latents start at the leading principal components of the images' thumbnails."""

import copy
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.data.domains import DomainDataset, downsample
from fdgsec.nn.networks.style_generator import SEED_SIDE, StyleGenerator, adversarial_shape
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import tracked
from fdgsec.runtime.random_streams import child

LATENT = 64
"""Numbers of a latent, at most one for each two images."""
LEAST_SPREAD = 1e-3
"""Of the first principal component's spread, from which another is a number of the latent."""
LEAST_IMAGES = 16
THUMBNAIL, SCALES, BATCH = 16, (1, 2, 4), 32
LARGEST_SIDE = 128
"""Pictures are drawn at the largest power of two up to their side and to this one, and enlarged."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ImagePrior:
    """The trained generator: latents (N, d) to pictures (N, 3, H, W) in (0, 1) of the given `size` (H, W).

    `learned` names the images that it was trained on, whose latents are `latents` (n, d)."""

    generator: StyleGenerator
    latents: Tensor
    size: tuple[int, int]
    learned: frozenset[str]

    def __call__(self, latents: Tensor) -> Tensor:
        """Draw pictures from latents."""
        drawn: Tensor = self.generator(latents)
        if drawn.shape[2:] == self.size:
            return drawn
        enlarged: Tensor = functional.interpolate(drawn, size=self.size, mode="bilinear", antialias=True)
        return enlarged

    def sampled(self, count: int, rng: torch.Generator) -> Tensor:
        """Latents (count, d) of a Gaussian with the mean and the covariance of those of the training images."""
        middle = self.latents.mean(0)
        factor = torch.linalg.cholesky(
            torch.cov(self.latents.T).reshape(len(middle), -1) + 1e-6 * torch.eye(len(middle)).to(middle)
        )
        noise = torch.randn(count, len(middle), generator=rng).to(middle)
        drawn: Tensor = middle + noise @ factor.T
        return drawn

    def unlikely(self, latents: Tensor) -> Tensor:
        """The mean square of latents in units of the training images' spread: a scalar, about 1 for likely ones."""
        spread = self.latents.std(0).clamp_min(1e-6)
        far: Tensor = ((latents - self.latents.mean(0)) / spread).square().mean()
        return far

    def copied(self) -> Self:
        """The same with weights of its own, which may be changed."""
        return replace(self, generator=copy.deepcopy(self.generator))


def fit_image_prior(
    images: DomainDataset, *, steps: int, rng: torch.Generator, device: torch.device | None = None
) -> ImagePrior:
    """Train a generator of `images` at their own size, by `steps` of Adam on batches of BATCH.

    Raises UsageError for fewer than LEAST_IMAGES images, and for a side below 8 pixels."""
    if len(images) < LEAST_IMAGES or min(images.image_size) < 2 * SEED_SIDE:
        raise UsageError(
            f"a generator is trained on {LEAST_IMAGES} or more images of 8 px or more; "
            f"got {len(images)} of {images.image_size}."
        )
    side = min(LARGEST_SIDE, 2 ** (min(images.image_size).bit_length() - 1))
    true = downsample(images, (side, side)).to(device or "cpu")
    latents = _thumbnail_components(true).requires_grad_(True)
    generator = StyleGenerator(latents.shape[1], adversarial_shape(side), rng=child(rng, "weights")).to(true.device)
    optimizer = torch.optim.Adam([{"params": generator.parameters(), "lr": 2e-3}, {"params": [latents], "lr": 1e-2}])
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[4e-3, 2e-2], total_steps=steps)
    draws = child(rng, "batches")
    for _ in tracked(range(steps), "gradient inversion: training a prior"):
        rows = torch.randperm(len(true), generator=draws)[:BATCH].to(true.device)
        optimizer.zero_grad()
        _pyramid_error(generator(latents[rows]), true[rows]).backward()
        optimizer.step()
        schedule.step()
    return ImagePrior(
        generator=generator.eval().requires_grad_(False), latents=latents.detach(), size=images.image_size,
        learned=frozenset(images.ids),
    )  # fmt: skip


def _thumbnail_components(images: Tensor) -> Tensor:
    """The leading principal components of thumbnails of images (n, 3, S, S), each of unit variance: (n, d)."""
    flat = functional.interpolate(images, size=(THUMBNAIL, THUMBNAIL), mode="bilinear", antialias=True).flatten(1)
    vectors, values, _ = torch.linalg.svd(flat - flat.mean(0), full_matrices=False)
    varying = int((values > LEAST_SPREAD * values[0]).sum())
    kept: Tensor = vectors[:, : max(1, min(LATENT, len(images) // 2, varying))]
    scaled: Tensor = kept.clone() * len(images) ** 0.5
    return scaled


def _pyramid_error(drawn: Tensor, true: Tensor) -> Tensor:
    """The mean absolute error, averaged over pictures as they are and pooled by each of SCALES."""
    errors = [
        (functional.avg_pool2d(drawn, scale) - functional.avg_pool2d(true, scale)).abs().mean() for scale in SCALES
    ]
    error: Tensor = torch.stack(errors).mean()
    return error
