"""Shares from means: the ridge scores, the shadow clients' draws, the reader, and the gradient's bias row."""

import pytest
import torch
from torch import Tensor

from fdgsec.attacks.attribute_inference.mixture_shares import (
    SMALLEST_SCALE,
    STRENGTHS,
    fit_scorer,
    fit_share_estimator,
    project_to_simplex,
    shadow_rows,
    shares_from_gradient,
    skewed_shares,
)
from fdgsec.data.domains import shares_of
from fdgsec.runtime.random_streams import stream


def colored(seed: int, *, images: int = 24, apart: float = 2.0) -> tuple[Tensor, Tensor]:
    rng = stream(seed, "attack")
    kinds = torch.arange(images) % 3
    palette = apart * torch.randn(3, 40, generator=rng, dtype=torch.float64)
    return palette[kinds] + torch.randn(images, 40, generator=rng, dtype=torch.float64), kinds


def refitted(records: Tensor, kinds: Tensor, penalty: float) -> Tensor:
    """Ridge with an intercept, once without every image: what it gives the image that was left out."""
    scale = records.std(0, correction=0)
    x, y = records / scale, torch.nn.functional.one_hot(kinds, 3).to(torch.float64)
    rows = []
    for out in range(len(x)):
        kept = torch.arange(len(x)) != out
        middle, offset = x[kept].mean(0), y[kept].mean(0)
        z = x[kept] - middle
        inverse = torch.linalg.inv(z.T @ z + penalty * torch.eye(40, dtype=torch.float64))
        rows.append(offset + (x[out] - middle) @ inverse @ z.T @ (y[kept] - offset))
    return torch.stack(rows)


def test_left_out_scores_are_those_of_refits_and_the_penalty_is_the_best_of_them():
    records, kinds = colored(0)
    scaled = (records - records.mean(0)) / records.std(0, correction=0)
    square = float(torch.linalg.svdvals(scaled).square().mean())
    truth = torch.nn.functional.one_hot(kinds, 3).to(torch.float64)

    _, left_out = fit_scorer(records, kinds, 3)

    tried = [refitted(records, kinds, strength * square) for strength in STRENGTHS]
    best = min(tried, key=lambda scores: float((scores - truth).square().sum()))
    assert torch.allclose(left_out, best, atol=1e-9)


def test_the_score_of_a_mean_is_the_mean_of_the_scores():
    records, kinds = colored(1)

    scorer, _ = fit_scorer(records, kinds, 3)

    assert torch.allclose(scorer(records.mean(0)), scorer(records).mean(0), atol=1e-9)
    assert torch.allclose(scorer(records).sum(1), torch.ones(24).double(), atol=1e-9)  # one-hot answers sum to 1


def test_a_coordinate_that_never_varies_does_not_decide():
    records, kinds = colored(2)
    records[:, 0] = 5.0

    scorer, _ = fit_scorer(records, kinds, 3)

    median = float(records[:, 1:].std(0, correction=0).median())
    assert float(scorer.scale[0]) == pytest.approx(SMALLEST_SCALE * median)
    assert float(scorer.weights[0].abs().max()) < 1e-12


@pytest.mark.parametrize("records", [torch.eye(2, 4), torch.ones(9, 4)], ids=["two", "equal"])
def test_too_few_or_equal_images_are_refused(records: Tensor):
    with pytest.raises(ValueError, match="three records or more that differ"):
        fit_scorer(records, torch.arange(len(records)) % 2, 2)


def test_shares_are_projected_to_the_nearest_point_of_the_simplex():
    values = 2 * torch.randn(200, 5, generator=stream(0, "attack"), dtype=torch.float64)

    projected = project_to_simplex(values)

    assert float(projected.min()) >= 0
    assert torch.allclose(projected.sum(1), torch.ones(200).double(), atol=1e-12)
    # nearest: no vertex of the simplex lies at an acute angle to what is left over
    toward = torch.eye(5, dtype=torch.float64) - projected.unsqueeze(1)
    assert float((toward @ (values - projected).unsqueeze(2)).max()) < 1e-9


def test_shares_stay_where_they_are():
    shares = torch.tensor([[0.2, 0.5, 0.3], [0.0, 1.0, 0.0]], dtype=torch.float64)

    assert torch.allclose(project_to_simplex(shares), shares, atol=1e-12)


def test_skewed_shares_are_of_the_kinds_that_are_held():
    shares = skewed_shares(500, 5, held=torch.tensor([1, 4]), concentration=0.3, rng=stream(0, "attack"))

    assert torch.allclose(shares.sum(1), torch.ones(500).double())
    assert not shares[:, [0, 2, 3]].any()
    assert abs(float(shares[:, 1].mean()) - 0.5) < 0.08  # sd .4 / sqrt(500) = .018
    assert float(shares[:, 1].var()) == pytest.approx(0.25 / 1.6, abs=0.03)  # Beta(.3, .3): 1 / (4 (2 * .3 + 1))


@pytest.mark.parametrize("distinct", [True, False])
def test_shadow_clients_hold_what_their_shares_say(distinct: bool):
    kinds = torch.tensor([0] * 90 + [1] * 30)  # the smaller kind is no rarer for that
    shares = torch.tensor([[0.7, 0.3], [0.0, 1.0]], dtype=torch.float64).repeat_interleave(400, 0)

    rows = shadow_rows(kinds, shares, 10, distinct=distinct, rng=stream(0, "attack"))
    found = shares_of(kinds[rows], 2)

    assert rows.shape == (800, 10)
    assert abs(float(found[:400, 1].mean()) - 0.3) < 0.03
    assert float(found[400:, 1].min()) == 1
    repeated = [len(set(row)) < 10 for row in rows.tolist()]
    assert any(repeated) != distinct


def test_resampled_clients_vary_as_much_as_so_few_images_leave_open():
    """Two sources of variance of equal size: 20 images of a client, and 20 images that stand for the class."""
    values = torch.randn(20, generator=stream(1, "attack"), dtype=torch.float64)
    everything = torch.ones(6000, 1, dtype=torch.float64)

    rows = shadow_rows(torch.zeros(20, dtype=torch.int64), everything, 20, distinct=False, rng=stream(0, "attack"))

    variance = float(values.var(correction=0))
    expected = variance * (1 / 20 + 19 / 20 / 21)  # the Dirichlet(1) weights add variance / 21
    assert float(values[rows].mean(1).var()) == pytest.approx(expected, rel=0.1)


def test_the_reader_inverts_what_scores_say_of_shares():
    rng = stream(0, "attack")
    shares = skewed_shares(300, 3, held=torch.arange(3), concentration=0.3, rng=rng)
    mixing = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.3, 0.3, 0.4]], dtype=torch.float64)

    reader = fit_share_estimator(shares @ mixing, shares)

    assert torch.allclose(reader(shares @ mixing), shares, atol=1e-6)
    assert torch.allclose(reader.prior, shares.mean(0))


def test_noisy_scores_are_drawn_towards_the_prior():
    rng = stream(0, "attack")
    shares = skewed_shares(4000, 3, held=torch.arange(3), concentration=0.3, rng=rng)
    noise = 10 * torch.randn(4000, 3, generator=rng, dtype=torch.float64)

    reader = fit_share_estimator(shares + noise, shares)

    assert float((reader(shares + noise) - reader.prior).abs().max()) < 0.1


def test_class_shares_are_read_off_a_gradient_that_autograd_made():
    rng = stream(0, "attack")
    labels = torch.tensor([0] * 7 + [2] * 3)
    features = torch.rand(10, 6, generator=rng, dtype=torch.float64)
    weight = torch.randn(4, 6, generator=rng, dtype=torch.float64)
    bias = torch.randn(4, generator=rng, dtype=torch.float64)

    def bias_gradient(rows: Tensor) -> Tensor:
        moved = bias.clone().requires_grad_()
        logits = torch.nn.functional.linear(features[rows], weight, moved)
        (found,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, labels[rows]), moved)
        return found

    softmax = torch.nn.functional.linear(features, weight, bias).softmax(1).mean(0)
    pure = softmax.expand(4, 4) - torch.eye(4, dtype=torch.float64)
    pure = pure.index_copy(
        0, torch.tensor([0, 2]), torch.stack([bias_gradient(labels == 0), bias_gradient(labels == 2)])
    )

    shares = shares_from_gradient(bias_gradient(torch.arange(10)), pure)

    assert shares.tolist() == pytest.approx([0.7, 0, 0.3, 0], abs=1e-9)


def test_a_uniform_softmax_needs_no_image_at_all():
    shares = torch.tensor([0.5, 0.25, 0.25, 0.0], dtype=torch.float64)
    pure = torch.full((4, 4), 0.25, dtype=torch.float64) - torch.eye(4, dtype=torch.float64)

    assert shares_from_gradient(0.25 - shares, pure).tolist() == pytest.approx(shares.tolist(), abs=1e-12)
