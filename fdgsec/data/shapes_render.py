"""The four renderers of `shapes`: each turns scenes into RGB images, (B, 3, S, S) in about [0, 1].

The constants were chosen by eye on docs/img/shapes.png; none comes from a paper."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fdgsec.data.shapes_scene import Scenes, distance, grid, hsv, inside, mix, noise, pattern, plane, slope, white


def photo(scenes: Scenes, size: int) -> Tensor:
    """Render a lit, rounded object on stone or wood, with a soft shadow and the effects of a camera."""
    x, y = grid(size)
    luma, tint, rough, albedo = noise(scenes, size, (0.55, 0.5, 0.95, 0.8))
    look, shape = scenes.look, distance(scenes, x, y)
    light_x, light_y = plane(scenes.light.cos()), plane(-scenes.light.sin())

    grain = (2 * math.pi * ((7 + 6 * plane(look[:, 1])) * (x + 0.25 * y) + 2.2 * luma)).sin()
    relief = torch.where(plane(look[:, 2]) < 0.4, 0.22 * grain + 0.35 * rough, 0.7 * luma + 0.45 * rough)
    ground = hsv(scenes.background_hue, 0.28 + 0.25 * look[:, 3], 0.46), hsv(scenes.background_hue + 0.06, 0.12, 0.62)
    image = mix(plane(ground[0]), plane(ground[1]), (0.5 + 0.9 * tint).clamp(0, 1)) * (1 + 0.8 * relief)[:, None]

    reach = 0.5 * plane(scenes.scale)
    cast = inside(distance(scenes, x + reach * light_x, y + reach * light_y), 0.09)
    contact = torch.exp(-shape.clamp(min=0) / 0.035)
    image = image * (1 - torch.maximum(0.68 * cast, 0.5 * contact))[:, None]

    depth = (-shape / (0.5 * plane(scenes.scale))).clamp(0, 1)
    height = 0.34 * plane(scenes.scale) * (depth * (2 - depth)).sqrt() + 0.0015 * albedo
    across, down = slope(height)
    upright = (1 + across**2 + down**2).rsqrt()
    facing = (0.62 * (-across * light_x - down * light_y) + 0.78) * upright
    shine = 0.55 * ((0.33 * (-across * light_x - down * light_y) + 0.944) * upright).clamp(0, 1) ** 40
    paint = hsv(scenes.hue, 0.5 + 0.3 * scenes.saturation, 0.92)
    spots = (1.5 * pattern(scenes, x, y, albedo)).clamp(-1, 1)
    skin = (1 - 0.2 * spots + 0.18 * albedo) * (0.22 + 0.85 * facing.clamp(min=0))
    image = mix(image, plane(paint) * skin[:, None] + shine[:, None], inside(shape))
    return _camera(scenes, image, x, y)


def _camera(scenes: Scenes, image: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Add the effects of a camera: vignette, white balance, soft focus and shot noise."""
    size = image.shape[-1]
    vignette = 1.08 - 0.55 * ((x - 0.5) ** 2 + (y - 0.5) ** 2)
    warmth = (scenes.look[:, 4:5] - 0.5) * torch.tensor([[0.12, 0.0, -0.12]])
    image = image * vignette[:, None] * (1 + plane(warmth))
    reach = size // 64 + 1
    lens = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / (0.0085 * size)) ** 2)
    kernel = (lens / lens.sum()).view(1, 1, 1, -1)
    planes = F.pad(image, (reach, reach, reach, reach), mode="replicate").flatten(0, 1)[:, None]
    blurred = F.conv2d(F.conv2d(planes, kernel), kernel.transpose(2, 3)).view_as(image)
    return blurred + 0.022 * white(scenes, size) * blurred.clamp(0.05, 1).sqrt()


def _smear(fields: Tensor, along_x: Tensor, along_y: Tensor) -> Tensor:
    """Average `fields` (B, C, S, S) along the flow over a stroke's length: a short line integral convolution."""
    x, y = grid(fields.shape[-1])
    total = torch.zeros_like(fields)
    for step in (-3, -2, -1, 0, 1, 2, 3):
        there = torch.stack([x + 0.016 * step * along_x, y + 0.016 * step * along_y], -1) * 2 - 1
        total += F.grid_sample(fields, there, padding_mode="reflection", align_corners=False)
    return total * (1.7 / 7)  # averaging lowers the contrast of the field; 1.7 restores most of it


def painting(scenes: Scenes, size: int) -> Tensor:
    """Render dabs of saturated paint along a flow field on canvas: dabs displace the scene, bristles streak it."""
    x, y = grid(size)
    flow, sky, bristles, load, drift = noise(scenes, size, (0.4, 0.45, 1.1, 0.8, 0.9))
    look = scenes.look
    angle = 3.2 * flow + 2 * math.pi * plane(look[:, 1])
    along_x, along_y = angle.cos(), angle.sin()
    bristles, load, drift = _smear(torch.stack([bristles, load, drift], 1), along_x, along_y).unbind(1)
    dab, other = _steps(load), _steps(drift)  # smeared noise in steps: one stroke, one load of paint
    dab_x, dab_y = x + 0.03 * dab * along_x - 0.03 * drift * along_y, y + 0.03 * dab * along_y + 0.03 * drift * along_x
    shape = distance(scenes, dab_x, dab_y)
    below = plane(scenes.light.cos()) * (dab_x - 0.5) - plane(scenes.light.sin()) * (dab_y - 0.5)

    recipe = ((0.0, 0.8, 0.36), (0.09, 0.7, 0.6), (-0.1, 0.85, 0.22))
    deep, middle, dark = (plane(hsv(scenes.background_hue + turn, full, value)) for turn, full, value in recipe)
    image = mix(deep, middle, (0.45 + 1.3 * sky + 0.8 * dab).clamp(0, 1))
    image = mix(image, dark, (1.6 * other - 0.2).clamp(0, 0.8))
    lit = (0.55 + 0.6 * below / plane(scenes.scale) + 0.9 * dab).clamp(0, 1)
    rich = 0.65 + 0.3 * scenes.saturation
    paint = mix(plane(hsv(scenes.hue - 0.05, rich, 0.68)), plane(hsv(scenes.hue + 0.04, 0.75 * rich, 1.0)), lit)
    spots = (0.5 + 1.5 * pattern(scenes, dab_x, dab_y, load)).clamp(0, 1)
    paint = mix(paint, plane(hsv(scenes.hue + 0.12, 0.5 * rich, 1.0)), 0.6 * spots)
    image = mix(image, paint, inside(shape, 0.008))
    across, down = slope(0.003 * bristles + 0.006 * dab)
    weave = (2 * math.pi * 16 * x).sin() * (2 * math.pi * 16 * y).sin()
    relief = 1 + 0.45 * (across - down).clamp(-0.7, 0.7) + 0.16 * bristles + 0.05 * weave
    return image * relief[:, None]


def _steps(field: Tensor) -> Tensor:
    """Round a field to thirds, so that it is flat within a stroke and jumps at its border."""
    return (3 * field).round() / 3


def cartoon(scenes: Scenes, size: int) -> Tensor:
    """Render flat, bright colors inside a heavy outline, over a plain, dotted, rayed or striped ground."""
    x, y = grid(size)
    (speckle,) = noise(scenes, size, (0.9,))
    look, shape = scenes.look, distance(scenes, x, y)
    turn = 2 * math.pi * 9
    dots = (turn * (x + y) / 1.4).cos() + (turn * (x - y) / 1.4).cos() - 0.6
    rays = (12 * torch.atan2(y - plane(scenes.position[:, 1]), x - plane(scenes.position[:, 0]))).cos()
    bands = (2 * math.pi * 3 * (y + (plane(look[:, 2]) - 0.5) * x)).cos()
    kinds = torch.stack([-torch.ones_like(shape), dots.expand_as(shape), rays, bands])
    second = kinds[(4 * look[:, 1]).long(), torch.arange(len(shape))]
    ground = [hsv(scenes.background_hue, saturation, 1.0) for saturation in (0.22, 0.38)]
    image = mix(plane(ground[0]), plane(ground[1]), _flat(second, size))

    body, dark = hsv(scenes.hue, 0.65 + 0.3 * scenes.saturation, 0.98), hsv(scenes.hue - 0.03, 0.95, 0.66)
    reach_x, reach_y = plane(0.3 * scenes.scale * scenes.light.cos()), plane(-0.3 * scenes.scale * scenes.light.sin())
    shaded = inside(-distance(scenes, x - reach_x, y - reach_y))
    motif = _flat(pattern(scenes, x, y, speckle) - 0.1, size)
    fill = mix(plane(body), plane(hsv(scenes.hue + 0.07, 0.35, 1.0)), motif)
    fill = mix(fill, plane(dark), shaded)
    image = mix(image, fill, inside(shape))
    return image * (1 - 0.95 * inside(shape.abs() - 0.016))[:, None]


def _flat(signed: Tensor, size: int) -> Tensor:
    """Cut a pattern into 0 and 1 where it is negative and positive, with an edge about a pixel wide."""
    return (0.5 + signed * (size / 40)).clamp(0, 1)


def sketch(scenes: Scenes, size: int) -> Tensor:
    """Render a gray pencil drawing: two wobbling outlines, hatching away from the light, the texture as ink lines."""
    x, y = grid(size)
    wobble_x, wobble_y, pressure, tooth = noise(scenes, size, (0.5, 0.5, 0.6, 1.1))
    look = scenes.look
    first = distance(scenes, x + 0.022 * wobble_x, y + 0.022 * wobble_y)
    second = distance(scenes, x - 0.035 * wobble_y + 0.006, y + 0.035 * wobble_x - 0.004)
    press = 0.8 + 0.5 * pressure
    ink = torch.maximum(inside(first.abs() - 0.009) * press, 0.55 * inside(second.abs() - 0.004) * (press - 0.2))

    across = plane(scenes.light.cos()) * (x - plane(scenes.position[:, 0]))
    away = across - plane(scenes.light.sin()) * (y - plane(scenes.position[:, 1]))
    lean = plane(0.6 + 0.5 * look[:, 1])
    waves = (2 * math.pi * 17 * ((x + 0.01 * wobble_x) * lean.cos() + (y + 0.01 * wobble_y) * lean.sin())).cos()
    strokes = (3.0 * (waves - 0.45)).clamp(0, 1)
    dark_side = inside(away / 2 + 0.02 + 0.03 * pressure, 0.02)
    ink = torch.maximum(ink, 0.6 * strokes * dark_side * inside(first + 0.01) * press)

    lines = pattern(scenes, x + 0.012 * wobble_x, y + 0.012 * wobble_y, tooth)
    steep = torch.hypot(*slope(lines)).clamp(min=4.0)
    contour = inside((lines.abs() / steep) - 0.003) * (lines > -0.95)
    ink = torch.maximum(ink, 0.5 * contour * inside(first + 0.01) * press)

    paper = 0.93 + 0.05 * plane(look[:, 2]) - 0.03 * tooth.abs()
    gray = paper - ink.clamp(0, 1) * (0.78 + 0.3 * tooth).clamp(0.35, 0.9)
    return gray[:, None].expand(-1, 3, -1, -1)
