"""Per-record gradients are those of batches of one, and no record adds more than the bound."""

import math
from typing import cast

import hypothesis.extra.numpy as arrays
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.nn import functional

from fdgsec.nn.networks.classifiers import Classifier, build_classifier
from fdgsec.nn.training.per_sample_gradients import PrivateTrainingError, RecordGradients, clipped_sum, runs_of
from fdgsec.runtime.random_streams import stream

LAYOUTS = [torch.channels_last, torch.contiguous_format]


def network(backbone: str) -> Classifier:
    return build_classifier(backbone, 3, norm="group", rng=stream(0, "world", "network")).train()


def images(side: int, count: int = 4) -> Tensor:
    return torch.rand(count, 3, side, side, generator=stream(0, "world", "images"), dtype=torch.float64)


def two_views(model: nn.Module, pictures: Tensor, labels: Tensor) -> Tensor:
    """Two passes, the second with a weight: a layer's rows of both belong to the record."""
    first = functional.cross_entropy(model(pictures), labels, reduction="none")
    return first + 0.5 * functional.cross_entropy(model(pictures.flip(3)), labels, reduction="none")


def one_by_one(model: nn.Module, pictures: Tensor, labels: Tensor) -> list[Tensor]:
    rows = [
        torch.autograd.grad(two_views(model, pictures[i : i + 1], labels[i : i + 1]).sum(), list(model.parameters()))
        for i in range(len(labels))
    ]
    return [torch.stack(parts) for parts in zip(*rows, strict=True)]


@pytest.mark.parametrize("backbone", ["tiny", "squeezenet1_0", "resnet18", "mobilenet_v3_large"])
@pytest.mark.medium
def test_gradients_are_those_of_batches_of_one(backbone: str):
    layout = torch.channels_last
    model = network(backbone).double().to(memory_format=layout)  # float64: no activation changes sides by rounding
    pictures, labels = images(32, 3).contiguous(memory_format=layout), torch.tensor([0, 1, 2])
    parameters = list(model.parameters())

    with RecordGradients(model, parameters) as gradients:
        losses = two_views(model, pictures, labels)
        found = gradients.of(losses)

    for mine, true in zip(found, one_by_one(model, pictures, labels), strict=True):
        torch.testing.assert_close(mine, true, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("layout", LAYOUTS, ids=["channels_last", "contiguous"])
def test_float32_gradients_are_those_of_batches_of_one(layout: torch.memory_format):
    model = network("tiny").to(memory_format=layout)
    pictures, labels = images(32).float().contiguous(memory_format=layout), torch.tensor([0, 1, 2, 1])

    with RecordGradients(model, list(model.parameters())) as gradients:
        found = gradients.of(two_views(model, pictures, labels))

    for mine, true in zip(found, one_by_one(model, pictures, labels), strict=True):
        assert float((mine - true).norm() / true.norm()) < 1e-5


@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
def test_gradients_and_clipped_sums_are_opacuss():
    model, twin = network("tiny"), network("tiny")
    pictures, labels = images(32, 6).float(), torch.arange(6) % 3
    private = GradSampleModule(twin, loss_reduction="sum")
    optimizer = DPOptimizer(
        torch.optim.SGD(private.parameters(), lr=1.0), noise_multiplier=0.0, max_grad_norm=0.5, expected_batch_size=6
    )

    with RecordGradients(model, list(model.parameters())) as gradients:
        found = gradients.of(functional.cross_entropy(model(pictures), labels, reduction="none"))
    functional.cross_entropy(twin(pictures), labels, reduction="sum").backward()
    theirs = [rows.clone() for rows in optimizer.grad_samples]
    optimizer.pre_step()

    for mine, other in zip(found, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)
    for mine, parameter in zip(clipped_sum(found, 0.5), twin.parameters(), strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(mine / 6, parameter.grad, rtol=1e-4, atol=1e-7)


def test_grouped_and_dilated_convolutions_have_their_own_rule():
    layers = nn.Sequential(
        nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), nn.Conv2d(6, 6, 3, dilation=2, padding=2, groups=6),
        nn.Conv2d(6, 3, 1, stride=2, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    ).double()  # fmt: skip
    pictures, labels = torch.rand(3, 4, 12, 10, dtype=torch.float64), torch.tensor([0, 1, 2])

    with RecordGradients(layers, list(layers.parameters())) as gradients:
        found = gradients.of(two_views(layers, pictures, labels))

    for mine, true in zip(found, one_by_one(layers, pictures, labels), strict=True):
        torch.testing.assert_close(mine, true, rtol=1e-9, atol=1e-12)


def test_passes_without_gradient_and_unused_passes_add_nothing():
    model = network("tiny")
    pictures, labels = images(32).float(), torch.tensor([0, 1, 2, 1])

    with RecordGradients(model, list(model.parameters())) as gradients:
        plain = gradients.of(functional.cross_entropy(model(pictures), labels, reduction="none"))
        with torch.no_grad():
            model(pictures.flip(2))
        losses = functional.cross_entropy(model(pictures), labels, reduction="none")
        model(pictures[:2])  # of another size, and nothing is made of it
        with_others = gradients.of(losses)

    assert all(torch.equal(one, other) for one, other in zip(plain, with_others, strict=True))


def test_a_parameter_that_no_loss_reaches_has_zeros():
    model = network("tiny")
    spare = nn.Linear(2, 2)
    model.add_module("spare", spare)

    wanted = cast(list[nn.Parameter], [spare.weight, model.head.bias])

    with RecordGradients(model, wanted) as gradients:
        found = gradients.of(model(images(32).float()).sum(1))

    assert found[0].shape == (4, 2, 2)
    assert not found[0].any()
    assert found[1].tolist() == [[1.0] * 3] * 4


def test_a_layer_without_a_rule_is_refused():
    model = network("tiny")
    model.register_parameter("own", nn.Parameter(torch.zeros(2)))

    with pytest.raises(PrivateTrainingError, match="the network itself"):
        RecordGradients(model, list(model.parameters()))


def test_nothing_is_left_on_the_network():
    model = network("tiny")

    with RecordGradients(model, list(model.parameters())) as gradients:
        gradients.of(model(images(32).float()).sum(1))

    assert not any(module._forward_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


Rows = npt.NDArray[np.float32]
ROWS = arrays.arrays(np.float32, (3, 5), elements=st.floats(-(2.0**60), 2.0**60, width=32))


@given(first=ROWS, second=ROWS, bound=st.floats(1e-3, 1e3))
@settings(max_examples=300, deadline=None)
@pytest.mark.medium
def test_no_record_adds_more_than_the_bound(first: Rows, second: Rows, bound: float):
    for row in range(3):
        one = [torch.from_numpy(part[row : row + 1]) for part in (first, second)]

        added = torch.cat([part.double().flatten() for part in clipped_sum(one, bound)])

        length = math.sqrt(math.fsum(float(value) ** 2 for value in added))
        assert length <= bound


@given(rows=ROWS, bound=st.floats(1e-3, 1e3))
@settings(max_examples=100, deadline=None)
def test_records_are_clipped_apart_and_added_up(rows: Rows, bound: float):
    together = clipped_sum([torch.from_numpy(rows)], bound)[0]

    alone = sum(clipped_sum([torch.from_numpy(rows[i : i + 1])], bound)[0].double() for i in range(3))

    torch.testing.assert_close(together.double(), alone, rtol=1e-5, atol=1e-6 * bound)


def test_small_tensors_are_clipped_with_large_ones_as_one_gradient():
    sizes = ((5,), (3, 2), (), (70, 60), (1,), (2, 3, 4), (4100,))  # runs of small tensors about two that are large
    rng = stream(0, "world", "sizes")
    rows = [torch.randn(4, *size, generator=rng) for size in sizes]
    rows[5][2] = math.inf

    found = clipped_sum(rows, 0.5)

    whole = torch.cat([row.double().reshape(4, -1) for row in rows], dim=1)[[0, 1, 3]]
    expected = (0.5 * whole / whole.norm(dim=1, keepdim=True)).sum(0)
    assert [tuple(part.shape) for part in found] == list(sizes)
    torch.testing.assert_close(torch.cat([part.double().flatten() for part in found]), expected, rtol=3e-5, atol=1e-8)


@pytest.mark.parametrize("most", [1, 4, 6, 100])
def test_runs_of_tensors_hold_no_more_than_they_may_and_leave_none_out(most: int):
    tensors = [torch.full((size,), float(place)) for place, size in enumerate((3, 1, 9, 2, 2, 2, 5))]

    found = list(runs_of(tensors, [len(one) for one in tensors], most=most))

    assert torch.equal(torch.cat([one for run in found for one in run]), torch.cat(tensors))
    assert all(len(run) == 1 or sum(map(len, run)) <= most for run in found)


def test_long_gradients_are_held_to_the_bound_too():
    wide = torch.randn(2, 3, 1_000_001, generator=stream(0, "world", "wide")).abs()  # 3 million numbers of one sign

    for row in range(2):
        added = clipped_sum([wide[row : row + 1]], 1.0)[0].double()

        assert 1 - 3e-5 < float(added.norm()) <= 1.0


def test_short_gradients_are_left_as_they_are():
    rows = torch.tensor([[0.3, 0.4], [0.0, 0.0]])

    assert torch.equal(clipped_sum([rows], 1.0)[0], torch.tensor([0.3, 0.4]))
    assert torch.equal(clipped_sum([10 * rows], math.inf)[0], torch.tensor([3.0, 4.0]))


def test_a_gradient_that_is_not_finite_adds_nothing():
    rows = torch.tensor([[math.nan, 1.0], [math.inf, 1.0], [0.3, 0.4]])

    assert torch.equal(clipped_sum([rows], 1.0)[0], torch.tensor([0.3, 0.4]))
