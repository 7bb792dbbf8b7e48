"""Search for pictures that minimize a distance: over pixels, or first over a generator's latents and weights.

Over pixels as Geiping et al. (NeurIPS 2020, arXiv:2003.14053, section 4): Adam on the sign of the slope, clamped to
[0, 1], with total variation. With a generator as Jeon et al. (NeurIPS 2021, arXiv:2110.14962): its latents, then its
weights with them; what is found is where the search over pixels starts."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fdgsec.attacks.gradient_inversion.image_prior import ImagePrior
from fdgsec.nn.networks.classifiers import IMAGENET_MEAN, IMAGENET_STD
from fdgsec.runtime.progress import tracked

Distance = Callable[[Tensor], Tensor]
"""Maps pictures (B, 3, H, W) to a scalar that is to become small."""
LATENT_SHARE, WEIGHT_SHARE = 0.5, 0.2
"""Of the steps, those over latents and those over weights."""
LATENT_RATE, WEIGHT_RATE = 0.2, 1e-3
TRIED = 16
"""Draws of latents, the best of which the search starts from."""
UNLIKELY = 0.01
"""Weight of the mean square of latents."""


def noise_images(count: int, size: tuple[int, int], rng: torch.Generator) -> Tensor:
    """Noise of ImageNet's mean and spread, (count, 3, H, W) in [0, 1]."""
    noise = torch.randn(count, 3, *size, generator=rng)
    mean, spread = torch.tensor(IMAGENET_MEAN).reshape(3, 1, 1), torch.tensor(IMAGENET_STD).reshape(3, 1, 1)
    return (mean + spread * noise).clamp(0, 1)


def total_variation(images: Tensor) -> Tensor:
    """The mean absolute difference of neighboring pixels, vertical plus horizontal, of images (B, C, H, W): a
    scalar."""
    return images.diff(dim=-2).abs().mean() + images.diff(dim=-1).abs().mean()


def search_pixels(distance: Distance, start: Tensor, *, steps: int, rate: float, variation: float) -> Tensor:
    """Pictures of small distance plus `variation` times their total variation, from `start` (B, 3, H, W).

    `rate` is in pixel values of [0, 1] and falls to a tenth after 3/8, 5/8 and 7/8 of the steps."""
    images = start.clone().requires_grad_(True)
    optimizer = torch.optim.Adam([images], lr=rate)
    milestones = [steps * part // 8 for part in (3, 5, 7)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)
    for _ in tracked(range(steps), "gradient inversion: steps"):
        loss = distance(images) + variation * total_variation(images)
        images.grad = torch.autograd.grad(loss, images)[0].sign()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            images.clamp_(0, 1)
    return images.detach()


def search_latents(distance: Distance, prior: ImagePrior, start: Tensor, *, steps: int) -> Tensor:
    """Pictures of small distance that the prior draws, from the best of latents `start` (T, B, d), and in the end with
    other weights."""
    mine = prior.copied()
    tried = [float(distance(prior(latents)).detach()) for latents in start]
    latents = start[tried.index(min(tried))].clone().requires_grad_(True)
    first = round(steps * LATENT_SHARE / (LATENT_SHARE + WEIGHT_SHARE))
    _descend(distance, mine, latents, [{"params": [latents], "lr": LATENT_RATE}], steps=first)
    mine.generator.requires_grad_(True)
    both = [
        {"params": [latents], "lr": LATENT_RATE / 5},
        {"params": list(mine.generator.parameters()), "lr": WEIGHT_RATE},
    ]
    _descend(distance, mine, latents, both, steps=steps - first)
    with torch.no_grad():
        return mine(latents).clamp(0, 1)


def search_pictures(
    distance: Distance, start: Tensor, *, prior: ImagePrior | None, steps: int, rate: float, variation: float
) -> Tensor:
    """Pictures of small distance: from pixels `start` (B, 3, H, W); with a prior, from latents `start` (T, B, d)."""
    if prior is None:
        return search_pixels(distance, start, steps=steps, rate=rate, variation=variation)
    drawn = round(steps * (LATENT_SHARE + WEIGHT_SHARE))
    found = search_latents(distance, prior, start, steps=drawn)
    return search_pixels(distance, found, steps=steps - drawn, rate=rate / 5, variation=variation)


def starting_point(
    prior: ImagePrior | None, count: int, size: tuple[int, int], rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Where a search starts: noise (B, 3, H, W), or TRIED draws of a prior's latents (T, B, d); and pictures there."""
    if prior is None:
        noise = noise_images(count, size, rng)
        return noise, noise
    latents = torch.stack([prior.sampled(count, rng) for _ in range(TRIED)])
    with torch.no_grad():
        return latents, prior(latents[0])


def _descend(
    distance: Distance, prior: ImagePrior, latents: Tensor, parameters: Sequence[dict[str, object]], *, steps: int
) -> None:
    optimizer = torch.optim.Adam([dict(group) for group in parameters])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps))
    for _ in tracked(range(steps), "gradient inversion: steps"):
        optimizer.zero_grad()
        loss = distance(prior(latents)) + UNLIKELY * prior.unlikely(latents)
        loss.backward()
        optimizer.step()
        schedule.step()
