"""Procedural training images for the `mini` style codec, with no photographs or derivatives of photographs.

Eight families (1/f noise, dead leaves, flat cartoons with outlines, line drawings on white, gradients and shaded
spheres, regular textures, brush strokes, collages of the others) cover the statistics that distinguish domains: color,
contrast, edge density and texture. One seed gives the same pool on every run."""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter
from torch import Tensor

from fdgsec.runtime.random_streams import integer_seed, stream

Picture = NDArray[np.floating]  # (H, W, 3) in [0, 1]
Color = tuple[int, int, int]
Painter = Callable[[np.random.Generator, int], Picture]


def pool(size: int, *, image_size: int, seed: int, progress: Callable[[int], None] | None = None) -> Tensor:
    """Draw `size` images (size, 3, image_size, image_size) uint8, cycling through the families; each has its own
    stream."""
    images = np.empty((size, 3, image_size, image_size), dtype=np.uint8)
    painters = list(FAMILIES.values())
    for index in range(size):
        rng = np.random.default_rng(integer_seed(stream(seed, "world", "procedural", index)))
        picture = _degraded(painters[index % len(painters)](rng, image_size), rng)
        images[index] = np.clip(picture * 255.0 + 0.5, 0, 255).astype(np.uint8).transpose(2, 0, 1)
        if progress is not None:
            progress(index + 1)
    return torch.from_numpy(images)


def crops(images: Tensor, *, crop: int, size: int, rng: torch.Generator) -> Tensor:
    """Cut `size` random crops, with flips, quarter turns, channel orders and inversion: (size, 3, crop, crop) float."""
    height = images.shape[2]
    drawn = []
    for row in torch.randint(len(images), (size,), generator=rng).tolist():
        top, left = torch.randint(height - crop + 1, (2,), generator=rng).tolist()
        turns, flip, negative = torch.randint(0, 8, (3,), generator=rng).tolist()
        patch = images[row, torch.randperm(3, generator=rng), top : top + crop, left : left + crop]
        patch = torch.rot90(patch, turns % 4, (1, 2))
        patch = patch.flip(2) if flip % 2 else patch
        drawn.append(255 - patch if negative == 0 else patch)
    return torch.stack(drawn).to(torch.float32).div_(255).contiguous(memory_format=torch.channels_last)


def colored_noise(rng: np.random.Generator, size: int) -> Picture:
    """1/f^a noise whose three channels are correlated like those of natural images."""
    planes = _spectral(rng, size, slope=rng.uniform(0.6, 2.2), planes=3)
    saturation = rng.uniform(0.05, 0.7)
    mixing = np.full((3, 3), 1.0 - saturation) + saturation * rng.normal(size=(3, 3))
    mixed = planes @ mixing.astype(np.float32)
    mixed /= mixed.std() + 1e-6
    return _clipped(rng.uniform(0.15, 0.85, 3) + rng.uniform(0.08, 0.28) * mixed)


def dead_leaves(rng: np.random.Generator, size: int) -> Picture:
    """Overlapping shapes with power-law sizes, flat or noisy: the edge statistics of photographs."""
    canvas, draw, scale = _canvas(size, _color(rng))
    palette = _palette(rng, 12)
    for _ in range(int(rng.integers(40, 160))):
        radius = scale * size * min(0.5, 0.03 / max(1e-3, rng.random()) ** 0.7)
        _blob(draw, rng, radius, fill=palette[int(rng.integers(12))], outline=None, width=0)
    picture = _shrunk(canvas, size)
    texture = _spectral(rng, size, slope=rng.uniform(0.3, 1.5), planes=1)
    shade = _spectral(rng, size, slope=2.5, planes=1)
    return _clipped(picture * (1 + rng.uniform(0, 0.25) * shade) + rng.uniform(0, 0.12) * texture)


def cartoon(rng: np.random.Generator, size: int) -> Picture:
    """Few flat saturated shapes with dark outlines on a flat, often pale, ground."""
    ground = (255, 255, 255) if rng.random() < 0.45 else _color(rng)
    canvas, draw, scale = _canvas(size, ground)
    palette = _palette(rng, 6)
    outline = (0, 0, 0) if rng.random() < 0.7 else _color(rng, high=0.35)
    for _ in range(int(rng.integers(3, 16))):
        radius = scale * size * rng.uniform(0.06, 0.42)
        width = int(scale * rng.uniform(0.8, 3.5))
        _blob(draw, rng, radius, fill=palette[int(rng.integers(6))], outline=outline, width=width)
    for _ in range(int(rng.integers(0, 10))):
        _curve(draw, rng, scale * size, ink=outline, width=int(scale * rng.uniform(0.8, 3)))
    return _shrunk(canvas, size)


def line_drawing(rng: np.random.Generator, size: int) -> Picture:
    """Dark lines on white, without shading: curves, outlines and hatching."""
    canvas, draw, scale = _canvas(size, (255, 255, 255))
    level = int(rng.integers(0, 90))
    ink = (level, level, level)
    width = max(1, int(scale * rng.uniform(0.7, 2.6)))
    for _ in range(int(rng.integers(2, 22))):
        _curve(draw, rng, scale * size, ink=ink, width=width)
    for _ in range(int(rng.integers(0, 7))):
        _blob(draw, rng, scale * size * rng.uniform(0.05, 0.4), fill=None, outline=ink, width=width)
    if rng.random() < 0.3:
        _hatch(draw, rng, scale * size, ink=ink, width=max(1, width // 2))
    return _shrunk(canvas, size)


def spheres(rng: np.random.Generator, size: int) -> Picture:
    """Smooth gradients with a few lit spheres: low edge density, soft shading."""
    y, x = _grid(size)
    start, end = rng.random(3), rng.random(3)
    angle = rng.uniform(0, 2 * math.pi)
    ramp = np.clip(0.5 + 0.7 * ((x - 0.5) * math.cos(angle) + (y - 0.5) * math.sin(angle)), 0, 1)[..., None]
    picture = start + (end - start) * ramp
    light = rng.normal(size=3)
    light /= np.linalg.norm(light)
    for _ in range(int(rng.integers(0, 7))):
        cx, cy, radius = rng.random(), rng.random(), rng.uniform(0.06, 0.35)
        u, v = (x - cx) / radius, (y - cy) / radius
        inside = 1 - u * u - v * v
        height = np.sqrt(np.clip(inside, 0, 1))
        lit = np.clip(u * light[0] + v * light[1] + height * abs(light[2]), 0, 1)[..., None]
        ball = rng.random(3) * (0.2 + 0.8 * lit) + rng.uniform(0, 0.6) * lit ** rng.uniform(8, 40)
        cover = np.clip(inside * radius * size, 0, 1)[..., None]
        picture = picture * (1 - cover) + ball * cover
    return _clipped(picture)


def texture(rng: np.random.Generator, size: int) -> Picture:
    """A periodic or blotchy pattern in two or three colors: stripes, checks, dots, thresholded noise."""
    y, x = _grid(size)
    bend = rng.uniform(0, 0.25) * _spectral(rng, size, slope=2.0, planes=1)[..., 0]
    angle, period = rng.uniform(0, math.pi), rng.uniform(3, 28) / size
    u = (x * math.cos(angle) + y * math.sin(angle) + bend * period * 4) / period
    v = (y * math.cos(angle) - x * math.sin(angle) + bend * period * 4) / period * rng.uniform(0.5, 2)
    kind = int(rng.integers(5))
    waves = [
        np.sin(2 * math.pi * u),
        np.sin(2 * math.pi * u) * np.sin(2 * math.pi * v),
        np.cos(2 * math.pi * u) + np.cos(2 * math.pi * v) - rng.uniform(0, 1.5),
        _spectral(rng, size, slope=rng.uniform(0.8, 1.8), planes=1)[..., 0],
        np.abs(_spectral(rng, size, slope=rng.uniform(1.2, 1.8), planes=1)[..., 0]) - rng.uniform(0.2, 1.0),
    ]
    weight = _sigmoid(waves[kind] * rng.uniform(1, 14))[..., None]
    first, second = rng.random(3), rng.random(3)
    tint = _spectral(rng, size, slope=2.2, planes=3) * rng.uniform(0, 0.15)
    return _clipped(first * weight + second * (1 - weight) + tint)


def brush_strokes(rng: np.random.Generator, size: int) -> Picture:
    """Short thick strokes along an orientation field over a colored underpainting."""
    under = colored_noise(rng, size) if rng.random() < 0.6 else dead_leaves(rng, size)
    field = np.pi * _spectral(rng, size, slope=2.2, planes=1)[..., 0]
    canvas, draw, scale = _canvas(size, _eight_bit(255 * under.mean((0, 1))))
    length, width = rng.uniform(0.03, 0.15) * size * scale, int(scale * rng.uniform(1.5, 7))
    jitter = rng.uniform(0, 0.12)
    for _ in range(int(rng.integers(250, 700))):
        x, y = rng.random(2)
        row, column = int(y * (size - 1)), int(x * (size - 1))
        level = np.clip(under[row, column] + jitter * rng.normal(size=3), 0, 1) * 255
        dx, dy = length * math.cos(field[row, column]) / 2, length * math.sin(field[row, column]) / 2
        cx, cy = x * size * scale, y * size * scale
        draw.line((cx - dx, cy - dy, cx + dx, cy + dy), fill=_eight_bit(level), width=width)
    return _shrunk(canvas, size)


def collage(rng: np.random.Generator, size: int) -> Picture:
    """Regions of up to three other families, cut by level sets of smooth noise, under one illumination."""
    names = [name for name in FAMILIES if name != "collage"]
    picture = FAMILIES[names[int(rng.integers(len(names)))]](rng, size)
    for _ in range(int(rng.integers(1, 3))):
        other = FAMILIES[names[int(rng.integers(len(names)))]](rng, size)
        level = _spectral(rng, size, slope=rng.uniform(1.6, 2.6), planes=1)
        cover = _sigmoid((level - rng.uniform(-0.5, 0.5)) * rng.uniform(4, 40))
        picture = picture * (1 - cover) + other * cover
    return _clipped(picture * (1 + rng.uniform(0, 0.3) * _spectral(rng, size, slope=2.5, planes=1)))


FAMILIES: dict[str, Painter] = {
    "colored_noise": colored_noise,
    "dead_leaves": dead_leaves,
    "cartoon": cartoon,
    "line_drawing": line_drawing,
    "spheres": spheres,
    "texture": texture,
    "brush_strokes": brush_strokes,
    "collage": collage,
}


def _degraded(picture: Picture, rng: np.random.Generator) -> Picture:
    """Add camera and scanner artifacts: blur, grain, a tone curve, sometimes no color."""
    if rng.random() < 0.2:
        image = Image.fromarray((picture * 255).astype(np.uint8)).filter(
            ImageFilter.GaussianBlur(rng.uniform(0.4, 1.5))
        )
        picture = np.asarray(image, dtype=np.float32) / 255
    if rng.random() < 0.3:
        picture = picture ** np.float32(math.exp(rng.normal(0, 0.35)))
    if rng.random() < 0.6:
        gray = rng.uniform(0.1, 0.9) if rng.random() < 0.85 else 1.0
        picture = (1 - gray) * picture + gray * picture.mean(2, keepdims=True)
    if rng.random() < 0.3:
        picture = picture + rng.uniform(0, 0.04) * rng.normal(size=picture.shape)
    return _clipped(picture)


def _clipped(picture: Picture) -> Picture:
    clipped: Picture = np.clip(picture, 0, 1).astype(np.float32)
    return clipped


def _sigmoid(values: NDArray[np.floating]) -> NDArray[np.floating]:
    return 0.5 + 0.5 * np.tanh(values / 2)


def _grid(size: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    axis = (np.arange(size) + 0.5) / size
    rows, columns = np.meshgrid(axis, axis, indexing="ij")
    return rows, columns


def _spectral(rng: np.random.Generator, size: int, *, slope: float, planes: int) -> Picture:
    """Gaussian noise with amplitude spectrum 1/f^slope, each plane of mean 0 and standard deviation 1."""
    rows = np.fft.fftfreq(size)[:, None]
    columns = np.fft.rfftfreq(size)[None, :]
    frequency = np.sqrt(rows**2 + columns**2)
    frequency[0, 0] = np.inf
    spectrum = np.fft.rfft2(rng.normal(size=(planes, size, size))) / frequency**slope
    noise = np.fft.irfft2(spectrum, s=(size, size))
    noise /= noise.std(axis=(1, 2), keepdims=True) + 1e-9
    planewise: Picture = noise.transpose(1, 2, 0).astype(np.float32)
    return planewise


def _eight_bit(levels: NDArray[np.floating]) -> Color:
    red, green, blue = (int(level) for level in levels)
    return red, green, blue


def _color(rng: np.random.Generator, high: float = 1.0) -> Color:
    red, green, blue = (int(255 * high * value) for value in rng.random(3))
    return red, green, blue


def _palette(rng: np.random.Generator, colors: int) -> list[Color]:
    """Colors around one random center, from nearly gray to fully spread."""
    center, spread, gray = rng.random(3), rng.uniform(0.1, 0.5), rng.uniform(0, 0.9)
    raw = center + spread * rng.normal(size=(colors, 3))
    raw = gray * raw.mean(1, keepdims=True) + (1 - gray) * raw
    return [(int(red), int(green), int(blue)) for red, green, blue in np.clip(raw, 0, 1) * 255]


def _canvas(size: int, ground: Color) -> tuple[Image.Image, ImageDraw.ImageDraw, int]:
    """A canvas of twice the size, for antialiasing, and its scale."""
    image = Image.new("RGB", (2 * size, 2 * size), ground)
    return image, ImageDraw.Draw(image), 2


def _shrunk(canvas: Image.Image, size: int) -> Picture:
    return np.asarray(canvas.resize((size, size), Image.Resampling.BOX), dtype=np.float32) / 255


def _blob(
    draw: ImageDraw.ImageDraw,
    rng: np.random.Generator,
    radius: float,
    *,
    fill: Color | None,
    outline: Color | None,
    width: int,
) -> None:
    """An ellipse or an irregular polygon at a random place."""
    cx, cy = rng.random(2) * draw.im.size[0]
    if rng.random() < 0.5:
        rx, ry = radius, radius * rng.uniform(0.4, 1.0)
        draw.ellipse((cx - rx, cy - ry, cx + rx, cy + ry), fill=fill, outline=outline, width=width)
        return
    corners = int(rng.integers(3, 9))
    angles = np.sort(rng.uniform(0, 2 * math.pi, corners))
    radii = radius * rng.uniform(0.5, 1.2, corners)
    points = [(cx + r * math.cos(a), cy + r * math.sin(a)) for a, r in zip(angles, radii, strict=True)]
    draw.polygon(points, fill=fill)
    if outline is not None:
        draw.line([*points, points[0]], fill=outline, width=max(1, width), joint="curve")


def _curve(draw: ImageDraw.ImageDraw, rng: np.random.Generator, extent: float, *, ink: Color, width: int) -> None:
    """A smooth cubic curve between random points."""
    corners = rng.normal(0, rng.uniform(0.08, 0.35), (4, 2)) * extent + rng.random(2) * extent
    t = np.linspace(0, 1, 24)[:, None]
    p0, p1, p2, p3 = corners
    points = (1 - t) ** 3 * p0 + 3 * t * (1 - t) ** 2 * p1 + 3 * t**2 * (1 - t) * p2 + t**3 * p3
    draw.line([(float(x), float(y)) for x, y in points], fill=ink, width=max(1, width), joint="curve")


def _hatch(draw: ImageDraw.ImageDraw, rng: np.random.Generator, extent: float, *, ink: Color, width: int) -> None:
    """Parallel strokes in a patch."""
    cx, cy = rng.random(2) * extent
    angle, length, gap = rng.uniform(0, math.pi), rng.uniform(0.1, 0.4) * extent, rng.uniform(0.02, 0.06) * extent
    dx, dy = math.cos(angle) * length / 2, math.sin(angle) * length / 2
    for step in range(int(rng.integers(4, 18))):
        ox, oy = cx - math.sin(angle) * gap * step, cy + math.cos(angle) * gap * step
        draw.line((ox - dx, oy - dy, ox + dx, oy + dy), fill=ink, width=width)
