import math
from itertools import product

import pytest
import torch
from torch import Tensor

from fdgsec.metrics.kernel_distance import kernel_distance, kernel_estimate, kernel_subsets
from fdgsec.runtime.random_streams import stream


def features(*, seed: int, n: int, d: int = 6, shift: float = 0.0) -> Tensor:
    return torch.randn(n, d, generator=stream(seed, "attack", "features"), dtype=torch.float64) + shift


def slow(first: Tensor, second: Tensor) -> float:
    """Transcribe the unbiased estimator pair by pair."""

    def kernel(x: Tensor, y: Tensor) -> float:
        return (float(x @ y) / len(x) + 1) ** 3

    n, m = len(first), len(second)
    own = sum(kernel(first[i], first[j]) for i, j in product(range(n), range(n)) if i != j)
    others = sum(kernel(second[i], second[j]) for i, j in product(range(m), range(m)) if i != j)
    across = sum(kernel(x, y) for x, y in product(first, second))
    return own / (n * (n - 1)) + others / (m * (m - 1)) - 2 * across / (n * m)


def test_the_distance_equals_its_definition_also_for_sets_of_unequal_size() -> None:
    first, second = features(seed=0, n=9), features(seed=1, n=13, shift=0.4)

    assert kernel_distance(first, second) == pytest.approx(slow(first, second), abs=1e-12)


def test_the_distance_equals_torchmetrics_on_the_same_features() -> None:
    from torchmetrics.image.kid import poly_mmd

    first, second = features(seed=2, n=80, d=32), features(seed=3, n=80, d=32, shift=0.2)

    assert kernel_distance(first, second) == pytest.approx(float(poly_mmd(first, second)), abs=1e-10)
    # torchmetrics adds up in the precision given, float32 in practice
    assert kernel_distance(first, second) == pytest.approx(float(poly_mmd(first.float(), second.float())), abs=1e-5)


def test_subsets_of_everything_are_the_whole_and_others_the_distance_of_some_subset() -> None:
    first, second = features(seed=4, n=4), features(seed=5, n=4, shift=0.5)
    halves = [[i, j] for i in range(4) for j in range(i)]
    possible = [slow(first[a], second[b]) for a, b in product(halves, halves)]

    whole = kernel_subsets(first, second, size=4, subsets=3, rng=stream(0, "attack"))
    drawn = kernel_subsets(first, second, size=2, subsets=40, rng=stream(0, "attack"))

    assert whole.tolist() == pytest.approx([slow(first, second)] * 3, abs=1e-12)
    assert all(min(abs(value - other) for other in possible) < 1e-12 for value in drawn.tolist())
    assert len({round(value, 9) for value in drawn.tolist()}) > 10


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-11), (torch.float32, 2e-6)])
def test_few_small_subsets_have_the_distances_of_torchmetrics(dtype: torch.dtype, error: float) -> None:
    from torchmetrics.image.kid import poly_mmd

    first, second = (features(seed=seed, n=120, d=32, shift=3.0).to(dtype) for seed in (10, 11))
    rng = stream(0, "attack", "picks")
    picks = [(torch.randperm(120, generator=rng)[:30], torch.randperm(120, generator=rng)[:30]) for _ in range(6)]

    drawn = kernel_subsets(first, second, size=30, subsets=6, rng=stream(0, "attack", "picks"))

    expected = [float(poly_mmd(first[one].double(), second[other].double())) for one, other in picks]
    # kernel values are about 1,000 here, of which float32 keeps 7 digits in each of 900
    assert drawn.tolist() == pytest.approx(expected, abs=1000 * error)


@pytest.mark.parametrize("n", [5, 40])
@pytest.mark.medium
def test_the_distance_is_unbiased_at_any_number_of_images(n: int) -> None:
    rng = stream(6, "attack", "unbiased", n)
    same = torch.tensor(
        [kernel_distance(torch.randn(n, 4, generator=rng), torch.randn(n, 4, generator=rng)) for _ in range(600)]
    )
    # E k(x, y) for x, y ~ N(a, I), N(b, I) in d = 4: cubes of 1 + x.y / 4, by moments of the inner product
    apart = torch.tensor(
        [kernel_distance(torch.randn(n, 4, generator=rng), torch.randn(n, 4, generator=rng) + 1) for _ in range(600)]
    )

    def moment(a: Tensor, b: Tensor) -> float:
        s, q = float(a @ b), float(a @ a + b @ b)
        second = 4 + q + s * s
        third = s**3 + 3 * s * (4 + q) + 6 * s
        return 1 + 3 * s / 4 + 3 * second / 16 + third / 64

    zero, one = torch.zeros(4), torch.ones(4)
    truth = moment(zero, zero) + moment(one, one) - 2 * moment(zero, one)

    assert abs(float(same.mean())) < 4 * float(same.std()) / math.sqrt(600)
    assert abs(float(apart.mean()) - truth) < 4 * float(apart.std()) / math.sqrt(600)


@pytest.mark.parametrize("shift", [0.0, 0.3])
@pytest.mark.medium
def test_intervals_cover_the_population_with_fifty_images(shift: float) -> None:
    rng = stream(7, "attack", "coverage")
    rounds, n, d = 300, 50, 8
    truth = kernel_distance(torch.randn(4000, d, generator=rng), torch.randn(4000, d, generator=rng) + shift)

    bands = [
        kernel_estimate(torch.randn(n, d, generator=rng), torch.randn(n, d, generator=rng) + shift, rng=rng)[1]
        for _ in range(rounds)
    ]

    covered = sum(band is not None and band.low <= truth <= band.high for band in bands)
    assert covered / rounds >= 0.93


def test_the_estimate_is_the_distance_of_everything_and_lies_in_its_interval() -> None:
    first, second = features(seed=8, n=30), features(seed=9, n=21, shift=0.5)

    value, band = kernel_estimate(first, second, rng=stream(0, "attack"))

    assert value == pytest.approx(kernel_distance(first, second), abs=1e-12)
    assert band is not None
    assert band.low < value < band.high


def test_sets_too_small_to_be_halved_and_sets_that_never_vary_have_no_interval() -> None:
    few = kernel_estimate(features(seed=0, n=3), features(seed=1, n=50), rng=stream(0, "attack"))
    equal = kernel_estimate(torch.ones(8, 3), torch.zeros(8, 3), rng=stream(0, "attack"))

    assert few[1] is None
    assert equal == (pytest.approx(8 + 1 - 2), None)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (torch.full((4, 6), math.nan), "second must be finite"),
        (torch.zeros(4, 5), "equal dimensions"),
        (torch.zeros(1, 6), "at least 2"),
    ],
)
def test_features_that_have_no_distance_are_refused(second: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernel_distance(features(seed=0, n=4), second)


def test_subsets_larger_than_a_set_are_refused() -> None:
    with pytest.raises(ValueError, match=r"size must lie in 2\.\.4"):
        kernel_subsets(features(seed=0, n=4), features(seed=1, n=9), size=5, subsets=2, rng=stream(0, "attack"))
