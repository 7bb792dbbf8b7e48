"""LiRA against a slow transcription of the paper, examples worked by hand, and Gaussian limits.

Carlini et al. 2022, arXiv:2112.03570: section IV and Algorithm 1."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from fdgsec.attacks.statistics.lira_rmia import (
    References,
    Variance,
    lira_offline,
    lira_online,
    log_confidence,
    scaled_logit,
)
from fdgsec.metrics.roc import auc
from tests.support.reference_models import (
    CANDIDATES,
    MODELS,
    TWO_IN_TWO_OUT,
    gaussian_world,
    numbers,
    references,
)


def sides(models: References, candidate: int, query: int) -> tuple[list[float], list[float]]:
    """The values that the IN and the OUT models have for one query of one candidate."""
    inside, outside = [], []
    for k in range(models.models):
        value = float(models.values[k, candidate, query])
        (inside if bool(models.members[k, candidate]) else outside).append(value)
    return inside, outside


def slow_spreads(models: References, query: int, variance: Variance) -> list[tuple[float, float]]:
    """The IN and OUT standard deviations of every candidate: numpy's, or one pooled over all candidates."""
    parts = [sides(models, n, query) for n in range(models.values.shape[1])]
    if variance == "per-example":
        return [(float(np.std(inside)), float(np.std(outside))) for inside, outside in parts]
    pooled = []
    for side in (0, 1):
        squares = sum(sum((value - np.mean(part[side])) ** 2 for value in part[side]) for part in parts)
        freedom = sum(len(part[side]) - 1 for part in parts)
        pooled.append(math.sqrt(squares / freedom))
    return [(pooled[0], pooled[1])] * len(parts)


def slow_lira(target: Tensor, models: References, variance: Variance) -> list[tuple[float, float]]:
    """Per candidate: the log ratio of densities (Algorithm 1), and log(1 - Pr[Z > phi]) of the OUT side, summed."""
    made = []
    for n in range(len(target)):
        online = offline = 0.0
        for query in range(target.shape[1]):
            inside, outside = sides(models, n, query)
            spread_in, spread_out = slow_spreads(models, query, variance)[n]
            phi = float(target[n, query])
            online += float(norm.logpdf(phi, np.mean(inside), spread_in))
            online -= float(norm.logpdf(phi, np.mean(outside), spread_out))
            offline += float(norm.logcdf(phi, np.mean(outside), spread_out))
        made.append((online, offline))
    return made


@pytest.mark.parametrize("variance", ["per-example", "global"])
def test_online_lira_is_the_sum_of_log_density_ratios_of_gaussians_fitted_to_in_and_out_models(variance: Variance):
    models, target = references(numbers(MODELS, CANDIDATES, 3, seed=1) * 2), numbers(CANDIDATES, 3, seed=2)

    scores = lira_online(target, models, variance=variance)

    expected = torch.tensor([pair[0] for pair in slow_lira(target, models, variance)], dtype=torch.float64)
    assert torch.allclose(scores, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("variance", ["per-example", "global"])
def test_offline_lira_is_the_quantile_of_one_minus_the_papers_tail_probability(variance: Variance):
    models, target = references(numbers(MODELS, CANDIDATES, 1, seed=3)), numbers(CANDIDATES, 1, seed=4)

    scores = lira_offline(target, models, variance=variance)

    tails = [pair[1] for pair in slow_lira(target, models, variance)]
    assert norm.logcdf(scores.numpy()) == pytest.approx(tails, rel=1e-9)


def test_offline_lira_of_several_queries_adds_standard_scores():
    models, target = references(numbers(MODELS, CANDIDATES, 4, seed=5)), numbers(CANDIDATES, 4, seed=6)

    scores = lira_offline(target, models, variance="global")

    single = [
        lira_offline(
            target[:, query],
            References(models=MODELS, values=models.values[..., query], members=models.members),
            variance="global",
        )
        for query in range(4)
    ]
    assert torch.allclose(scores, torch.stack(single).sum(0) / 2, rtol=1e-12)


def test_hand_worked_scaled_logit():
    # logits (2, 1, 0), label 0: p = e^2 / (e^2 + e + 1) = 7.38906 / 11.10734 = .665241;
    # p / (1 - p) = e^2 / (e + 1) = 1.987223; its logarithm is .686738.
    phi = scaled_logit(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]))

    assert float(phi) == pytest.approx(0.686738, abs=1e-6)
    assert float(log_confidence(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]))) == pytest.approx(
        -0.407606, abs=1e-6
    )


def test_hand_worked_lira():
    # IN phi 2 and 4: mean 3, standard deviation 1. OUT phi -1 and 1: mean 0, standard deviation 1. The target has phi 2.
    # log N(2; 3, 1) - log N(2; 0, 1) = -(2 - 3)^2 / 2 + (2 - 0)^2 / 2 = -.5 + 2 = 1.5.
    # Offline: z = (2 - 0) / 1 = 2, Lambda = Phi(2) = .977250.
    # Pooled over degrees of freedom: squares 1 + 1 over 2 - 1 give variance 2: (-.5 + 2) / 2 = .75, z = sqrt 2.
    models = References(models=4, values=torch.tensor([[2.0], [4.0], [-1.0], [1.0]]), members=TWO_IN_TWO_OUT)
    target = torch.tensor([2.0])

    assert float(lira_online(target, models, variance="per-example")) == pytest.approx(1.5, abs=1e-12)
    assert float(lira_offline(target, models, variance="per-example")) == pytest.approx(2.0, abs=1e-12)
    assert norm.cdf(float(lira_offline(target, models, variance="per-example"))) == pytest.approx(0.977250, abs=1e-6)
    assert float(lira_online(target, models, variance="global")) == pytest.approx(0.75, abs=1e-12)
    assert float(lira_offline(target, models, variance="global")) == pytest.approx(math.sqrt(2), abs=1e-12)


def test_hand_worked_lira_with_unequal_spreads():
    # IN phi 1 and 5: mean 3, sd 2. OUT phi -1 and 1: mean 0, sd 1. The target has phi 1.
    # log N(1; 3, 4) - log N(1; 0, 1) = -(1 - 3)^2 / 8 - log 2 + 1/2 = -.5 - .693147 + .5 = -.693147.
    models = References(models=4, values=torch.tensor([[1.0], [5.0], [-1.0], [1.0]]), members=TWO_IN_TWO_OUT)

    score = lira_online(torch.tensor([1.0]), models, variance="per-example")

    assert float(score) == pytest.approx(-0.693147, abs=1e-6)


@pytest.mark.parametrize("queries", [1, 4])
def test_lira_on_gaussian_phi_reaches_the_auc_that_their_separation_allows(queries: int):
    # Two unit Gaussians d apart are told apart with AUC Phi(d / sqrt 2), d = 1.2 sqrt(queries). The OUT mean is estimated
    # from 32 models, so the offline score has variance 1 + 1/32; online the midpoint's error is 1/64 (bounded by that).
    d, n, side = 1.2, 4000, 32
    target, members, models = gaussian_world(separation=d, candidates=n, models=2 * side, queries=queries)

    online = lira_online(target, models, variance="global")
    offline = lira_offline(target, models, variance="global")

    law = float(norm.cdf(d * math.sqrt(queries) / math.sqrt(2)))
    noisy = float(norm.cdf(d * math.sqrt(queries) / math.sqrt(2 * (1 + 1 / side))))
    error = 3 * math.sqrt(law * (1 - law) / (n / 2))  # three standard errors of a share of 2000; an AUC's is smaller
    assert auc(offline[members], offline[~members]) == pytest.approx(noisy, abs=error)
    assert auc(online[members], online[~members]) == pytest.approx((law + noisy) / 2, abs=error)
    blind = target.mean(1)
    assert auc(blind[members], blind[~members]) < auc(offline[members], offline[~members]) - 0.1


def test_lira_finds_nothing_where_members_and_others_are_alike():
    target, members, models = gaussian_world(separation=0.0, candidates=4000, models=32, queries=1)

    for score in (lira_online, lira_offline):
        found = score(target, models, variance="per-example")
        assert auc(found[members], found[~members]) == pytest.approx(0.5, abs=4 * math.sqrt(1 / (6 * 2000)))


def test_offline_lira_of_non_members_is_nearly_standard_normal():
    target, members, models = gaussian_world(separation=2.0, candidates=4000, models=128, queries=3)

    scores = lira_offline(target, models, variance="global")[~members]

    assert float(scores.mean()) == pytest.approx(0.0, abs=4 / math.sqrt(2000))
    assert float(scores.std()) == pytest.approx(math.sqrt(1 + 1 / 64), abs=4 / math.sqrt(2 * 2000))
