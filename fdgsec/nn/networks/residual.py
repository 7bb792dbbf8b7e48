"""torchvision's residual blocks without in-place operations, and the replacement of BatchNorm.

Opacus takes per-sample gradients with hooks on layer outputs, which a later in-place operation (`out += identity`,
`ReLU(inplace=True)`) would overwrite. BatchNorm lets one record change the output of another, so that a guarantee of
differential privacy would not hold. Parameters and names are torchvision's."""

import math
from typing import cast

from torch import Tensor, nn
from torchvision.models import mobilenetv3, resnet
from torchvision.ops import FrozenBatchNorm2d


class BasicBlock(resnet.BasicBlock):  # type: ignore[misc]  # torchvision has no types
    """ResNet's block of two 3x3 convolutions (He et al. 2016, fig. 5 left)."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, C', H', W')."""
        identity: Tensor = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out)) + identity
        return cast(Tensor, self.relu(out))


class Bottleneck(resnet.Bottleneck):  # type: ignore[misc]
    """ResNet's block of 1x1, 3x3 and 1x1 convolutions (He et al. 2016, fig. 5 right), stride in the 3x3 one."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, 4 C', H', W')."""
        identity: Tensor = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out)) + identity
        return cast(Tensor, self.relu(out))


class InvertedResidual(mobilenetv3.InvertedResidual):  # type: ignore[misc]
    """MobileNetV3's block (Howard et al. 2019, section 5)."""

    def forward(self, input: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, C', H', W')."""
        out = self.block(input)
        return cast(Tensor, input + out if self.use_res_connect else out)


def without_batch_norm(network: nn.Module, *, frozen: bool = False) -> None:
    """Replace, in `network` itself, every BatchNorm2d by GroupNorm and every in-place activation by its plain form.

    GroupNorm gets gcd(32, C) groups (32 as in Wu & He 2018; the divisor is Opacus's choice) and the epsilon of the
    BatchNorm it replaces. Names and the affine weight and bias stay; running statistics are dropped. With `frozen` it
    is FrozenBatchNorm2d instead: the running statistics stay, nothing of it is trained, and they are never updated."""
    for module in list(network.modules()):
        if isinstance(module, nn.ReLU | nn.ReLU6 | nn.Hardswish):
            module.inplace = False
        for name, child in list(module.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, _replacement(child, frozen=frozen))


def _replacement(norm: nn.BatchNorm2d, *, frozen: bool) -> nn.Module:
    if frozen:
        return cast(nn.Module, FrozenBatchNorm2d(norm.num_features, eps=norm.eps))
    return nn.GroupNorm(math.gcd(32, norm.num_features), norm.num_features, eps=norm.eps)
