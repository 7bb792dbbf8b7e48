"""Plans: learning-rate schedules, translations, bounded gradients, moments that survive a round."""

import math
from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import nn

from fdgsec.nn.networks.classifiers import PARTS, Classifier, build_classifier
from fdgsec.nn.training.batches import TrainingSet, augment, epoch_of_batches
from fdgsec.nn.training.training_loop import CrossEntropy, epochs, optimizer_step, prepare_training
from fdgsec.nn.training.training_plan import TrainingPlan, optimizer_memory, optimizer_of, remember
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream

PLAIN = TrainingPlan(batch_size=4, crop=None, flip=0.0)


def toy(records: int = 8) -> TrainingSet:
    images = torch.randint(0, 256, (records, 3, 32, 32), generator=stream(0, "world", "toy")).to(torch.uint8)
    return TrainingSet(images=images, labels=torch.arange(records) % 2)


@pytest.mark.parametrize(
    ("schedule", "round_", "epoch", "expected"),
    [
        ("constant", 7, 1, 0.1),
        ("cosine", 0, 1, 0.1),
        ("cosine", 5, 1, 0.05),  # half way: (1 + cos(pi / 2)) / 2
        ("cosine-epoch", 5, 1, 0.1 * 0.5 * (1 + math.cos(math.pi * 11 / 20))),
        ("step", 6, 0, 0.1 * 0.5**2),
    ],
)
def test_the_learning_rate_follows_its_schedule(schedule: str, round_: int, epoch: int, expected: float):
    plan = replace(PLAIN, learning_rate=0.1, epochs=2, schedule=schedule, decay=0.5, decay_every=3)

    assert plan.rate(round=round_, rounds=10, epoch=epoch) == pytest.approx(expected, rel=1e-12)


def test_training_uses_the_rate_of_its_round():
    moved = []
    for round_ in (0, 9):
        model = build_classifier("tiny", 2, norm="group", rng=stream(0, "world", "network"))
        before = model.head.weight.detach().clone()
        plan = replace(PLAIN, steps=1, batch_size=8, learning_rate=0.1, schedule="cosine")
        epochs(model, toy(), CrossEntropy(), plan, stream(0, "world", "order"), round=round_, rounds=10)
        moved.append(float((model.head.weight.detach() - before).norm()))

    assert moved[1] / moved[0] == pytest.approx(0.5 * (1 + math.cos(0.9 * math.pi)), rel=1e-3)


@pytest.mark.parametrize(
    "option",
    [
        {"translate": 1.5},
        {"translate": -0.1},
        {"clip_norm": 0.0},
        {"decay_every": 0},
        {"learning_rate": 0.0},
        {"learning_rate": math.nan},
        {"weight_decay": math.inf},
        {"clip_norm": math.nan},
    ],
    ids=str,
)
def test_a_plan_out_of_range_is_refused(option: dict[str, float]):
    with pytest.raises(UsageError, match="a plan needs"):
        replace(PLAIN, **option)


def test_a_translation_keeps_the_middle_and_moves_no_more_than_a_ninth():
    images = torch.zeros(64, 3, 36, 36)
    images[:, :, 18, 18] = 1.0

    moved = augment(images, replace(PLAIN, translate=1.0), stream(0, "world", "shift"))

    mass = moved.sum((1,))
    rows = (mass.sum(2) * torch.arange(36)).sum(1) / mass.sum((1, 2))
    assert float((rows - 18.5).abs().max()) <= 36 * 0.0625 * 1.125 + 1.0
    assert float(rows.std()) > 0.5
    assert torch.equal(augment(images, replace(PLAIN, translate=0.0), stream(0, "world", "shift")), images)


def test_partners_are_cropped_and_mirrored_like_their_images():
    data = replace(toy(), partners=toy().images)
    plan = TrainingPlan(batch_size=4, crop=(0.5, 0.8), flip=0.5)

    dealt = list(
        epoch_of_batches(data, plan, stream(0, "world", "deal"), device=torch.device("cpu"), layout=torch.channels_last)
    )

    assert len(dealt) == 2
    assert all(batch.partners is not None and torch.equal(batch.images, batch.partners) for batch in dealt)


def test_a_gradient_is_bounded_where_the_plan_says_so():
    weight = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([weight], lr=1.0)

    optimizer_step(optimizer, (weight * torch.tensor([30.0, 0.0, 40.0])).sum(), replace(PLAIN, clip_norm=2.0))

    assert weight.detach().tolist() == pytest.approx([-1.2, 0.0, -1.6], rel=1e-4)


def test_frozen_norm_layers_keep_their_running_statistics():
    model = build_classifier("tiny", 2, rng=stream(0, "world", "network"))
    before = {name: value.clone() for name, value in model.named_buffers() if "running" in name}

    epochs(model, toy(), CrossEntropy(), replace(PLAIN, freeze_norm=True), stream(0, "world", "order"))

    assert before
    assert all(torch.equal(dict(model.named_buffers())[name], value) for name, value in before.items())
    prepare_training(model, PLAIN)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("last", ["stem", "stage3", "stage4"])
def test_frozen_parts_keep_weights_and_statistics_and_the_rest_trains(last: str):
    model = build_classifier("tiny", 2, rng=stream(0, "world", "network"))
    before = {name: value.clone() for name, value in model.state_dict().items()}

    epochs(model, toy(), CrossEntropy(), replace(PLAIN, frozen=last), stream(0, "world", "order"))  # type: ignore[arg-type]

    frozen = PARTS[: PARTS.index(last) + 1]
    for name, value in model.state_dict().items():
        kept = name.startswith(tuple(f"body.{part}." for part in frozen))
        assert torch.equal(value, before[name]) == kept, name


def test_frozen_parts_in_bfloat16_round_in_training_alone():
    model = build_classifier("tiny", 2, rng=stream(0, "world", "network")).eval()
    pictures = torch.rand(4, 3, 32, 32, generator=stream(1, "world"))
    with torch.no_grad():
        expected = model(pictures)
        model.train().freeze("stage4", brain=True)
        trained, tested = model(pictures), model.eval()(pictures)

    assert torch.equal(tested, expected)
    assert trained.dtype == torch.float32
    assert not torch.equal(trained, expected)
    torch.testing.assert_close(trained, expected, rtol=0.05, atol=0.05)  # eight bits, five layers


def test_a_frozen_network_is_refused_where_it_has_no_such_part():
    model = Classifier(backbone="linear", norm="batch", body=nn.Sequential(), neck=nn.Flatten(), head=nn.Linear(12, 2))

    with pytest.raises(UsageError, match="no part 'stage1' to freeze"):
        prepare_training(model, replace(PLAIN, frozen="stage1"))


def test_moments_that_were_written_down_go_on_as_if_never_interrupted():
    plan = replace(PLAIN, optimizer="adam", learning_rate=0.1)
    inputs = torch.tensor([[1.0, -2.0, 3.0]])
    whole, parts = (nn.Linear(3, 1, bias=False) for _ in range(2))
    parts.load_state_dict(whole.state_dict())

    def step(model: nn.Linear, optimizer: torch.optim.Optimizer) -> None:
        optimizer_step(optimizer, model(inputs).square().sum(), plan)

    steady, first = (optimizer_of(model.parameters(), plan) for model in (whole, parts))
    for _ in range(4):
        step(whole, steady)
    for _ in range(2):
        step(parts, first)
    second = optimizer_of(parts.parameters(), plan)
    remember(second, {"foreign": torch.zeros(1), **optimizer_memory(first)})
    for _ in range(2):
        step(parts, second)

    assert torch.equal(parts.weight, whole.weight)


class ParameterOnGpu(nn.Parameter):
    """A parameter that says it is on a GPU."""

    is_cuda = True


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_an_optimizer_is_fused_where_all_its_parameters_are_on_a_gpu(kind: Literal["sgd", "adam"]):
    plan, here, there = TrainingPlan(optimizer=kind), nn.Parameter(torch.ones(2)), ParameterOnGpu(torch.ones(2))
    assert [bool(optimizer_of(each, plan).defaults["fused"]) for each in ([there], [there, here], [here])] == [
        True,
        False,
        False,
    ]
