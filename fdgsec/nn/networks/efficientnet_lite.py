"""EfficientNet-Lite0: EfficientNet-B0 (Tan & Le, ICML 2019, table 1) without squeeze-and-excitation, with ReLU6.

The Lite variants are TensorFlow's for small devices: stem and head keep B0's widths. Padding is TensorFlow's "same",
which puts the odd pixel at the bottom and on the right, and batch normalization has its epsilon of 1e-3."""

from copy import deepcopy
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

CLASSES = 1000
FEATURES = 1280
SIDE = 224
"""The side, in pixels, of the images that the published weights were trained on."""


class _Stage(NamedTuple):
    """Equal blocks in a row; only the first one has the stride."""

    repeats: int
    kernel: int
    stride: int
    expansion: int
    width: int


_STAGES = (
    _Stage(1, 3, 1, 1, 16),
    _Stage(2, 3, 2, 6, 24),
    _Stage(2, 5, 2, 6, 40),
    _Stage(3, 3, 2, 6, 80),
    _Stage(3, 5, 1, 6, 112),
    _Stage(4, 5, 2, 6, 192),
    _Stage(1, 3, 1, 6, 320),
)


class _SamePadding(nn.Module):
    """TensorFlow's "same" padding before a convolution of this kernel and stride: ceil(side / stride) cells come out.

    A module beside the convolution, which stays a plain `nn.Conv2d`: per-record gradients have rules for known types
    only, and would not know of padding that a subclass adds."""

    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, maps: Tensor) -> Tensor:
        """Map (N, C, h, w) to (N, C, h', w'); an odd pixel is at the bottom and on the right."""
        height, width = maps.shape[2:]
        missing = [max((-(-side // self.stride) - 1) * self.stride + self.kernel - side, 0) for side in (height, width)]
        top, left = missing[0] // 2, missing[1] // 2
        return functional.pad(maps, (left, missing[1] - left, top, missing[0] - top))


def _convolution(inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, groups=groups, bias=False)


def _norm(width: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(width, eps=1e-3, momentum=0.01)


def _folded(convolution: nn.Conv2d, norm: nn.Module) -> tuple[nn.Conv2d, nn.Module]:
    """One convolution for both, which nothing comes after."""
    assert isinstance(norm, nn.BatchNorm2d)
    return fuse_conv_bn_eval(convolution, norm), nn.Identity()


class _InvertedResidual(nn.Module):
    """Expansion (unless its factor is 1), depthwise convolution and projection; the input is added if sizes agree."""

    pad: nn.Module
    bn0: nn.Module
    bn1: nn.Module
    bn2: nn.Module

    def __init__(self, inputs: int, stage: _Stage, *, stride: int) -> None:
        super().__init__()
        width = inputs * stage.expansion
        self.expands, self.adds = stage.expansion > 1, stride == 1 and inputs == stage.width
        self.even = stage.kernel // 2 if stride == 1 else None  # cells on every side, where all sides have as many
        self.in_place = False  # with gradients, maps are still needed
        if self.expands:
            self.expand_conv, self.bn0 = _convolution(inputs, width, 1), _norm(width)
        self.pad = _SamePadding(stage.kernel, stride)
        self.depthwise_conv = _convolution(width, width, stage.kernel, stride=stride, groups=width)
        self.bn1 = _norm(width)
        self.project_conv, self.bn2 = _convolution(width, stage.width, 1), _norm(stage.width)

    def forward(self, features: Tensor) -> Tensor:
        """Map (N, inputs, h, w) to (N, width, ceil(h / stride), ceil(w / stride))."""
        inner = features
        if self.expands:
            inner = functional.relu6(self.bn0(self.expand_conv(features)), inplace=self.in_place)
        inner = functional.relu6(self.bn1(self.depthwise_conv(self.pad(inner))), inplace=self.in_place)
        found: Tensor = self.bn2(self.project_conv(inner))
        if not self.adds:
            return found
        return found.add_(features) if self.in_place else found + features

    def fold(self) -> None:
        """Make batch norm, and padding that is the same on all sides, part of convolutions, which overwrite maps; for
        inference alone."""
        self.in_place = True
        if self.expands:
            self.expand_conv, self.bn0 = _folded(self.expand_conv, self.bn0)
        self.depthwise_conv, self.bn1 = _folded(self.depthwise_conv, self.bn1)
        self.project_conv, self.bn2 = _folded(self.project_conv, self.bn2)
        if self.even is not None:
            self.depthwise_conv.padding, self.pad = (self.even, self.even), nn.Identity()


class EfficientNetLite0(nn.Module):
    """Images (N, 3, H, W), (RGB on the scale of 0 to 255 - 127) / 128, to logits (N, 1000) of ImageNet-1k.

    Trained at 224 x 224 pixels. The names are those of the published file without their leading underscores."""

    bn0: nn.Module
    bn1: nn.Module

    def __init__(self) -> None:
        super().__init__()
        self.pad = _SamePadding(3, 2)
        self.conv_stem, self.bn0 = _convolution(3, 32, 3, stride=2), _norm(32)
        blocks: list[nn.Module] = []
        inputs = 32
        for stage in _STAGES:
            for index in range(stage.repeats):
                blocks.append(_InvertedResidual(inputs, stage, stride=1 if index else stage.stride))
                inputs = stage.width
        self.blocks = nn.Sequential(*blocks)
        self.conv_head, self.bn1 = _convolution(inputs, FEATURES, 1), _norm(FEATURES)
        self.fc = nn.Linear(FEATURES, CLASSES)

    def folded(self) -> "EfficientNetLite0":
        """A copy for inference, equal up to rounding: batch norm is part of the convolution before it (Jacob et al.,
        CVPR 2018, section 3.2), and so is padding that is the same on all sides."""
        made = deepcopy(self).eval()
        made.conv_stem, made.bn0 = _folded(made.conv_stem, made.bn0)
        for block in made.blocks:
            assert isinstance(block, _InvertedResidual)
            block.fold()
        made.conv_head, made.bn1 = _folded(made.conv_head, made.bn1)
        return made

    def features(self, images: Tensor) -> Tensor:
        """Give the pooled features (N, 1280) before the classifier."""
        inner = self.blocks(functional.relu6(self.bn0(self.conv_stem(self.pad(images)))))
        pooled: Tensor = functional.relu6(self.bn1(self.conv_head(inner))).mean((2, 3))
        return pooled

    def forward(self, images: Tensor) -> Tensor:
        """Give the logits."""
        logits: Tensor = self.fc(self.features(images))
        return logits
