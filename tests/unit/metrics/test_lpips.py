"""LPIPS: its definition, its own backbones, and weights that are never random."""

import math
import socket
from pathlib import Path

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

from fdgsec.metrics.image_similarity import Backbone, LpipsDistance, PerceptualDistance
from fdgsec.runtime.errors import WeightsUnavailableError
from fdgsec.runtime.random_streams import stream
from tests.support.pictures import alexnet_features, alexnet_state, pictures


@pytest.mark.medium
def test_lpips_on_a_given_backbone_agrees_with_its_definition() -> None:
    features = alexnet_features()
    first, second = pictures(seed=10, n=2, side=64), pictures(seed=11, n=2, side=64)
    distance = LpipsDistance.from_backbone("alex", alexnet_state())
    heads = [distance._network.get_parameter(f"lin{layer}.model.1.weight") for layer in range(5)]
    shift, scale = torch.tensor([-0.030, -0.088, -0.188]), torch.tensor([0.458, 0.448, 0.450])

    def layers(images: Tensor) -> list[Tensor]:
        flow, found = (2 * images - 1 - shift[:, None, None]) / scale[:, None, None], []
        for index, layer in enumerate(features):
            flow = layer(flow)
            if index in (1, 4, 7, 9, 11):
                found.append(flow.clone())
        return found

    expected = torch.zeros(2)
    for head, one, other in zip(heads, layers(first), layers(second), strict=True):
        gap = (one / (one.norm(dim=1, keepdim=True) + 1e-10) - other / (other.norm(dim=1, keepdim=True) + 1e-10)) ** 2
        expected += F.conv2d(gap, head).mean((1, 2, 3))

    torch.testing.assert_close(distance(first, second), expected, rtol=1e-4, atol=1e-6)
    assert distance.name == "lpips_alex"
    assert all(bool((head >= 0).all()) and float(head.sum()) > 1 for head in heads)  # trained heads, not random ones


@pytest.mark.medium
def test_lpips_with_our_loading_equals_lpips_with_its_own_backbone_replaced() -> None:
    import lpips

    first, second = pictures(seed=12, n=2, side=64), pictures(seed=13, n=2, side=64)
    with pytest.warns(UserWarning, match="deprecated"), torch.random.fork_rng(devices=[]):
        own = lpips.LPIPS(net="alex", pnet_rand=True, verbose=False)
    features = alexnet_features()
    for (start, stop), part in zip([(0, 2), (2, 5), (5, 8), (8, 10), (10, 12)], own.net.children(), strict=True):
        assert isinstance(part, nn.Sequential)
        for index in range(start, stop):
            part[index - start] = features[index]

    torch.testing.assert_close(
        LpipsDistance.from_backbone("alex", alexnet_state())(first, second),
        own(2 * first - 1, 2 * second - 1).flatten(),
    )


@pytest.mark.parametrize("net", ["alex", "vgg", "squeeze"])
@pytest.mark.medium
def test_identical_images_are_at_distance_zero_without_network_or_global_randomness(
    net: Backbone, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    before = torch.get_rng_state()
    distance: PerceptualDistance = LpipsDistance.from_backbone(net, _random_state(net))
    images, others = pictures(seed=14, n=2, side=64), pictures(seed=15, n=2, side=64)

    assert distance(images, images).tolist() == [0.0, 0.0]
    assert bool((distance(images, others) > 0).all())
    assert torch.equal(torch.get_rng_state(), before)
    assert capsys.readouterr().out == ""


def _random_state(net: Backbone) -> dict[str, Tensor]:
    """Draw the features of a torchvision backbone, whose classifier (most of VGG) is never built."""
    with torch.device("meta"):
        build = {
            "alex": torchvision.models.alexnet,
            "vgg": torchvision.models.vgg16,
            "squeeze": torchvision.models.squeezenet1_1,
        }
        shapes = build[net](weights=None).state_dict()
    rng = stream(1, "world", net)
    return {
        key: torch.randn(tensor.shape, generator=rng) / math.sqrt(max(1, tensor[0].numel()))
        for key, tensor in shapes.items()
        if key.startswith("features.")
    }


def test_weights_that_are_not_stored_are_a_typed_error_never_random(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path))

    with pytest.raises(WeightsUnavailableError, match="alexnet"):
        LpipsDistance("alex")


def test_another_networks_state_is_refused_by_the_tensor_it_lacks() -> None:
    with pytest.raises(ValueError, match=r"squeezenet1_1: .* first features\."):
        LpipsDistance.from_backbone("squeeze", alexnet_state())


def test_lpips_refuses_images_smaller_than_it_was_calibrated_for() -> None:
    images = pictures(seed=16, side=63)

    with pytest.raises(ValueError, match="64 px"):
        LpipsDistance.from_backbone("alex", alexnet_state())(images, images)
