import copy
import functools
import math
from pathlib import Path
from typing import cast

import pytest
import safetensors.torch
import torch
import torchvision.models
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from opacus.validators import ModuleValidator
from torch import Tensor, nn
from torch.nn import functional

from fdgsec.nn.networks.classifiers import BACKBONES, Classifier, Norm, build_classifier
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream

TORCHVISION = ("resnet18", "resnet50", "mobilenet_v3_large", "squeezenet1_0", "densenet121")
# Opacus hooks the first convolution, whose input (the images) needs no gradient
pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing when gradients are computed:UserWarning")


def images(count: int, *, size: int = 64, seed: int = 0) -> Tensor:
    return torch.rand(count, 3, size, size, generator=stream(seed, "world", "images"))


@functools.cache
def _published(backbone: str) -> nn.Module:
    """Torchvision's own network, with every float entry away from its initial value (norms and their statistics too)."""
    with torch.device("meta"):
        network = cast(nn.Module, torchvision.models.get_model(backbone, weights=None, num_classes=1000))
    network.to_empty(device="cpu")
    rng = stream(7, "world", backbone)
    for name, tensor in network.state_dict().items():
        if not tensor.is_floating_point():
            tensor.zero_()
        elif name.endswith("running_var") or (name.endswith("weight") and tensor.ndim == 1):
            tensor.uniform_(0.5, 1.5, generator=rng)
        else:
            tensor.normal_(generator=rng).mul_(0.1 if tensor.ndim == 1 else math.sqrt(2 / tensor[0].numel()))
    return network


def published(backbone: str) -> nn.Module:
    return copy.deepcopy(_published(backbone))


def head_of(network: nn.Module) -> tuple[Tensor, Tensor]:
    last = [module for module in network.modules() if isinstance(module, nn.Linear | nn.Conv2d)][-1]
    assert last.bias is not None
    return last.weight.detach().flatten(1), last.bias.detach()


def with_published_weights(backbone: str, norm: Norm, network: nn.Module, folder: Path) -> Classifier:
    path = folder / "weights.safetensors"
    safetensors.torch.save_file(network.state_dict(), path)
    built = build_classifier(backbone, 1000, norm=norm, pretrained=True, weights_path=path, rng=stream(0, "world"))
    built.head.load_state_dict(dict(zip(("weight", "bias"), head_of(network), strict=True)))
    return built


def normalized(pictures: Tensor) -> Tensor:
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return (pictures - mean[:, None, None]) / std[:, None, None]


@pytest.mark.parametrize("backbone", TORCHVISION)
@pytest.mark.medium
def test_batch_norm_model_gives_the_logits_of_torchvision_with_the_same_weights(backbone, tmp_path):
    network = published(backbone)
    if backbone == "squeezenet1_0":
        setattr(network.get_submodule("classifier"), "2", nn.Identity())  # the documented difference: a linear head
    model = with_published_weights(backbone, "batch", network, tmp_path)
    pictures = images(2)

    with torch.inference_mode():
        ours, theirs = model.eval()(pictures), network.eval()(normalized(pictures))

    assert float(theirs.std()) > 1e-3
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))


@pytest.mark.parametrize("backbone", TORCHVISION)
@pytest.mark.medium
def test_group_norm_model_is_torchvision_with_each_batch_norm_exchanged(backbone, tmp_path):
    network = published(backbone)
    model = with_published_weights(backbone, "group", network, tmp_path)
    exchange_norms(network)
    if backbone == "squeezenet1_0":
        setattr(network.get_submodule("classifier"), "2", nn.Identity())
    pictures = images(2)

    with torch.inference_mode():
        ours, theirs = model.eval()(pictures), network.eval()(normalized(pictures))

    assert float(theirs.std()) > 1e-3
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))


def exchange_norms(network: nn.Module) -> None:
    for name, norm in [(name, m) for name, m in network.named_modules() if isinstance(m, nn.BatchNorm2d)]:
        group = nn.GroupNorm(math.gcd(32, norm.num_features), norm.num_features, eps=norm.eps)
        group.load_state_dict({"weight": norm.weight, "bias": norm.bias})
        parent, _, child = name.rpartition(".")
        setattr(network.get_submodule(parent), child, group)


def relative_difference(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm().clamp_min(1e-12))


def gradients_one_by_one(model: Classifier, pictures: Tensor, labels: Tensor) -> dict[str, Tensor]:
    rows = []
    for position in range(len(pictures)):
        loss = functional.cross_entropy(model(pictures[position : position + 1]), labels[position : position + 1])
        rows.append(torch.autograd.grad(loss, list(model.parameters())))
    return {name: torch.stack(parts) for (name, _), *parts in zip(model.named_parameters(), *rows, strict=True)}


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.medium
def test_one_opacus_step_has_the_gradients_of_batches_of_one(backbone):
    # in float64: in float32 a batch and its halves take different kernels, and a ReLU that flips moves a deep gradient
    model = build_classifier(backbone, 5, norm="group", rng=stream(0, "world", backbone)).double()
    assert not ModuleValidator.validate(model, strict=False)
    pictures, labels = images(2).double(), torch.tensor([0, 3])
    expected = gradients_one_by_one(model, pictures, labels)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    hooked = GradSampleModule(copy.deepcopy(model))
    optimizer = DPOptimizer(
        torch.optim.SGD(hooked.parameters(), lr=1.0), noise_multiplier=0.0, max_grad_norm=1e6, expected_batch_size=2
    )

    functional.cross_entropy(hooked(pictures), labels).backward()
    samples = {name.removeprefix("_module."): vars(parameter) for name, parameter in hooked.named_parameters()}
    found = {name: cast(Tensor, attributes["grad_sample"]).clone() for name, attributes in samples.items()}
    optimizer.step()

    assert found.keys() == expected.keys()
    for name, gradients in expected.items():
        assert relative_difference(found[name], gradients) < 1e-6, name
    for name, parameter in hooked.named_parameters():
        own = name.removeprefix("_module.")
        # old - new loses the digits that a parameter has above its gradient
        lost = 1e-12 * float(before[own].norm())
        assert float((before[own] - parameter.detach() - expected[own].mean(0)).norm()) < lost + 1e-6 * float(
            expected[own].mean(0).norm()
        ), name


@pytest.mark.parametrize("backbone", ["resnet18", "efficientnet_lite0", "mobilenet_v3_large"])
@pytest.mark.medium
def test_frozen_norm_is_batch_norm_in_evaluation_mode_and_has_nothing_to_train(backbone, tmp_path):
    batch = build_classifier(backbone, 5, rng=stream(0, "world"))
    for module in batch.modules():
        if isinstance(module, nn.BatchNorm2d):
            for values, low in ((module.running_mean, -0.2), (module.running_var, 0.5), (module.weight, 0.5)):
                assert values is not None
                values.data.uniform_(low, low + 1, generator=stream(1, "world"))
    frozen = build_classifier(backbone, 5, norm="frozen", rng=stream(0, "world"))
    frozen.load_state_dict({name: batch.state_dict()[name] for name in frozen.state_dict()})
    pictures = images(2)

    with torch.no_grad():
        expected, found = batch.eval()(pictures), frozen.train()(pictures)

    if backbone != "mobilenet_v3_large":  # its dropout draws in training mode
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    norms = tuple(f"{name}." for name, module in batch.named_modules() if isinstance(module, nn.BatchNorm2d))
    others = [name for name, _ in batch.named_parameters() if not name.startswith(norms)]
    assert [name for name, _ in frozen.named_parameters()] == others
    assert not [module for module in frozen.modules() if isinstance(module, nn.BatchNorm2d)]
    assert not [name for name, module in frozen.named_modules() if getattr(module, "inplace", False)]


@pytest.mark.parametrize("backbone", BACKBONES)
def test_group_norm_model_works_nowhere_in_place_and_keeps_no_statistics(backbone):
    model = build_classifier(backbone, 5, norm="group", rng=stream(0, "world"))

    assert not [name for name, module in model.named_modules() if getattr(module, "inplace", False)]
    assert not [module for module in model.modules() if isinstance(module, nn.BatchNorm2d | nn.Dropout)]
    assert dict(model.state_dict()).keys() == dict(model.named_parameters()).keys()


def test_a_group_norm_model_treats_every_record_alone():
    model = build_classifier("tiny", 5, norm="group", rng=stream(0, "world")).train()
    pictures = images(4)

    torch.testing.assert_close(model(pictures)[1:2], model(pictures[1:2]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.medium
def test_the_head_times_the_features_is_the_forward_pass(backbone):
    model = build_classifier(backbone, 5, rng=stream(0, "world")).eval()
    pictures = images(2)

    with torch.no_grad():
        features, logits = model.features(pictures), model(pictures)

    assert features.shape == (2, model.features_width)
    torch.testing.assert_close(logits, features @ model.head.weight.T + model.head.bias, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("backbone", "width"),
    [
        ("resnet18", 512),
        ("resnet50", 2048),
        ("mobilenet_v3_large", 1280),
        ("efficientnet_lite0", 1280),
        ("squeezenet1_0", 512),
        ("densenet121", 1024),
    ],
)
@pytest.mark.medium
def test_features_have_the_published_width_and_the_body_five_parts(backbone, width):
    model = build_classifier(backbone, 7, rng=stream(0, "world"))

    assert (model.features_width, model.classes, model.backbone, model.norm) == (width, 7, backbone, "batch")
    assert [name for name, _ in model.body.named_children()] == ["stem", "stage1", "stage2", "stage3", "stage4"]


def test_resnet_stages_halve_the_map_and_double_the_channels():
    model = build_classifier("resnet18", 7, rng=stream(0, "world")).eval()
    maps, shapes = model.normalize(images(1)), []

    for _, part in model.body.named_children():
        maps = part(maps)
        shapes.append(tuple(maps.shape[1:]))

    assert shapes == [(64, 16, 16), (64, 16, 16), (128, 8, 8), (256, 4, 4), (512, 2, 2)]


@pytest.mark.parametrize("backbone", BACKBONES)
def test_a_change_between_stages_reaches_the_rest_of_the_network(backbone):
    model = build_classifier(backbone, 3, rng=stream(0, "world", "network")).eval()
    places = ("conv", "stem", "stage1", "stage2", "stage3", "stage4")
    seen: dict[str, int] = {}

    def watch(name):
        def change(maps):
            seen[name] = maps.shape[1]
            return maps.repeat(2, 1, 1, 1) if name == "stage2" else maps

        return change

    with torch.no_grad():
        changed = model.maps(images(2, size=64), between={name: watch(name) for name in places})
        plain = model.maps(images(2, size=64))

    assert list(seen) == list(places)
    assert changed.shape[0] == 4
    assert torch.allclose(changed[2:], plain, atol=1e-5)
    assert torch.equal(model.maps(images(2, size=64)).detach(), plain)  # the hooks are gone


def test_a_change_at_no_place_is_refused():
    model = build_classifier("tiny", 3, rng=stream(0, "world", "network"))

    with pytest.raises(AttributeError, match="stage9"):
        model.maps(images(2), between={"stage9": lambda maps: maps})


def test_the_normalization_is_not_part_of_the_state():
    model = build_classifier("tiny", 5, rng=stream(0, "world"))

    assert not [key for key in model.state_dict() if key.startswith("normalize")]


def test_pretrained_weights_leave_the_head_to_the_stream(tmp_path):
    network = published("squeezenet1_0")
    path = tmp_path / "weights.safetensors"
    safetensors.torch.save_file(network.state_dict(), path)

    loaded = build_classifier("squeezenet1_0", 5, pretrained=True, weights_path=path, rng=stream(0, "world"))
    fresh = build_classifier("squeezenet1_0", 5, rng=stream(0, "world"))

    assert torch.equal(loaded.body.get_parameter("stem.0.weight"), network.get_parameter("features.0.weight"))
    assert torch.equal(loaded.head.weight, fresh.head.weight)


def test_bad_requests_are_refused_with_what_to_do(tmp_path):
    rng = stream(0, "world")
    with pytest.raises(UsageError, match="did you mean 'resnet18'"):
        build_classifier("resnet81", 5, rng=rng)
    with pytest.raises(UsageError, match="norm must be 'batch', 'group' or 'frozen'; got 'layer'"):
        build_classifier("tiny", 5, norm="layer", rng=rng)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="classes must be at least 1; got 0"):
        build_classifier("tiny", 0, rng=rng)
    with pytest.raises(UsageError, match="tiny has no pretrained weights"):
        build_classifier("tiny", 5, pretrained=True, rng=rng)
    with pytest.raises(UsageError, match="pretrained is off"):
        build_classifier("resnet18", 5, weights_path=tmp_path, rng=rng)
    with pytest.raises(ValueError, match=r"images must be float \(N, 3, H, W\)"):
        build_classifier("tiny", 5, rng=rng)(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))
