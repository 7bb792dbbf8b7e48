"""FedDG's episode against transcriptions by function transforms, and its bank against the images behind it."""

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad
from torch.nn import functional

from fdgsec.federation.artifacts import Amplitudes
from fdgsec.methods.feddg import Episode, MetaGradient
from fdgsec.nn.networks.classifiers import Classifier, build_classifier
from fdgsec.nn.styles.amplitude_spectra import amplitudes, exchange_amplitudes
from fdgsec.nn.training.batches import Batch
from fdgsec.runtime.random_streams import stream

STEP, CLIP = 0.5, 0.02  # a step that is felt, a bound that some coordinates meet
Weights = Mapping[str, Tensor]


def classifier() -> Classifier:
    """In evaluation mode, so that the loss is a function of the weights alone."""
    return build_classifier("tiny", 4, rng=stream(0, "world", "network")).eval()


def batch() -> Batch:
    rng = stream(0, "world", "batch")
    return Batch(
        images=torch.rand(6, 3, 16, 16, generator=rng), labels=torch.randint(4, (6,), generator=rng),
        records=torch.arange(6),
    )  # fmt: skip


def bank(*owners: int) -> Amplitudes:
    """One constant image of its own brightness per row, so that a mixed image says whom it met."""
    shades = torch.arange(1, len(owners) + 1) / 10
    images = shades.view(-1, 1, 1, 1).expand(-1, 3, 16, 16)
    return Amplitudes(values=amplitudes(images), owner=torch.tensor(owners))


def episode(kind: MetaGradient, *, ratios: tuple[float, ...] = (0.0,), owners: tuple[int, ...] = (1, 1, 2)) -> Episode:
    return Episode(
        bank=bank(*owners), foreign=torch.arange(len(owners)), low_frequency=0.0, least_window=0, ratios=ratios,
        meta_step=STEP, clip_value=CLIP, meta_gradient=kind, rng=stream(0, "world", "episode"),
    )  # fmt: skip


def total(model: Classifier, given: Batch, mixed: Tensor, kind: MetaGradient) -> Callable[[Weights], Tensor]:
    """L(theta; x) + L(theta - beta clamp(grad L); x'), with the gradient of the inner one held fixed where it is."""

    def loss(weights: Weights, images: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(model, dict(weights), (images,)), given.labels)

    def both(weights: Weights) -> Tensor:
        slopes = grad(loss)(dict(weights), given.images)
        if kind == "first-order":
            slopes = {name: slope.detach() for name, slope in slopes.items()}
        fast = {name: weights[name] - STEP * slopes[name].clamp(-CLIP, CLIP) for name in weights}
        return loss(weights, given.images) + loss(fast, mixed)

    return both


@pytest.mark.parametrize("kind", ["second-order", "first-order"])
def test_the_episode_is_the_sum_of_inner_and_outer_loss_with_its_gradient(kind: MetaGradient):
    model, given = classifier(), batch()
    weights = {name: value.detach() for name, value in model.named_parameters()}
    wanted = total(model, given, episode(kind).mixed(given.images), kind)

    losses = episode(kind)(given, model)
    losses.mean().backward()

    assert losses.shape == (6,)
    assert float(losses.detach().mean()) == pytest.approx(float(wanted(weights)), rel=1e-5)
    for name, slope in grad(wanted)(weights).items():
        found = model.get_parameter(name).grad
        assert found is not None
        assert torch.allclose(found, slope, rtol=1e-3, atol=1e-5), name


def test_the_second_derivative_is_felt():
    slopes = {}
    for kind in ("second-order", "first-order"):
        model = classifier()
        episode(kind)(batch(), model).mean().backward()
        slopes[kind] = model.head.weight.grad

    assert slopes["second-order"] is not None
    assert slopes["first-order"] is not None
    assert float((slopes["second-order"] - slopes["first-order"]).abs().max()) > 1e-3


def test_unconnected_as_released_the_outer_loss_is_counted_but_trains_nothing():
    model, given, plain = classifier(), batch(), classifier()
    inner = functional.cross_entropy(plain(given.images), given.labels)
    inner.backward()

    losses = episode("unconnected")(given, model)
    losses.mean().backward()

    outer = float(total(plain, given, episode("unconnected").mixed(given.images), "first-order")(
        {name: value.detach() for name, value in plain.named_parameters()}
    ))  # fmt: skip
    assert float(losses.detach().mean()) == pytest.approx(outer, rel=1e-5)
    for name, value in plain.named_parameters():
        found = model.get_parameter(name).grad
        assert found is not None
        assert value.grad is not None
        assert torch.allclose(found, value.grad, rtol=1e-5, atol=1e-7), name


def test_unconnected_leaves_the_batch_statistics_to_the_inner_pass():
    first, second, given = classifier().train(), classifier().train(), batch()

    first(given.images)
    episode("unconnected")(given, second)

    assert all(torch.equal(a, b) for a, b in zip(first.buffers(), second.buffers(), strict=True))


def test_fast_weights_are_one_step_whose_coordinates_are_clamped():
    weights = {"w": torch.tensor([1.0, 1.0, 1.0])}

    fast = episode("first-order").stepped(weights, {"w": torch.tensor([0.01, -7.0, 0.5])})

    assert torch.allclose(fast["w"], torch.tensor([1 - 0.5 * 0.01, 1 + 0.5 * 0.02, 1 - 0.5 * 0.02]))


def test_mixed_images_are_the_exchange_with_one_foreign_row_each_and_a_ratio_of_the_list():
    images = torch.rand(40, 3, 16, 16, generator=stream(0, "world", "many")) * 0.2 + 0.4
    values = bank(1, 1, 2).values

    made = episode("first-order", ratios=(0.5, 1.0)).mixed(images)

    rows = [row.expand(40, -1, -1, -1) for row in values]
    possible = torch.stack(
        [exchange_amplitudes(images, row, b=0, ratio=r).clamp(0, 1) for row in rows for r in (0.5, 1.0)]
    )
    away = (possible - made).abs().amax((2, 3, 4))
    assert float(away.min(0).values.max()) < 1e-6
    assert len(torch.unique(away.argmin(0))) >= 4  # each row at .5, and images kept


def test_clients_are_drawn_evenly_and_then_their_rows():
    images = torch.full((3000, 3, 16, 16), 0.5)

    shades = episode("first-order").mixed(images).mean((1, 2, 3))

    shares = [float(((shades - shade).abs() < 1e-3).double().mean()) for shade in (0.1, 0.2, 0.3)]
    assert shares == pytest.approx([0.25, 0.25, 0.5], abs=0.04)  # 4 standard errors of n = 3000
