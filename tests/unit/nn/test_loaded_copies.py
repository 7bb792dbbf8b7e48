"""A copy of a network with another state is the network that is built and loaded, and shares nothing with it."""

from collections import defaultdict
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fdgsec.nn.networks.classifiers import BACKBONES, Norm, build_classifier
from fdgsec.nn.networks.loaded_copies import loaded_copy, own_copy, skeleton
from fdgsec.runtime.random_streams import stream


def built(backbone: str, norm: Norm = "batch") -> nn.Module:
    return build_classifier(backbone, 3, norm=norm, rng=stream(0, "world", "copies"))


def tensors(network: nn.Module) -> dict[str, Tensor]:
    return dict([*network.named_parameters(), *network.named_buffers()])


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("backbone", "norm"), [(name, "batch") for name in BACKBONES] + [("resnet18", "group")])
@pytest.mark.medium
def test_a_copy_has_the_tensors_strides_and_outputs_of_the_built_network(
    backbone: str, norm: Norm, layout: torch.memory_format
):
    original = built(backbone, norm).to(memory_format=layout)
    pattern = skeleton(build_classifier(backbone, 3, norm=norm, rng=None))
    assert pattern is not None

    copy = loaded_copy(pattern, original.state_dict(), layout=layout)

    assert copy is not None
    ours, theirs = tensors(copy), tensors(original)
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert all(ours[name].stride() == theirs[name].stride() for name in theirs)
    assert all(ours[name].requires_grad == theirs[name].requires_grad for name in theirs)
    images = torch.rand(2, 3, 64, 64, generator=stream(0, "world", "images")).contiguous(memory_format=layout)
    assert torch.equal(copy.eval()(images), original.eval()(images))


def test_copies_share_no_memory_with_the_state_or_each_other():
    state = built("tiny").state_dict()
    pattern = skeleton(built("tiny"))
    assert pattern is not None
    first, second = loaded_copy(pattern, state), loaded_copy(pattern, state)
    assert first is not None
    assert second is not None

    with torch.no_grad():
        for value in tensors(first).values():
            value.add_(1)
    first.train(False)

    assert all(torch.equal(value, state[name]) for name, value in second.state_dict().items())
    assert second.training
    expected = tensors(built("tiny"))  # the constants of the normalization are in no state
    assert all(torch.equal(value, expected[name]) for name, value in tensors(second).items())


def test_a_frozen_parameter_stays_frozen_and_a_shared_one_shared():
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    network[1].weight = network[0].weight
    network[0].bias.requires_grad_(False)
    state = {name: value.clone() for name, value in network.state_dict().items()}
    pattern = skeleton(network)
    assert pattern is not None

    copy = loaded_copy(pattern, state)

    assert copy is not None
    assert copy[0].weight is copy[1].weight
    assert [value.requires_grad for value in copy.parameters()] == [True, False, True]


@pytest.mark.parametrize("change", ["missing", "unexpected", "shape"])
def test_a_state_of_another_network_is_not_copied(change: str):
    state = dict(built("tiny").state_dict())
    pattern = skeleton(built("tiny"))
    assert pattern is not None
    if change == "missing":
        del state["head.bias"]
    else:
        state["head.bias" if change == "shape" else "more"] = torch.zeros(9)

    assert loaded_copy(pattern, state) is None


def test_a_network_whose_parts_know_each_other_is_not_copied():
    hooked, closed = built("tiny"), built("tiny")
    hooked.register_forward_hook(lambda module, given, made: made)
    closed.forward = lambda images: closed.head(images)  # type: ignore[assignment]

    assert skeleton(hooked) is None
    assert skeleton(closed) is None


@pytest.mark.parametrize("held", ["list", "default", "partial"])
def test_a_network_whose_parts_are_held_outside_its_tables_has_no_skeleton(held: str):
    network = built("tiny")
    parts = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    network.watched = {  # type: ignore[assignment]
        "list": parts, "default": lambda images, layer=parts[0]: layer(images), "partial": partial(parts[0].forward),
    }[held]  # fmt: skip

    assert skeleton(network) is None


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_an_own_copy_is_a_deep_one(norm: Norm, monkeypatch: pytest.MonkeyPatch):
    original = built("tiny", norm).to(memory_format=torch.channels_last)
    original.get_submodule("body.stem").requires_grad_(False).eval()

    theirs = deepcopy(original)
    copied, slow = list[object](), deepcopy
    with monkeypatch.context() as patched:
        patched.setattr(
            "fdgsec.nn.networks.loaded_copies.copy.deepcopy", lambda value, memo: (copied.append(value), slow(value))[1]
        )
        ours = own_copy(original)
    assert not any(isinstance(value, nn.Module | Tensor) for value in copied)

    assert all(torch.equal(tensors(ours)[name], value) for name, value in tensors(theirs).items())
    assert all(tensors(ours)[name].stride() == value.stride() for name, value in tensors(theirs).items())
    assert all(tensors(ours)[name].requires_grad == value.requires_grad for name, value in tensors(theirs).items())
    assert [module.training for module in ours.modules()] == [module.training for module in theirs.modules()]
    assert not {value.data_ptr() for value in tensors(ours).values()} & {
        value.data_ptr() for value in tensors(original).values()
    }


def with_a_hook() -> nn.Module:
    network = nn.Sequential(nn.Linear(2, 2))
    network.register_forward_hook(partial(keep_last, network[0]))
    return network


def keep_last(layer: nn.Module, _module: nn.Module, _given: object, made: Tensor) -> None:
    layer.last = made


def with_parts_in_a_list() -> nn.Module:
    network = nn.Sequential(nn.Linear(2, 2))
    network.parts = [network[0]]  # type: ignore[assignment]
    return network


@pytest.mark.parametrize("make", [with_a_hook, with_parts_in_a_list])
def test_an_own_copy_refers_to_no_part_of_the_original(make: Callable[[], nn.Module]):
    network = make()

    copied = own_copy(network)
    copied(torch.zeros(1, 2))

    assert not hasattr(network[0], "last")  # type: ignore[index]
    if make is with_a_hook:
        assert hasattr(copied[0], "last")  # type: ignore[index]
    else:
        assert copied.parts[0] is copied[0]  # type: ignore[index,union-attr]


class Counting(nn.Linear):
    """A layer that says how it is copied."""

    copied: bool = False

    def __deepcopy__(self, memo: dict[int, object]) -> "Counting":
        made = Counting(2, 2)
        made.copied = True
        return made


def with_views() -> nn.Module:
    layer, numbers = nn.Linear(2, 2), torch.zeros(4)
    layer.register_buffer("first", numbers[:2])
    layer.register_buffer("last", numbers[2:])
    return layer


def with_one_list() -> nn.Module:
    network, shared = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), list[int]()
    network[0].seen = network[1].seen = shared  # type: ignore[assignment]
    return network


def with_counts() -> nn.Module:
    layer = nn.Linear(2, 2)
    layer.counts = defaultdict(int)  # type: ignore[assignment]
    return layer


def with_a_gradient_on_a_buffer() -> nn.Module:
    layer = nn.Linear(2, 2)
    layer.register_buffer("numbers", torch.zeros(2))
    layer.numbers.grad = torch.ones(2)
    return layer


def with_a_sparse_buffer() -> nn.Module:
    layer = nn.Linear(2, 2)
    layer.register_buffer("numbers", torch.eye(3).to_sparse())
    return layer


class Named(float):
    """A number with something attached."""

    names: list[str]


def with_a_number_of_its_own_class() -> nn.Module:
    layer = nn.Linear(2, 2)
    layer.scale = Named(2.0)  # type: ignore[assignment]
    layer.scale.names = ["scale"]
    return layer


class Reduced(nn.Linear):
    """A layer that says how it is taken apart."""

    copied: bool = False

    def __reduce_ex__(self, _protocol: object) -> tuple[Callable[[], "Reduced"], tuple[()]]:
        return _reduced, ()


def _reduced() -> Reduced:
    made = Reduced(2, 2)
    made.copied = True
    return made


@pytest.mark.parametrize(
    ("make", "holds"), [
        (with_a_gradient_on_a_buffer, lambda made: made.numbers.grad is not None),
        (with_a_sparse_buffer, lambda made: made.numbers.is_sparse),
        (lambda: Reduced(2, 2), lambda made: made.copied),
        (lambda: Counting(2, 2), lambda made: made.copied),
        (with_views, lambda made: made.first.untyped_storage().data_ptr() == made.last.untyped_storage().data_ptr()),
        (with_one_list, lambda made: made[0].seen is made[1].seen),
        (with_counts, lambda made: made.counts["new"] == 0),
    ],
)  # fmt: skip
def test_an_own_copy_keeps_what_a_deep_one_does(make: Callable[[], nn.Module], holds: Callable[[Any], bool]):
    assert holds(deepcopy(make()))
    assert holds(own_copy(make()))


def test_an_own_copy_shares_no_number_to_which_something_is_attached():
    original = with_a_number_of_its_own_class()

    copied: Any = own_copy(original)

    assert copied.scale == 2.0
    assert copied.scale.names == ["scale"]
    assert copied.scale.names is not original.scale.names  # type: ignore[union-attr]
