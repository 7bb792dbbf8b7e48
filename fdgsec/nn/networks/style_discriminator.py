"""The networks that judge images while a generator trains: a discriminator like FastGAN's, and a style predictor.

Liu et al. (ICLR 2021, https://arxiv.org/abs/2101.04775, section 3.2): residual blocks that halve the side, a logit per
patch, and a decoder that must reconstruct the image from the discriminator's own maps, which keeps the discriminator
from memorizing images. A style enters as in Miyato & Koyama (ICLR 2018): the inner product of its embedding with the
pooled map is added to every logit.

Differs from FastGAN: one scale, one decoder, no excitation between maps, and spectral normalization alone (Miyato et
al., ICLR 2018), no batch norm, so that images stay independent."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from fdgsec.nn.networks.style_generator import GeneratorShape

SLOPE = 0.2  # of the leaky ReLU
_PATCH = 4  # side in cells of the region of the last map that gives one logit


class SpectralConvolution(nn.Conv2d):
    """A convolution whose weight, as a matrix (outputs, rest), is divided by an estimate of its largest singular value.

    `direction` (outputs,) is that of the last step of power iteration; every pass in training mode makes one more."""

    direction: Tensor

    def __init__(self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, padding: int = 0) -> None:
        super().__init__(inputs, outputs, kernel, stride=stride, padding=padding)
        self.register_buffer("direction", torch.empty(outputs))

    def forward(self, input: Tensor) -> Tensor:
        """Convolve (N, inputs, H, W) with the divided weight."""
        matrix = self.weight.flatten(1)
        with torch.no_grad():
            right = functional.normalize(self.direction @ matrix, dim=0)
            left = self.direction
            if self.training:
                left = functional.normalize(matrix @ right, dim=0)
                self.direction.copy_(left)
        norm = left @ (matrix @ right)
        return functional.conv2d(input, self.weight / norm, self.bias, self.stride, self.padding)


class Halving(nn.Module):
    """Halves the side on two paths and averages them: two convolutions, and pooling before a 1x1 convolution."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = SpectralConvolution(inputs, outputs, 4, stride=2, padding=1)
        self.second = SpectralConvolution(outputs, outputs, 3, padding=1)
        self.direct = SpectralConvolution(inputs, outputs, 1)

    def forward(self, maps: Tensor) -> Tensor:
        """Map (N, inputs, h, w) to (N, outputs, h / 2, w / 2)."""
        inner = functional.leaky_relu(self.second(functional.leaky_relu(self.first(maps), SLOPE)), SLOPE)
        outer = functional.leaky_relu(self.direct(functional.avg_pool2d(maps, 2)), SLOPE)
        return (inner + outer) / 2


class PictureTrunk(nn.Module):
    """Maps images (N, 3, size, size) in [0, 1] to maps (N, `width`, `side`, `side`): 8 cells a side, 4 for 8 pixels.

    Each map has the channels of the generator's map of the same side, given by `shape`."""

    def __init__(self, shape: GeneratorShape) -> None:
        super().__init__()
        self.side = min(8, shape.size // 2)
        sides = [self.side * 2**power for power in range((shape.size // self.side).bit_length())][::-1]
        self.width = shape.channels(self.side)
        self.stem = SpectralConvolution(3, shape.channels(shape.size), 3, padding=1)
        self.stages = nn.Sequential(*(Halving(shape.channels(a), shape.channels(b)) for a, b in pairwise(sides)))

    def forward(self, pictures: Tensor) -> Tensor:
        """Compute the last map."""
        maps: Tensor = self.stages(functional.leaky_relu(self.stem(2 * pictures - 1), SLOPE))
        return maps


class StyleDiscriminator(nn.Module):
    """Gives every patch of an image a logit, larger where it looks real and fits its style.

    `dimension` is that of the style, 0 without one. Parameters are drawn from `rng` alone, on the CPU."""

    def __init__(self, dimension: int, shape: GeneratorShape, *, rng: torch.Generator) -> None:
        super().__init__()
        with torch.device("meta"):  # no draws from the global generator for weights that are replaced at once
            self.trunk = PictureTrunk(shape)
            width = self.trunk.width
            self.mixed = SpectralConvolution(width, width, 1)
            self.patches = SpectralConvolution(width, 1, _PATCH)
            self.style = nn.Linear(dimension, width, bias=False) if dimension else None
            doublings = (shape.size // self.trunk.side).bit_length() - 2  # up to half of the image's side
            self.redrawing = nn.ModuleList(nn.Conv2d(width, 2 * width, 3, padding=1) for _ in range(doublings))
            self.drawing = nn.Conv2d(width, 3, 3, padding=1)
        draw_weights(self, rng)

    def forward(self, maps: Tensor, styles: Tensor | None) -> Tensor:
        """Compute the logits of the trunk's `maps` for `styles` (N, dimension): (N, patches)."""
        patches: Tensor = self.patches(functional.leaky_relu(self.mixed(maps), SLOPE)).flatten(1)
        if self.style is None or styles is None:
            return patches
        fitting: Tensor = (self.style(styles) * maps.mean((2, 3))).sum(1, keepdim=True)
        return patches + fitting

    def redrawn(self, maps: Tensor) -> Tensor:
        """Reconstruct the images at half their side from the trunk's maps, (N, 3, size / 2, size / 2) in (0, 1)."""
        for convolution in self.redrawing:
            larger = functional.interpolate(maps, scale_factor=2, mode="nearest")
            maps = functional.glu(convolution(larger), dim=1)
        drawn: Tensor = self.drawing(maps)
        return drawn.sigmoid()


class StylePredictor(nn.Module):
    """Predicts the style of an image, (N, dimension), in place of the public encoder where gradients are needed.

    A style is channel means and spreads, so the linear head gets those of three small maps, of full, half and a quarter
    of the side."""

    def __init__(self, dimension: int, *, width: int = 32, rng: torch.Generator) -> None:
        super().__init__()
        with torch.device("meta"):
            self.whole = nn.Conv2d(3, width, 3, padding=1)
            self.halved = nn.Sequential(
                nn.Conv2d(width, width, 4, stride=2, padding=1), nn.LeakyReLU(SLOPE),
                nn.Conv2d(width, width, 3, padding=1),
            )  # fmt: skip
            self.quartered = nn.Conv2d(width, 2 * width, 4, stride=2, padding=1)
            self.head = nn.Linear(8 * width, dimension)
        draw_weights(self, rng)

    def forward(self, pictures: Tensor) -> Tensor:
        """Map (N, 3, H, W) in [0, 1] to styles."""
        maps, seen = 2 * pictures - 1, []
        for part in (self.whole, self.halved, self.quartered):
            maps = functional.leaky_relu(part(maps), SLOPE)
            seen += [maps.mean((2, 3)), (maps.var((2, 3), correction=0) + 1e-5).sqrt()]
        told: Tensor = self.head(torch.cat(seen, dim=1))
        return told


def draw_weights(network: nn.Module, rng: torch.Generator) -> None:
    """Draw weights as He et al. (2015), directions of unit length, biases zero; the network moves to the CPU."""
    network.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim < 2:
                parameter.zero_()
            else:
                parameter.normal_(0, (2 / parameter[0].numel()) ** 0.5, generator=rng)
        for module in network.modules():
            if isinstance(module, SpectralConvolution):
                module.direction.normal_(generator=rng).div_(module.direction.norm())
