"""FedDAG's generator: a fully convolutional network from an image to a perturbation of it.

FedDAG (Che et al. 2025, section IV-A2) names its generators FCN, FCN16 and FCN32 (Table VII) without further details.
This is the generator of DDAIG (Zhou et al., AAAI 2020, https://arxiv.org/abs/2003.06054), which FedDAG builds on and
compares with; that 16 and 32 are its numbers of channels is an inference.

A 3x3 convolution, three residual blocks, a fusion of each pixel with the global average, and a 1x1 convolution with
tanh; padding reflects, every convolution but the last is without bias and followed by instance normalization without
affine parameters, convolutions start at N(0, 0.02).

The fusion (a 1x1 convolution of maps and their broadcast average) adds one number per image and channel to a whole map,
and the instance normalization after it subtracts the map's mean: the average has no effect. Its half of the weights is
kept, because it is sent like the rest; the sum without effect is not computed."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

GeneratorName = Literal["fcn16", "fcn32"]
WIDTHS: Mapping[str, int] = {"fcn16": 16, "fcn32": 32}
BLOCKS = 3
INITIAL_STD = 0.02


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with instance normalization and a ReLU between them, added to the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = _convolution(width, width)
        self.second = _convolution(width, width)

    def forward(self, maps: Tensor) -> Tensor:
        """Map (N, width, H, W) to the same shape."""
        inner = functional.instance_norm(self.first(maps)).relu()
        return maps + functional.instance_norm(self.second(inner))


class PerturbationNetwork(nn.Module):
    """Maps images (N, 3, H, W) to perturbations of the same shape in [-1, 1]; H and W at least 2.

    `width` channels throughout: 14,819 parameters for 16, 58,307 for 32. All of them are drawn from `rng`."""

    def __init__(self, width: int, *, rng: torch.Generator) -> None:
        super().__init__()
        self.width = width
        with torch.device("meta"):  # no draws from the global generator for weights that are replaced at once
            self.stem = _convolution(3, width)
            self.blocks = nn.ModuleList(ResidualBlock(width) for _ in range(BLOCKS))
            self.fusion = nn.Conv2d(2 * width, width, 1, bias=False)
            self.draw = nn.Conv2d(width, 3, 1)
        self.to_empty(device="cpu")
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name.endswith("bias"):
                    parameter.zero_()
                else:
                    parameter.normal_(0, INITIAL_STD, generator=rng)

    def forward(self, images: Tensor) -> Tensor:
        """Compute the perturbations."""
        rows = images.contiguous()  # instance normalization copies channels-last maps back and forth
        maps = functional.instance_norm(self.stem(rows)).relu()
        for block in self.blocks:
            maps = block(maps)
        local = self.fusion.weight[:, : self.width]  # the other half meets the global average, see above
        fused = functional.instance_norm(functional.conv2d(maps, local)).relu()
        drawn: Tensor = self.draw(fused)
        return drawn.tanh()


def perturbation_network(name: GeneratorName, *, rng: torch.Generator) -> PerturbationNetwork:
    """Build the generator that FedDAG calls FCN16 or FCN32, on the CPU."""
    return PerturbationNetwork(WIDTHS[name], rng=rng)


def _convolution(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, padding_mode="reflect", bias=False)
