"""More training images from those that an attacker has: mirrored, cropped, and, for line drawings, painted.

Every variant is a new image that the public encoder must see; its style is then exact, unlike that of an interpolation."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.data.domains import DomainDataset, as_float

COLOURLESS = 0.03
"""Mean difference between a pixel's largest and smallest channel below which a domain counts as line drawings."""


def variant(dataset: DomainDataset, images: Tensor, name: str) -> DomainDataset:
    """Give the data set `images` (N, 3, H, W) in [0, 1] instead of its own; ids get `name` as a suffix."""
    pixels = (images.clamp(0, 1) * 255).round().to(torch.uint8)
    ids = tuple(f"{image}#{name}" for image in dataset.ids)
    return replace(dataset, store=pixels, rows=torch.arange(len(dataset)), ids=ids)


def mirrored(dataset: DomainDataset) -> DomainDataset:
    """Exchange left and right. Convolutions are not symmetric, so neither are styles."""
    return variant(dataset, as_float(dataset.pixels().flip(3)), "mirrored")


def cropped(dataset: DomainDataset, *, rng: torch.Generator, least: float = 0.8) -> DomainDataset:
    """Cut out squares of `least` to 1 of the side at random places, enlarge them, and mirror half of them."""
    height, width = dataset.image_size
    images = []
    for image in as_float(dataset.pixels()):
        share = least + (1 - least) * float(torch.rand((), generator=rng))
        h, w = max(1, round(share * height)), max(1, round(share * width))
        top = int(torch.randint(height - h + 1, (), generator=rng))
        left = int(torch.randint(width - w + 1, (), generator=rng))
        piece = image[None, :, top : top + h, left : left + w]
        enlarged = functional.interpolate(piece, size=(height, width), mode="bilinear", antialias=True)
        images.append(enlarged.flip(3) if float(torch.rand((), generator=rng)) < 0.5 else enlarged)
    return variant(dataset, torch.cat(images), "cropped")


def colourless(dataset: DomainDataset) -> bool:
    """Say whether these are line drawings, from which nothing about colour can be learnt as they are."""
    high, low = as_float(dataset.pixels()).aminmax(dim=1)
    return float((high - low).mean()) < COLOURLESS


def painted(dataset: DomainDataset, *, rng: torch.Generator) -> DomainDataset:
    """Lay random paint under the drawn lines: two tinted greys meeting along a smooth border, softly lit."""
    n, (height, width) = len(dataset), dataset.image_size
    darkness = 1 - as_float(dataset.pixels()).mean(1, keepdim=True)

    def normal(channels: int, side: int, scale: float) -> Tensor:
        grid = scale * torch.randn(n, channels, side, side, generator=rng)
        return grid if side == 1 else functional.interpolate(grid, size=(height, width), mode="bicubic")

    border = normal(1, 4, 4.0).sigmoid()
    paint = 0.5 + normal(1, 1, 0.25) + normal(3, 1, 0.12)
    other = paint + normal(1, 1, 0.2) + normal(3, 1, 0.12)
    ground = paint * border + other * (1 - border) + normal(3, 3, 0.06)
    opacity = torch.rand(n, 1, 1, 1, generator=rng)
    ink = 0.5 * torch.rand(n, 3, 1, 1, generator=rng)
    return variant(dataset, ground + (ink - ground) * darkness * opacity, "painted")


def shrunk(dataset: DomainDataset, size: int) -> Tensor:
    """Average the images down to (N, 3, size, size) in [0, 1]."""
    parts: Sequence[Tensor] = [
        functional.interpolate(as_float(dataset.pixels(rows)), size=(size, size), mode="area")
        for rows in torch.arange(len(dataset)).split(256)
    ]
    return torch.cat([*parts]) if parts else torch.empty(0, 3, size, size)
