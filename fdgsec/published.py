"""The published weights fdgsec can use: which files, where from, and which network each must fit.

Expectations are read off the network itself, built on the meta device, never off a table of shapes. The two AdaIN
layouts (Huang & Belongie 2017) are those of the published files: an encoder of reflection-padded 3x3 convolutions behind
a 1x1 one that holds the normalisation, and its mirror image, whose numbering leaves room for pads, ReLUs and upsampling."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import cast

import torch
import torchvision.models
from torch import nn

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class WeightEntry:
    """Published weights that fdgsec can use.

    `sha256` is the digest of the published file, or its first digits where only those are published (in the file's
    name). `build` gives the network, `prefix_only` says that the file may hold further layers, which are dropped."""

    name: str
    what: str
    url: str
    sha256: str
    build: Callable[[], nn.Module] = field(repr=False, compare=False)
    prefix_only: bool = False

    @property
    def file_name(self) -> str:
        """What the published file is called."""
        return self.url.rpartition("/")[2]

    def shapes(self) -> dict[str, Shape]:
        """Give key -> shape of the network's state dict, in the network's order."""
        with torch.device("meta"):
            network = self.build()
        return {key: tuple(tensor.shape) for key, tensor in network.state_dict().items()}


def _padded(channels: int, plan: Sequence[int | nn.Module], *first: nn.Module) -> nn.Sequential:
    """Build AdaIN's layout: a number in `plan` stands for reflection padding, a 3x3 convolution to it, and a ReLU."""
    layers = list(first)
    for step in plan:
        if isinstance(step, int):
            layers += [nn.ReflectionPad2d(1), nn.Conv2d(channels, step, 3), nn.ReLU()]
            channels = step
        else:
            layers.append(step)
    return nn.Sequential(*layers)


def _adain_vgg() -> nn.Module:
    pool = nn.MaxPool2d(2, ceil_mode=True)
    plan = (64, 64, pool, 128, 128, pool, 256, 256, 256, 256, pool, 512)
    return _padded(3, plan, nn.Conv2d(3, 3, 1))


def _adain_decoder() -> nn.Module:
    up = nn.Upsample(scale_factor=2, mode="nearest")
    return _padded(512, (256, up, 256, 256, 256, 128, up, 128, 64, up, 64, 3))


def _inception_fid() -> nn.Module:
    # pytorch-fid patches the pooling of torchvision's blocks, which holds no parameter
    network = torchvision.models.inception_v3(weights=None, num_classes=1008, aux_logits=False, init_weights=False)
    return cast(nn.Module, network)


def _imagenet(name: str, digest: str, *, file: str | None = None) -> WeightEntry:
    return WeightEntry(
        name=name,
        what=f"torchvision's {name}, ImageNet-1k (IMAGENET1K_V1)",
        url=f"https://download.pytorch.org/models/{file or name}-{digest}.pth",
        sha256=digest,
        build=cast(Callable[[], nn.Module], partial(torchvision.models.get_model, name, weights=None)),
    )


_ADAIN = "https://github.com/naoto0804/pytorch-AdaIN/releases/download/v0.0.0"
_FID = "https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights"
_ENTRIES = (
    _imagenet("resnet18", "f37072fd"),
    _imagenet("resnet50", "0676ba61"),
    _imagenet("mobilenet_v3_large", "8738ca79"),
    _imagenet("squeezenet1_0", "b66bff10"),
    _imagenet("densenet121", "a639ec97"),
    _imagenet("alexnet", "7be5be79", file="alexnet-owt"),
    _imagenet("vgg16", "397923af"),
    _imagenet("squeezenet1_1", "b8a52dc0"),
    WeightEntry(
        name="adain_vgg",
        what="AdaIN's normalised VGG-19 up to relu4_1 (encoder `vgg19`)",
        url=f"{_ADAIN}/vgg_normalised.pth",
        sha256="804ca2835ecf7539f0cd2a7ac3c18ce81e6f8468969ae7117ac0c148d286bb4a",
        build=_adain_vgg,
        prefix_only=True,
    ),
    WeightEntry(
        name="adain_decoder",
        what="AdaIN's decoder for the normalised VGG-19",
        url=f"{_ADAIN}/decoder.pth",
        sha256="379ca41d59f3a37eed3599bbbc2560c19da5c458870a5ffd3a9dd41aa88f9472",
        build=_adain_decoder,
    ),
    WeightEntry(
        name="inception_fid",
        what="the Inception v3 that FID, KID and the inception score are defined with",
        url=f"{_FID}/pt_inception-2015-12-05-6726825d.pth",
        sha256="6726825d",
        build=_inception_fid,
    ),
)
CATALOG: Mapping[str, WeightEntry] = MappingProxyType({entry.name: entry for entry in _ENTRIES})
