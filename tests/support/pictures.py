"""Pictures that are neither blank nor noise, and a network to see them with."""

import math
from functools import cache

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

from fdgsec.runtime.random_streams import stream


def pictures(*, seed: int, n: int = 3, side: int = 24) -> Tensor:
    """Smooth random images: noise enlarged, so that SSIM is far from 0."""
    small = torch.rand(n, 3, 6, 6, generator=stream(seed, "attack", "pictures"))
    return F.interpolate(small, size=(side, side), mode="bilinear")


def alexnet_features() -> nn.Sequential:
    """torchvision's AlexNet features with weights drawn from a stream."""
    with torch.random.fork_rng(devices=[]):
        features = torchvision.models.alexnet(weights=None).features
    rng = stream(0, "world", "alexnet")
    for parameter in features.parameters():
        parameter.data = torch.randn(parameter.shape, generator=rng) / math.sqrt(max(1, parameter[0].numel()))
    assert isinstance(features, nn.Sequential)
    return features.requires_grad_(False)


@cache
def alexnet_state() -> dict[str, Tensor]:
    return {f"features.{key}": tensor for key, tensor in alexnet_features().state_dict().items()}
