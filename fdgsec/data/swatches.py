"""swatches: a procedural dataset of color patterns that hardly any reading of an image can confuse, for controls.

A class is a hue, a domain a pattern with a brightness, and every image has a tint, a contrast and a grid of its own:
what a release says about classes, domains or single images shows in all of its numbers. An attack that finds nothing
in what a target releases of swatches does not read that target's releases. Swatches are no subject of findings."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.data.shapes_scene import hsv
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream

CLASSES = ("red", "green", "cyan", "violet")
DOMAINS = ("plain", "striped", "checked", "dark")
_PATTERNS: Mapping[str, tuple[int, int, float]] = {
    "plain": (0, 0, 0.75), "striped": (4, 0, 0.6), "checked": (2, 2, 0.5), "dark": (0, 8, 0.35),
}  # fmt: skip
"""Per domain the number of stripes across and down, and the brightness."""
_CELLS = 4
_LEAST, _MOST = 0.05, 0.5  # contrast of an image's grid


def swatches(
    *,
    image_size: int = 32,
    per_domain: int = 420,
    seed: int = 0,
    random_labels: bool = False,
    progress: Callable[[int], None] | None = None,
) -> DomainDataset:
    """Draw `per_domain` images of each of 4 domains as (3, S, S) uint8, classes in turn (image i has class i mod 4).

    An image is a function of (seed, domain, class, index) alone. With `random_labels` each label is drawn uniformly
    instead, so that a model can only memorize it (Zhang et al., Understanding deep learning requires rethinking
    generalization, ICLR 2017, section 2.2). `progress` is called with the number of images just finished.
    Raises UsageError where image_size < 16 or per_domain < 1."""
    if image_size < 16:
        raise UsageError(f"image_size must be at least 16 pixels for swatches; got {image_size}.")
    if per_domain < 1:
        raise UsageError(f"per_domain must be at least 1 image for swatches; got {per_domain}.")
    places = [(CLASSES[i % len(CLASSES)], i // len(CLASSES)) for i in range(per_domain)]
    images: list[Tensor] = []
    for domain in DOMAINS:
        images += [_swatch(domain, label, index, image_size, seed) for label, index in places]
        if progress is not None:
            progress(per_domain)
    labels = (torch.arange(per_domain) % len(CLASSES)).repeat(len(DOMAINS))
    if random_labels:
        labels = torch.randint(len(CLASSES), labels.shape, generator=stream(seed, "world", "swatches", "labels"))
    return DomainDataset(
        name="swatches-random" if random_labels else "swatches",
        store=torch.stack(images),
        rows=torch.arange(len(images)),
        labels=labels,
        domains=torch.arange(len(DOMAINS)).repeat_interleave(per_domain),
        ids=tuple(f"{domain}/{label}/swatch_{index:05d}" for domain in DOMAINS for label, index in places),
        class_names=CLASSES,
        domain_names=DOMAINS,
    )


def _swatch(domain: str, label: str, index: int, side: int, seed: int) -> Tensor:
    """Draw one image: half class color, half tint, darkened by the domain's stripes, plus the image's own grid."""
    rng = stream(seed, "world", "swatches", domain, label, index)
    across, down, brightness = _PATTERNS[domain]
    hue = torch.tensor([CLASSES.index(label) / len(CLASSES)])
    tint = torch.rand(3, generator=rng)
    color = 0.5 * hsv(hue, 1.0, 1.0)[0] + 0.5 * tint
    places = torch.arange(side)
    striped = (places * 2 * across // side)[None, :] + (places * 2 * down // side)[:, None]
    light = brightness * (1 - 0.5 * (striped % 2).float())
    contrast = _LEAST + (_MOST - _LEAST) * torch.rand((), generator=rng)
    grid = torch.rand(3, _CELLS, _CELLS, generator=rng) - 0.5
    cells = places * _CELLS // side
    drawn = color[:, None, None] * light + contrast * grid[:, cells][:, :, cells]
    return (drawn * 255).round().clamp(0, 255).to(torch.uint8)
