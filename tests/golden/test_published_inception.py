"""The Inception v3 of FID, against a transcription that shares no code with it.

FID and the inception score are defined by TensorFlow's graph of 2015-12-05, whose pools differ from those of the paper
(Szegedy et al. 2015): an average counts only pixels of the image, and the last module takes a maximum."""

from collections.abc import Callable, Mapping
from functools import cache

import pytest
import torch
from pytorch_fid import inception
from torch import Tensor
from torch.nn import functional as F

from fdgsec.metrics.feature_extractors import InceptionExtractor
from fdgsec.runtime.random_streams import stream
from tests.support.published_files import seeded_state

State = Mapping[str, Tensor]
Network = Callable[[Tensor], tuple[Tensor, Tensor]]  # images in [0, 1] -> (N, 2048) features, (N, 1008) logits


def unit(state: State, name: str, x: Tensor, *, stride: int = 1, padding: int | tuple[int, int] = 0) -> Tensor:
    """Convolve, normalize with the stored statistics (eps 1e-3), rectify."""
    mean, variance, weight, bias = (
        state[f"{name}.bn.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
    )
    x = F.conv2d(x, state[f"{name}.conv.weight"], stride=stride, padding=padding)
    scale = weight / (variance + 1e-3).sqrt()
    return F.relu(x * scale.view(1, -1, 1, 1) + (bias - mean * scale).view(1, -1, 1, 1))


def average(x: Tensor) -> Tensor:
    """Average 3 x 3 neighbors, at the edge only those inside."""
    inside = torch.ones(1, 1, 3, 3)
    sums = F.conv2d(x.flatten(0, 1)[:, None], inside, padding=1)
    counts = F.conv2d(torch.ones(1, 1, *x.shape[2:]), inside, padding=1)
    return (sums / counts).reshape(x.shape)


def module_a(state: State, name: str, x: Tensor) -> Tensor:
    five = unit(state, f"{name}.branch5x5_2", unit(state, f"{name}.branch5x5_1", x), padding=2)
    three = unit(state, f"{name}.branch3x3dbl_2", unit(state, f"{name}.branch3x3dbl_1", x), padding=1)
    three = unit(state, f"{name}.branch3x3dbl_3", three, padding=1)
    pooled = unit(state, f"{name}.branch_pool", average(x))
    return torch.cat([unit(state, f"{name}.branch1x1", x), five, three, pooled], 1)


def module_b(state: State, name: str, x: Tensor) -> Tensor:
    double = unit(state, f"{name}.branch3x3dbl_2", unit(state, f"{name}.branch3x3dbl_1", x), padding=1)
    double = unit(state, f"{name}.branch3x3dbl_3", double, stride=2)
    return torch.cat([unit(state, f"{name}.branch3x3", x, stride=2), double, F.max_pool2d(x, 3, 2)], 1)


ROW, COLUMN = (0, 3), (3, 0)  # the padding of 1 x 7 and 7 x 1


def module_c(state: State, name: str, x: Tensor) -> Tensor:
    seven = unit(state, f"{name}.branch7x7_2", unit(state, f"{name}.branch7x7_1", x), padding=ROW)
    seven = unit(state, f"{name}.branch7x7_3", seven, padding=COLUMN)
    double = unit(state, f"{name}.branch7x7dbl_1", x)
    for number, padding in ((2, COLUMN), (3, ROW), (4, COLUMN), (5, ROW)):
        double = unit(state, f"{name}.branch7x7dbl_{number}", double, padding=padding)
    pooled = unit(state, f"{name}.branch_pool", average(x))
    return torch.cat([unit(state, f"{name}.branch1x1", x), seven, double, pooled], 1)


def module_d(state: State, name: str, x: Tensor) -> Tensor:
    three = unit(state, f"{name}.branch3x3_2", unit(state, f"{name}.branch3x3_1", x), stride=2)
    seven = unit(state, f"{name}.branch7x7x3_2", unit(state, f"{name}.branch7x7x3_1", x), padding=ROW)
    seven = unit(state, f"{name}.branch7x7x3_3", seven, padding=COLUMN)
    seven = unit(state, f"{name}.branch7x7x3_4", seven, stride=2)
    return torch.cat([three, seven, F.max_pool2d(x, 3, 2)], 1)


def module_e(state: State, name: str, x: Tensor, pooled: Tensor) -> Tensor:
    def split(branch: str, stem: Tensor) -> list[Tensor]:
        across = unit(state, f"{name}.{branch}a", stem, padding=(0, 1))
        return [across, unit(state, f"{name}.{branch}b", stem, padding=(1, 0))]

    three = split("branch3x3_2", unit(state, f"{name}.branch3x3_1", x))
    stem = unit(state, f"{name}.branch3x3dbl_2", unit(state, f"{name}.branch3x3dbl_1", x), padding=1)
    double = split("branch3x3dbl_3", stem)
    last = unit(state, f"{name}.branch_pool", pooled)
    return torch.cat([unit(state, f"{name}.branch1x1", x), *three, *double, last], 1)


def transcription(state: State, images: Tensor) -> tuple[Tensor, Tensor]:
    """Images (N, 3, H, W) in [0, 1] to pool3 features and to logits, which the inception score takes without bias."""
    x = 2 * F.interpolate(images, size=(299, 299), mode="bilinear", align_corners=False) - 1
    x = unit(state, "Conv2d_2a_3x3", unit(state, "Conv2d_1a_3x3", x, stride=2))
    x = F.max_pool2d(unit(state, "Conv2d_2b_3x3", x, padding=1), 3, 2)
    x = F.max_pool2d(unit(state, "Conv2d_4a_3x3", unit(state, "Conv2d_3b_1x1", x)), 3, 2)
    for letter in "bcd":
        x = module_a(state, f"Mixed_5{letter}", x)
    x = module_b(state, "Mixed_6a", x)
    for letter in "bcde":
        x = module_c(state, f"Mixed_6{letter}", x)
    x = module_d(state, "Mixed_7a", x)
    x = module_e(state, "Mixed_7b", x, average(x))
    x = module_e(state, "Mixed_7c", x, F.max_pool2d(x, 3, 1, padding=1))
    features = x.mean((2, 3))
    return features, features @ state["fc.weight"].T


@cache
def state() -> State:
    return seeded_state("inception_fid")


def images(count: int, height: int, width: int) -> Tensor:
    return torch.rand(count, 3, height, width, generator=stream(0, "world", "inception pictures"))


def of_pytorch_fid() -> Network:
    """Let pytorch-fid build its network around our state instead of its download."""

    def no_download(url: str, progress: bool) -> State:
        assert url.endswith("pt_inception-2015-12-05-6726825d.pth")
        return state()

    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng(devices=[]):
        patch.setattr(inception, "load_state_dict_from_url", no_download)
        pooled = inception.InceptionV3([inception.InceptionV3.BLOCK_INDEX_BY_DIM[2048]]).eval()

    def run(batch: Tensor) -> tuple[Tensor, Tensor]:
        features: Tensor = pooled(batch)[0].flatten(1)
        return features, F.linear(features, state()["fc.weight"], state()["fc.bias"]) - state()["fc.bias"]

    return run


def of_fdgsec() -> Network:
    extractor = InceptionExtractor(dict(state()), name="inception")

    def run(batch: Tensor) -> tuple[Tensor, Tensor]:
        found = extractor.extract(batch)
        assert found.logits is not None
        return found.features, found.logits

    return run


@pytest.mark.parametrize("build", [of_pytorch_fid, of_fdgsec])
@torch.inference_mode()
@pytest.mark.medium
def test_inception_is_the_network_that_fid_is_defined_with(build: Callable[[], Network]) -> None:
    network, batch = build(), images(1, 96, 80)

    for found, expected in zip(network(batch), transcription(state(), batch), strict=True):
        # fp32 rounding through 94 convolutions, of the largest value
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


@torch.inference_mode()
def test_an_average_at_the_edge_counts_only_what_is_inside() -> None:
    assert torch.equal(average(torch.ones(1, 2, 3, 4)), torch.ones(1, 2, 3, 4))
    ramp = torch.arange(9.0).view(1, 1, 3, 3)
    assert average(ramp)[0, 0].tolist() == [[2.0, 2.5, 3.0], [3.5, 4.0, 4.5], [5.0, 5.5, 6.0]]
