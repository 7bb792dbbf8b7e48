"""A generator of images from styles, like FastGAN (Liu et al., ICLR 2021, https://arxiv.org/abs/2101.04775).

CCST (appendix A) and FISC reconstruct images from styles with such a generator, trained by regression without a
discriminator. The style becomes a 4x4 map. Every stage doubles its side: nearest neighbor, [1, 2, 1] blur,
convolution, Gaussian noise times one learned scalar, normalization, gated linear unit. In skip-layer excitation maps of
4, 8 and 16 pixels gate the channels of those 16 times larger. A 3x3 convolution gives the image. Nearest neighbor and
blur are computed as what they are together: bilinear interpolation to twice the side.

Differs from the generator that CCST's released code imports: styles are standardized with the training set's mean and
spread, the output goes through a sigmoid, excitation follows Liu et al.'s 4-64, 8-128 and 16-256 (the code: 16-128 and
32-256), and noise is added only where a `torch.Generator` is passed. A regression is evaluated without one, because
noise in evaluation makes reconstructions random and worse on average."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

SEED_SIDE = 4
EXCITES = 16
"""A map gates the one whose side is this many times its own."""


@dataclass(frozen=True, kw_only=True)
class GeneratorShape:
    """Width and depth: a map of side s has min(`cap`, `numerator` / s) channels, the 4x4 seed `seed_channels`.

    `size` is a power of two, at least 8. Even kernels pad one pixel more before than after. `norm` "group" (of about 8
    channels) computes the same in training and in evaluation, which short trainings need; published is "batch".
    `noise` False leaves out the noise inputs. Raises ValueError for sizes that cannot be built."""

    size: int
    cap: int
    numerator: int
    seed_channels: int
    kernel: int = 3
    norm: Literal["batch", "group"] = "group"
    noise: bool = True

    def __post_init__(self) -> None:
        if self.size < 2 * SEED_SIDE or self.size & (self.size - 1):
            raise ValueError(f"size must be a power of two, at least {2 * SEED_SIDE}; got {self.size}.")
        if min(self.cap, self.seed_channels, self.kernel) < 1 or self.numerator < self.size:
            raise ValueError(
                f"cap, seed_channels and kernel must be at least 1 and numerator at least size = {self.size}; got "
                f"{self.cap}, {self.seed_channels}, {self.kernel} and {self.numerator}."
            )

    @property
    def sides(self) -> tuple[int, ...]:
        """Give the sides of the stages' maps, smallest first, without the seed."""
        return tuple(2**power for power in range(3, self.size.bit_length()))

    def channels(self, side: int) -> int:
        """Give the channels of the map of side `side`."""
        return self.seed_channels if side == SEED_SIDE else min(self.cap, self.numerator // side)


def full_shape(size: int) -> GeneratorShape:
    """Give the published widths: 64 million parameters at 64 px for styles of 1,024 numbers."""
    return GeneratorShape(size=size, cap=512, numerator=8192, seed_channels=1024, kernel=4, norm="batch")


def small_shape(size: int) -> GeneratorShape:
    """Give widths of about 18 million multiplications per image at 64 px, minutes on a CPU; without noise."""
    return GeneratorShape(size=size, cap=32, numerator=384, seed_channels=48, noise=False)


def adversarial_shape(size: int) -> GeneratorShape:
    """Give widths of about 100 million multiplications per image at 64 px: adversarial training on a CPU."""
    return GeneratorShape(size=size, cap=64, numerator=max(1024, size), seed_channels=64, noise=False)


FULL = full_shape(64)
SMALL = small_shape(64)


class SkipExcitation(nn.Module):
    """Gates the channels of a large map by a small one: attention pooling, two 1x1 convolutions, sigmoid."""

    def __init__(self, low: int, high: int) -> None:
        super().__init__()
        hidden = max(3, high // 2)
        self.attention = nn.Conv2d(low, 1, 1)
        self.squeeze = nn.Conv2d(low, hidden, 1)
        self.excite = nn.Conv2d(hidden, high, 1)

    def forward(self, small: Tensor, large: Tensor) -> Tensor:
        """`small` is (N, low, h, w), `large` (N, high, H, W); the result has the shape of `large`."""
        weight = self.attention(small).flatten(2).softmax(2)
        pooled = (small.flatten(2) * weight).sum(2)[..., None, None]
        gate: Tensor = self.excite(functional.leaky_relu(self.squeeze(pooled), 0.1)).sigmoid()
        return large * gate


class Stage(nn.Module):
    """Doubles the side: bilinear interpolation, convolution, noise, normalization, gated linear unit."""

    def __init__(self, inputs: int, outputs: int, shape: GeneratorShape) -> None:
        super().__init__()
        after = (shape.kernel - 1) // 2
        before = shape.kernel // 2 - after  # an even kernel pads one pixel more before than after
        self.pad = (before, 0, before, 0)
        self.convolution = nn.Conv2d(inputs, 2 * outputs, shape.kernel, padding=after, bias=False)
        self.loudness = nn.Parameter(torch.zeros(1)) if shape.noise else None
        self.norm = _norm(2 * outputs, shape)

    def forward(self, features: Tensor, rng: torch.Generator | None) -> Tensor:
        """Map (N, inputs, h, w) to (N, outputs, 2h, 2w)."""
        enlarged = functional.interpolate(features, scale_factor=2, mode="bilinear", align_corners=False)
        mixed = self.convolution(functional.pad(enlarged, self.pad) if any(self.pad) else enlarged)
        if self.loudness is not None and rng is not None:
            n, _, height, width = mixed.shape
            noise = torch.randn(n, 1, height, width, generator=rng, device=rng.device).to(mixed)
            mixed = mixed + self.loudness * noise
        return functional.glu(self.norm(mixed), dim=1)


class StyleGenerator(nn.Module):
    """Maps styles (N, D) to images (N, 3, size, size) in (0, 1).

    `center` and `spread` (D,) standardize the styles: fit them with `fit_input` on the adversary's own training styles;
    until then they are 0 and 1. Parameters are drawn from `rng` alone."""

    center: Tensor
    spread: Tensor

    def __init__(self, dimension: int, shape: GeneratorShape, *, rng: torch.Generator) -> None:
        super().__init__()
        self.shape = shape
        with torch.device("meta"):  # no draws from the global generator for weights that are replaced at once
            self.seed = nn.ConvTranspose2d(dimension, 2 * shape.seed_channels, SEED_SIDE, bias=False)
            self.seed_norm = _norm(2 * shape.seed_channels, shape)
            sides = (SEED_SIDE, *shape.sides)
            stages = pairwise(sides)
            self.stages = nn.ModuleList(Stage(shape.channels(a), shape.channels(b), shape) for a, b in stages)
            gates = {
                str(side): SkipExcitation(shape.channels(side // EXCITES), shape.channels(side))
                for side in shape.sides
                if side // EXCITES >= SEED_SIDE
            }
            self.gates = nn.ModuleDict(gates)
            self.draw = nn.Conv2d(shape.channels(shape.size), 3, 3, padding=1)
        self._initialize(rng)
        self.register_buffer("center", torch.zeros(dimension))
        self.register_buffer("spread", torch.ones(dimension))

    def _initialize(self, rng: torch.Generator) -> None:
        """Draw convolutions as He et al. (2015); gates and norms start neutral, noise at zero."""
        self.to_empty(device="cpu")
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
                fan = module.weight[0].numel() if isinstance(module, nn.Conv2d) else module.in_channels
                with torch.no_grad():
                    module.weight.normal_(0, (2 / fan) ** 0.5, generator=rng)
                    if module.bias is not None:
                        module.bias.zero_()
            elif isinstance(module, nn.BatchNorm2d | nn.GroupNorm):
                module.reset_parameters()
            elif isinstance(module, Stage) and module.loudness is not None:
                nn.init.zeros_(module.loudness)

    def fit_input(self, styles: Tensor) -> None:
        """Standardize inputs by the mean and spread of `styles` (n, D); a constant coordinate is divided by 1."""
        spread = styles.std(0, correction=0)
        self.center.copy_(styles.mean(0))
        self.spread.copy_(torch.where(spread > 0, spread, 1.0))

    def logits(self, styles: Tensor, *, rng: torch.Generator | None = None) -> Tensor:
        """Compute the image before the sigmoid; with `rng`, noise is added at every stage."""
        standard = (styles - self.center) / self.spread
        features = functional.glu(self.seed_norm(self.seed(standard[..., None, None])), dim=1)
        features = functional.normalize(features, dim=1)
        seen = {SEED_SIDE: features}
        for side, stage in zip(self.shape.sides, self.stages, strict=True):
            features = stage(features, rng)
            if str(side) in self.gates:
                features = self.gates[str(side)](seen[side // EXCITES], features)
            seen[side] = features
        picture: Tensor = self.draw(features)
        return picture

    def forward(self, styles: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """Generate images in (0, 1)."""
        return self.logits(styles, rng=rng).sigmoid()

    def multiplications(self) -> int:
        """Count the multiply-accumulates of all convolutions for one image, the published blur included."""
        seed = self.seed.weight.numel()
        total = seed + self.draw.weight.numel() * self.shape.size**2
        for side, stage in zip(self.shape.sides, self.stages, strict=True):
            assert isinstance(stage, Stage)
            total += (stage.convolution.weight.numel() + 9 * stage.convolution.in_channels) * side**2
        return total


def _norm(channels: int, shape: GeneratorShape) -> nn.Module:
    if shape.norm == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(max(1, channels // 8) if channels % 8 == 0 else 1, channels)
