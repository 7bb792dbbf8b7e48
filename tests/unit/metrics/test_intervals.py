import math
from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import Tensor

from fdgsec.metrics.interval import Interval
from fdgsec.metrics.intervals import (
    bootstrap,
    cluster_auc_bootstrap,
    cluster_bootstrap,
    delong,
    median,
    paired_bootstrap,
    tpr_interval,
)
from fdgsec.metrics.proportion_intervals import (
    balanced_accuracy_interval,
    clopper_pearson,
    clustered_proportion,
    matching_rate,
    median_interval,
    wilson,
)
from fdgsec.runtime.random_streams import stream

DOUBLE = torch.float64


def coverage(truth: float, interval: Callable[[], Interval], repeats: int) -> float:
    drawn = [interval() for _ in range(repeats)]
    return sum(one.low <= truth <= one.high for one in drawn) / repeats


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(0, 300, 0.0, 0.01264), (1, 100, 0.00177, 0.05449), (50, 50, 0.92865, 1.0), (25, 50, 0.36645, 0.63355)],
)
def test_wilson_gives_the_closed_forms_known_values(successes: int, n: int, low: float, high: float) -> None:
    interval = wilson(successes, n)  # expected: scipy.stats.binomtest(k, n).proportion_ci(method="wilson"), to 5 digits

    assert interval.low == pytest.approx(low, abs=1e-5)
    assert interval.high == pytest.approx(high, abs=1e-5)


@pytest.mark.parametrize("successes", [0, 1, 7, 49, 50])
def test_wilson_intervals_agree_with_scipy(successes: int) -> None:
    oracle = stats.binomtest(successes, 50).proportion_ci(0.95, method="wilson")

    ours = wilson(successes, 50)

    assert (ours.low, ours.high) == pytest.approx((oracle.low, oracle.high), abs=1e-9)


def test_wilson_of_shared_credit_lies_between_its_neighbors() -> None:
    below, between, above = wilson(3, 20), wilson(3.5, 20), wilson(4, 20)

    assert below.low < between.low < above.low
    assert below.high < between.high < above.high


def test_wilson_covers_on_average_over_rates_by_enumeration() -> None:
    n, rates = 50, torch.linspace(0.02, 0.98, 97, dtype=DOUBLE).tolist()
    intervals = [wilson(k, n) for k in range(n + 1)]

    covered = [
        sum(float(stats.binom.pmf(k, n, rate)) for k, one in enumerate(intervals) if one.low <= rate <= one.high)
        for rate in rates
    ]

    assert sum(covered) / len(covered) >= 0.945
    assert min(covered) >= 0.92  # the lattice of 51 outcomes lets single rates dip


@pytest.mark.parametrize(("successes", "n"), [(-1, 5), (6, 5), (0, 0), (math.nan, 5)])
def test_an_impossible_proportion_is_refused(successes: float, n: int) -> None:
    with pytest.raises(ValueError, match="proportion"):
        wilson(successes, n)


@pytest.mark.parametrize(
    ("name", "truth", "draw"),
    [
        ("normal", 0.0, lambda rng: torch.randn(50, generator=rng, dtype=DOUBLE)),
        ("exponential", 1.0, lambda rng: -torch.rand(50, generator=rng, dtype=DOUBLE).log()),
        ("bernoulli 0.1", 0.1, lambda rng: (torch.rand(50, generator=rng) < 0.1).to(DOUBLE)),
        ("bernoulli 0.5", 0.5, lambda rng: (torch.rand(50, generator=rng) < 0.5).to(DOUBLE)),
    ],
)
def test_the_bootstrap_of_a_mean_covers_at_fifty(
    name: str, truth: float, draw: Callable[[torch.Generator], Tensor]
) -> None:
    rng = stream(0, "attack", "coverage", name)
    bounds = (0.0, 1.0) if name.startswith("bernoulli") else None

    covered = coverage(truth, lambda: bootstrap(draw(rng), rng=rng, repeats=300, bounds=bounds), 600)

    assert covered >= 0.93  # over 4000 samples of 1000 resamples: .956 .957 .984 .973


@pytest.mark.medium
def test_the_bootstrap_of_a_median_covers_at_fifty() -> None:
    rng = stream(0, "attack", "coverage", "median")

    def interval() -> Interval:
        return bootstrap(-torch.rand(50, generator=rng, dtype=DOUBLE).log(), median, rng=rng, repeats=300)

    assert coverage(math.log(2), interval, 400) >= 0.93


@pytest.mark.parametrize("clusters", [10, 50])
def test_the_cluster_bootstrap_covers_where_records_depend(clusters: int) -> None:
    rng = stream(0, "attack", "coverage", "cluster", clusters)
    owner = torch.arange(clusters).repeat_interleave(8)

    def dependent() -> Tensor:
        shared = torch.randn(clusters, generator=rng, dtype=DOUBLE).repeat_interleave(8)
        return shared + torch.randn(8 * clusters, generator=rng, dtype=DOUBLE)

    clustered = coverage(0.0, lambda: cluster_bootstrap(dependent(), owner, rng=rng, repeats=300), 400)
    naive = coverage(0.0, lambda: bootstrap(dependent(), rng=rng, repeats=200), 100)

    assert clustered >= 0.93
    assert naive <= 0.75


def test_the_cluster_bootstrap_of_single_records_estimates_the_same_spread() -> None:
    values = torch.randn(200, generator=stream(0, "attack", "single"), dtype=DOUBLE)

    alone = cluster_bootstrap(values, torch.arange(200), rng=stream(1, "attack"))
    plain = bootstrap(values, rng=stream(2, "attack"))

    assert alone.high - alone.low == pytest.approx(plain.high - plain.low, rel=0.1)


def test_the_paired_bootstrap_is_that_of_the_differences() -> None:
    rng = stream(0, "attack", "paired")
    first, second = torch.randn(2, 40, generator=rng, dtype=DOUBLE)

    paired = paired_bootstrap(first, second, rng=stream(3, "attack"))
    plain = bootstrap(first - second, rng=stream(3, "attack"))

    assert (paired.low, paired.high, paired.method) == (plain.low, plain.high, "paired-bootstrap")


def test_equal_values_need_bounds_and_then_keep_a_width() -> None:
    ones = torch.ones(50, dtype=DOUBLE)

    with pytest.raises(ValueError, match="bounds"):
        bootstrap(ones, rng=stream(0, "attack"))
    interval = bootstrap(ones, rng=stream(0, "attack"), bounds=(0.0, 1.0))

    assert interval.high == 1.0
    assert interval.low == pytest.approx(stats.binomtest(50, 50).proportion_ci(0.95, method="exact").low, abs=1e-12)


def test_the_bootstrap_is_the_same_for_the_same_stream() -> None:
    values = [0.3, 1.2, -0.4, 2.2, 0.9, 0.1]

    assert bootstrap(values, rng=stream(5, "attack")) == bootstrap(values, rng=stream(5, "attack"))


def test_values_outside_their_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match=r"lie in \(0, 1\)"):
        bootstrap([0.5, 1.5], rng=stream(0, "attack"), bounds=(0, 1))


@pytest.mark.parametrize("shift", [0.0, 1.0, 2.0, 3.0])
def test_delong_covers_at_fifty_and_fifty(shift: float) -> None:
    rng = stream(0, "attack", "delong", str(shift))
    truth = float(stats.norm.cdf(shift / math.sqrt(2)))

    def interval() -> Interval:
        scores = torch.randn(2, 50, generator=rng, dtype=DOUBLE)
        return delong(scores[0] + shift, scores[1])

    assert coverage(truth, interval, 1000) >= 0.93


def test_delong_covers_for_few_positives_against_many_heavy_tailed_negatives() -> None:
    rng = stream(0, "attack", "delong", "heavy")

    def student(n: int) -> Tensor:  # three degrees of freedom
        spread = torch.randn(3, n, generator=rng, dtype=DOUBLE).square().mean(0).sqrt()
        return torch.randn(n, generator=rng, dtype=DOUBLE) / spread

    truth = float((student(1_000_000) + 4.0 > student(1_000_000)).to(DOUBLE).mean())

    assert coverage(truth, lambda: delong(student(30) + 4.0, student(500)), 500) >= 0.93


def test_a_perfect_auc_keeps_the_width_of_its_smaller_group() -> None:
    interval = delong(torch.arange(10.0, 30.0), torch.arange(-200.0, 0.0))

    assert interval.high == 1.0
    assert interval.low == pytest.approx(0.025 ** (1 / 20), abs=1e-9)


def test_an_inverted_attack_has_the_mirrored_auc_interval() -> None:
    rng = stream(0, "attack", "mirror")
    hits, others = torch.randn(30, generator=rng) + 1, torch.randn(60, generator=rng)

    straight, inverted = delong(hits, others), delong(-hits, -others)

    assert (inverted.low, inverted.high) == pytest.approx((1 - straight.high, 1 - straight.low), abs=1e-12)


def test_delong_uses_the_placement_variance_where_it_is_the_larger() -> None:
    rng = stream(0, "attack", "placement")  # a wide mixture: larger variance than the exponential model's
    hits = 9 * (torch.rand(40, generator=rng, dtype=DOUBLE) < 0.5) + torch.randn(40, generator=rng, dtype=DOUBLE)
    others = torch.randn(60, generator=rng, dtype=DOUBLE) + 1
    wins = (hits[:, None] > others).to(DOUBLE)
    area = float(wins.mean())
    spread = math.sqrt(float(wins.mean(1).var()) / 40 + float(wins.mean(0).var()) / 60) / (area * (1 - area))

    interval = delong(hits, others)

    logit = math.log(area / (1 - area))
    assert interval.low == pytest.approx(1 / (1 + math.exp(-logit + 1.959964 * spread)), abs=1e-6)
    assert interval.high == pytest.approx(1 / (1 + math.exp(-logit - 1.959964 * spread)), abs=1e-6)


@pytest.mark.slow
def test_the_cluster_auc_interval_covers_within_and_pooled() -> None:
    rng = stream(0, "attack", "cluster auc")
    owner = torch.arange(50).repeat_interleave(4)
    within, pooled = stats.norm.cdf(1 / math.sqrt(2)), stats.norm.cdf(1 / 2)

    def interval(kind: bool) -> Interval:
        shared = torch.randn(50, generator=rng, dtype=DOUBLE).repeat_interleave(4)
        noise = torch.randn(2, 200, generator=rng, dtype=DOUBLE)
        return cluster_auc_bootstrap(
            shared + noise[0] + 1, shared + noise[1], pos_clusters=owner, neg_clusters=owner, rng=rng, repeats=200,
            within=kind,
        )  # fmt: skip

    assert coverage(float(within), lambda: interval(True), 300) >= 0.93
    assert coverage(float(within / 50 + pooled * 49 / 50), lambda: interval(False), 300) >= 0.93


def test_a_perfect_auc_in_four_clusters_stays_wide() -> None:
    owner = [0, 0, 1, 1, 2, 2, 3, 3]

    for within in (True, False):
        interval = cluster_auc_bootstrap(
            [2.0] * 8, [1.0] * 8, pos_clusters=owner, neg_clusters=owner, rng=stream(0, "attack"), within=within
        )
        assert (interval.low, interval.high) == pytest.approx((0.025 ** (1 / 4), 1.0), abs=1e-9)


def test_within_needs_both_sides_in_every_cluster() -> None:
    with pytest.raises(ValueError, match="every cluster"):
        cluster_auc_bootstrap([1.0, 2.0], [1.0, 2.0], pos_clusters=[0, 1], neg_clusters=[0, 2], rng=stream(0, "attack"))


@pytest.mark.parametrize("recalls", [[0.5, 0.5], [0.2] * 5, [0.9, 0.95, 0.99, 0.8, 1.0], [1 / 7] * 7])
def test_the_balanced_accuracy_interval_covers_at_fifty(recalls: list[float]) -> None:
    rng = stream(0, "attack", "balanced", len(recalls))
    classes = len(recalls)
    true = torch.arange(classes).repeat_interleave(50 // classes)
    chance = torch.tensor(recalls, dtype=DOUBLE)[true]

    def interval() -> Interval:
        right = torch.rand(len(true), generator=rng, dtype=DOUBLE) < chance
        return balanced_accuracy_interval(true, torch.where(right, true, (true + 1) % classes), classes=classes)

    assert coverage(sum(recalls) / classes, interval, 600) >= 0.93


def test_flawless_labels_keep_an_interval_below_one() -> None:
    labels = [0] * 10 + [1] * 10

    interval = balanced_accuracy_interval(labels, labels, classes=2)

    missing = 1 - 0.025 ** (1 / 10)
    assert (interval.low, interval.high) == pytest.approx((1 - missing / math.sqrt(2), 1.0), abs=1e-9)


def test_a_single_cluster_is_refused() -> None:
    with pytest.raises(ValueError, match="second one"):
        cluster_bootstrap([1.0, 2.0], [7, 7], rng=stream(0, "attack"))


@pytest.mark.parametrize("successes", [0, 1, 7, 49, 50])
def test_exact_intervals_and_their_pvalues_agree_with_scipy(successes: int) -> None:
    test = stats.binomtest(successes, 50, 0.1, alternative="greater")
    oracle = stats.binomtest(successes, 50).proportion_ci(0.95, method="exact")

    ours = clopper_pearson(successes, 50)

    assert (ours.low, ours.high) == pytest.approx((oracle.low, oracle.high), abs=1e-9)
    p_value = float(test.pvalue)
    assert ours.p_value(0.1) == pytest.approx(1.0 if p_value > 0.5 else max(p_value, 1e-15), rel=1e-5)


def intervals(rng: torch.Generator) -> list[Interval]:
    values = torch.rand(30, generator=rng, dtype=DOUBLE)
    hits, others = torch.randn(20, generator=rng, dtype=DOUBLE) + 0.6, torch.randn(30, generator=rng, dtype=DOUBLE)
    owners = torch.arange(20) % 5, torch.arange(30) % 5
    few = median_interval(values, bounds=(0.0, 1.0), sizes=[10, 10, 10])
    assert few is not None
    return [
        wilson(20, 30), clopper_pearson(20, 30), clustered_proportion([9.0, 7.0, 4.0], [10.0, 10.0, 10.0]),
        clustered_proportion([5.0, 5.0], [10.0, 10.0]), bootstrap(values, rng=rng), delong(hits, others), few,
        cluster_auc_bootstrap(hits, others, pos_clusters=owners[0], neg_clusters=owners[1], rng=rng),
        tpr_interval(hits, others, pos_clusters=owners[0], neg_clusters=owners[1], fpr=0.3, rng=rng),
        balanced_accuracy_interval([0] * 10 + [1] * 10, [0] * 9 + [1] * 11, classes=2), matching_rate(6, 30),
        balanced_accuracy_interval([0, 1] * 10, [0] * 9 + [1] * 11, classes=2, clusters=torch.arange(20) % 5),
        balanced_accuracy_interval([0] * 10 + [1] * 10, [0] * 9 + [1] * 11, classes=2, clusters=torch.arange(20) // 5),
        clopper_pearson(20, 30).reaching(0.5, 1e-4), clopper_pearson(20, 30).reaching(0.9, 1e-4, higher=False),
    ]  # fmt: skip


def test_every_pvalue_agrees_with_its_interval_on_both_sides() -> None:
    for one in intervals(stream(3, "attack")):
        inside = 1e-6 * (one.high - one.low)
        assert one.p_value(one.low + inside) >= 0.025 >= one.p_value(one.low - inside), one
        assert one.p_value(one.high - inside, higher=False) >= 0.025 >= one.p_value(one.high + inside, higher=False)


def test_intervals_of_smaller_tails_contain_those_of_larger_ones() -> None:
    tails = [0.5, 0.2, 0.025, 1e-3, 1e-6]
    for one in intervals(stream(4, "attack")):
        lows, highs = zip(*(one.ends(tail) for tail in tails), strict=True)
        assert list(lows) == sorted(lows, reverse=True), one
        assert list(highs) == sorted(highs), one


@pytest.mark.medium
def test_medians_of_clusters_widen_with_every_smaller_tail() -> None:
    tails = (0.5, 0.3, 0.1, 0.05, 0.025, 0.01, 1e-3, 1e-4, 1e-5, 1e-8, 1e-12)
    for seed in range(1000):
        rng = stream(seed, "attack", "clusters")
        clusters, size = ((2, 3, 4, 6, 12)[seed % 5], (1, 2, 5, 20)[seed % 4])
        shared = torch.rand(clusters, 1, generator=rng, dtype=DOUBLE)
        values = (40 * (0.6 * shared + 0.4 * torch.rand(clusters, size, generator=rng, dtype=DOUBLE))).flatten()
        if seed % 2:
            values = values.floor()
        found = median_interval(values, bounds=(0.0, 40.0), sizes=[size] * clusters)

        assert found is not None
        lows, highs = zip(*(found.ends(tail) for tail in tails), strict=True)
        assert list(lows) == sorted(lows, reverse=True), (seed, lows)
        assert list(highs) == sorted(highs), (seed, highs)


def test_a_proportion_of_clusters_that_differ_is_wider_and_that_of_one_cluster_is_not() -> None:
    alike, apart = clustered_proportion([5.0] * 6, [10.0] * 6), clustered_proportion([10.0, 0.0] * 3, [10.0] * 6)

    assert apart.high - apart.low > 2 * (alike.high - alike.low)
    assert clustered_proportion([30.0], [60.0]) == clopper_pearson(30, 60)


def test_clusters_of_one_value_are_independent_values() -> None:
    values = torch.rand(9, generator=stream(5, "attack"), dtype=DOUBLE)

    assert median_interval(values, bounds=(0.0, math.inf), sizes=[1] * 9) == median_interval(values, bounds=(0.0, 1.0))
    assert clustered_proportion([1.0, 0.0, 1.0], [1.0, 1.0, 1.0]) == clopper_pearson(2, 3)


def test_clusters_that_were_all_right_bound_those_that_were_not_seen() -> None:
    interval = clustered_proportion([50.0, 50.0, 50.0], [50.0, 50.0, 50.0])

    assert interval.low == pytest.approx(0.025 ** (1 / 3), abs=1e-9)


def test_the_pvalue_of_matches_is_that_of_the_fixed_points_of_a_permutation() -> None:
    order = torch.rand(200_000, 10, generator=stream(6, "attack")).argsort(1)
    fixed = (order == torch.arange(10)).sum(1)

    for hits in (2, 3, 4, 5, 6):
        chance = float((fixed >= hits).double().mean())
        assert chance <= 1.1 * matching_rate(hits, 10).p_value(0.1)  # the binomial tail of 6 is a quarter of it
    assert clopper_pearson(6, 10).p_value(0.1) < 0.5 * float((fixed >= 6).double().mean())
    assert matching_rate(10, 10).low > 0.4


def test_an_interval_reaches_a_limit_at_all_tails_below_the_other_tests_pvalue() -> None:
    interval = clopper_pearson(18, 20)

    held, kept = interval.reaching(0.5, 0.1), interval.reaching(0.5, 1e-9)

    assert (held.low, held.high) == (0.5, interval.high)
    assert held.p_value(0.5) == pytest.approx(0.1)
    assert (kept.low, kept.p_value(0.5)) == (interval.low, interval.p_value(0.5))
    below = clopper_pearson(2, 20).reaching(0.5, 0.1, higher=False)
    assert (below.high, below.p_value(0.5, higher=False)) == (0.5, pytest.approx(0.1))


def test_the_mean_of_three_clusters_is_bounded_more_widely_than_by_student() -> None:
    values = torch.tensor([0.2, 0.3, 0.4], dtype=DOUBLE).repeat_interleave(10)

    interval = cluster_bootstrap(values, torch.arange(3).repeat_interleave(10), rng=stream(0, "attack"))

    student = 4.302653 * 0.1 / math.sqrt(3)  # the .975 quantile at two degrees of freedom
    assert interval.high - 0.3 == pytest.approx(0.3 - interval.low, rel=0.02)
    assert interval.high - 0.3 == pytest.approx(student * math.sqrt(3 / 2), rel=0.02)
