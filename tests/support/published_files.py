"""Keys and shapes of the published weight files, written out from what their authors publish, not from our networks.

AdaIN: net.py of naoto0804/pytorch-AdaIN (module numbers). AlexNet, VGG-16, SqueezeNet 1.1: torchvision's printed modules.
Inception: TensorFlow's 2015-12-05 graph under torchvision's names (Szegedy et al. 2015, table 1), 1008 classes, saved
before BatchNorm counted its batches."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fdgsec.runtime.random_streams import stream

Shapes = dict[str, tuple[int, ...]]
Kernels = Mapping[str, tuple[int, ...]]


def with_biases(weights: Kernels) -> Shapes:
    """Give each layer its weight and a bias of as many numbers as it has outputs."""
    return {
        key: shape for name, w in weights.items() for key, shape in ((f"{name}.weight", w), (f"{name}.bias", w[:1]))
    }


ADAIN_VGG = with_biases({
    "0": (3, 3, 1, 1),
    "2": (64, 3, 3, 3), "5": (64, 64, 3, 3),
    "9": (128, 64, 3, 3), "12": (128, 128, 3, 3),
    "16": (256, 128, 3, 3), "19": (256, 256, 3, 3), "22": (256, 256, 3, 3), "25": (256, 256, 3, 3),
    "29": (512, 256, 3, 3), "32": (512, 512, 3, 3), "35": (512, 512, 3, 3), "38": (512, 512, 3, 3),
    "42": (512, 512, 3, 3), "45": (512, 512, 3, 3), "48": (512, 512, 3, 3), "51": (512, 512, 3, 3),
})  # fmt: skip

ADAIN_DECODER = with_biases({
    "1": (256, 512, 3, 3),
    "5": (256, 256, 3, 3), "8": (256, 256, 3, 3), "11": (256, 256, 3, 3), "14": (128, 256, 3, 3),
    "18": (128, 128, 3, 3), "21": (64, 128, 3, 3),
    "25": (64, 64, 3, 3), "28": (3, 64, 3, 3),
})  # fmt: skip

ALEXNET = with_biases({
    "features.0": (64, 3, 11, 11), "features.3": (192, 64, 5, 5), "features.6": (384, 192, 3, 3),
    "features.8": (256, 384, 3, 3), "features.10": (256, 256, 3, 3),
    "classifier.1": (4096, 9216), "classifier.4": (4096, 4096), "classifier.6": (1000, 4096),
})  # fmt: skip

VGG16 = with_biases({
    "features.0": (64, 3, 3, 3), "features.2": (64, 64, 3, 3),
    "features.5": (128, 64, 3, 3), "features.7": (128, 128, 3, 3),
    "features.10": (256, 128, 3, 3), "features.12": (256, 256, 3, 3), "features.14": (256, 256, 3, 3),
    "features.17": (512, 256, 3, 3), "features.19": (512, 512, 3, 3), "features.21": (512, 512, 3, 3),
    "features.24": (512, 512, 3, 3), "features.26": (512, 512, 3, 3), "features.28": (512, 512, 3, 3),
    "classifier.0": (4096, 25088), "classifier.3": (4096, 4096), "classifier.6": (1000, 4096),
})  # fmt: skip


def fire(number: int, inputs: int, squeeze: int, expand: int) -> Kernels:
    """List SqueezeNet's fire module: `squeeze` 1x1 kernels, then `expand` 1x1 and as many 3x3 ones beside each other."""
    return {
        f"features.{number}.squeeze": (squeeze, inputs, 1, 1),
        f"features.{number}.expand1x1": (expand, squeeze, 1, 1),
        f"features.{number}.expand3x3": (expand, squeeze, 3, 3),
    }


SQUEEZENET1_1 = with_biases({
    "features.0": (64, 3, 3, 3),
    **fire(3, 64, 16, 64), **fire(4, 128, 16, 64),
    **fire(6, 128, 32, 128), **fire(7, 256, 32, 128),
    **fire(9, 256, 48, 192), **fire(10, 384, 48, 192), **fire(11, 384, 64, 256), **fire(12, 512, 64, 256),
    "classifier.1": (1000, 512, 1, 1),
})  # fmt: skip


def inception_a(name: str, inputs: int, pool: int) -> Kernels:
    """List a 35 x 35 module of Inception."""
    return {
        f"{name}.branch1x1": (64, inputs, 1, 1),
        f"{name}.branch5x5_1": (48, inputs, 1, 1), f"{name}.branch5x5_2": (64, 48, 5, 5),
        f"{name}.branch3x3dbl_1": (64, inputs, 1, 1), f"{name}.branch3x3dbl_2": (96, 64, 3, 3),
        f"{name}.branch3x3dbl_3": (96, 96, 3, 3),
        f"{name}.branch_pool": (pool, inputs, 1, 1),
    }  # fmt: skip


def inception_c(name: str, width: int) -> Kernels:
    """List a 17 x 17 module of Inception, whose 7 x 7 kernels are split into rows and columns."""
    return {
        f"{name}.branch1x1": (192, 768, 1, 1),
        f"{name}.branch7x7_1": (width, 768, 1, 1), f"{name}.branch7x7_2": (width, width, 1, 7),
        f"{name}.branch7x7_3": (192, width, 7, 1),
        f"{name}.branch7x7dbl_1": (width, 768, 1, 1), f"{name}.branch7x7dbl_2": (width, width, 7, 1),
        f"{name}.branch7x7dbl_3": (width, width, 1, 7), f"{name}.branch7x7dbl_4": (width, width, 7, 1),
        f"{name}.branch7x7dbl_5": (192, width, 1, 7),
        f"{name}.branch_pool": (192, 768, 1, 1),
    }  # fmt: skip


def inception_e(name: str, inputs: int) -> Kernels:
    """List an 8 x 8 module of Inception."""
    return {
        f"{name}.branch1x1": (320, inputs, 1, 1),
        f"{name}.branch3x3_1": (384, inputs, 1, 1),
        f"{name}.branch3x3_2a": (384, 384, 1, 3), f"{name}.branch3x3_2b": (384, 384, 3, 1),
        f"{name}.branch3x3dbl_1": (448, inputs, 1, 1), f"{name}.branch3x3dbl_2": (384, 448, 3, 3),
        f"{name}.branch3x3dbl_3a": (384, 384, 1, 3), f"{name}.branch3x3dbl_3b": (384, 384, 3, 1),
        f"{name}.branch_pool": (192, inputs, 1, 1),
    }  # fmt: skip


INCEPTION_KERNELS: Kernels = {
    "Conv2d_1a_3x3": (32, 3, 3, 3), "Conv2d_2a_3x3": (32, 32, 3, 3), "Conv2d_2b_3x3": (64, 32, 3, 3),
    "Conv2d_3b_1x1": (80, 64, 1, 1), "Conv2d_4a_3x3": (192, 80, 3, 3),
    **inception_a("Mixed_5b", 192, 32), **inception_a("Mixed_5c", 256, 64), **inception_a("Mixed_5d", 288, 64),
    "Mixed_6a.branch3x3": (384, 288, 3, 3), "Mixed_6a.branch3x3dbl_1": (64, 288, 1, 1),
    "Mixed_6a.branch3x3dbl_2": (96, 64, 3, 3), "Mixed_6a.branch3x3dbl_3": (96, 96, 3, 3),
    **inception_c("Mixed_6b", 128), **inception_c("Mixed_6c", 160),
    **inception_c("Mixed_6d", 160), **inception_c("Mixed_6e", 192),
    "Mixed_7a.branch3x3_1": (192, 768, 1, 1), "Mixed_7a.branch3x3_2": (320, 192, 3, 3),
    "Mixed_7a.branch7x7x3_1": (192, 768, 1, 1), "Mixed_7a.branch7x7x3_2": (192, 192, 1, 7),
    "Mixed_7a.branch7x7x3_3": (192, 192, 7, 1), "Mixed_7a.branch7x7x3_4": (192, 192, 3, 3),
    **inception_e("Mixed_7b", 1280), **inception_e("Mixed_7c", 2048),
}  # fmt: skip
NORM = ("weight", "bias", "running_mean", "running_var")
INCEPTION: Shapes = {
    **{f"{name}.conv.weight": shape for name, shape in INCEPTION_KERNELS.items()},
    **{f"{name}.bn.{part}": shape[:1] for name, shape in INCEPTION_KERNELS.items() for part in NORM},
    "fc.weight": (1008, 2048),
    "fc.bias": (1008,),
}

FILES: Mapping[str, Shapes] = {
    "adain_vgg": ADAIN_VGG,
    "adain_decoder": ADAIN_DECODER,
    "alexnet": ALEXNET,
    "vgg16": VGG16,
    "squeezenet1_1": SQUEEZENET1_1,
    "inception_fid": INCEPTION,
}


def seeded_state(name: str, *, without: str = "nothing") -> dict[str, Tensor]:
    """Draw tensors of these keys and shapes that keep activations near unit size; variances lie in [0.5, 1.5].

    Keys that begin with `without` are left out."""
    rng = stream(0, "world", "published file", name)
    state = {}
    for key, shape in FILES[name].items():
        if key.startswith(without):
            continue
        if key.endswith("running_var"):
            state[key] = 0.5 + torch.rand(shape, generator=rng)
        elif key.endswith("bn.weight"):
            state[key] = 1 + 0.2 * torch.randn(shape, generator=rng)
        else:
            spread = 0.1 if len(shape) == 1 else math.sqrt(2 / math.prod(shape[1:]))
            state[key] = spread * torch.randn(shape, generator=rng)
    return state
