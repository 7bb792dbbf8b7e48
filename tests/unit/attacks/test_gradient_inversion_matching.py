"""Pictures from gradients: better than the mean image where the gradient is theirs, and no better where it is not."""

import copy
import math
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.attacks.gradient_inversion.gradient_matching import (
    Matching,
    Statistics,
    batch_gradient,
    match_gradient,
    step_gradient,
)
from fdgsec.attacks.gradient_inversion.picture_search import total_variation
from fdgsec.metrics.image_similarity import psnr
from fdgsec.nn.networks.classifiers import Classifier, build_classifier
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from tests.support.pictures import pictures

CLASSES = 7
SIDE = 32


def network(seed: int = 0) -> Classifier:
    return build_classifier("tiny", CLASSES, rng=stream(seed, "world", "network"))


def test_batch_gradient_is_that_of_backward_in_evaluation_mode_and_leaves_the_model_alone():
    model = network()
    images, labels = pictures(seed=1, n=2, side=SIDE), torch.tensor([3, 5])
    before = copy.deepcopy(model.state_dict())
    reference = copy.deepcopy(model).eval()
    functional.cross_entropy(reference(images), labels).backward()

    made = batch_gradient(model, images, labels, statistics="running")

    for name, parameter in reference.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(made[name], parameter.grad, atol=1e-7)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_parameter_that_the_loss_does_not_reach_is_matched_by_zeros():
    model = network()
    model.register_parameter("unused", torch.nn.Parameter(torch.ones(3)))
    images, labels = pictures(seed=1, n=1, side=SIDE), torch.tensor([3])

    made = batch_gradient(model, images, labels, statistics="running")
    matched = match_gradient(
        model, {**made, "unused": torch.ones(3)}, labels, size=(SIDE, SIDE),
        matching=Matching(steps=1), rng=stream(0, "attack", "matching"),
    )  # fmt: skip

    assert torch.equal(made["unused"], torch.zeros(3))
    assert matched.images.isfinite().all()


def test_batch_statistics_give_another_gradient_and_do_not_touch_the_running_ones():
    model = network()
    images, labels = pictures(seed=1, n=2, side=SIDE), torch.tensor([3, 5])
    before = copy.deepcopy(model.state_dict())

    running = batch_gradient(model, images, labels, statistics="running")
    batch = batch_gradient(model, images, labels, statistics="batch")

    reference = copy.deepcopy(model).train()
    functional.cross_entropy(reference(images), labels).backward()
    weight = reference.head.weight.grad
    assert weight is not None
    assert torch.allclose(batch["head.weight"], weight, atol=1e-7)
    assert not torch.allclose(batch["head.weight"], running["head.weight"], atol=1e-3)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_one_sgd_step_with_weight_decay_is_undone():
    model = network()
    images, labels = pictures(seed=2, n=2, side=SIDE), torch.tensor([0, 6])
    stepped = copy.deepcopy(model).eval()
    optimizer = torch.optim.SGD(stepped.parameters(), lr=0.1, weight_decay=0.01)
    functional.cross_entropy(stepped(images), labels).backward()
    optimizer.step()

    made = step_gradient(model, stepped.state_dict(), learning_rate=0.1, weight_decay=0.01)

    true = batch_gradient(model, images, labels, statistics="running")
    assert list(made) == list(true)
    assert all(torch.allclose(made[name], true[name], atol=1e-5) for name in true)


def test_total_variation_is_the_mean_of_neighbors_differences():
    image = torch.tensor([[[[0.0, 1.0], [0.5, 0.5]]]])

    # down: |.5 - 0|, |.5 - 1|, mean .5; across: |1 - 0|, |.5 - .5|, mean .5
    assert float(total_variation(image)) == 1.0


def baseline(images: Tensor) -> float:
    """The mean PSNR of the mean of other pictures of the same kind, which knows no gradient."""
    return float(psnr(pictures(seed=1000, n=64, side=SIDE).mean(0).expand_as(images), images).mean())


@pytest.mark.medium
def test_matching_finds_a_smooth_picture_from_its_gradient():
    model, image, label = network(), pictures(seed=0, n=1, side=SIDE), torch.tensor([2])
    gradient = batch_gradient(model, image, label, statistics="running")
    before = copy.deepcopy(model.state_dict())

    match = match_gradient(
        model, gradient, label, size=(SIDE, SIDE), matching=Matching(steps=300), rng=stream(0, "attack", "start")
    )

    assert match.distance < match.start / 4
    assert float(psnr(match.images, image).mean()) > baseline(image) + 3.0
    assert match.distances == (match.distance,)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.medium
def test_another_pictures_gradient_does_not_find_this_picture():
    model, image, label = network(), pictures(seed=0, n=1, side=SIDE), torch.tensor([2])
    other = batch_gradient(model, pictures(seed=31, n=1, side=SIDE), label, statistics="running")

    match = match_gradient(
        model, other, label, size=(SIDE, SIDE), matching=Matching(steps=100), rng=stream(0, "attack", "start")
    )

    assert float(psnr(match.images, image).mean()) < baseline(image)


@pytest.mark.medium
def test_the_fit_is_better_with_the_statistics_that_the_client_used():
    model, label = network(), torch.tensor([2])
    gradient = batch_gradient(model, pictures(seed=0, n=1, side=SIDE), label, statistics="batch")

    distances: dict[Statistics, float] = {}
    for statistics in ("running", "batch"):
        matching = Matching(steps=40, statistics=statistics)
        match = match_gradient(
            model, gradient, label, size=(SIDE, SIDE), matching=matching, rng=stream(0, "attack", "start")
        )
        distances[statistics] = match.distance

    assert distances["batch"] < 0.75 * distances["running"]


@pytest.mark.slow
def test_matching_beats_the_mean_picture_over_several_networks_and_batches_of_two():
    gains = []
    for seed in range(3):
        model, images, labels = network(seed), pictures(seed=seed, n=2, side=SIDE), torch.tensor([seed, seed + 1])
        gradient = batch_gradient(model, images, labels, statistics="running")
        match = match_gradient(
            model,
            gradient,
            labels,
            size=(SIDE, SIDE),
            matching=Matching(steps=400),
            rng=stream(seed, "attack", "start"),
        )
        gains.append(float(psnr(match.images, images).mean()) - baseline(images))

    assert min(gains) > 2.0


def short(
    model: Classifier, gradient: Mapping[str, Tensor], labels: Tensor, *, restarts: int = 1, seed: int = 0
) -> Tensor:
    matching = Matching(steps=3, restarts=restarts)
    return match_gradient(
        model, gradient, labels, size=(SIDE, SIDE), matching=matching, rng=stream(seed, "attack", "short")
    ).images


def test_the_same_stream_gives_the_same_pictures_and_the_best_restart_is_kept():
    model, labels = network(), torch.tensor([1, 4])
    gradient = batch_gradient(model, pictures(seed=4, n=2, side=SIDE), labels, statistics="running")

    match = match_gradient(
        model,
        gradient,
        labels,
        size=(SIDE, SIDE),
        matching=Matching(steps=3, restarts=3),
        rng=stream(0, "attack", "short"),
    )

    assert torch.equal(match.images, short(model, gradient, labels, restarts=3))
    assert not torch.equal(match.images, short(model, gradient, labels, restarts=3, seed=1))
    assert match.distance == min(match.distances)
    assert len(set(match.distances)) == 3
    assert match.images.shape == (2, 3, SIDE, SIDE)
    assert 0 <= float(match.images.min()) <= float(match.images.max()) <= 1


def test_the_reported_distance_is_one_minus_the_cosine_of_the_pictures_gradient():
    model, labels = network(), torch.tensor([1])
    gradient = batch_gradient(model, pictures(seed=5, n=1, side=SIDE), labels, statistics="running")
    scaled = {name: 7 * part for name, part in gradient.items()}

    match = match_gradient(
        model, scaled, labels, size=(SIDE, SIDE), matching=Matching(steps=5), rng=stream(0, "attack", "start")
    )

    made = batch_gradient(model, match.images, labels, statistics="running")
    one = torch.cat([made[name].flatten() for name in gradient]).double()
    other = torch.cat([gradient[name].flatten() for name in gradient]).double()
    assert match.distance == pytest.approx(1 - float(one @ other / (one.norm() * other.norm())), abs=1e-5)


def test_a_part_of_the_gradient_is_enough_to_start_from():
    model, labels = network(), torch.tensor([1])
    whole = batch_gradient(model, pictures(seed=5, n=1, side=SIDE), labels, statistics="running")

    found = short(model, {"body.stem.0.weight": whole["body.stem.0.weight"]}, labels)

    assert bool(found.isfinite().all())


def test_gradients_that_do_not_fit_are_refused():
    model = network()
    zero = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    broken = zero | {"head.bias": torch.full((CLASSES,), math.nan)}
    cases: list[tuple[Mapping[str, Tensor], str]] = [
        ({}, "got nothing"),
        ({"neck.weight": torch.ones(2)}, r"must fit the .* parameters of tiny; got neck.weight \(2,\)"),
        ({"head.bias": torch.ones(CLASSES + 1)}, r"got head.bias \(8,\)"),
        (zero, "zero everywhere"),
        (broken, "not finite"),
    ]
    for gradient, message in cases:
        with pytest.raises(UsageError, match=message):
            short(model, gradient, torch.tensor([0]))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.zeros(9, dtype=torch.int64), r"1 to 8; got torch\.int64 \(9,\)"),
        (torch.zeros(0, dtype=torch.int64), r"got torch\.int64 \(0,\)"),
        (torch.zeros(2), r"got torch\.float32 \(2,\)"),
        (torch.tensor([CLASSES]), r"lie in 0\.\.6; got \[7\]"),
    ],
)
def test_labels_that_cannot_be_a_small_batchs_are_refused(labels: Tensor, message: str):
    gradient = {"head.bias": torch.ones(CLASSES)}

    with pytest.raises(UsageError, match=message):
        short(network(), gradient, labels)


def test_states_that_are_no_step_are_refused():
    model = network()
    state = model.state_dict()

    with pytest.raises(UsageError, match="learning_rate must be above 0"):
        step_gradient(model, state, learning_rate=0.0)
    with pytest.raises(UsageError, match="equals the one before"):
        step_gradient(model, state, learning_rate=0.1, weight_decay=0.1)
    with pytest.raises(UsageError, match=r"needs head\.bias \(7,\); got nothing"):
        step_gradient(model, {name: state[name] for name in state if name != "head.bias"}, learning_rate=0.1)


@pytest.mark.parametrize(
    "options",
    [{"steps": 0}, {"restarts": 0}, {"learning_rate": 0.0}, {"total_variation": -1.0}, {"total_variation": math.nan}],
)
def test_matching_that_cannot_run_is_refused(options: dict[str, float]):
    values = {"steps": 10, "restarts": 1, "learning_rate": 0.1, "total_variation": 0.1} | options

    with pytest.raises(UsageError, match="matching needs"):
        Matching(
            steps=int(values["steps"]),
            restarts=int(values["restarts"]),
            learning_rate=values["learning_rate"],
            total_variation=values["total_variation"],
        )
