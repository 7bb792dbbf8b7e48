import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fdgsec.metrics.image_similarity import psnr
from fdgsec.metrics.intervals import bootstrap, cluster_auc_bootstrap, cluster_bootstrap, delong
from fdgsec.metrics.proportion_intervals import balanced_accuracy_interval, clopper_pearson, wilson
from fdgsec.metrics.roc import auc, ranks, topk_credit, tpr_at_fpr
from fdgsec.metrics.significance import permutation_pvalue
from fdgsec.runtime.random_streams import stream

unhurried = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])  # shared machines
few_levels = st.integers(-3, 3).map(float)  # ties are the rule
groups = st.lists(few_levels, min_size=2, max_size=25)
probabilities = st.floats(0, 1)


@st.composite
def galleries(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    queries, items = draw(st.integers(1, 5)), draw(st.integers(1, 7))
    cells = draw(st.lists(few_levels, min_size=queries * items, max_size=queries * items))
    truth = draw(st.lists(st.integers(0, items - 1), min_size=queries, max_size=queries))
    return torch.tensor(cells).reshape(queries, items), torch.tensor(truth)


@unhurried
@given(galleries())
def test_the_credit_of_all_items_of_a_gallery_is_k(gallery: tuple[Tensor, Tensor]) -> None:
    distances, _ = gallery
    queries, items = distances.shape
    for k in range(1, items + 1):
        total = sum(topk_credit(distances, torch.full((queries,), item), k=k) for item in range(items))
        assert torch.as_tensor(total).tolist() == pytest.approx([float(k)] * queries)


@unhurried
@given(galleries())
def test_ranks_survive_a_monotone_rescaling_and_mirror_under_negation(gallery: tuple[Tensor, Tensor]) -> None:
    distances, truth = gallery

    torch.testing.assert_close(ranks(distances.exp(), truth), ranks(distances, truth))
    torch.testing.assert_close(ranks(-distances, truth), distances.shape[1] + 1 - ranks(distances, truth))


@unhurried
@given(groups, groups)
def test_auc_is_the_share_of_pairs_won_and_sums_to_one_with_its_reverse(hits: list[float], others: list[float]) -> None:
    wins = sum((h > o) + 0.5 * (h == o) for h in hits for o in others) / (len(hits) * len(others))

    assert auc(hits, others) == pytest.approx(wins)
    assert auc(others, hits) == pytest.approx(1 - wins)


@unhurried
@given(groups, st.lists(few_levels, min_size=100, max_size=120), st.floats(0.11, 0.5), st.floats(0.5, 0.9))
@pytest.mark.medium
def test_tpr_grows_with_the_fpr_allowed(hits: list[float], others: list[float], low: float, high: float) -> None:
    strict, lax = tpr_at_fpr(hits, others, fpr=low), tpr_at_fpr(hits, others, fpr=high)

    assert strict is not None
    assert lax is not None
    assert 0 <= strict <= lax + 1e-12 <= 1 + 1e-12


@unhurried
@given(st.integers(1, 500), probabilities, st.sampled_from([0.1, 0.025, 0.005]))
def test_intervals_of_proportions_hold_the_estimate_and_mirror(n: int, share: float, tail: float) -> None:
    successes = round(share * n)
    for bounded in (wilson, clopper_pearson):
        low, high = bounded(successes, n).ends(tail)
        mirrored = bounded(n - successes, n).ends(tail)

        assert 0 <= low <= successes / n <= high <= 1
        assert high - low > 0
        assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-9)


@unhurried
@given(groups, groups)
def test_an_auc_interval_holds_the_auc_and_never_has_width_zero(hits: list[float], others: list[float]) -> None:
    interval = delong(hits, others)

    assert 0 <= interval.low <= auc(hits, others) <= interval.high <= 1
    assert interval.high - interval.low > 0


@unhurried
@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 1)), min_size=3, max_size=30), st.integers(0, 99))
def test_bootstrap_intervals_hold_the_mean_within_its_bounds(rows: list[tuple[int, float]], seed: int) -> None:
    clusters = [0, 1, *(owner for owner, _ in rows[2:])]
    values = torch.tensor([value for _, value in rows], dtype=torch.float64)
    rng = stream(seed, "attack")
    bounds = (0.0, 1.0)

    for interval in (
        bootstrap(values, rng=rng, repeats=50, bounds=bounds),
        cluster_bootstrap(values, clusters, rng=rng, repeats=50, bounds=bounds),
    ):
        assert 0 <= interval.low <= float(values.mean()) + 1e-12
        assert float(values.mean()) - 1e-12 <= interval.high <= 1


@unhurried
@given(groups, st.integers(0, 99))
def test_moving_and_scaling_values_moves_and_scales_their_interval(values: list[float], seed: int) -> None:
    values = [*values, -4.0, 4.5]
    plain = bootstrap(values, rng=stream(seed, "attack"), repeats=60)
    moved = bootstrap([2 * value + 8 for value in values], rng=stream(seed, "attack"), repeats=60)

    assert (moved.low, moved.high) == pytest.approx((2 * plain.low + 8, 2 * plain.high + 8), abs=1e-9)


@unhurried
@given(st.lists(st.tuples(few_levels, few_levels), min_size=4, max_size=12), st.booleans(), st.integers(0, 9))
def test_cluster_auc_intervals_stay_in_the_unit_interval(
    pairs: list[tuple[float, float]], within: bool, seed: int
) -> None:
    owner = torch.arange(len(pairs)) // 2
    hits, others = [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    interval = cluster_auc_bootstrap(
        hits, others, pos_clusters=owner, neg_clusters=owner, rng=stream(seed, "attack"), repeats=40, within=within
    )

    assert 0 <= interval.low < interval.high <= 1


@unhurried
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=30))
def test_balanced_accuracy_intervals_hold_the_estimate(pairs: list[tuple[int, int]]) -> None:
    true = [0, 1, 2, *(pair[0] for pair in pairs)]
    predicted = [0, 0, 2, *(pair[1] for pair in pairs)]
    recalls = [sum(t == p == one for t, p in zip(true, predicted, strict=True)) / true.count(one) for one in range(3)]

    interval = balanced_accuracy_interval(true, predicted, classes=3)

    assert 0 <= interval.low <= sum(recalls) / 3 + 1e-12
    assert sum(recalls) / 3 - 1e-12 <= interval.high <= 1


@unhurried
@given(few_levels, groups)
def test_permutation_pvalues_are_never_zero_nor_above_one(observed: float, null: list[float]) -> None:
    assert 1 / (len(null) + 1) <= permutation_pvalue(observed, null) <= 1


@unhurried
@given(st.floats(0, 1), st.floats(0, 1))
def test_psnr_is_symmetric_and_capped(one: float, other: float) -> None:
    first = torch.full((1, 3, 4, 4), one, dtype=torch.float64)
    second = torch.full((1, 3, 4, 4), other, dtype=torch.float64)

    assert float(psnr(first, second)) == float(psnr(second, first))
    assert 0 <= float(psnr(first, second)) <= 100 + 1e-9
