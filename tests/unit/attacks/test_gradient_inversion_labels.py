"""Labels read off the head's gradient, and which updates hold a gradient at all: exact where algebra says so."""

from typing import Literal

import pytest
import torch
from torch import Tensor

from fdgsec.attacks.gradient_inversion.gradient_matching import Statistics, batch_gradient, feasible, recover_labels
from fdgsec.nn.networks.classifiers import Classifier, build_classifier
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from tests.support.pictures import pictures

CLASSES = 7
SIDE = 32


def network(seed: int = 0) -> Classifier:
    return build_classifier("tiny", CLASSES, rng=stream(seed, "world", "network"))


def head(weight: Tensor, bias: Tensor) -> Classifier:
    """A network whose head has `weight` (classes, 96) and `bias`."""
    model = build_classifier("tiny", len(bias), rng=stream(0, "world", "network"))
    with torch.no_grad():
        model.head.weight.copy_(weight)
        model.head.bias.copy_(bias)
    return model


def head_gradient(weight: Tensor, bias: Tensor, features: Tensor, labels: list[int]) -> dict[str, Tensor]:
    """The mean cross-entropy's gradient written out: one row (p - onehot) times the features per record."""
    slopes = torch.zeros_like(weight)
    pulls = torch.zeros_like(bias)
    for row, label in zip(features, labels, strict=True):
        logits = weight @ row + bias
        error = logits.exp() / logits.exp().sum()
        error[label] -= 1
        slopes += torch.outer(error, row) / len(labels)
        pulls += error / len(labels)
    return {"head.weight": slopes, "head.bias": pulls}


def agreement(labels: Tensor, found: Tensor) -> float:
    """The share of the multiset `labels` that is in `found`."""
    counts = (torch.bincount(labels, minlength=CLASSES), torch.bincount(found, minlength=CLASSES))
    return float(torch.minimum(*counts).sum()) / len(labels)


@pytest.mark.parametrize("statistics", ["running", "batch"])
def test_the_label_of_one_record_is_always_found(statistics: Statistics):
    wrong = []
    for seed in range(12):
        model, label = network(seed), torch.tensor([seed % CLASSES])
        gradient = batch_gradient(model, pictures(seed=seed, n=1, side=SIDE), label, statistics=statistics)

        if not torch.equal(recover_labels(model, gradient, batch=1), label):
            wrong.append(seed)

    assert wrong == []


@pytest.mark.parametrize("batch", [2, 4, 8])
def test_nine_tenths_of_the_labels_of_a_small_batch_are_found_with_their_repetitions(batch: int):
    shares, repeated = [], 0
    for seed in range(6):
        model = network(seed)
        labels = torch.randint(CLASSES, (batch,), generator=stream(seed, "world", "labels", batch))
        gradient = batch_gradient(model, pictures(seed=seed, n=batch, side=SIDE), labels, statistics="running")
        repeated += batch - len(labels.unique())

        shares.append(agreement(labels, recover_labels(model, gradient, batch=batch)))

    assert sum(shares) / len(shares) >= 0.9
    assert batch < 4 or repeated > 0


def test_hand_worked_counts():
    # Zero weights and bias log(1, 1, 2): p = (1/4, 1/4, 1/2) for every record. Labels 0, 0, 0, 1 of four:
    # b = p - n / 4 = (1/4 - 3/4, 1/4 - 1/4, 1/2) = (-1/2, 0, 1/2); 4 (p - b) = (3, 1, 0), the counts.
    bias = torch.tensor([1.0, 1.0, 2.0]).log()
    model = head(torch.zeros(3, 96), bias)
    gradient = head_gradient(torch.zeros(3, 96), bias, torch.ones(4, 96), [0, 0, 0, 1])

    assert gradient["head.bias"].tolist() == pytest.approx([-0.5, 0.0, 0.5], abs=1e-6)
    assert recover_labels(model, gradient, batch=4).tolist() == [0, 0, 0, 1]


def test_counts_need_the_heads_own_prediction_where_the_bias_is_skewed():
    # With p near (.95, .04, .01) the share of a label cannot be read from b alone: twice label 0 leaves b_0 negative by
    # only .05, and once label 1 makes b_1 the most negative; a uniform offset would hand both places to label 1.
    bias = torch.tensor([0.95, 0.03, 0.02]).log()
    model = head(torch.zeros(3, 96), bias)
    gradient = head_gradient(torch.zeros(3, 96), bias, torch.ones(3, 96), [0, 0, 1])

    uniform = (3 * (1 / 3 - gradient["head.bias"])).round().tolist()

    assert recover_labels(model, gradient, batch=3).tolist() == [0, 0, 1]
    assert uniform != [2, 1, 0]


def test_counts_are_exact_for_equal_features_whatever_the_head():
    rng = stream(3, "world", "head")
    weight, bias = torch.randn(5, 96, generator=rng), torch.randn(5, generator=rng)
    features = torch.rand(96, generator=rng).div(5).expand(8, 96)
    labels = [0, 1, 1, 3, 3, 3, 4, 4]

    found = recover_labels(head(weight, bias), head_gradient(weight, bias, features, labels), batch=8)

    assert found.tolist() == labels


def test_a_present_class_counts_even_where_the_batch_is_full_of_another():
    weight, bias = torch.zeros(4, 96), torch.zeros(4)
    gradient = head_gradient(weight, bias, torch.ones(8, 96), [2] * 7 + [1])

    assert recover_labels(head(weight, bias), gradient, batch=8).tolist() == [1, 2, 2, 2, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("batch", "steps", "optimizer", "momentum", "words"),
    [
        (9, 1, "sgd", 0.0, "a batch of 9 records"),
        (8, 2, "sgd", 0.0, "2 local steps"),
        (1, 1, "adam", 0.0, "Adam"),
        (1, 1, "sgd", 0.9, "momentum 0.9"),
    ],
)
def test_infeasible_settings_say_why(
    batch: int, steps: int, optimizer: Literal["sgd", "adam"], momentum: float, words: str
):
    assert words in feasible(batch, steps, optimizer=optimizer, momentum=momentum)


def test_a_feasible_setting_has_nothing_against_it_and_an_infeasible_one_all_its_reasons():
    assert feasible(8, 1) == ""
    assert feasible(32, 50, optimizer="adam", momentum=0.5).count(";") == 3


def test_labels_need_the_head_and_a_gradient_with_two_signs():
    model = network()
    ones = {"head.weight": torch.ones(CLASSES, 96), "head.bias": torch.ones(CLASSES)}

    with pytest.raises(UsageError, match=r"lacks head\.weight"):
        recover_labels(model, {"head.bias": torch.ones(CLASSES)}, batch=1)
    with pytest.raises(UsageError, match="no two signs"):
        recover_labels(model, ones, batch=1)
    with pytest.raises(UsageError, match="batch must be at least 1"):
        recover_labels(model, ones, batch=0)
