"""Building and storing models: whose draws they take, and states as vectors."""

import pytest
import torch
import torchvision.models
from torch import Tensor

from fdgsec.nn.networks.classifiers import BACKBONES, build_classifier
from fdgsec.runtime.random_streams import stream

TORCHVISION = ("resnet18", "resnet50", "mobilenet_v3_large", "squeezenet1_0", "densenet121")
# Opacus hooks the first convolution, whose input (the images) needs no gradient
pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing when gradients are computed:UserWarning")


def images(count: int, *, size: int = 64, seed: int = 0) -> Tensor:
    return torch.rand(count, 3, size, size, generator=stream(seed, "world", "images"))


@pytest.mark.parametrize("backbone", TORCHVISION)
@pytest.mark.medium
def test_parameters_follow_the_laws_of_torchvisions_constructor(backbone):
    with torch.random.fork_rng(devices=[]):
        theirs = torchvision.models.get_model(backbone, weights=None, num_classes=5)
    ours = build_classifier(backbone, 5, rng=stream(3, "world"))

    large = [parameter.detach() for parameter in ours.parameters() if parameter.numel() >= 5000]
    expected = [parameter.detach() for parameter in theirs.parameters() if parameter.numel() >= 5000]
    assert [parameter.shape for parameter in large] == [parameter.shape for parameter in expected]
    for mine, their in zip(large, expected, strict=True):
        # the std of 5000 draws errs by 1%, so 6% is six times that; uniform draws stay below 1.8 std, normal ones do not
        assert float(mine.std()) == pytest.approx(float(their.std()), rel=0.06)
        assert bool((mine.abs() < 2 * mine.std()).all()) == bool((their.abs() < 2 * their.std()).all())
    vectors = [parameter for name, parameter in ours.named_parameters() if parameter.ndim == 1 and name != "head.bias"]
    assert all(set(vector.detach().unique().tolist()) <= {0.0, 1.0} for vector in vectors)


@pytest.mark.parametrize("backbone", ["resnet18", "tiny"])
def test_equal_streams_give_equal_models_and_others_do_not(backbone):
    first, same, other = (build_classifier(backbone, 5, rng=stream(seed, "world")).state_dict() for seed in (0, 0, 1))

    assert all(torch.equal(first[key], same[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)


def test_one_stream_gives_a_new_model_each_time():
    rng = stream(0, "world")

    first, second = (build_classifier("tiny", 5, rng=rng).state_dict() for _ in range(2))

    assert not torch.equal(first["body.stem.0.weight"], second["body.stem.0.weight"])


@pytest.mark.parametrize("backbone", BACKBONES)
def test_building_and_training_leave_the_global_stream_alone(backbone):
    before = torch.random.get_rng_state()

    model = build_classifier(backbone, 5, rng=stream(0, "world")).train()
    model(images(2)).sum().backward()

    assert torch.equal(before, torch.random.get_rng_state())


def test_tiny_is_small_and_reads_32_pixels():
    model = build_classifier("tiny", 7, norm="group", rng=stream(0, "world"))

    assert sum(parameter.numel() for parameter in model.parameters()) <= 150_000
    assert model(images(2, size=32)).shape == (2, 7)
    assert model.maps(images(2, size=32)).shape == (2, 96, 4, 4)
