"""Alignment losses per record: their ranges, their edges and what leaves them unchanged."""

import math

import pytest
import torch
from torch import Tensor

from fdgsec.nn.training.losses import inconsistency, jensen_shannon, supervised_contrastive
from fdgsec.runtime.random_streams import stream


def noise(*shape: int, name: str = "noise") -> Tensor:
    return torch.randn(shape, generator=stream(0, "world", name))


def test_the_divergence_of_identical_predictions_is_zero():
    logits = 5 * noise(8, 7)

    assert float(jensen_shannon([logits, logits, logits]).abs().max()) < 1e-6


def test_the_divergence_of_three_certain_and_different_predictions_is_the_logarithm_of_three():
    certain = 200 * torch.eye(3)

    made = jensen_shannon([certain[:1], certain[1:2], certain[2:]])

    assert float(made) == pytest.approx(math.log(3), rel=1e-6)


def test_the_divergence_never_leaves_zero_to_the_logarithm_of_their_number():
    logits = [noise(200, 7, name=name) * noise(200, 1, name=f"scale {name}").mul(3).exp() for name in ("a", "b", "c")]

    made = jensen_shannon(logits)

    assert float(made.min()) > -1e-6
    assert float(made.max()) <= math.log(3) + 1e-6


def test_the_divergence_and_its_gradient_stay_finite_where_a_probability_underflows():
    logits = torch.tensor([[0.0, -2000.0], [-2000.0, 0.0]], requires_grad=True)

    jensen_shannon([logits, -logits, 0 * logits]).sum().backward()

    assert logits.grad is not None
    assert bool(torch.isfinite(logits.grad).all())


def test_consistency_is_zero_where_the_views_are_equal_and_only_there():
    features = noise(5, 6)
    moved = features.clone()
    moved[2, 3] += 0.6

    assert inconsistency(features, [features, features]).tolist() == [0.0] * 5
    assert inconsistency(features, [features, moved]).tolist() == pytest.approx([0, 0, 0.36 / 6 / 2, 0, 0], rel=1e-5)


def test_contrast_depends_on_directions_alone_and_not_on_the_order_of_rows():
    features, labels = noise(8, 5), torch.tensor([0, 1, 0, 1, 2, 2, 0, 1])
    order = torch.tensor([3, 1, 7, 0, 5, 2, 6, 4])
    lengths = noise(8, 1, name="lengths").exp()
    plain = supervised_contrastive(features, labels, temperature=0.1)

    made = supervised_contrastive((lengths * features)[order], labels[order], temperature=0.1)

    assert torch.allclose(made, plain[order], rtol=1e-4, atol=1e-5)


def test_contrast_is_taken_in_whole_precision_wherever_it_stands():
    features, labels = noise(16, 96), torch.arange(16) % 4

    with torch.autocast("cpu", torch.bfloat16):
        inside = supervised_contrastive(features, labels, temperature=0.1)

    assert torch.equal(inside, supervised_contrastive(features, labels, temperature=0.1))


def test_an_anchor_without_positives_costs_nothing():
    made = supervised_contrastive(noise(3, 4), torch.tensor([0, 1, 0]), temperature=0.1)

    assert float(made[1]) == 0.0
    assert float(made[[0, 2]].min()) > 0.0


def test_a_record_alone_with_its_view_has_nothing_to_be_told_from():
    assert supervised_contrastive(noise(2, 4), torch.tensor([1, 1]), temperature=0.1).tolist() == [0.0, 0.0]


def test_an_anchor_that_is_its_own_positive_pulls_less():
    features, labels = noise(6, 4), torch.tensor([0, 0, 0, 1, 1, 1])

    plain = supervised_contrastive(features, labels, temperature=0.1)
    released = supervised_contrastive(features, labels, temperature=0.1, include_self=True)

    # of three positives one is the anchor itself, with cosine 1 over the same denominator
    directions = torch.nn.functional.normalize(features, dim=1)
    powers = (directions @ directions.T / 0.1).exp()
    below = (powers.sum(1) - powers.diagonal()).log()
    assert torch.allclose(released, (2 * plain - (1 / 0.1 - below)) / 3, rtol=1e-4, atol=1e-4)


def test_contrast_falls_as_a_class_draws_together():
    labels = torch.tensor([0, 0, 1, 1])
    apart = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.2], [0.1, -1.0]])
    together = torch.tensor([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.2], [-1.0, 0.1]])

    losses = [supervised_contrastive(f, labels, temperature=0.1).mean() for f in (apart, together)]

    assert float(losses[1]) < 0.01 < float(losses[0])


@pytest.mark.parametrize(("rows", "labels", "temperature"), [(1, 1, 0.1), (4, 3, 0.1), (4, 4, 0.0)])
def test_contrast_of_too_few_rows_or_labels_or_no_temperature_is_refused(rows: int, labels: int, temperature: float):
    with pytest.raises(ValueError, match="contrast needs features"):
        supervised_contrastive(noise(rows, 3), torch.zeros(labels, dtype=torch.int64), temperature=temperature)
