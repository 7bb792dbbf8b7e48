"""The catalog of published weights: files, sources, digests, and the network that each must fit.

Expected shapes are read from the network itself, built on the meta device, never from a table; tables of shapes and the
networks' outputs are transcribed independently in tests/golden/test_published_*.py."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import cast

import torch
import torchvision.models
from torch import nn

from fdgsec.nn.networks.adain_codec import vgg_decoder, vgg_encoder
from fdgsec.nn.networks.inception import inception_fid

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class WeightEntry:
    """Published weights that fdgsec can use.

    `sha256` is the digest of the published file, or its first digits where only those are known (from the file's name);
    each whole digest agrees in two or more independent public sources. `build` makes the network. With `prefix_only`
    the file may hold further layers, which are dropped."""

    name: str
    what: str
    url: str
    sha256: str
    build: Callable[[], nn.Module] = field(repr=False, compare=False)
    prefix_only: bool = False

    @property
    def file_name(self) -> str:
        """Name of the published file."""
        return self.url.rpartition("/")[2]

    def shapes(self) -> dict[str, Shape]:
        """Give key -> shape of the network's state dict, in the network's order."""
        with torch.device("meta"):
            network = self.build()
        return {key: tuple(tensor.shape) for key, tensor in network.state_dict().items()}


def _imagenet(name: str, digest: str, *, file: str | None = None) -> WeightEntry:
    return WeightEntry(
        name=name,
        what=f"torchvision's {name}, ImageNet-1k (IMAGENET1K_V1)",
        url=f"https://download.pytorch.org/models/{file or name}-{digest[:8]}.pth",
        sha256=digest,
        build=cast(Callable[[], nn.Module], partial(torchvision.models.get_model, name, weights=None)),
    )


_ADAIN = "https://github.com/naoto0804/pytorch-AdaIN/releases/download/v0.0.0"
_FID = "https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights"
_ENTRIES = (
    _imagenet("resnet18", "f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec"),
    _imagenet("resnet50", "0676ba61b6795bbe1773cffd859882e5e297624d384b6993f7c9e683e722fb8a"),
    _imagenet("mobilenet_v3_large", "8738ca797c879b547d18bbd15da5736ff2557b2036a9af72225393ca61759a04"),
    _imagenet("squeezenet1_0", "b66bff10"),
    _imagenet("densenet121", "a639ec97d7c33b07ae66f0b5fb7d0192f95a3b11b7576c66c0126c2a727c4395"),
    _imagenet("alexnet", "7be5be791159472b1fbf3c69796f7cb30dca7ad8466c2df70058c37116cdee02", file="alexnet-owt"),
    _imagenet("vgg16", "397923af8e79cdbb6a7127f12361acd7a2f83e06b05044ddf496e83de57a5bf0"),
    _imagenet("squeezenet1_1", "b8a52dc049b60e4b6ab68ad0df457362afab8b6304b2febdc1650a5dab4d7e7b"),
    WeightEntry(
        name="adain_vgg",
        what="AdaIN's normalized VGG-19 up to relu4_1 (encoder `vgg19`)",
        url=f"{_ADAIN}/vgg_normalised.pth",
        sha256="804ca2835ecf7539f0cd2a7ac3c18ce81e6f8468969ae7117ac0c148d286bb4a",
        build=vgg_encoder,
        prefix_only=True,
    ),
    WeightEntry(
        name="adain_decoder",
        what="AdaIN's decoder for the normalized VGG-19",
        url=f"{_ADAIN}/decoder.pth",
        sha256="379ca41d59f3a37eed3599bbbc2560c19da5c458870a5ffd3a9dd41aa88f9472",
        build=vgg_decoder,
    ),
    WeightEntry(
        name="inception_fid",
        what="the Inception v3 that FID, KID and the inception score are defined with",
        url=f"{_FID}/pt_inception-2015-12-05-6726825d.pth",
        sha256="6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2",
        build=inception_fid,
    ),
)
CATALOG: Mapping[str, WeightEntry] = MappingProxyType({entry.name: entry for entry in _ENTRIES})
