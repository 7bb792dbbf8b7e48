import math

import numpy as np
import pytest
import scipy.linalg
import scipy.special
import torch
from torch import Tensor

from fdgsec.metrics.frechet_distance import (
    Gaussian,
    _overlaps,
    frechet_distance,
    frechet_interval,
    frechet_of,
    gaussian,
)
from fdgsec.runtime.random_streams import stream


def features(*, seed: int, n: int, d: int, shift: float = 0.0) -> Tensor:
    """Correlated vectors of very unequal spread, as networks give them."""
    rng = stream(seed, "attack", "features")
    mixing = torch.randn(d, d, generator=stream(0, "attack", "mixing")) * torch.logspace(0, -3, d)
    return torch.randn(n, d, generator=rng) @ mixing + shift


def exactly(mean: list[float], covariance: list[list[float]]) -> Gaussian:
    return Gaussian(
        count=11,
        mean=torch.tensor(mean, dtype=torch.float64),
        scatter=10 * torch.tensor(covariance, dtype=torch.float64),
    )


def library(first: Tensor, second: Tensor) -> float:
    """pytorch-fid's own number, where its call of scipy still works."""
    from pytorch_fid.fid_score import calculate_frechet_distance

    one, other = first.double().numpy(), second.double().numpy()
    try:
        found = calculate_frechet_distance(
            one.mean(0), np.cov(one, rowvar=False), other.mean(0), np.cov(other, rowvar=False)
        )
    except TypeError as error:  # scipy >= 1.18 has no `disp`
        pytest.skip(f"pytorch-fid cannot call this scipy: {error}")
    return float(found)


def test_two_gaussians_have_the_distance_of_the_closed_form() -> None:
    first = exactly([1.0, -2.0, 0.5], [[4.0, 0, 0], [0, 9.0, 0], [0, 0, 0.25]])
    second = exactly([0.0, 0.0, 0.0], [[1.0, 0, 0], [0, 16.0, 0], [0, 0, 0.0]])

    # covariances that commute: the sum of squared differences of means and of standard deviations
    assert frechet_distance(first, second) == pytest.approx(1 + 4 + 0.25 + 1 + 1 + 0.25, abs=1e-4)


def test_covariances_that_do_not_commute_follow_the_closed_form_in_two_dimensions() -> None:
    one, other = [[2.0, 0.6], [0.6, 1.0]], [[1.0, -0.4], [-0.4, 3.0]]
    product = np.array(one) @ np.array(other)

    distance = frechet_distance(exactly([0.0, 1.0], one), exactly([1.0, 3.0], other))

    # the trace of the root of a 2 x 2 matrix M is sqrt(tr M + 2 sqrt(det M))
    root = math.sqrt(np.trace(product) + 2 * math.sqrt(np.linalg.det(product)))
    assert distance == pytest.approx(1 + 4 + 3 + 4 - 2 * root, abs=1e-10)


@pytest.mark.parametrize(("n", "m", "d"), [(400, 300, 24), (90, 70, 64)])
def test_the_distance_equals_pytorch_fids(n: int, m: int, d: int) -> None:
    first, second = features(seed=1, n=n, d=d), features(seed=2, n=m, d=d, shift=0.3)

    expected = library(first, second)

    assert frechet_of(first, second) == pytest.approx(expected, rel=1e-5)
    assert frechet_distance(gaussian(first), gaussian(second)) == pytest.approx(expected, rel=1e-5)


def test_the_distance_equals_a_transcription_with_scipys_matrix_root() -> None:
    first, second = features(seed=1, n=200, d=12), features(seed=2, n=150, d=12, shift=0.3)
    one, other = first.double().numpy(), second.double().numpy()
    c1, c2 = np.cov(one, rowvar=False), np.cov(other, rowvar=False)
    gap = one.mean(0) - other.mean(0)

    expected = gap @ gap + np.trace(c1 + c2 - 2 * np.real(scipy.linalg.sqrtm(c1 @ c2)))

    assert frechet_of(first, second) == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize(("n", "d"), [(500, 32), (20, 256), (33, 33)])
def test_a_set_has_no_distance_from_itself_also_where_covariances_are_singular(n: int, d: int) -> None:
    vectors = 10 * features(seed=3, n=n, d=d)

    assert frechet_of(vectors, vectors) < 1e-6
    assert frechet_of(vectors, vectors.flip(0)) < 1e-6
    assert frechet_distance(gaussian(vectors), gaussian(vectors)) < 1e-6


def test_both_ways_to_the_distance_agree_where_covariances_are_singular() -> None:
    first, second = features(seed=4, n=40, d=100), features(seed=5, n=150, d=100, shift=0.1)

    # a covariance of rank 39 in 100 dimensions has eigenvalues of 1e-16 for 0, whose roots are 1e-8
    assert frechet_of(first, second) == pytest.approx(frechet_distance(gaussian(first), gaussian(second)), rel=1e-7)


def test_statistics_do_not_depend_on_how_the_set_is_cut() -> None:
    vectors = features(seed=6, n=1300, d=7).double()
    whole = gaussian(vectors)

    joined = gaussian(vectors[:1]).joined(gaussian(vectors[1:900])).joined(gaussian(vectors[900:]))

    assert whole.count == joined.count == 1300
    torch.testing.assert_close(whole.mean, vectors.mean(0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(whole.covariance, torch.cov(vectors.T), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(joined.mean, whole.mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(joined.covariance, whole.covariance, rtol=1e-10, atol=1e-12)


def test_a_large_offset_costs_no_precision() -> None:
    vectors = features(seed=7, n=700, d=5)

    far = gaussian(vectors.double() + 1e6)

    torch.testing.assert_close(far.covariance, torch.cov(vectors.double().T), rtol=1e-6, atol=1e-9)


def test_few_images_bias_the_distance_upwards_and_the_bootstrap_would_do_so_again() -> None:
    rng = stream(8, "attack", "bias")
    first, second = torch.randn(60, 16, generator=rng), torch.randn(60, 16, generator=rng)
    value = frechet_of(first, second)
    resampled = [
        frechet_of(first[torch.randint(60, (60,), generator=rng)], second[torch.randint(60, (60,), generator=rng)])
        for _ in range(50)
    ]

    band = frechet_interval(first, second, value=value)

    assert value > frechet_of(torch.randn(4000, 16, generator=rng), torch.randn(4000, 16, generator=rng)) * 10
    assert min(resampled) > value  # percentiles of the bootstrap would not even hold the value
    assert band is not None
    assert band.low < value < band.high


@pytest.mark.medium
def test_intervals_cover_the_mean_distance_of_fifty_images() -> None:
    rng = stream(9, "attack", "coverage")
    rounds, n, d = 150, 50, 8
    scale = torch.linspace(0.3, 2, d)
    pairs = [(torch.randn(n, d, generator=rng), torch.randn(n, d, generator=rng) * scale + 0.2) for _ in range(rounds)]
    values = [frechet_of(one, other) for one, other in pairs]
    expected = sum(
        frechet_of(torch.randn(n, d, generator=rng), torch.randn(n, d, generator=rng) * scale + 0.2)
        for _ in range(1500)
    ) / 1500  # fmt: skip

    bands = [frechet_interval(*pair, value=value) for pair, value in zip(pairs, values, strict=True)]

    covered = sum(band is not None and band.low <= expected <= band.high for band in bands)
    assert covered / rounds >= 0.93


@pytest.mark.parametrize(("n", "m", "d"), [(300, 200, 12), (40, 30, 64), (90, 30, 48)])
def test_the_standard_error_is_the_spread_of_the_distance_over_samples(n: int, m: int, d: int) -> None:
    pairs = [(features(seed=seed, n=n, d=d), features(seed=1000 + seed, n=m, d=d, shift=0.5)) for seed in range(150)]
    values = torch.tensor([frechet_of(*pair) for pair in pairs])
    bands = [frechet_interval(*pair, value=float(value)) for pair, value in zip(pairs[:40], values[:40], strict=True)]

    quantile = float(scipy.special.stdtrit(min(n, m) - 1, 0.975))
    errors = [
        math.log(band.high / float(value)) * float(value) / quantile
        for band, value in zip(bands, values[:40], strict=True)
        if band is not None
    ]

    assert len(errors) == 40
    # 150 distances know their spread to 6%; of few vectors in many dimensions the error is somewhat too large
    assert 0.88 < sum(errors) / 40 / float(values.std()) < 1.5


def test_each_vectors_influence_is_the_derivative_of_the_distance_by_its_weight() -> None:
    first, second = features(seed=13, n=30, d=5).double(), features(seed=14, n=25, d=5, shift=0.4).double()
    fixed, step = gaussian(second), 1e-4

    def weighted(row: int, more: float) -> float:
        """The distance where one vector has weight 1 / n + more before all are divided by their sum."""
        weight = torch.full((len(first),), 1.0 / len(first), dtype=torch.float64)
        weight[row] += more
        weight /= weight.sum()
        mean = weight @ first
        scatter = (first - mean).T @ ((first - mean) * weight[:, None]) * len(first)
        return frechet_distance(Gaussian(count=len(first), mean=mean, scatter=scatter), fixed)

    slopes = torch.tensor(
        [(weighted(row, step) - weighted(row, -step)) / (2 * step) for row in range(len(first))], dtype=torch.float64
    )
    apart, gap = first - first.mean(0), first.mean(0) - second.mean(0)
    overlap, _ = _overlaps(apart, second - second.mean(0))
    influence = (apart.square().sum(1) - overlap) * 30 / 29 + 2 * apart @ gap

    # influences are known up to a constant; differences of 1e-4 leave errors of about 1e-6
    torch.testing.assert_close(slopes - slopes.mean(), influence - influence.mean(), rtol=1e-3, atol=1e-4)


def test_nearly_singular_covariances_fall_back_on_singular_values() -> None:
    rng = stream(15, "attack", "rank")
    basis = torch.randn(4, 40, generator=rng, dtype=torch.float64)
    first = torch.randn(90, 4, generator=rng, dtype=torch.float64) @ basis  # rank 4 in 40 dimensions
    second = torch.randn(80, 4, generator=rng, dtype=torch.float64) @ basis + 0.1

    one, other = np.cov(first.numpy(), rowvar=False), np.cov(second.numpy(), rowvar=False)
    values, vectors = np.linalg.eigh(one)
    root = (vectors * np.sqrt(values.clip(0))) @ vectors.T
    cross = np.sqrt(np.linalg.eigvalsh(root @ other @ root)[-4:]).sum()  # the other 36 are rounding
    gap = (first.mean(0) - second.mean(0)).square().sum()

    assert frechet_of(first, second) == pytest.approx(
        float(gap) + np.trace(one) + np.trace(other) - 2 * cross, rel=1e-6
    )
    assert frechet_of(first, first.flip(0)) < 1e-6


def test_what_never_varies_has_no_interval() -> None:
    ones = torch.ones(5, 3)

    assert frechet_of(ones, ones + 1) == pytest.approx(3.0)
    assert frechet_interval(ones, ones + 1, value=3.0) is None


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (torch.full((4, 2), math.nan), torch.zeros(4, 2), "first must be finite; 8"),
        (torch.zeros(4, 2), torch.full((4, 2), math.inf), "second must be finite; 8"),
        (torch.zeros(4, 2), torch.zeros(4, 3), "equal dimensions; got 2 and 3"),
        (torch.zeros(1, 2), torch.zeros(4, 2), "at least 2 vectors a side; got 1 and 4"),
        (torch.zeros(4), torch.zeros(4, 2), r"first must be floating \(N, D\)"),
        (torch.zeros(4, 2, dtype=torch.int64), torch.zeros(4, 2), "first must be floating"),
    ],
)
def test_features_that_have_no_distance_are_refused(first: Tensor, second: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        frechet_of(first, second)


def test_statistics_that_have_no_distance_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 vectors; got 1"):
        frechet_distance(gaussian(torch.zeros(1, 2)), gaussian(torch.zeros(3, 2)))
    with pytest.raises(ValueError, match="equal dimensions"):
        frechet_distance(gaussian(torch.zeros(3, 2)), gaussian(torch.zeros(3, 4)))
    with pytest.raises(ValueError, match="equal dimensions"):
        gaussian(torch.zeros(3, 2)).joined(gaussian(torch.zeros(3, 4)))
