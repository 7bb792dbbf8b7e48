"""MobileNetV3's dropout, which draws from the stream of its training."""

import pytest
import torch
import torchvision.models
from torch import Tensor, nn

from fdgsec.nn.networks.classifiers import BACKBONES, Classifier, build_classifier
from fdgsec.nn.networks.dropout import Dropout, seed_dropout
from fdgsec.nn.training.batches import TrainingSet
from fdgsec.nn.training.training_loop import CrossEntropy, epochs
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import child, stream

PLAN = TrainingPlan(epochs=1, batch_size=8, learning_rate=1e-2, crop=None, flip=0.0)


def network() -> Classifier:
    return build_classifier("mobilenet_v3_large", 5, rng=stream(0, "world", "network"))


def images(count: int) -> Tensor:
    return torch.rand(count, 3, 32, 32, generator=stream(0, "world", "images"))


def data() -> TrainingSet:
    pixels = (images(8) * 255).to(torch.uint8)
    return TrainingSet(images=pixels, labels=torch.arange(8) % 5)


@pytest.mark.medium
def test_mobilenetv3_alone_drops_features_at_torchvisions_place_and_rate():
    theirs = torchvision.models.mobilenet_v3_large(weights=None).classifier
    linear, activation, dropout, _ = theirs
    assert isinstance(dropout, nn.Dropout)

    ours = list(network().neck.children())[-3:]

    assert [type(layer) for layer in ours] == [type(linear), type(activation), Dropout]
    assert ours[-1].rate == dropout.p == 0.2
    layers = {name: build_classifier(name, 5, rng=None) for name in BACKBONES}
    dropping = {name for name, model in layers.items() if any(isinstance(m, Dropout) for m in model.modules())}
    assert dropping == {"mobilenet_v3_large"}


@pytest.mark.medium
def test_a_trained_step_is_that_of_features_with_a_fifth_of_them_dropped_and_the_rest_scaled_up():
    rng = stream(0, "world", "fit")
    mask = torch.rand(8, 1280, generator=child(stream(0, "world", "fit"), "dropout")) >= 0.2
    order = torch.randperm(8, generator=stream(0, "world", "fit"))
    slow, trained = network().train(), network()

    logits = slow.head(slow.features(data().images[order].float() / 255) * mask / 0.8)
    nn.functional.cross_entropy(logits, data().labels[order]).backward()
    epochs(trained, data(), CrossEntropy(), PLAN, rng)

    assert slow.head.weight.grad is not None
    step = network().head.weight - trained.head.weight
    torch.testing.assert_close(step, PLAN.learning_rate * slow.head.weight.grad, rtol=1e-3, atol=1e-7)  # float32
    assert float(mask.double().mean()) == pytest.approx(0.8, abs=0.02)


def test_without_a_stream_or_in_evaluation_nothing_is_dropped():
    layer, features = Dropout(0.5), torch.ones(4, 6)

    assert torch.equal(layer.train()(features), features)
    seed_dropout(layer, stream(0, "world", "t"))
    assert torch.equal(layer.eval()(features), features)
    assert not torch.equal(layer.train()(features), features)


@pytest.mark.medium
def test_equal_streams_train_equal_models_and_leave_the_global_stream_alone():
    before = torch.random.get_rng_state()

    models = [network() for _ in range(3)]
    for model, seed in zip(models, (0, 0, 1), strict=True):
        epochs(model, data(), CrossEntropy(), PLAN, stream(seed, "world", "fit"))

    first, same, other = (model.head.weight for model in models)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)
