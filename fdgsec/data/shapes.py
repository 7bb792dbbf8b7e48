"""shapes: a procedural dataset of seven silhouettes in four styles, which needs no download.

Use it to test that code runs, never for findings. Unlike photographs it has ground truth: hue, texture, position and
more are drawn from the same distribution for every class and domain, hence independent of both.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.data.shapes_render import cartoon, painting, photo, sketch
from fdgsec.data.shapes_scene import SILHOUETTES, TEXTURES, Scenes
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream

CLASSES = tuple(SILHOUETTES)
PAINTERS: Mapping[str, Callable[[Scenes, int], Tensor]] = {
    "photo": photo,
    "painting": painting,
    "cartoon": cartoon,
    "sketch": sketch,
}
DOMAINS = tuple(PAINTERS)
# Images are always drawn in whole blocks of this many per class, so that no pixel depends on the requested number:
# the last bit of a vectorized sine may depend on where in the tensor it is computed.
_BLOCK = 3
_DRAWS = 16


def shapes(
    *, image_size: int = 64, per_domain: int = 420, seed: int = 0, progress: Callable[[int], None] | None = None
) -> DomainDataset:
    """Draw the procedural dataset: 7 classes x 4 domains, classes in turn (image i of a domain has class i mod 7).

    An image is a function of (seed, domain, class, index) alone, where index counts within its domain and class and
    ends its id, `photo/star/shape_00017`; `per_domain` only adds images and `image_size` only sets the resolution.
    `attributes`, each independent of class and of domain: `hue` and `background_hue` (N,) in [0, 1), `saturation` (N,)
    in [0, 1), `position` (N, 2) the center as (x, y) in [0, 1]^2, y downwards, `scale` (N,) the radius of the disc of
    equal area as a share of the side, `rotation` (N,) in radians clockwise, `stretch` (N,), `light` (N,) in radians,
    `texture` (N,) int64 into TEXTURES. A sketch has hue, background_hue and saturation but is gray: they do not show.
    `progress` is called with the number of images just finished; the calls add up to the size of the dataset.
    Raises UsageError where image_size < 16 or per_domain < 1."""
    if image_size < 16:
        raise UsageError(f"image_size must be at least 16 pixels for shapes; got {image_size}.")
    if per_domain < 1:
        raise UsageError(f"per_domain must be at least 1 image for shapes; got {per_domain}.")
    store = torch.empty((len(DOMAINS) * per_domain, 3, image_size, image_size), dtype=torch.uint8)
    blocks: list[Mapping[str, Tensor]] = []
    for domain, name in enumerate(DOMAINS):
        for start in range(0, per_domain, _BLOCK * len(CLASSES)):
            count = min(_BLOCK * len(CLASSES), per_domain - start)
            pixels, attributes = _block(name, start // len(CLASSES), image_size, seed)
            store[domain * per_domain + start :][:count] = pixels[:count]
            blocks.append({key: values[:count] for key, values in attributes.items()})
            if progress is not None:
                progress(count)
    labels = torch.arange(per_domain) % len(CLASSES)
    places = [(CLASSES[i % len(CLASSES)], i // len(CLASSES)) for i in range(per_domain)]
    return DomainDataset(
        name="shapes",
        store=store,
        rows=torch.arange(len(store)),
        labels=labels.repeat(len(DOMAINS)),
        domains=torch.arange(len(DOMAINS)).repeat_interleave(per_domain),
        ids=tuple(f"{domain}/{label}/shape_{index:05d}" for domain in DOMAINS for label, index in places),
        class_names=CLASSES,
        domain_names=DOMAINS,
        attributes={key: torch.cat([block[key] for block in blocks]) for key in blocks[0]},
    )


def _block(domain: str, first: int, image_size: int, seed: int) -> tuple[Tensor, Mapping[str, Tensor]]:
    """Draw indices `first` to `first + _BLOCK` of every class of a domain; returns them with the classes in turn."""
    scenes = _scenes(domain, range(first, first + _BLOCK), seed)
    painted = (PAINTERS[domain](scenes, image_size) * 255).round_().clamp_(0, 255).to(torch.uint8)
    in_turn = torch.arange(len(painted)).view(len(CLASSES), _BLOCK).T.flatten()
    attributes = {
        "hue": scenes.hue,
        "background_hue": scenes.background_hue,
        "saturation": scenes.saturation,
        "position": scenes.position,
        "scale": scenes.scale,
        "rotation": scenes.rotation,
        "stretch": scenes.stretch,
        "light": scenes.light,
        "texture": scenes.texture,
    }
    return painted[in_turn], {name: values[in_turn] for name, values in attributes.items()}


def _scenes(domain: str, indices: range, seed: int) -> Scenes:
    """Draw the contents of images, class after class; each image has its own stream, which ignores its class."""
    rng = [stream(seed, "world", "shapes", domain, label, index) for label in CLASSES for index in indices]
    draws = torch.stack([torch.rand(_DRAWS, generator=image) for image in rng])
    return Scenes(
        hue=draws[:, 0],
        background_hue=draws[:, 1],
        saturation=draws[:, 2],
        position=0.5 + 0.24 * (draws[:, 3:5] - 0.5),
        scale=0.17 + 0.07 * draws[:, 5],
        rotation=0.9 * (draws[:, 6] - 0.5),
        stretch=torch.exp(0.24 * (draws[:, 7] - 0.5)),
        texture=(len(TEXTURES) * draws[:, 8]).long(),
        light=torch.pi * (0.12 + 0.76 * draws[:, 9]),
        look=draws[:, 10:],
        rng=rng,
    )
