"""AugMix: an image blended with a mixture of chains of simple operations on it.

Hendrycks et al., ICLR 2020, https://arxiv.org/abs/1912.02781; FedAlign's Algorithm 3. Operations, magnitudes and the
order of arithmetic are those of torchvision's `AugMix`, which draws from torch's global stream and so cannot be used
here; every draw below comes from a generator. Given a batch, torchvision (and so FedCCRL and FedAlign) draws the chains
once for all images and only the weights per image."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import cast

import numpy as np
import torch
from torch import Tensor

from fdgsec.nn.training.batches import to_device
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import integer_seed

LEVELS = 10
"""Magnitudes of every operation, from none to the strongest; AugMix draws among the first `severity` of them."""
LONGEST = 3
"""The most operations in a chain, and the most chains, where their number is drawn."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation, with its sign where it has one: "Rotate" by 6.67 degrees, "Posterize" to 4 bits."""

    name: str
    magnitude: float = 0.0

    def __call__(self, images: Tensor) -> Tensor:
        """Apply it to uint8 images (B, 3, H, W); pixels from outside the image are black."""
        return _OPERATIONS[self.name](images, self.magnitude)


Chain = Sequence[Operation]


def _library() -> ModuleType:
    from torchvision.transforms.v2 import functional  # as slow to import as torch

    return cast(ModuleType, functional)


def _affine(images: Tensor, *, shift: tuple[int, int] = (0, 0), slant: tuple[float, float] = (0.0, 0.0)) -> Tensor:
    corner = [0.0, 0.0] if any(slant) else None  # torchvision slants about the corner, shifts about the center
    made = _library().affine(
        images, angle=0.0, translate=list(shift), scale=1.0, shear=[math.degrees(math.atan(s)) for s in slant],
        interpolation=_library().InterpolationMode.BILINEAR, center=corner,
    )  # fmt: skip
    return cast(Tensor, made)


def _rotated(images: Tensor, degrees: float) -> Tensor:
    return cast(Tensor, _library().rotate(images, degrees, interpolation=_library().InterpolationMode.BILINEAR))


_OPERATIONS: Mapping[str, Callable[[Tensor, float], Tensor]] = {
    "ShearX": lambda images, slope: _affine(images, slant=(slope, 0.0)),
    "ShearY": lambda images, slope: _affine(images, slant=(0.0, slope)),
    "TranslateX": lambda images, pixels: _affine(images, shift=(int(pixels), 0)),
    "TranslateY": lambda images, pixels: _affine(images, shift=(0, int(pixels))),
    "Rotate": _rotated,
    "Posterize": lambda images, bits: cast(Tensor, _library().posterize(images, bits=int(bits))),
    "Solarize": lambda images, share: cast(Tensor, _library().solarize(images, threshold=255.0 * share)),
    "AutoContrast": lambda images, _: cast(Tensor, _library().autocontrast(images)),
    "Equalize": lambda images, _: cast(Tensor, _library().equalize(images)),
    "Brightness": lambda images, more: cast(Tensor, _library().adjust_brightness(images, brightness_factor=1 + more)),
    "Color": lambda images, more: cast(Tensor, _library().adjust_saturation(images, saturation_factor=1 + more)),
    "Contrast": lambda images, more: cast(Tensor, _library().adjust_contrast(images, contrast_factor=1 + more)),
    "Sharpness": lambda images, more: cast(Tensor, _library().adjust_sharpness(images, sharpness_factor=1 + more)),
}
SIGNED: Mapping[str, float] = {
    "ShearX": 0.3, "ShearY": 0.3, "TranslateX": 1 / 3, "TranslateY": 1 / 3, "Rotate": 30.0,
    "Brightness": 0.9, "Color": 0.9, "Contrast": 0.9, "Sharpness": 0.9,
}  # fmt: skip
"""The strongest magnitude of the operations with a sign; translations as a share of the side."""
OPERATIONS: Sequence[str] = tuple(_OPERATIONS)


def magnitude(name: str, level: int, size: tuple[int, int]) -> float:
    """Compute the magnitude of `name` at `level` of 0..9, before its sign, for images of `size` (height, width)."""
    share = level / (LEVELS - 1)
    if name in SIGNED:
        side = {"TranslateX": size[1], "TranslateY": size[0]}.get(name, 1)
        return SIGNED[name] * share * side
    return {"Posterize": float(round(4 - 4 * share)), "Solarize": 1 - share}.get(name, 0.0)


def dirichlet(count: int, parts: int, alpha: float, rng: torch.Generator) -> Tensor:
    """Draw `count` points of the simplex, (count, parts) float32 on the CPU, from Dirichlet(alpha, ..., alpha).

    Beta(alpha, alpha) is the first of two parts."""
    numbers = np.random.default_rng(integer_seed(rng))  # torch's sampler draws from its global stream
    return torch.from_numpy(numbers.dirichlet([alpha] * parts, size=count)).float()


def blend_chains(images: Tensor, *, original: Tensor, shares: Sequence[Tensor], chains: Sequence[Chain]) -> Tensor:
    """Blend uint8 images (B, 3, H, W) with their chains: m x + sum_i s_i chain_i(x), truncated to 8 bits.

    `original` (B,) is m; `shares` has one (B,) tensor per chain, and with m they sum to 1. Truncated, not rounded, as
    in torchvision."""
    column = (-1, 1, 1, 1)
    mixture = original.to(images.device).view(column) * images
    for share, chain in zip(shares, chains, strict=True):
        changed = images
        for operation in chain:
            changed = operation(changed)
        mixture += share.to(images.device).view(column) * changed
    return mixture.clamp_(0, 255).to(torch.uint8)


@dataclass(frozen=True, kw_only=True)
class AugMix:
    """The settings of AugMix, by default torchvision's.

    `width` is the number of chains and `depth` the operations in each; -1 draws 1 to 3 (for the width, Algorithm 3 of
    FedAlign). `alpha` is the parameter of both the weights of the chains and m, the original's share. `per_image` draws
    chains for every image of a batch, as in Algorithm 3, where torchvision draws them once."""

    severity: int = 3
    width: int = 3
    depth: int = -1
    alpha: float = 1.0
    per_image: bool = False

    def __post_init__(self) -> None:
        counts = (self.width, self.depth)
        if not 1 <= self.severity <= LEVELS or any(count < 1 and count != -1 for count in counts) or self.alpha <= 0:
            raise UsageError(
                f"augmix needs severity in 1..{LEVELS}, width and depth at least 1 (or -1: drawn) and alpha above 0; "
                f"got {self}."
            )

    @torch.no_grad()
    def __call__(self, images: Tensor, rng: torch.Generator, *, scale: Tensor | None = None) -> Tensor:
        """Augment uint8 images (B, 3, H, W) to uint8 images, on their device.

        `scale` (B,) multiplies each image's m: sigma(k d) of Algorithm 3, line 12. Raises ValueError: other images."""
        if images.ndim != 4 or images.shape[1] != 3 or images.dtype != torch.uint8:
            raise ValueError(f"augmix takes uint8 images (B, 3, H, W); got {images.dtype} {tuple(images.shape)}.")
        with torch.autocast(images.device.type, enabled=False):  # sampling grids in bfloat16 are off by half a pixel
            if not self.per_image:
                return self._augmented(images, rng, scale)
            factors = [None] * len(images) if scale is None else scale.split(1)
            parts = zip(images.split(1), factors, strict=True)
            return torch.cat([self._augmented(image, rng, factor) for image, factor in parts])

    def _augmented(self, images: Tensor, rng: torch.Generator, scale: Tensor | None) -> Tensor:
        width = self._drawn(self.width, rng)
        m = dirichlet(len(images), 2, self.alpha, rng)[:, :1]  # ~ Beta(alpha, alpha)
        drawn = to_device(torch.cat([m, dirichlet(len(images), width, self.alpha, rng)], 1), images.device)
        original, *weights = drawn.unbind(1)
        original = original if scale is None else original * scale
        chains = [self.chain((images.shape[2], images.shape[3]), rng) for _ in range(width)]
        return blend_chains(images, original=original, shares=[(1 - original) * w for w in weights], chains=chains)

    def chain(self, size: tuple[int, int], rng: torch.Generator) -> Chain:
        """Draw the operations of one chain, each at a random level, for images of `size` (height, width)."""
        return [self._operation(size, rng) for _ in range(self._drawn(self.depth, rng))]

    def _operation(self, size: tuple[int, int], rng: torch.Generator) -> Operation:
        name = OPERATIONS[_below(len(OPERATIONS), rng)]
        strength = magnitude(name, _below(self.severity, rng), size)
        negative = name in SIGNED and _below(2, rng) == 1
        return Operation(name=name, magnitude=-strength if negative else strength)

    def _drawn(self, count: int, rng: torch.Generator) -> int:
        return 1 + _below(LONGEST, rng) if count == -1 else count


def _below(limit: int, rng: torch.Generator) -> int:
    return int(torch.randint(limit, (1,), generator=rng))
