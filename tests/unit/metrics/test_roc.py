import itertools
import math

import numpy as np
import pytest
import torch
from sklearn import metrics as oracle
from torch import Tensor

from fdgsec.metrics import roc
from fdgsec.metrics.roc import (
    accuracy,
    auc,
    balanced_accuracy,
    confusion,
    expected_agreement,
    majority_share,
    ranks,
    roc_band,
    roc_curve,
    topk_credit,
    tpr_at_fpr,
    tpr_resamples,
)
from fdgsec.runtime.random_streams import stream

TIED = torch.tensor([[1.0, 1.0, 0.5, 2.0], [3.0, 3.0, 3.0, 3.0], [0.0, 1.0, 2.0, 2.0], [4.0, 4.0, 1.0, 4.0]])
TRUTH = torch.tensor([0, 2, 0, 3])


def every_order(row: list[float], true: int) -> list[int]:
    """Rank the true item under each of the orders that random tie-breaking may give."""
    found = []
    for order in itertools.permutations(range(len(row))):
        by_distance = sorted(order, key=lambda item: row[item])
        found.append(by_distance.index(true) + 1)
    return found


def scores(*, seed: int, levels: int) -> tuple[Tensor, Tensor]:
    rng = stream(seed, "attack", "scores")
    hits = (torch.randn(230, generator=rng, dtype=torch.float64) + 0.8).mul(levels).round() / levels
    return hits, torch.randn(410, generator=rng, dtype=torch.float64).mul(levels).round() / levels


def test_tied_items_share_ranks_and_credit_as_under_every_random_order() -> None:
    rows = [every_order(row, true) for row, true in zip(TIED.tolist(), TRUTH.tolist(), strict=True)]

    assert ranks(TIED, TRUTH).tolist() == pytest.approx([np.mean(row) for row in rows])
    for k in (1, 2, 3, 4):
        expected = [np.mean([rank <= k for rank in row]) for row in rows]
        assert topk_credit(TIED, TRUTH, k=k).tolist() == pytest.approx(expected)


def test_a_constant_distance_scores_exactly_chance() -> None:
    distances, truth = torch.zeros(7, 20), torch.arange(7)

    assert topk_credit(distances, truth, k=5).tolist() == pytest.approx([0.25] * 7)
    assert ranks(distances, truth).tolist() == [10.5] * 7


@pytest.mark.parametrize(
    ("distances", "truth", "message"),
    [
        (torch.zeros(2, 3), [0], "truth"),
        (torch.zeros(3), [0], "Q, G"),
        (torch.full((1, 3), math.nan), [0], "NaN"),
        (torch.zeros(1, 3), [3], r"0\.\.2"),
        (torch.zeros(1, 3), [-1], r"0\.\.2"),
    ],
)
def test_a_gallery_that_cannot_be_ranked_is_refused(distances: Tensor, truth: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ranks(distances, truth)


def test_k_must_fit_the_gallery() -> None:
    with pytest.raises(ValueError, match=r"1\.\.3"):
        topk_credit(torch.zeros(1, 3), [0], k=4)


@pytest.mark.parametrize("levels", [2, 1000])
def test_auc_and_roc_agree_with_scikit_learn(levels: int) -> None:
    hits, others = scores(seed=0, levels=levels)
    true, both = [1] * len(hits) + [0] * len(others), torch.cat([hits, others]).numpy()
    fpr, tpr, thresholds = oracle.roc_curve(true, both, drop_intermediate=False)

    curve = roc_curve(hits, others)

    assert auc(hits, others) == pytest.approx(oracle.roc_auc_score(true, both), abs=1e-12)
    np.testing.assert_allclose(curve.fpr.numpy(), fpr, atol=1e-12)
    np.testing.assert_allclose(curve.tpr.numpy(), tpr, atol=1e-12)
    np.testing.assert_array_equal(curve.thresholds.numpy(), thresholds)


def test_infinite_scores_are_ranked_and_nan_is_refused() -> None:
    assert auc([math.inf, 1.0], [-math.inf, 1.0]) == (1 + 1 + 1 + 0.5) / 4

    with pytest.raises(ValueError, match="NaN"):
        auc([math.nan], [0.0])


def test_an_array_that_may_not_be_written_to_is_read_without_warning() -> None:
    frozen = np.array([0.0, 1.0])
    frozen.setflags(write=False)

    assert auc(frozen, [0.5]) == 0.5


def test_too_few_negatives_leave_a_low_fpr_unresolvable() -> None:
    hits = torch.ones(50)

    assert tpr_at_fpr(hits, torch.zeros(999), fpr=0.01) is None
    assert tpr_at_fpr(hits, torch.zeros(1000), fpr=0.01) == 1.0
    assert tpr_at_fpr(hits, torch.zeros(1000), fpr=0.001) is None


@pytest.mark.parametrize("fpr", [0.025, 0.1, 0.5])
def test_tpr_at_fpr_is_the_roc_curve_of_a_randomized_threshold(fpr: float) -> None:
    hits, others = scores(seed=1, levels=2)
    curve = roc_curve(hits, others)

    value = tpr_at_fpr(hits, others, fpr=fpr)

    assert value == pytest.approx(np.interp(fpr, curve.fpr.numpy(), curve.tpr.numpy()), abs=1e-12)


def test_tpr_at_fpr_without_ties_counts_what_passes_the_strictest_admissible_threshold() -> None:
    hits, others = scores(seed=2, levels=10**12)
    admissible = [
        float((hits >= cut).double().mean())
        for cut in torch.cat([hits, others])
        if float((others >= cut).double().mean()) <= 0.05
    ]

    assert tpr_at_fpr(hits, others, fpr=0.05) == pytest.approx(max(admissible), abs=1e-12)


@pytest.mark.parametrize("count", [500, 501, 509])
def test_a_constant_score_has_the_tpr_of_chance(count: int) -> None:
    assert tpr_at_fpr(torch.zeros(30), torch.zeros(count), fpr=0.1) == pytest.approx(0.1, abs=1e-15)


@pytest.mark.parametrize("levels", [3, 50, 10**12])
def test_the_tpr_and_its_resamples_have_one_definition(levels: int) -> None:
    for seed in range(20):
        hits, others = scores(seed=seed, levels=levels)
        owners = torch.arange(len(hits)), len(hits) + torch.arange(len(others))
        value = tpr_at_fpr(hits, others, fpr=0.21)
        estimate, _ = tpr_resamples(hits, others, clusters=owners, fpr=0.21, rng=stream(seed, "attack"), repeats=2)

        assert value == pytest.approx(estimate, abs=1e-11)  # the curve is read 1e-12 to the right


@pytest.mark.parametrize("levels", [3, 10**12])
def test_curves_of_few_and_of_many_clusters_are_added_up_to_the_same_numbers(
    monkeypatch: pytest.MonkeyPatch, levels: int
) -> None:
    hits, others = scores(seed=4, levels=levels)
    owners = torch.arange(len(hits)) % 7, 5 + torch.arange(len(others)) % 6  # of one side only, and of both

    def found() -> list[Tensor]:
        rng = stream(4, "attack", "resamples")
        _, resampled = tpr_resamples(hits, others, clusters=owners, fpr=0.21, rng=rng, repeats=50)
        band = roc_band(
            hits, others, pos_clusters=owners[0], neg_clusters=owners[1], fpr=[0.0, 0.01, 0.5, 1.0], rng=rng, repeats=50
        )
        return [resampled, band.tpr, band.low, band.high]

    few = found()
    monkeypatch.setattr(roc, "FEW_CLUSTERS", 0)

    assert len(few[0].unique()) > 10
    assert all(torch.equal(one, other) for one, other in zip(few, found(), strict=True))


def rate_at(hits: Tensor, others: Tensor, grid: list[float]) -> list[float]:
    """Read a ROC curve at `grid`, the top of a vertical step counting."""
    curve = roc_curve(hits, others)
    corners = list(zip(curve.fpr.tolist(), curve.tpr.tolist(), strict=True))
    found = []
    for rate in grid:
        left = max((corner for corner in corners if corner[0] <= rate + 1e-12), key=lambda corner: corner)
        right = min((corner for corner in corners if corner[0] > rate + 1e-12), default=left)
        share = (rate - left[0]) / (right[0] - left[0]) if right != left else 0.0
        found.append(left[1] + share * (right[1] - left[1]))
    return found


@pytest.mark.parametrize("levels", [2, 1000])
def test_the_roc_band_of_two_clusters_spans_their_three_mixtures(levels: int) -> None:
    hits, others = scores(seed=3, levels=levels)
    owners = torch.arange(230) % 2, torch.arange(410) % 2
    grid = [0.0, 0.01, 0.1, 0.5, 1.0]
    mixtures = [rate_at(hits[owners[0] == i], others[owners[1] == i], grid) for i in (0, 1)]
    mixtures.append(rate_at(hits, others, grid))

    band = roc_band(
        hits, others, pos_clusters=owners[0], neg_clusters=owners[1], fpr=grid, rng=stream(0, "attack"), repeats=400
    )

    assert band.tpr.tolist() == pytest.approx(mixtures[2], abs=1e-9)
    assert band.low.tolist() == pytest.approx(np.min(mixtures, 0), abs=1e-9)
    assert band.high.tolist() == pytest.approx(np.max(mixtures, 0), abs=1e-9)


def test_the_roc_band_of_one_cluster_a_side_is_refused() -> None:
    with pytest.raises(ValueError, match="second one"):
        roc_band(
            [1.0, 2.0], [0.0, 1.0], pos_clusters=[0, 0], neg_clusters=[1, 1], fpr=[0.5], rng=stream(0, "attack")
        )  # fmt: skip


def test_label_statistics_agree_with_scikit_learn() -> None:
    rng = stream(4, "attack")
    true = torch.cat([torch.arange(5), torch.randint(5, (120,), generator=rng)])
    predicted = torch.where(torch.rand(125, generator=rng) < 0.5, true, torch.randint(5, (125,), generator=rng))

    assert accuracy(true, predicted) == pytest.approx(oracle.accuracy_score(true, predicted))
    assert balanced_accuracy(true, predicted, classes=5) == pytest.approx(
        oracle.balanced_accuracy_score(true, predicted)
    )
    np.testing.assert_array_equal(
        confusion(true, predicted, classes=5).numpy(), oracle.confusion_matrix(true, predicted)
    )


def test_the_expected_agreement_is_the_mean_accuracy_over_all_orders_of_the_predictions() -> None:
    true, predicted = torch.tensor([0, 0, 3, 1, 0, 3]), torch.tensor([0, 1, 3, 3, 7, 0])

    orders = [accuracy(true, predicted[list(order)]) for order in itertools.permutations(range(6))]

    assert expected_agreement(true, predicted) == pytest.approx(sum(orders) / len(orders))
    kappa = float(oracle.cohen_kappa_score(true, predicted))
    assert (accuracy(true, predicted) - expected_agreement(true, predicted)) == pytest.approx(
        kappa * (1 - expected_agreement(true, predicted))
    )
    assert expected_agreement(true, torch.zeros(6).long()) == accuracy(true, torch.zeros(6).long()) == 0.5


def test_always_guessing_the_commonest_label_has_the_majority_share_and_balanced_chance() -> None:
    true, answers = [0, 0, 0, 1, 2], [0] * 5

    assert accuracy(true, answers) == majority_share(true) == 0.6
    assert balanced_accuracy(true, answers, classes=3) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("true", "predicted", "message"),
    [
        ([0, 1], [0], "equally long"),
        ([0, 2], [0, 1], r"true labels must lie in 0\.\.1"),
        ([0, 1], [0, -1], r"predicted labels must lie in 0\.\.1"),
        ([0, 0], [0, 1], r"classes \[1\]"),
    ],
)
def test_labels_that_cannot_be_balanced_are_refused(true: list[int], predicted: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        balanced_accuracy(true, predicted, classes=2)


def test_labels_must_be_integers() -> None:
    with pytest.raises(ValueError, match="integers"):
        accuracy(torch.tensor([0.0, 1.0]), [0, 1])
