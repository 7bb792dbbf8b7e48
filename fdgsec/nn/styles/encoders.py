"""Style encoders: from images to features, whose channel statistics are a style, and from features back to images.

`mini` is bundled (docs/encoders.md describes its training and its limits). `vgg19` is the AdaIN pair of Huang &
Belongie (2017) that CCST and FISC use (`vgg19-pre-relu` stops before its last ReLU), `vgg16-hed` a VGG-16 cut at the
same layer, and `squeezenet` gives statistics only; they need imported weights. `vgg19-bfloat16` and
`vgg16-hed-bfloat16` compute in bfloat16 what is released, too. `pixels` is no network: color statistics of the image
itself."""

import hashlib
import inspect
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path
from uuid import uuid4

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional

from fdgsec.nn.networks.adain_codec import (
    VGG16_WIDTHS,
    MiniDecoder,
    MiniEncoder,
    MiniShape,
    SmallVggDecoder,
    squeezenet_encoder,
    vgg_decoder,
    vgg_encoder,
)
from fdgsec.nn.training.precision import BRAIN, autocast
from fdgsec.runtime.errors import UsageError, unknown_name
from fdgsec.runtime.registry import plugins, resolve

ENCODER_WEIGHTS: Mapping[str, tuple[str, ...]] = {
    "mini": (),
    "vgg19": ("adain_vgg", "adain_decoder"),
    "vgg19-pre-relu": ("adain_vgg", "adain_decoder"),
    "vgg19-bfloat16": ("adain_vgg", "adain_decoder"),
    "vgg16-hed": ("vgg16_hed",),
    "vgg16-hed-bfloat16": ("vgg16_hed",),
    "squeezenet": ("squeezenet1_0",),
    "pixels": (),
}
"""The published weights that an encoder needs."""
ENCODERS: tuple[str, ...] = tuple(ENCODER_WEIGHTS)
SMALLEST_SIDE = 16  # pixels; below it the feature maps of a stride-8 network are too small for reflection padding

_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)


class StyleEncoder(nn.Module, ABC):
    """A frozen feature extractor, and, where `has_decoder`, the decoder that was trained to invert it.

    `channels` is C (a style has 2C numbers), `stride` the pixels per feature cell, `fingerprint` the SHA-256 of all
    weights in use, and of the code of an encoder from elsewhere: the cache key. `reentrant` says that several threads
    may encode at once, and `draws_in_bfloat16` that this moves stylized pictures by less than a gray level (root
    mean square, `python -m benchmarks.rounded_pictures`). Differentiable in its inputs; no parameter requires a
    gradient."""

    reentrant = False
    draws_in_bfloat16 = False
    name: str
    channels: int
    stride: int
    has_decoder: bool
    fingerprint: str

    def encode(self, images: Tensor) -> Tensor:
        """Map float images (N, 3, H, W) in [0, 1] to features (N, C, h, w); h is H / stride, rounded up.

        (`squeezenet`, whose first convolution has no padding, gives one cell less.)
        Raises UsageError where the shape or the type is wrong or a side is under 16 pixels."""
        if images.ndim != 4 or images.shape[1] != 3 or not images.is_floating_point():
            raise UsageError(
                f"{self.name} encodes float images (N, 3, H, W) in [0, 1]; got {tuple(images.shape)} {images.dtype}."
            )
        if min(images.shape[2:]) < SMALLEST_SIDE:
            raise UsageError(
                f"{self.name} needs sides of at least {SMALLEST_SIDE} pixels; got {tuple(images.shape[2:])}; "
                "enlarge the images."
            )
        return self._features(images)

    def decode(self, features: Tensor, *, clamp: bool = True) -> Tensor:
        """Map features (N, C, h, w) to images (N, 3, stride h, stride w), clamped to [0, 1] or (`clamp` off) as drawn.

        Raises UsageError where this encoder has no decoder or C differs."""
        if not self.has_decoder:
            raise UsageError(f"{self.name} gives statistics only and cannot draw images; use mini or vgg19.")
        if features.ndim != 4 or features.shape[1] != self.channels:
            raise UsageError(f"{self.name} decodes (N, {self.channels}, h, w); got {tuple(features.shape)}.")
        drawn = self._images(features)
        return drawn.clamp(0, 1) if clamp else drawn

    def forward(self, images: Tensor) -> Tensor:
        """Call `encode`."""
        return self.encode(images)

    @property
    def device(self) -> torch.device:
        """Device of the weights, or of the constants."""
        constant: Tensor = next(iter(self.state_dict().values()))
        return constant.device

    @abstractmethod
    def _features(self, images: Tensor) -> Tensor:
        """Compute the features of checked images."""

    def _images(self, features: Tensor) -> Tensor:
        """Decode checked features; `decode` calls it only for encoders that have a decoder."""
        raise NotImplementedError(f"{self.name} says that it has a decoder but defines none.")

    def _freeze(self) -> None:
        """Freeze the weights, choose the memory layout that is fastest on a CPU, and compute the fingerprint."""
        self.to(memory_format=torch.channels_last).eval().requires_grad_(False)
        digest = hashlib.sha256(self.name.encode())
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(f"{name}{tuple(tensor.shape)}".encode() + tensor.contiguous().numpy().tobytes())
        self.fingerprint = digest.hexdigest()


class Pixels(StyleEncoder):
    """The identity: three color channels, normalized by ImageNet's mean and std, as FedAlign shares them."""

    reentrant = True
    name, channels, stride, has_decoder = "pixels", 3, 1, True
    mean: Tensor
    std: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(_IMAGENET_MEAN).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(_IMAGENET_STD).view(3, 1, 1))
        self._freeze()

    def _features(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std

    def _images(self, features: Tensor) -> Tensor:
        return features * self.std + self.mean


class MiniStyle(StyleEncoder):
    """The bundled codec: 4-pixel cells, softplus channels, features scaled by a stored constant."""

    reentrant = True
    name = "mini"
    has_decoder = True
    scale: Tensor

    def __init__(self, encoder: Path, decoder: Path) -> None:
        """Read both safetensors files; their metadata holds the shape and the scale."""
        super().__init__()
        encoder_state, notes = _stored(encoder)
        shape = MiniShape(**json.loads(notes["shape"]))
        with torch.device("meta"):  # no draws from the global generator for weights that are replaced at once
            self.encoder, self.decoder = MiniEncoder(shape), MiniDecoder(shape)
        self.encoder.load_state_dict(encoder_state, assign=True)
        self.decoder.load_state_dict(_stored(decoder)[0], assign=True)
        self.channels, self.stride = shape.channels, shape.stride
        self.register_buffer("scale", torch.tensor(float(notes["scale"])))
        self._freeze()

    def _features(self, images: Tensor) -> Tensor:
        bottom, right = -images.shape[2] % self.stride, -images.shape[3] % self.stride
        if bottom or right:
            images = functional.pad(images, (0, right, 0, bottom), mode="replicate")
        features: Tensor = self.encoder(images.contiguous(memory_format=torch.channels_last))
        return features * self.scale

    def _images(self, features: Tensor) -> Tensor:
        image: Tensor = self.decoder((features / self.scale).contiguous(memory_format=torch.channels_last))
        return image


class AdaInVgg(StyleEncoder):
    """VGG-19 to ReLU 4_1 with the AdaIN decoder (Huang & Belongie 2017), under the published module numbers."""

    reentrant = draws_in_bfloat16 = True
    name, channels, stride, has_decoder = "vgg19", 512, 8, True

    def __init__(self, encoder: Mapping[str, Tensor], decoder: Mapping[str, Tensor]) -> None:
        """`encoder` may hold the whole 53-module file; only the first 31 modules are kept."""
        super().__init__()
        with torch.device("meta"):
            self.encoder, self.decoder = vgg_encoder(), vgg_decoder()
        kept = {name: tensor for name, tensor in encoder.items() if int(name.split(".")[0]) < len(self.encoder)}
        self.encoder.load_state_dict(_floats(kept), assign=True)
        self.decoder.load_state_dict(_floats(decoder), assign=True)
        self._freeze()

    def _features(self, images: Tensor) -> Tensor:
        features: Tensor = self.encoder(images.contiguous(memory_format=torch.channels_last))
        return features

    def _images(self, features: Tensor) -> Tensor:
        image: Tensor = self.decoder(features.contiguous(memory_format=torch.channels_last))
        return image


class AdaInVggBeforeReLU(AdaInVgg):
    """The same network without its last ReLU: the features whose statistics FISC's released code shares, no decoder.

    `mini` has no such variant, because its codec was trained on the outputs of its softplus."""

    name, has_decoder = "vgg19-pre-relu", False

    def _features(self, images: Tensor) -> Tensor:
        features: Tensor = self.encoder[:-1](images.contiguous(memory_format=torch.channels_last))
        return features


class Vgg16Hed(StyleEncoder):
    """VGG-16 to ReLU 4_1, after fine-tuning on edges as the trunk of HED (Xie & Tu, ICCV 2015), and a decoder of ours.

    Not VGG-19, and not AdaIN's normalized weights. Borders are reflected as in AdaIN's encoder; its own training padded
    them with zeros. docs/encoders.md says how the decoder was trained, and how good it is."""

    reentrant = draws_in_bfloat16 = True
    name, channels, stride, has_decoder = "vgg16-hed", 512, 8, True

    def __init__(self, encoder: Mapping[str, Tensor], decoder: Mapping[str, Tensor]) -> None:
        """`encoder` has the names of `vgg_encoder`, `decoder` those of `SmallVggDecoder`."""
        super().__init__()
        with torch.device("meta"):
            self.encoder = vgg_encoder(VGG16_WIDTHS)
            self.decoder = SmallVggDecoder()
        self.encoder.load_state_dict(_floats(encoder), assign=True)
        self.decoder.load_state_dict(_floats(decoder), assign=True)
        self._freeze()

    def _features(self, images: Tensor) -> Tensor:
        features: Tensor = self.encoder(images.contiguous(memory_format=torch.channels_last))
        return features

    def _images(self, features: Tensor) -> Tensor:
        image: Tensor = self.decoder(features.contiguous(memory_format=torch.channels_last))
        return image


class AdaInVggInBfloat16(AdaInVgg):
    """The same network with features in bfloat16, on every processor and in every plan: faster, where the processor has
    it.

    Styles are rounded then: docs/encoders.md says by how much. All parties must use the same encoder, and so must
    whoever attacks them, on the same kind of processor."""

    name = "vgg19-bfloat16"

    def _features(self, images: Tensor) -> Tensor:
        with autocast(images.device, BRAIN):
            return super()._features(images).float()


class Vgg16HedInBfloat16(Vgg16Hed):
    """`vgg16-hed` in bfloat16, likewise."""

    name = "vgg16-hed-bfloat16"

    def _features(self, images: Tensor) -> Tensor:
        with autocast(images.device, BRAIN):
            return super()._features(images).float()


class SqueezeStyle(StyleEncoder):
    """SqueezeNet 1.0 to fire5, with the ImageNet normalization inside: statistics, no decoder."""

    reentrant = True
    name, channels, stride, has_decoder = "squeezenet", 256, 8, False
    center: Tensor
    spread: Tensor

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        """`state` is torchvision's `squeezenet1_0`; layers after fire5 are ignored."""
        super().__init__()
        with torch.device("meta"):
            self.features = squeezenet_encoder()
        own = {name.removeprefix("features."): tensor for name, tensor in state.items() if name.startswith("features.")}
        kept = {name: tensor for name, tensor in own.items() if int(name.split(".")[0]) < len(self.features)}
        self.features.load_state_dict(_floats(kept), assign=True)
        self.register_buffer("center", torch.tensor(_IMAGENET_MEAN).view(1, 3, 1, 1))
        self.register_buffer("spread", torch.tensor(_IMAGENET_STD).view(1, 3, 1, 1))
        self._freeze()

    def _features(self, images: Tensor) -> Tensor:
        normal = ((images - self.center) / self.spread).contiguous(memory_format=torch.channels_last)
        features: Tensor = self.features(normal)
        return features


def encoder_names() -> tuple[str, ...]:
    """The bundled encoders, then those of plug-ins, which are called without arguments to make one."""
    return (*ENCODERS, *(name for name in plugins("encoders") if name not in ENCODERS))


def load_encoder(name: str, *, device: torch.device | str = "cpu") -> StyleEncoder:
    """Load the encoder called `name`, frozen and in eval mode, on `device`.

    Raises UsageError for an unknown name and WeightsUnavailableError where its weights have not been imported."""
    if name in ENCODERS:
        return _build(name).to(device)
    if name not in encoder_names():
        raise unknown_name("encoder", name, encoder_names())
    made = resolve("encoders", name)()
    if not isinstance(made, StyleEncoder) or made.name != name:
        raise UsageError(f"the encoder {name!r} of a plug-in must be a StyleEncoder of this name; it is {made!r}.")
    code = code_sha256(made)
    own = uuid4().hex if code is None else code
    made.fingerprint = hashlib.sha256(f"{made.fingerprint} {own}".encode()).hexdigest()
    return made.to(device)


def code_sha256(encoder: StyleEncoder) -> str | None:
    """The hash of the module that defines an encoder from elsewhere, a plug-in's: its weights do not tell its numbers.

    Empty for an encoder of fdgsec's networks, whose code has a hash of its own; None for a module without a source."""
    module = type(encoder).__module__
    if module.startswith("fdgsec.nn."):
        return ""
    try:
        source = inspect.getsource(sys.modules[module])
    except (OSError, TypeError, KeyError):
        return None
    return hashlib.sha256(f"{type(encoder).__qualname__} {source}".encode()).hexdigest()


def _build(name: str) -> StyleEncoder:
    if name == "mini":
        folder = files("fdgsec.nn.networks").joinpath("assets")
        with (
            as_file(folder.joinpath("mini_encoder.safetensors")) as encoder,
            as_file(folder.joinpath("mini_decoder.safetensors")) as decoder,
        ):
            return MiniStyle(encoder, decoder)
    if name == "pixels":
        return Pixels()
    from fdgsec.nn.networks.weights import load_state

    if name == SqueezeStyle.name:
        return SqueezeStyle(load_state("squeezenet1_0"))
    if name.startswith(Vgg16Hed.name):
        of_hed = Vgg16Hed if name == Vgg16Hed.name else Vgg16HedInBfloat16
        return of_hed(load_state("vgg16_hed"), _vgg16_hed_decoder())
    of_adain = {kind.name: kind for kind in (AdaInVgg, AdaInVggBeforeReLU, AdaInVggInBfloat16)}[name]
    return of_adain(load_state("adain_vgg"), load_state("adain_decoder"))


def _vgg16_hed_decoder() -> Mapping[str, Tensor]:
    """The decoder that the user stored, else the bundled one."""
    from fdgsec.nn.networks.weights import load_state, stored

    if stored("vgg16_hed_decoder"):
        return load_state("vgg16_hed_decoder")
    with as_file(files("fdgsec.nn.networks").joinpath("assets", "vgg16_hed_decoder.safetensors")) as bundled:
        return load_state("vgg16_hed_decoder", path=bundled)


def _stored(path: Path) -> tuple[dict[str, Tensor], Mapping[str, str]]:
    """Read a safetensors file as fp32, with its metadata."""
    with safe_open(path, framework="pt") as stored:
        names: list[str] = list(stored.keys())
        tensors: dict[str, Tensor] = {name: stored.get_tensor(name) for name in names}
        notes: Mapping[str, str] = stored.metadata() or {}
    return _floats(tensors), notes


def _floats(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.to(torch.float32) for name, tensor in state.items()}
