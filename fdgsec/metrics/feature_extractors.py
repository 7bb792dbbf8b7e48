"""Feature extractors by name, for distances between distributions of images; none is downloaded implicitly.

`inception` is the network that FID, KID and the inception score are defined with (Heusel et al. 2017, Binkowski et al.
2018, Salimans et al. 2016), in pytorch-fid's own blocks on stored weights. Distances on any other extractor are other
quantities and carry its name: `frechet_mini`, `kernel_squeezenet`."""

import hashlib
import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from fdgsec.metrics.image_similarity import check_images
from fdgsec.nn.networks import weights
from fdgsec.nn.networks.classifiers import BACKBONES, Classifier, build_classifier
from fdgsec.nn.networks.efficientnet_lite import CLASSES, FEATURES, SIDE, EfficientNetLite0
from fdgsec.nn.networks.inception import inception_fid
from fdgsec.nn.styles.encoders import ENCODERS, StyleEncoder, encoder_names, load_encoder
from fdgsec.runtime.errors import UsageError, unknown_name
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.threads import side_by_side

INCEPTION = "inception"
INCEPTION_SIDE = 299  # pixels to which every input is resized
LITE = "efficientnet_lite0"
IN_CACHE = 4  # images whose maps at 224 px stay in a CPU's caches: 2 to 4 take .6 of the time of 16
MOST_AT_ONCE = 8  # such passes at once
MOST_KEPT = 16_384  # images whose features a process keeps: 84 MB
EXTRACTORS: tuple[str, ...] = (
    INCEPTION, LITE, *ENCODERS, *(name for name in BACKBONES if name in weights.CATALOG and name != LITE)
)  # fmt: skip
Device = torch.device | str
_KEPT: OrderedDict[tuple[str, bytes], Tensor] = OrderedDict()  # memo: (fingerprint, image) -> features, oldest first


@dataclass(frozen=True, kw_only=True, eq=False)
class ExtractedFeatures:
    """Output of an extractor for N images: features (N, D) and, where it classifies, logits (N, K); float32."""

    features: Tensor
    logits: Tensor | None = None


class Extractor(ABC):
    """A frozen network from images (N, 3, H, W) in [0, 1] to one vector per image.

    `dimension` is D, `classes` K (None: it gives no logits), `fingerprint` the SHA-256 of the weights and of how they
    are used: the cache key. Input may be on any device; results lie on the extractor's own."""

    name: str
    dimension: int
    classes: int | None
    fingerprint: str
    device: torch.device

    def extract(self, images: Tensor) -> ExtractedFeatures:
        """Compute features and logits in one pass. Raises ValueError for anything but finite floats in [0, 1]."""
        check_images(images, "images")
        with torch.no_grad():
            return self._extract(images.to(self.device, torch.float32))

    def features(self, images: Tensor) -> Tensor:
        """Compute the features, (N, D) float32."""
        return self.extract(images).features

    def logits(self, images: Tensor) -> Tensor:
        """Compute the logits, (N, K) float32. Raises UsageError where this extractor does not classify."""
        found = self.extract(images).logits
        if found is None:
            raise UsageError(f"{self.name} gives features only; the inception score needs {INCEPTION}.")
        return found

    @abstractmethod
    def _extract(self, images: Tensor) -> ExtractedFeatures:
        """Extract from checked float32 images on the extractor's device."""


class InceptionExtractor(Extractor):
    """The Inception v3 of FID: 2048 pool features and 1008 logits; images resized and scaled as pytorch-fid does.

    That is bilinear to 299 px without antialiasing or alignment of corners, then [-1, 1]. The logits leave out the bias
    of the last layer, as in the code of the inception score's authors."""

    dimension, classes = 2048, 1008

    def __init__(self, state: Mapping[str, Tensor], *, name: str, device: Device = "cpu") -> None:
        """`state` has the keys of the published file; only its weights may be named `inception` (see `stored`)."""
        self.name, self.device = name, torch.device(device)
        with torch.device("meta"):
            network = inception_fid()
        network.load_state_dict(state, assign=True)
        head = network.get_submodule("fc").get_parameter("weight").detach()
        network.fc = nn.Identity()  # torchvision's forward then ends at the pool features
        self.network = _frozen(network, self.device)
        self._head = head.to(self.device)
        self.fingerprint = _fingerprint(
            "299 bilinear, pool3, logits without bias", {**network.state_dict(), "fc": head}
        )

    @classmethod
    def stored(cls, *, device: Device = "cpu") -> "InceptionExtractor":
        """Use the stored `inception_fid` weights.

        They are named `inception` if they are the published file, else by their hash, so that distances are called
        `frechet_inception_<hash>` and never FID. Raises WeightsUnavailableError where none are stored."""
        record = weights.record("inception_fid")
        name = INCEPTION if record.official else f"{INCEPTION}_{record.sha256[:8]}"
        return cls(weights.load_state("inception_fid"), name=name, device=device)

    def _extract(self, images: Tensor) -> ExtractedFeatures:
        side = (INCEPTION_SIDE, INCEPTION_SIDE)
        enlarged = functional.interpolate(
            images.contiguous(memory_format=torch.channels_last), size=side, mode="bilinear", align_corners=False
        )
        features: Tensor = self.network(enlarged.mul_(2).sub_(1))
        return ExtractedFeatures(features=features, logits=features @ self._head.T)


class LiteExtractor(Extractor):
    """EfficientNet-Lite0: 1280 pooled features and 1000 logits of ImageNet-1k; images enlarged to 224 px (bicubic).

    No encoder, backbone or attack of fdgsec uses it, so that pictures are not judged by a network that was attacked. On
    a CPU the same picture is computed once in a process: one picture is judged as one of several sets, as another
    row's control and by its class. A picture's features do not depend on those beside it, bit for bit, because all
    passes have the same shape."""

    dimension, classes = FEATURES, CLASSES

    def __init__(self, state: Mapping[str, Tensor], *, name: str, device: Device = "cpu") -> None:
        """`state` has the keys of `EfficientNetLite0`; `name` identifies the weights."""
        self.name, self.device = name, torch.device(device)
        with torch.device("meta"):
            network = EfficientNetLite0()
        network.load_state_dict(state, assign=True)
        self.fingerprint = _fingerprint(f"{SIDE} bicubic, pooled features, folded", network.state_dict())
        self._network = network.folded()
        _frozen(self._network, self.device)

    @classmethod
    def stored(cls, *, device: Device = "cpu") -> "LiteExtractor":
        """Use the stored weights; others than the published ones have their hash in the name.

        Raises WeightsUnavailableError where none are stored."""
        record = weights.record(LITE)
        name = LITE if record.official else f"{LITE}_{record.sha256[:8]}"
        return cls(weights.load_state(LITE), name=name, device=device)

    def _extract(self, images: Tensor) -> ExtractedFeatures:
        features = self._kept_features(images) if self.device.type == "cpu" else self._features_of(images)
        return ExtractedFeatures(features=features, logits=self._network.fc(features))

    def _kept_features(self, images: Tensor) -> Tensor:
        """The features of each image, from those that are kept where they have it; threads change their last bits."""
        made_by = f"{self.fingerprint} {torch.get_num_threads()} {tuple(images.shape[1:])}"
        keys = [(made_by, hashlib.sha256(image.contiguous().numpy().data).digest()) for image in images]
        places = {key: place for place, key in enumerate(keys) if key not in _KEPT}
        found = {key: _KEPT[key] for key in keys if key in _KEPT}
        lacking = torch.tensor(list(places.values()), dtype=torch.int64)
        parts = lacking.split(IN_CACHE) if places else ()

        def features_of(part: Tensor) -> Tensor:
            filled = torch.cat([part, part[-1:].expand(IN_CACHE - len(part))])
            with torch.no_grad():  # which every thread says for itself
                return self._features_of(images[filled])

        for part, features in zip(parts, side_by_side(features_of, parts, most=MOST_AT_ONCE), strict=True):
            found.update({keys[place]: row.clone() for place, row in zip(part.tolist(), features, strict=False)})
        for key in keys:
            _KEPT[key] = found[key]
            _KEPT.move_to_end(key)
        while len(_KEPT) > MOST_KEPT:
            _KEPT.popitem(last=False)
        return torch.stack([found[key] for key in keys])

    def _features_of(self, images: Tensor) -> Tensor:
        sized = functional.interpolate(images, size=(SIDE, SIDE), mode="bicubic", antialias=True, align_corners=False)
        scaled = ((sized.clamp(0, 1) * 255 - 127) / 128).contiguous(memory_format=torch.channels_last)
        return self._network.features(scaled)


class EncoderExtractor(Extractor):
    """A style encoder's features: unit length at each position (times root D), averaged over positions; D its channels.

    Features have unit length, as in LPIPS, because encoders differ in scale by orders of magnitude. Without it the
    kernel distance, which is cubic in the features, would depend on the strongest channel only."""

    classes = None

    def __init__(self, encoder: StyleEncoder) -> None:
        """The device is that of `encoder`."""
        self.name, self.dimension = encoder.name, encoder.channels
        self.device = encoder.device
        self.fingerprint = _fingerprint(f"spatial mean of unit features of {encoder.fingerprint}", {})
        self._encoder = encoder

    def _extract(self, images: Tensor) -> ExtractedFeatures:
        cells = self._encoder.encode(images).permute(0, 2, 3, 1).flatten(1, 2)  # (N, hw, D), without a copy
        lengths: Tensor = torch.linalg.vector_norm(cells, dim=2, keepdim=True)
        weights_of_cells = math.sqrt(self.dimension) / (cells.shape[1] * lengths.clamp_min(1e-10))
        return ExtractedFeatures(features=(weights_of_cells.transpose(1, 2) @ cells).squeeze(1))


class BackboneExtractor(Extractor):
    """The penultimate features of a classifier, at the resolution of the images."""

    classes = None

    def __init__(self, classifier: Classifier, *, name: str, device: Device = "cpu") -> None:
        """`name` identifies the weights; the head is not used. The classifier is frozen and moved to `device`."""
        self.name, self.dimension, self.device = name, classifier.features_width, torch.device(device)
        used = {key: tensor for key, tensor in classifier.state_dict().items() if not key.startswith("head.")}
        self.fingerprint = _fingerprint(f"penultimate features of {classifier.backbone}, {classifier.norm} norm", used)
        _frozen(classifier, self.device)
        self._classifier = classifier

    def _extract(self, images: Tensor) -> ExtractedFeatures:
        return ExtractedFeatures(
            features=self._classifier.features(images.contiguous(memory_format=torch.channels_last))
        )


def extractor_named(name: str, *, device: Device = "cpu") -> Extractor:
    """Make the extractor called `name` (`EXTRACTORS`), on `device`.

    Raises UsageError for an unknown name, WeightsUnavailableError where its weights are not stored."""
    known = (*EXTRACTORS, *(one for one in encoder_names() if one not in EXTRACTORS))
    if name not in known:
        raise unknown_name("extractor", name, known)
    if name == INCEPTION:
        return InceptionExtractor.stored(device=device)
    if name == LITE:
        return LiteExtractor.stored(device=device)
    if name in encoder_names():
        return EncoderExtractor(load_encoder(name, device=device))
    # the one-class head is never used
    classifier = build_classifier(name, 1, pretrained=True, rng=stream(0, "world", "extractor", name))
    return BackboneExtractor(classifier, name=name, device=device)


def _frozen(network: nn.Module, device: torch.device) -> nn.Module:
    """Freeze the weights, in the memory layout that is fastest for convolutions."""
    return network.to(device).to(memory_format=torch.channels_last).eval().requires_grad_(False)


def _fingerprint(use: str, state: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(use.encode())
    for key, tensor in sorted(state.items()):
        digest.update(f"{key}{tuple(tensor.shape)}".encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
