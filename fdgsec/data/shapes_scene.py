"""The scenes of `shapes` before rendering: silhouettes, textures, colors and noise.

Coordinates are image coordinates: x to the right and y downwards in [0, 1], lengths as shares of the image side. The
image size only sets how finely a scene is sampled. Silhouettes are signed distance functions (negative inside); all
seven cover the area of a disc of radius 1, so that the class cannot be inferred from the covered area."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

FINEST_GRID = 128  # noise is defined up to this many cells a side; larger images interpolate it


@dataclass(frozen=True, kw_only=True)
class Scenes:
    """The contents of a batch of B images before rendering; equal counts of each class, class after class.

    `position` is (B, 2) as (x, y), `look` (B, K) holds uniform draws whose meaning depends on the renderer, the rest
    are (B,); `rng` has one generator per image for its noise."""

    hue: Tensor
    background_hue: Tensor
    saturation: Tensor
    position: Tensor
    scale: Tensor
    rotation: Tensor
    stretch: Tensor
    texture: Tensor
    light: Tensor
    look: Tensor
    rng: Sequence[torch.Generator]


def plane(values: Tensor) -> Tensor:
    """Reshape one value per image (B,) or one color per image (B, 3) to broadcast over pixels."""
    return values[:, :, None, None] if values.ndim == 2 else values[:, None, None]


def hsv(hue: Tensor, saturation: Tensor | float, value: float) -> Tensor:
    """Convert hue (B,) (any real, period 1), saturation (B,) or one for all, and value to RGB (B, 3)."""
    sector = (hue[:, None] * 6 + torch.tensor([5.0, 3.0, 1.0])) % 6
    chroma = torch.minimum(sector, 4 - sector).clamp(0, 1)
    return value * (1 - torch.as_tensor(saturation).expand_as(hue)[:, None] * chroma)


def mix(first: Tensor, second: Tensor, share: Tensor) -> Tensor:
    """Blend images or colors: `first` where `share` (B, S, S) is 0, `second` where it is 1."""
    return first + (second - first) * share[:, None]


# Silhouettes


def _star(x: Tensor, y: Tensor, points: int, outer: float, inner: float) -> Tensor:
    """Measure the exact distance to a star with `points` tips, the first one upwards (y grows downwards)."""
    half = math.pi / points
    radius, angle = torch.hypot(x, y), torch.atan2(x, -y)
    folded = ((angle + half) % (2 * half) - half).abs()
    along, across = radius * torch.cos(folded) - outer, radius * torch.sin(folded)
    edge_x, edge_y = inner * math.cos(half) - outer, inner * math.sin(half)
    nearest = ((along * edge_x + across * edge_y) / (edge_x**2 + edge_y**2)).clamp(0, 1)
    distance = torch.hypot(along - nearest * edge_x, across - nearest * edge_y)
    return torch.where(along * edge_y - across * edge_x < 0, -distance, distance)


def _cross(x: Tensor, y: Tensor, arm: float, width: float) -> Tensor:
    """Measure the distance to an upright plus sign with arms of length `arm` and half width `width`."""
    x, y = torch.maximum(x.abs(), y.abs()), torch.minimum(x.abs(), y.abs())
    outside = torch.hypot((x - arm).clamp(min=0), (y - width).clamp(min=0))
    corner = torch.hypot(x - width, y - width)  # the inner corner is nearest around the crossing
    inside = torch.where(x < width, -corner, torch.maximum(x - arm, y - width))
    return torch.where(outside > 0, outside, inside)


def _crescent(x: Tensor, y: Tensor) -> Tensor:
    """Bound the distance to a crescent: a disc minus a second disc to its right."""
    return torch.maximum(torch.hypot(x - 0.3, y) - 1.4333, 1.1467 - torch.hypot(x - 1.0167, y))


SILHOUETTES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "disc": lambda x, y: torch.hypot(x, y) - 1,
    "square": lambda x, y: _star((x - y) / math.sqrt(2), (x + y) / math.sqrt(2), 4, 1.2533, 1.2533 / math.sqrt(2)),
    "triangle": lambda x, y: _star(x, y, 3, 1.5551, 1.5551 / 2),
    "star": lambda x, y: _star(x, y, 5, 1.5413, 0.45 * 1.5413),
    "cross": lambda x, y: _cross(x, y, 1.1797, 0.4011),
    "ring": lambda x, y: (torch.hypot(x, y) - 0.9698).abs() - 0.2578,
    "crescent": _crescent,
}


def grid(size: int) -> tuple[Tensor, Tensor]:
    """Give the x and y of every pixel center, (1, S, S) each."""
    centers = (torch.arange(size) + 0.5) / size
    y, x = torch.meshgrid(centers, centers, indexing="ij")
    return x[None], y[None]


def local(scenes: Scenes, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Transform image coordinates to the object's own, unscaled: centered and rotated."""
    x, y = x - plane(scenes.position[:, 0]), y - plane(scenes.position[:, 1])
    cosine, sine = plane(scenes.rotation.cos()), plane(scenes.rotation.sin())
    return x * cosine + y * sine, y * cosine - x * sine


def distance(scenes: Scenes, x: Tensor, y: Tensor) -> Tensor:
    """Measure each image's signed distance to its silhouette, (B, S, S) in shares of the image side."""
    x, y = local(scenes, x, y)
    x, y = x / plane(scenes.scale * scenes.stretch), y / plane(scenes.scale / scenes.stretch)
    pieces = zip(SILHOUETTES.values(), x.chunk(len(SILHOUETTES)), y.chunk(len(SILHOUETTES)), strict=True)
    return torch.cat([silhouette(u, v) for silhouette, u, v in pieces]) * plane(scenes.scale)


def inside(signed_distance: Tensor, width: float = 0.0) -> Tensor:
    """Give the covered share of each pixel, in [0, 1]; the edge is softened over a pixel and `width`."""
    return (0.5 - signed_distance / (1 / signed_distance.shape[-1] + width)).clamp(0, 1)


# Noise and patterns


def noise(scenes: Scenes, size: int, gains: Sequence[float]) -> list[Tensor]:
    """Draw one fractal field per gain, (B, S, S) each, of mean 0 and standard deviation about 0.35.

    Octaves double from 4 cells a side to `size` or FINEST_GRID; each is `gain` times as strong as the one before it
    (0.5 gives a 1/f amplitude spectrum, 1 and above a rough field). Coarse octaves do not depend on `size`."""
    gain, field, cells, octave = torch.tensor(gains), torch.zeros(len(scenes.rng), len(gains), 2, 2), 4, 0
    power = torch.stack([gain ** (2 * k) for k in range(6)]).sum(0)
    strengths = 0.35 * math.sqrt(12) * gain ** torch.arange(6)[:, None] / power.sqrt()
    while cells <= min(size, FINEST_GRID):
        draws = torch.stack([torch.rand(len(gains), cells, cells, generator=rng) for rng in scenes.rng]) - 0.5
        field = F.interpolate(field, size=(cells, cells), mode="bicubic") + plane(strengths[octave][None]) * draws
        cells, octave = cells * 2, octave + 1
    if field.shape[-1] != size:
        field = F.interpolate(field, size=(size, size), mode="bicubic")
    return list(field.unbind(1))


def white(scenes: Scenes, size: int) -> Tensor:
    """Draw standard normal noise per pixel, (B, 3, S, S): the only draw that depends on the resolution."""
    return torch.stack([torch.randn(3, size, size, generator=rng) for rng in scenes.rng])


TEXTURES = ("plain", "stripes", "checks", "dots", "waves", "speckle")


def pattern(scenes: Scenes, x: Tensor, y: Tensor, speckle: Tensor) -> Tensor:
    """Evaluate each image's texture on its object, (B, S, S) in about [-1, 1]; the pattern is where it is positive."""
    x, y = local(scenes, x, y)
    turn = 2 * math.pi * plane(5 + 2.5 * scenes.look[:, 0])
    u, v = (x + 0.45 * y) * turn, (y - 0.45 * x) * turn
    columns, rows = u.cos(), v.cos()
    waves = (u + 1.4 * (0.8 * v).sin()).cos()
    kinds = torch.stack([-torch.ones_like(u), columns, columns * rows, columns + rows - 0.7, waves, 2 * speckle - 0.4])
    return kinds[scenes.texture, torch.arange(len(u))]


def slope(height: Tensor) -> tuple[Tensor, Tensor]:
    """Differentiate a height field (B, S, S) along x and y, per image side."""
    size = height.shape[-1]
    padded = F.pad(height[:, None], (1, 1, 1, 1), mode="replicate")[:, 0]
    across, down = padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2], padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]
    return across * (size / 2), down * (size / 2)
