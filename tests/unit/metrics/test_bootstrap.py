import math

import numpy as np
import pytest
import torch
from scipy import stats

from fdgsec.metrics.bootstrap import bca_bounds
from fdgsec.metrics.intervals import cluster_bootstrap
from fdgsec.runtime.random_streams import stream


def test_bca_bounds_agree_with_a_transcription_of_efron_and_hesterberg() -> None:
    rng = stream(0, "attack", "bca")
    values = -torch.rand(40, generator=rng, dtype=torch.float64).log().mul(2)
    resampled = values[torch.randint(40, (4000, 40), generator=rng)].mean(1)
    x, drawn = values.numpy(), np.sort(resampled.numpy())
    bias = stats.norm.ppf(np.mean(drawn < x.mean()))
    acceleration = np.sum((x - x.mean()) ** 3) / (6 * np.sum((x - x.mean()) ** 2) ** 1.5)
    wide = stats.t.ppf(0.975, 39) * math.sqrt(40 / 39)
    low, high = (
        float(np.quantile(drawn, stats.norm.cdf(bias + (bias + z) / (1 - acceleration * (bias + z)))))
        for z in (-wide, wide)
    )
    student = x.mean() - wide * drawn.std(ddof=1), x.mean() + wide * drawn.std(ddof=1)

    bounds = bca_bounds(float(values.mean()), resampled.sort().values, (values.sum() - values) / 39, tail=0.025)

    assert bounds == pytest.approx((min(low, student[0]), max(high, student[1])), abs=1e-9)
    assert high > student[1] + 0.01  # right skew: BCa gives the upper bound, Student the lower
    assert low > student[0] + 0.01


def test_three_clusters_give_an_interval_beyond_the_values_seen() -> None:
    interval = cluster_bootstrap([0.0, 1.0, 2.0], [0, 1, 2], rng=stream(0, "attack"))

    assert interval.low < -1.0
    assert interval.high > 3.0
    student = 4.303 / math.sqrt(3)  # two degrees of freedom
    assert interval.low == pytest.approx(1 - student * math.sqrt(3 / 2), abs=0.1)  # widened by the jackknife
