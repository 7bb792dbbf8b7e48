"""Perturbing along the gradient: what moves, how far, and what the paper's rho does in float32."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from fdgsec.data.shapes import shapes
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.weight_perturbation import (
    batch_gradient,
    gradient_of,
    perturb_weights,
    perturbation_effect,
    validation_losses,
)
from fdgsec.methods.fedavg import detached
from fdgsec.nn.training.batches import TrainingSet
from fdgsec.nn.training.training_loop import CrossEntropy
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream

PLAN = TrainingPlan(batch_size=21, crop=None, flip=0.0)


def data() -> TrainingSet:
    return TrainingSet.of(shapes(image_size=32, per_domain=21).of_domain(0))


def start() -> GlobalModel:
    plan = Blueprint(backbone="tiny", classes=7)
    return GlobalModel(blueprint=plan, state=ModelState(state=detached(plan.network(stream(0, "world", "start")))))


def slope() -> dict[str, Tensor]:
    return batch_gradient(start().module(), data(), CrossEntropy(), PLAN, stream(0, "world", "batch"))


def length(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    return sum(float((first[name].double() - second[name].double()).square().sum()) for name in first) ** 0.5


def test_a_perturbation_has_length_rho_along_the_gradient():
    state, gradient = start().state.tensors(), slope()

    moved = perturb_weights(state, gradient, 0.5)

    whole = torch.cat([gradient[name].double().flatten() for name in sorted(gradient)])
    step = torch.cat([(moved[name].double() - state[name].double()).flatten() for name in sorted(gradient)])
    assert float(step.norm()) == pytest.approx(0.5, rel=1e-5)
    assert float(torch.dot(step, whole) / (step.norm() * whole.norm())) == pytest.approx(1.0, abs=1e-9)


def test_the_gradients_own_length_has_no_say():
    state = {"w": torch.tensor([1.0, -2.0, 0.5])}

    moved = [
        perturb_weights(state, {"w": scale * torch.tensor([3.0, 0.0, -4.0])}, 0.5)["w"] for scale in (1e-6, 0.01, 1e3)
    ]

    assert all(torch.allclose(one, torch.tensor([1.3, -2.0, 0.1]), rtol=1e-6) for one in moved)


def test_buffers_and_entries_without_gradient_are_untouched():
    state, gradient = start().state.tensors(), slope()
    del gradient["head.bias"]

    moved = perturb_weights(state, gradient, 0.5)

    still = [name for name in state if torch.equal(state[name], moved[name])]
    buffers = [name for name in state if "running" in name or "num_batches" in name]
    assert set(still) == {*buffers, "head.bias"}
    assert len(buffers) == 15


@pytest.mark.parametrize("gradient", [{}, {"w": torch.zeros(3)}])
def test_without_a_gradient_nothing_moves(gradient: dict[str, Tensor]):
    state = {"w": torch.tensor([1.0, -2.0, 0.0])}

    assert torch.equal(perturb_weights(state, gradient, 0.5)["w"], state["w"])


def test_rho_zero_moves_nothing():
    state = start().state.tensors()

    moved = perturb_weights(state, slope(), 0.0)

    assert length(state, moved) == 0.0


def test_a_batch_gradient_is_that_of_the_mean_loss_and_takes_no_step():
    network, before = start().module(), start().state.tensors()
    network(torch.ones(2, 3, 32, 32)).sum().backward()  # gradients of something else lie there already

    gradient = batch_gradient(network, data(), CrossEntropy(), PLAN, stream(0, "world", "batch"))

    other = start().module().train()
    images = data().images.float() / 255
    torch.nn.functional.cross_entropy(other(images), data().labels).backward()
    expected = gradient_of(other)
    assert gradient.keys() == dict(network.named_parameters()).keys()
    assert (
        max(float((gradient[name] - expected[name]).abs().max()) for name in expected) < 1e-5
    )  # another order of sums
    assert all(torch.equal(value, before[name]) for name, value in network.named_parameters())


def test_at_the_papers_rho_few_coordinates_change_and_no_loss_does():
    state = start().state.tensors()

    effect = perturbation_effect(start(), state, perturb_weights(state, slope(), 1e-7), data())

    assert effect.coordinates == sum(value.numel() for value in start().module().parameters())
    assert 0 < effect.changed < 0.2 * effect.coordinates  # 105k weights; the larger the network, the fewer
    assert effect.largest_move < 1e-6


def test_at_sams_rho_nearly_all_coordinates_change_and_losses_do():
    state = start().state.tensors()

    effect = perturbation_effect(start(), state, perturb_weights(state, slope(), 0.05), data())

    assert effect.share > 0.95  # some gradients are exactly 0, behind a ReLU
    assert effect.mean_move > 1e-3  # the gradient points uphill


def test_an_effect_is_counted_coordinate_by_coordinate_and_image_by_image():
    model, state, moved = start(), start().state.tensors(), start().state.tensors()
    moved["head.bias"] = moved["head.bias"] + torch.tensor([0.0, 0.5, 0.0, 0.0, 0.0, 0.0, -0.25])
    moved["body.stem.1.running_mean"] = moved["body.stem.1.running_mean"] + 0.1

    effect = perturbation_effect(model, state, moved, data())

    before = validation_losses(model.module(), data())
    after = validation_losses(model.with_state(moved).module(), data())
    assert effect.changed == 2
    assert effect.share == 2 / effect.coordinates
    assert effect.mean_move == pytest.approx(float(after.mean() - before.mean()), abs=1e-12)
    assert effect.largest_move == pytest.approx(max(abs(float(b - a)) for a, b in zip(before, after, strict=True)))


def test_an_effect_without_images_is_refused():
    none = TrainingSet(images=torch.zeros(0, 3, 32, 32, dtype=torch.uint8), labels=torch.zeros(0, dtype=torch.int64))

    with pytest.raises(UsageError, match="at least one image"):
        perturbation_effect(start(), start().state.tensors(), start().state.tensors(), none)
