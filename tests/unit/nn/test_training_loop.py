"""The training loop: how many steps, on which records, in which precision, and what augmentation may change."""

from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.data.domains import as_float
from fdgsec.experiments.run_config import RunConfig
from fdgsec.experiments.train import train
from fdgsec.nn.networks.classifiers import Classifier, build_classifier
from fdgsec.nn.training.batches import Batch, TrainingSet, augment
from fdgsec.nn.training.training_loop import CrossEntropy, epochs, predictions
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import NoProgress
from fdgsec.runtime.random_streams import stream

PLAIN = TrainingPlan(batch_size=4, crop=None, flip=0.0)


def network() -> Classifier:
    return build_classifier("tiny", 2, rng=stream(0, "world", "network"))


def dark_and_bright(records: int) -> TrainingSet:
    """Two classes that differ in brightness: even records are dark, odd ones bright."""
    labels = torch.arange(records) % 2
    noise = torch.randint(0, 60, (records, 3, 32, 32), generator=stream(0, "world", "toy"))
    return TrainingSet(images=(noise + 160 * labels.view(-1, 1, 1, 1)).to(torch.uint8), labels=labels)


def noise(records: int) -> Tensor:
    return torch.rand(records, 3, 32, 32, generator=stream(0, "world", "noise"))


def steps_of(records: int, plan: TrainingPlan) -> int:
    seen: list[int] = []
    found = epochs(
        network(),
        dark_and_bright(records),
        CrossEntropy(),
        plan,
        stream(0, "world", "t"),
        on_step=lambda step, loss: seen.append(step),
    )
    assert seen == list(range(1, int(found["steps"]) + 1))
    return int(found["steps"])


@dataclass(frozen=True)
class Witness:
    """Cross-entropy that remembers which records it saw, batch by batch."""

    couples_records: bool = False
    batches: list[list[int]] = field(default_factory=list)

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        self.batches.append(batch.records.tolist())
        return CrossEntropy()(batch, model)


@pytest.mark.parametrize(
    ("records", "batch_size", "passes", "expected"),
    [(8, 4, 1, 2), (8, 4, 3, 6), (10, 4, 1, 3), (3, 4, 2, 2), (9, 4, 2, 4), (1, 4, 2, 2), (3, 1, 2, 6)],
)
def test_an_epoch_is_every_full_batch_and_a_rest_of_two_or_more(
    records: int, batch_size: int, passes: int, expected: int
):
    plan = replace(PLAIN, batch_size=batch_size, epochs=passes)

    assert steps_of(records, plan) == expected


@pytest.mark.parametrize("steps", [1, 3, 7])
def test_a_plan_in_steps_takes_exactly_these_whatever_the_epochs(steps: int):
    assert steps_of(8, replace(PLAIN, steps=steps, epochs=50)) == steps


def test_every_epoch_shows_every_record_once_in_a_new_order():
    witness = Witness()

    epochs(network(), dark_and_bright(8), witness, replace(PLAIN, epochs=2), stream(0, "world", "t"))

    first, second = (
        [record for batch in half for record in batch] for half in (witness.batches[:2], witness.batches[2:])
    )
    assert sorted(first) == sorted(second) == list(range(8))
    assert first != second


def test_a_single_record_left_over_is_skipped():
    witness = Witness()

    epochs(network(), dark_and_bright(9), witness, PLAIN, stream(0, "world", "t"))

    assert [len(batch) for batch in witness.batches] == [4, 4]


def test_the_same_stream_trains_the_same_network_and_another_stream_another():
    def trained(name: str) -> Tensor:
        model = network()
        epochs(model, dark_and_bright(12), CrossEntropy(), TrainingPlan(batch_size=4), stream(0, "world", name))
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    assert torch.equal(trained("a"), trained("a"))
    assert not torch.equal(trained("a"), trained("b"))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_loss_falls_and_the_classes_are_learned_where_brightness_tells_them_apart(optimizer: str):
    data = dark_and_bright(24)
    rate = {"sgd": 0.05, "adam": 0.005}[optimizer]
    plan = TrainingPlan(batch_size=8, epochs=8, learning_rate=rate, optimizer=optimizer)  # type: ignore[arg-type]
    losses: list[float] = []
    model = network()

    epochs(
        model,
        data,
        CrossEntropy(),
        plan,
        stream(0, "world", "t"),
        on_step=lambda step, loss: losses.append(loss),
    )

    assert sum(losses[-3:]) < 0.3 * sum(losses[:3])
    assert torch.equal(predictions(model, data.images), data.labels)


def test_one_full_batch_step_of_sgd_is_the_gradient_of_the_mean_loss():
    data, model, slow = dark_and_bright(6), network(), network().train()
    loss = functional.cross_entropy(slow(as_float(data.images)), data.labels)  # the oracle: one step by hand
    names, parameters = zip(*slow.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, parameters)

    found = epochs(
        model, data, CrossEntropy(), replace(PLAIN, batch_size=6, learning_rate=0.1), stream(0, "world", "t")
    )

    assert found["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    after = dict(model.named_parameters())
    for name, parameter, gradient in zip(names, parameters, gradients, strict=True):
        # records come in another order, in another memory layout: float32 sums differ in the last digits
        assert torch.allclose(after[name], parameter - 0.1 * gradient, rtol=1e-4, atol=1e-5), name


def test_the_reported_loss_weighs_records_not_batches():
    batches: list[tuple[int, float]] = []
    witness = Witness()

    found = epochs(
        network(),
        dark_and_bright(6),
        witness,
        PLAIN,
        stream(0, "world", "t"),
        on_step=lambda step, loss: batches.append((len(witness.batches[-1]), loss)),
    )

    assert [size for size, _ in batches] == [4, 2]
    assert found["loss"] == pytest.approx(sum(size * loss for size, loss in batches) / 6, rel=1e-5)


def test_a_client_without_images_is_refused():
    with pytest.raises(UsageError, match="no training images"):
        epochs(network(), dark_and_bright(0), CrossEntropy(), PLAIN, stream(0, "world", "t"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"steps": 0},
        {"batch_size": 0},
        {"learning_rate": 0.0},
        {"crop": (0.8, 1.2)},
        {"crop": (0.9, 0.8)},
        {"flip": 1.5},
    ],
)
def test_a_plan_out_of_range_is_refused(wrong: dict[str, object]):
    with pytest.raises(UsageError, match="a plan needs"):
        TrainingPlan(**wrong)  # type: ignore[arg-type]


def test_without_crop_and_flip_images_stay_as_they_are():
    images = noise(5)

    assert torch.equal(augment(images, PLAIN, stream(0, "world", "t")), images)


def test_a_certain_flip_is_the_exact_mirror_image():
    images = noise(5)

    assert torch.equal(augment(images, TrainingPlan(crop=None, flip=1.0), stream(0, "world", "t")), images.flip(3))


def test_half_of_the_images_are_mirrored_and_the_others_untouched():
    images = noise(200)

    made = augment(images, TrainingPlan(crop=None, flip=0.5), stream(0, "world", "t"))

    kept = (made == images).flatten(1).all(1)
    mirrored = (made == images.flip(3)).flatten(1).all(1)
    assert bool((kept ^ mirrored).all())
    assert 70 <= int(mirrored.sum()) <= 130  # 200 fair coins leave this range once in 10^5


def test_crops_keep_the_range_and_the_shape_and_differ_from_image_to_image():
    images = noise(1).expand(6, -1, -1, -1)

    made = augment(images, TrainingPlan(crop=(0.5, 0.9), flip=0.0), stream(0, "world", "t"))

    assert made.shape == images.shape
    assert float(made.min()) >= 0.0
    assert float(made.max()) <= 1.0 + 1e-6  # bilinear weights sum to 1 up to rounding
    assert all(not torch.equal(made[i], made[j]) for i in range(6) for j in range(i))


def test_a_crop_of_a_ramp_is_a_ramp_over_the_share_of_the_side_that_its_area_says():
    ramp = torch.linspace(0, 1, 32).expand(64, 3, 32, 32)

    made = augment(ramp, TrainingPlan(crop=(0.49, 0.49), flip=0.0), stream(0, "world", "t"))

    slope = (made[:, :, :, 24] - made[:, :, :, 8]).mean((1, 2)) / (ramp[0, 0, 0, 24] - ramp[0, 0, 0, 8])
    width = 0.7 * (4 / 3) ** 0.5  # the side of area .49, times the root of the extreme aspect ratio
    assert 0.7**2 / width - 0.02 <= float(slope.min()) < 0.66
    assert 0.74 < float(slope.max()) <= width + 0.02


def test_augmentation_draws_from_its_stream_alone():
    images = noise(4)

    first, again = (augment(images, TrainingPlan(), stream(0, "world", "t")) for _ in range(2))

    assert torch.equal(first, again)


def test_predictions_are_those_of_a_plain_loop_over_single_images():
    data, model, slow = dark_and_bright(11), network(), network()
    epochs(model, data, CrossEntropy(), replace(PLAIN, learning_rate=0.05, epochs=6), stream(0, "world", "t"))
    slow.load_state_dict(model.state_dict())
    slow.eval()
    expected = [int(slow(as_float(image).unsqueeze(0)).argmax()) for image in data.images]

    assert predictions(model, data.images, batch_size=4).tolist() == expected
    assert set(expected) == {0, 1}


def test_predicting_leaves_the_model_as_it_was():
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}

    predictions(model, dark_and_bright(6).images)

    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_no_images_have_no_predictions():
    assert predictions(network(), dark_and_bright(0).images).shape == (0,)


def test_zero_rounds_have_no_accuracy_and_two_rounds_have_one():
    config = RunConfig(method="fedavg", image_size=32, per_domain=14)

    without = train(config, data_root=None, out=None, progress=NoProgress())
    trained = train(replace(config, rounds=2), data_root=None, out=None, progress=NoProgress())

    assert without.accuracy is None
    assert without.model_traffic == []
    assert trained.accuracy is not None
    assert (trained.accuracy["unseen_domain"], trained.accuracy["n"], trained.accuracy["round"]) == ("sketch", 14, 1)


def test_a_network_that_was_measured_can_still_be_trained():
    model = network()
    data = dark_and_bright(8)

    predictions(model, data.images)
    metrics = epochs(model, data, CrossEntropy(), PLAIN, stream(0, "world", "order"))

    assert metrics["steps"] == 2.0
