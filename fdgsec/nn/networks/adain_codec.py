"""The networks of the style encoders: the bundled `mini` codec, and the architectures for imported weights.

`mini` is ours (docs/encoders.md), and so is the decoder of `vgg16-hed`. The AdaIN pair is the VGG-19 prefix and
mirrored decoder of Huang & Belongie (2017, section 6), with the module numbers of the published weights. SqueezeNet 1.0
is Iandola et al. (2016), cut after fire5."""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, kw_only=True)
class MiniShape:
    """The sizes of a `mini` codec: feature channels C, trunk width, residual blocks on either side, and stride."""

    channels: int = 256
    width: int = 96
    encoder_blocks: int = 2
    decoder_blocks: int = 2
    stride: int = 4


def _convolution(inputs: int, outputs: int) -> nn.Conv2d:
    """Make a 3x3 convolution with reflection padding: zero padding would add a frame to every statistic."""
    return nn.Conv2d(inputs, outputs, 3, padding=1, padding_mode="reflect")


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions around a SiLU, added to the input; no normalization, so images stay independent."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = _convolution(width, width)
        self.second = _convolution(width, width)

    def forward(self, features: Tensor) -> Tensor:
        """Map (N, width, h, w) to the same shape."""
        residual: Tensor = self.second(functional.silu(self.first(functional.silu(features))))
        return features + residual


class MiniEncoder(nn.Module):
    """Map images (N, 3, H, W) in [0, 1] to rectified features (N, C, H/stride, W/stride), at unit scale.

    The last step is a softplus. The mean of a channel then measures how often and how strongly its pattern occurs,
    which a linear channel's mean cannot; unlike a ReLU it leaves no channel dead."""

    def __init__(self, shape: MiniShape) -> None:
        super().__init__()
        self.shuffle = nn.PixelUnshuffle(shape.stride)
        self.stem = _convolution(3 * shape.stride**2, shape.width)
        self.blocks = nn.Sequential(*(ResidualBlock(shape.width) for _ in range(shape.encoder_blocks)))
        self.head = nn.Conv2d(shape.width, shape.channels, 1)

    def forward(self, images: Tensor) -> Tensor:
        """H and W must be multiples of the stride."""
        trunk: Tensor = self.blocks(self.stem(self.shuffle(2 * images - 1)))
        return functional.softplus(self.head(trunk))


class MiniDecoder(nn.Module):
    """Map unit-scale features (N, C, h, w) to images (N, 3, stride h, stride w), unclamped."""

    def __init__(self, shape: MiniShape) -> None:
        super().__init__()
        self.stem = nn.Conv2d(shape.channels, shape.width, 1)
        self.blocks = nn.Sequential(*(ResidualBlock(shape.width) for _ in range(shape.decoder_blocks)))
        self.head = _convolution(shape.width, 3 * shape.stride**2)
        self.shuffle = nn.PixelShuffle(shape.stride)

    def forward(self, features: Tensor) -> Tensor:
        """Map (N, C, h, w) to (N, 3, stride h, stride w)."""
        image: Tensor = self.shuffle(self.head(self.blocks(self.stem(features))))
        return (image + 1) / 2


Widths = tuple[tuple[int, ...], ...]

VGG19_WIDTHS: Widths = ((64, 64), (128, 128), (256, 256, 256, 256), (512,))
VGG16_WIDTHS: Widths = ((64, 64), (128, 128), (256, 256, 256), (512,))
_DECODER_WIDTHS: Widths = ((256,), (256, 256, 256, 128), (128, 64), (64, 3))


def vgg_encoder(widths: Widths = VGG19_WIDTHS) -> nn.Sequential:
    """Build a VGG network up to ReLU 4_1, 31 modules for VGG-19: (N, 3, H, W) to (N, 512, ceil(H/8), ceil(W/8)).

    The first, a 1x1 convolution, includes the color normalization, so images are in [0, 1]. `widths` are the channels
    of each convolution, by stage."""
    modules: list[nn.Module] = [nn.Conv2d(3, 3, 1)]
    inputs = 3
    for stage, convolutions in enumerate(widths):
        if stage:
            modules.append(nn.MaxPool2d(2, 2, ceil_mode=True))
        for width in convolutions:
            modules += [nn.ReflectionPad2d(1), nn.Conv2d(inputs, width, 3), nn.ReLU()]
            inputs = width
    return nn.Sequential(*modules)


def vgg_decoder() -> nn.Sequential:
    """Build nine convolutions and three nearest-neighbor upsamplings: (N, 512, h, w) to (N, 3, 8h, 8w), unclamped."""
    modules: list[nn.Module] = []
    inputs = 512
    for stage, convolutions in enumerate(_DECODER_WIDTHS):
        if stage:
            modules.append(nn.Upsample(scale_factor=2, mode="nearest"))
        for width in convolutions:
            modules += [nn.ReflectionPad2d(1), nn.Conv2d(inputs, width, 3), nn.ReLU()]
            inputs = width
    return nn.Sequential(*modules[:-1])  # no ReLU after the last convolution


class SmallVggDecoder(nn.Module):
    """A decoder of 2.1 million parameters for relu4_1 features, half the size of AdaIN's mirror of the encoder.

    A stage has residual blocks; the stages double the resolution by pixel shuffling. `level`, a buffer, is each
    channel's root mean square over training images: features are divided by it."""

    level: Tensor

    def __init__(self, *, channels: int = 512, widths: tuple[int, ...] = (192, 96, 48), blocks: int = 2) -> None:
        super().__init__()
        self.register_buffer("level", torch.ones(channels))
        stages: list[nn.Module] = []
        inputs = channels
        for width in widths:
            stages += [nn.Conv2d(inputs, width, 1), *(ResidualBlock(width) for _ in range(blocks))]
            inputs = width
            if width != widths[-1]:
                stages += [nn.Conv2d(width, 4 * width, 1), nn.PixelShuffle(2)]
        self.stages = nn.Sequential(*stages, _convolution(inputs, 12), nn.PixelShuffle(2))

    def forward(self, features: Tensor) -> Tensor:
        """Map features (N, C, h, w) to images (N, 3, 8h, 8w), unclamped."""
        image: Tensor = self.stages(features / self.level.view(-1, 1, 1))
        return (image + 1) / 2


def squeezenet_encoder() -> nn.Sequential:
    """Build SqueezeNet 1.0 up to and including fire5: ImageNet-normalized (N, 3, H, W) to (N, 256, ~H/8, ~W/8).

    Module numbers are those of torchvision's `features`, of which these are the first eight."""
    from torchvision.models import squeezenet1_0  # as slow to import as torch

    features = cast("nn.Sequential", squeezenet1_0(weights=None).features)
    return nn.Sequential(*list(features)[:8])
