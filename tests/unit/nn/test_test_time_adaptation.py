"""Tent: what it changes, what it leaves alone, and that its steps are those of the paper."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fdgsec.data.domains import as_float
from fdgsec.methods.fedsr import FedSR
from fdgsec.nn.networks.classifiers import Classifier, build_classifier
from fdgsec.nn.training.batches import TrainingSet
from fdgsec.nn.training.test_time_adaptation import (
    ADAPTATIONS,
    Tent,
    _adapted,
    _batches,
    adaptation_named,
    prepare_for_tent,
    tent_predictions,
)
from fdgsec.nn.training.training_loop import CrossEntropy, epochs, predictions
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream


def rng(name: str = "t") -> torch.Generator:
    return stream(0, "world", name)


def network(backbone: str = "tiny", norm: str = "batch") -> Classifier:
    made = build_classifier(backbone, 3, norm="group" if norm == "group" else "batch", rng=rng("network"))
    return made.eval()


def images(count: int, *, low: int = 0, high: int = 256) -> Tensor:
    return torch.randint(low, high, (count, 3, 32, 32), generator=rng("images")).to(torch.uint8)


def transcribed(images: Tensor, *, batch: int, rate: float) -> Tensor:
    """Tent with Adam, one step per batch: entropy minimized in gamma and beta, under batch statistics."""
    model = network()
    layers = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    values = [value for layer in layers for value in (layer.weight, layer.bias)]
    first, second = [torch.zeros_like(value) for value in values], [torch.zeros_like(value) for value in values]
    order, predicted = torch.randperm(len(images), generator=rng("order")), torch.empty(len(images), dtype=torch.int64)
    model.train()  # train mode: batch statistics, and running ones that nobody reads
    for step, start in enumerate(range(0, len(images), batch), start=1):
        rows = order[start : start + batch]
        probabilities = model(as_float(images[rows])).softmax(1)
        predicted[rows] = probabilities.argmax(1)
        entropy = -sum((p * p.log()).sum() for p in probabilities) / len(rows)
        gradients = torch.autograd.grad(torch.as_tensor(entropy), values)
        for number, (value, gradient) in enumerate(zip(values, gradients, strict=True)):
            first[number] = 0.9 * first[number] + 0.1 * gradient
            second[number] = 0.999 * second[number] + 0.001 * gradient.square()
            moved = first[number] / (1 - 0.9**step) / ((second[number] / (1 - 0.999**step)).sqrt() + 1e-8)
            with torch.no_grad():
                value -= rate * moved
    return predicted


def test_predictions_are_those_of_the_transcription_and_not_the_plain_ones():
    pixels = images(60)

    made = tent_predictions(network(), pixels, how=Tent(batch_size=20, learning_rate=0.05), rng=rng("order"))

    assert torch.equal(made, transcribed(pixels, batch=20, rate=0.05))
    assert not torch.equal(made, transcribed(pixels, batch=20, rate=0.0))
    assert not torch.equal(made, predictions(network(), pixels))


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_the_model_itself_stays_as_it_is(norm: str):
    model = network(norm=norm)
    before = {name: value.clone() for name, value in model.state_dict().items()}

    tent_predictions(model, images(10), how=Tent(batch_size=5, steps=3, learning_rate=0.1), rng=rng())

    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(value.requires_grad for value in model.parameters())
    assert not model.training


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_scales_and_shifts_of_norm_layers_alone_may_move(norm: str):
    copy = prepare_for_tent(network(norm=norm))

    learning = {name for name, value in copy.named_parameters() if value.requires_grad}

    stages = ("stem", "stage1", "stage2", "stage3", "stage4")
    assert learning == {f"body.{stage}.1.{part}" for stage in stages for part in ("weight", "bias")}


def test_batch_norm_takes_its_statistics_from_the_batch():
    brighter = images(16, low=100, high=130)
    copy = prepare_for_tent(network())

    with torch.inference_mode():
        made = copy.body.get_submodule("stem.1")(copy.body.get_submodule("stem.0")(copy.normalize(as_float(brighter))))

    assert torch.allclose(made.mean((0, 2, 3)), torch.zeros(24), atol=1e-4)
    assert torch.allclose(made.var((0, 2, 3)), torch.ones(24), atol=2e-2)


@pytest.mark.medium
def test_more_steps_make_a_batch_surer():
    pixels = images(20)

    def entropy(steps: int) -> float:
        copy = prepare_for_tent(network())
        optimizer = torch.optim.Adam([value for value in copy.parameters() if value.requires_grad], lr=0.01)
        for _ in range(steps):
            _adapted(copy, pixels, optimizer)
        with torch.inference_mode():
            logits = copy(as_float(pixels))
        return float(functional.softmax(logits, 1).mul(functional.log_softmax(logits, 1)).sum(1).neg().mean())

    assert entropy(40) < entropy(20) < entropy(0) - 0.1


def test_equal_streams_give_equal_predictions_and_other_streams_other_batches():
    how = Tent(batch_size=20, learning_rate=0.05)
    made = [tent_predictions(network(), images(60), how=how, rng=rng(name)) for name in ("a", "a", "b")]

    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


def test_one_image_left_over_joins_the_last_batch():
    pixels = images(9)

    made = tent_predictions(network(), pixels, how=Tent(batch_size=4), rng=rng("order"))

    order = torch.randperm(9, generator=rng("order"))
    copy = prepare_for_tent(network())
    with torch.inference_mode():
        first = copy(as_float(pixels[order[:4]])).argmax(1)
    assert torch.equal(made[order[:4]], first)
    assert set(made.tolist()) <= {0, 1, 2}


@pytest.mark.parametrize(("count", "sizes"), [(9, [4, 5]), (5, [5]), (10, [4, 4, 2]), (4, [4]), (1, [1])])
def test_every_image_is_in_one_batch_and_none_is_left_over_alone(count: int, sizes: list[int]):
    order = torch.randperm(count, generator=rng("order"))

    made = _batches(order, 4)

    assert [len(part) for part in made] == sizes
    assert torch.equal(torch.cat(made), order)


@pytest.mark.medium
def test_a_shift_in_brightness_is_repaired():
    labels = torch.arange(120) % 2
    texture = torch.rand(120, 3, 32, 32, generator=rng("texture")) * 2 - 1
    stripes = torch.where(
        labels.view(-1, 1, 1, 1) == 1, texture[..., :1].expand_as(texture), texture[..., :1, :].expand_as(texture)
    )
    bright = (110 + 60 * stripes).to(torch.uint8)
    dark = (200 + 12 * stripes).to(torch.uint8)  # the same stripes, brighter and much fainter
    model = build_classifier("tiny", 2, rng=rng("network"))
    plan = TrainingPlan(batch_size=20, learning_rate=0.05, epochs=6, crop=None, flip=0.0)
    epochs(model, TrainingSet(images=bright, labels=labels), CrossEntropy(), plan, rng("train"))

    plain = float((predictions(model, dark) == labels).float().mean())
    adapted = float((tent_predictions(model, dark, how=Tent(batch_size=40), rng=rng()) == labels).float().mean())

    assert float((predictions(model, bright) == labels).float().mean()) > 0.95
    assert plain < 0.7
    assert adapted > 0.95


def test_a_network_on_random_features_adapts_too():
    model = FedSR().remodel(network(), rng())

    assert len(tent_predictions(model, images(6), how=Tent(batch_size=3), rng=rng())) == 6


def test_a_network_without_norm_layers_is_refused():
    with pytest.raises(UsageError, match="tent adapts norm layers, and squeezenet1_0 has none"):
        prepare_for_tent(network("squeezenet1_0"))


def test_ccsts_twenty_passes_are_an_adaptation_of_their_own():
    assert adaptation_named("tent") == Tent(steps=1, batch_size=200, optimizer="adam", learning_rate=1e-3)
    assert ADAPTATIONS["tent-ccst"] == Tent(passes=20, batch_size=32, optimizer="sgd", learning_rate=1e-4)
    with pytest.raises(UsageError, match="unknown adaptation 'tnet'; did you mean 'tent'"):
        adaptation_named("tnet")


@pytest.mark.parametrize(("steps", "passes", "batch_size"), [(0, 1, 200), (1, 0, 200), (1, 1, 1)])
def test_counts_out_of_range_are_refused(steps: int, passes: int, batch_size: int):
    with pytest.raises(UsageError, match="tent needs steps and passes"):
        Tent(steps=steps, passes=passes, batch_size=batch_size)
