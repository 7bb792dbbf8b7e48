"""Similarity of image pairs: MSE, PSNR, SSIM and perceptual distances, one value per pair, never per batch.

Images are (N, 3, H, W) floating tensors in [0, 1]; all functions are differentiable in both and stay on their device.
PSNR and SSIM reward blur: compare them with `mean_image`, which scores high without any knowledge of the image. Never
evaluate a reconstruction with the distance that it was optimized for."""

import math
import warnings
from collections.abc import Mapping
from typing import Literal, Protocol, cast, runtime_checkable

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn import functional as F

from fdgsec.nn.training.precision import FLOAT, Precision, autocast

PSNR_CEILING = 100.0  # dB, at an MSE of 1e-10: the value for identical images, instead of infinity
SSIM_WINDOW, SSIM_SIGMA = 11, 1.5
SSIM_C1, SSIM_C2 = 0.01**2, 0.03**2
LPIPS_LEAST_SIDE = 64  # pixels; LPIPS was calibrated on 64 x 64 patches
Backbone = Literal["alex", "vgg", "squeeze"]
WEIGHTS_OF: Mapping[Backbone, str] = {"alex": "alexnet", "vgg": "vgg16", "squeeze": "squeezenet1_1"}
_RANGE_SLACK = 1e-5  # interpolation in float32 may overshoot by rounding


def mse(first: Tensor, second: Tensor) -> Tensor:
    """Average the squared difference over the pixels and channels of each pair: (N,)."""
    _check_pair(first, second)
    return (first - second).square().flatten(1).mean(1)


def psnr(first: Tensor, second: Tensor) -> Tensor:
    """Give each pair's peak signal-to-noise ratio in dB for data range 1: (N,), at most 100 (`PSNR_CEILING`).

    Average these values, not the MSE of a batch, so that no single reconstruction dominates."""
    return -10 * mse(first, second).clamp_min(10 ** (-PSNR_CEILING / 10)).log10()


def ssim(first: Tensor, second: Tensor) -> Tensor:
    """Give each pair's structural similarity (Wang et al. 2004: Gaussian window 11, sigma 1.5, data range 1): (N,).

    As in torchmetrics 1.9, windows at the edge use the reflected image, and the whole map is averaged. The window is a
    product of two, one for each side, and each is a matrix product here: 10 times fewer operations than a convolution
    by its 121 weights. Raises ValueError for a side under 11 pixels."""
    _check_pair(first, second)
    if min(first.shape[-2:]) < SSIM_WINDOW:
        raise ValueError(f"SSIM needs images of at least {SSIM_WINDOW} px a side; got {tuple(first.shape)}.")
    rows, columns = (_window(side).to(first) for side in first.shape[-2:])
    products = torch.stack([first, second, first.square(), second.square(), first * second])
    one, other, one_square, other_square, both = rows @ products @ columns.T
    variances = (one_square - one.square()).clamp_min(0) + (other_square - other.square()).clamp_min(0)
    means = one.square() + other.square()
    alike = (2 * one * other + SSIM_C1) * (2 * (both - one * other) + SSIM_C2)
    similar: Tensor = alike / ((means + SSIM_C1) * (variances + SSIM_C2))
    return similar.flatten(1).mean(1)


def _window(side: int) -> Tensor:
    """The matrix (side, side) that averages each position with its neighbors, reflected at the edge, as SSIM does."""
    apart = torch.arange(SSIM_WINDOW) - SSIM_WINDOW // 2
    weight = (-(apart / SSIM_SIGMA).square() / 2).exp()
    near = side - 1 - (side - 1 - (torch.arange(side)[:, None] + apart).abs()).abs()
    return torch.zeros(side, side).scatter_add_(1, near, (weight / weight.sum()).expand(side, -1))


class PerceptualDistance(Protocol):
    """A distance between the network features of two images: 0 for identical ones, differentiable, (N,) per pair."""

    @property
    def name(self) -> str:
        """Name of the measurement in the report."""
        ...

    def __call__(self, first: Tensor, second: Tensor) -> Tensor:
        """Compute the distance of each pair: (N,)."""
        ...


@runtime_checkable
class EmbeddingDistance(Protocol):
    """A perceptual distance that is a squared Euclidean distance of embeddings: one network pass per image."""

    def embed(self, images: Tensor) -> Tensor:
        """Embed images as points (N, D) whose squared distances are the perceptual ones."""
        ...


class FeatureEncoder(Protocol):
    """An encoder of images (N, 3, H, W) in [0, 1] as a feature map (N, C, h, w)."""

    @property
    def name(self) -> str:
        """Name of the encoder."""
        ...

    def encode(self, images: Tensor) -> Tensor:
        """Compute the features (N, C, h, w)."""
        ...


@runtime_checkable
class StagedEncoder(Protocol):
    """An encoder that also gives its intermediate feature maps."""

    def stages(self, images: Tensor) -> list[Tensor]:
        """Compute the feature maps (N, C_i, h_i, w_i), shallow first."""
        ...


class PerceptualEncoder:
    """LPIPS without learned weights (Zhang et al. 2018), on the features of any encoder.

    At each position features are scaled to unit length over channels. The squared difference is summed over channels
    and averaged over positions, then over the encoder's stages where it has any. Lies in [0, 4]; not comparable between
    encoders, nor with LPIPS. `precision` is the encoder's number format: float32, unless it is given for a loss."""

    def __init__(self, encoder: FeatureEncoder, *, precision: Precision = FLOAT) -> None:
        self._encoder = encoder
        self._precision = precision

    @property
    def name(self) -> str:
        """`perceptual_<encoder>`."""
        return f"perceptual_{self._encoder.name}"

    def __call__(self, first: Tensor, second: Tensor) -> Tensor:
        """Compute the distance of each pair: (N,)."""
        _check_pair(first, second)
        pairs = zip(self._features(first), self._features(second), strict=True)
        return torch.stack([_unit_distance(one, other) for one, other in pairs]).mean(0)

    def embed(self, images: Tensor) -> Tensor:
        """Embed images as points (N, D) whose squared Euclidean distances are the distances of the images."""
        check_images(images, "images")
        maps = self._features(images)
        units = [F.normalize(part, dim=1, eps=1e-10).flatten(1) / math.sqrt(part[0, 0].numel()) for part in maps]
        return torch.cat(units, dim=1) / math.sqrt(len(maps))

    def _features(self, images: Tensor) -> list[Tensor]:
        with autocast(images.device, self._precision):
            if isinstance(self._encoder, StagedEncoder):
                maps = self._encoder.stages(images)
            else:
                maps = [self._encoder.encode(images)]
        return [part.float() for part in maps]


class LpipsDistance:
    """LPIPS v0.1 (Zhang et al. 2018): heads of the lpips package on a stored ImageNet backbone, without a download.

    Raises WeightsUnavailableError where the backbone (`WEIGHTS_OF`) is not stored. float32, on the device of its input.
    """

    def __init__(self, net: Backbone) -> None:
        from fdgsec.nn.networks.weights import load_state

        self._set(net, load_state(WEIGHTS_OF[net]))

    @classmethod
    def from_backbone(cls, net: Backbone, state: Mapping[str, Tensor]) -> "LpipsDistance":
        """Use the backbone weights in `state` (torchvision's names) instead of the stored ones."""
        distance = cls.__new__(cls)
        distance._set(net, state)
        return distance

    def _set(self, net: Backbone, state: Mapping[str, Tensor]) -> None:
        self._net: Backbone = net
        self._network = _lpips_network(net, state)

    @property
    def name(self) -> str:
        """`lpips_<net>`."""
        return f"lpips_{self._net}"

    def __call__(self, first: Tensor, second: Tensor) -> Tensor:
        """Compute the distance of each pair: (N,). Raises ValueError for a side under 64 pixels."""
        _check_pair(first, second)
        if min(first.shape[-2:]) < LPIPS_LEAST_SIDE:
            raise ValueError(
                f"LPIPS needs images of at least {LPIPS_LEAST_SIDE} px a side; got {tuple(first.shape)}: "
                "enlarge both first."
            )
        network = self._network.to(first.device)
        distance = cast(Tensor, network(first.float(), second.float(), normalize=True))
        return distance.flatten()


def perceptual_named(name: str) -> PerceptualDistance:
    """Make LPIPS by its name, `lpips_alex`, `lpips_squeeze` or `lpips_vgg`.

    Raises ValueError for an unknown name, WeightsUnavailableError where its weights are not stored."""
    nets: Mapping[str, Backbone] = {f"lpips_{net}": net for net in WEIGHTS_OF}
    if name not in nets:
        raise ValueError(f"perceptual distances by name are {', '.join(nets)}; got {name!r}.")
    return LpipsDistance(nets[name])


def check_images(images: Tensor, name: str) -> None:
    """Raise ValueError, naming `name`, unless `images` is floating (N >= 1, 3, H, W), finite and in [0, 1]."""
    if images.ndim != 4 or images.shape[1] != 3 or not images.numel():
        raise ValueError(f"{name} must be (N, 3, H, W) with N >= 1; got {tuple(images.shape)}.")
    if not images.is_floating_point():
        raise ValueError(f"{name} must be floating point in [0, 1]; got {images.dtype}: divide bytes by 255.")
    low, high = (float(end) for end in images.detach().aminmax())
    if math.isnan(low) or math.isnan(high):
        raise ValueError(f"{name} must be free of NaN; {int(images.isnan().sum())} values are NaN.")
    if low < -_RANGE_SLACK or high > 1 + _RANGE_SLACK:
        raise ValueError(f"{name} must lie in [0, 1]; got {low:.6g}..{high:.6g}: undo any normalization first.")


def _check_pair(first: Tensor, second: Tensor) -> None:
    check_images(first, "first")
    check_images(second, "second")
    if first.shape != second.shape:
        raise ValueError(f"first and second must be equally shaped; got {tuple(first.shape)}, {tuple(second.shape)}.")


def _unit_distance(first: Tensor, second: Tensor) -> Tensor:
    """Sum over channels, and average over positions, the squared difference of unit feature vectors: (N,)."""
    gap = F.normalize(first, dim=1, eps=1e-10) - F.normalize(second, dim=1, eps=1e-10)
    return gap.square().sum(1).flatten(1).mean(1)


def _lpips_network(net: Backbone, state: Mapping[str, Tensor]) -> Module:
    """Build the lpips package's network with its own heads, and load `state` as its backbone.

    The lpips package calls torchvision with arguments that have since been deprecated, initializes the backbone from
    the global generator, and reads its heads itself. The warnings and the use of the generator are hidden from the
    caller."""
    import lpips

    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.filterwarnings("ignore", category=UserWarning, module="torchvision")
        network = cast(Module, lpips.LPIPS(net=net, pnet_rand=True, pretrained=True, verbose=False))
    backbone = network.get_submodule("net")
    # lpips renames torchvision's `features.7.weight` to `slice3.7.weight`.
    names = {key: "features." + key.split(".", 1)[1] for key in backbone.state_dict()}
    missing = sorted(set(names.values()) - set(state))
    if missing:
        raise ValueError(
            f"state is not that of {WEIGHTS_OF[net]}: {len(missing)} tensors are missing, first {missing[0]}."
        )
    backbone.load_state_dict({key: state[name] for key, name in names.items()})
    return network.requires_grad_(False).eval()
